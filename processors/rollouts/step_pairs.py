"""Pair actions where runs of one task diverge: the same context, then different actions.

reads   ROLLOUT rows of one task
writes  PAIR with one turn on each side

The value of an action is the share of passing runs among those that took it. Two actions make a
pair when their values differ by `min_gap`, or when the worse one could not be read, did not work or
was a loop. Some run that took the better one must pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from processors.rollouts.conversation import (
    Action,
    Run,
    action_key,
    dump_json,
    find_problem,
    read_run,
    render_target,
)
from processors.rollouts.pair_filters import find_leak
from processors.rollouts.pairs import (
    Case,
    Made,
    Rules,
    describe_pair,
    make_reject,
    retest_patches,
    score_run,
)

Json = dict[str, Any]


@dataclass(frozen=True)
class Taken:
    """One action at one place, and the runs that took it, best first."""

    action: Action
    rows: list[Json]
    works: bool

    @property
    def value(self) -> float:
        """The share of these runs that pass."""
        return fmean(bool(row["tests_ok"]) for row in self.rows)

    @property
    def score(self) -> list[float]:
        """The value, then the means of the runs' scores."""
        columns = zip(*(score_run(row) for row in self.rows), strict=True)
        return [fmean(column) for column in columns]


def pair_steps(case: Case, rules: Rules) -> Made:
    """Return a pair for every place where runs diverge, or why there is none."""
    made = Made()
    sound = [row for row in case.rows if not row["error"]]
    if not rules.allow_efficiency_pairs or any(row["tests_ok"] is not None for row in sound):
        judged = [row for row in sound if row["tests_ok"] is not None]
    else:
        judged = sound
    if len(judged) < 2:
        reason = "infra_error" if len(sound) < len(case.rows) else "ineligible"
        detail = f"{len(judged)} of {len(case.rows)} runs ended with a verdict"
        made.rejects.append(make_reject(case, "step", reason, detail))
        return made
    runs = [(row, read_run(row)) for row in judged]
    places = 0
    pending = _same(runs, 0)
    while pending:
        depth, group = pending.pop(0)
        taken = _taken(group, depth)
        if len(taken) > 1:
            places += 1
            _pair(case, rules, taken, group[0][1], made)
        for one in taken:
            ids = {row["run_id"] for row in one.rows}
            pending += _same([pair for pair in group if pair[0]["run_id"] in ids], depth + 1)
    if not places:
        detail = "the runs never part after having read the same"
        made.rejects.append(make_reject(case, "step", "no_contrast", detail))
    return made


def _same(runs: Sequence[tuple[Json, Run]], depth: int) -> list[tuple[int, list[tuple[Json, Run]]]]:
    """Group runs by their context before action number `depth`, in groups of two or more."""
    groups: dict[str, list[tuple[Json, Run]]] = {}
    for row, run in runs:
        if depth < len(run.actions):
            read = dump_json(run.turns[: run.actions[depth].n_context])
            groups.setdefault(read, []).append((row, run))
    return [(depth, group) for group in groups.values() if len(group) > 1]


def _taken(group: Sequence[tuple[Json, Run]], depth: int) -> list[Taken]:
    """The different actions of runs at one place, the best first."""
    by_key: dict[str, list[tuple[Json, Action]]] = {}
    for row, run in group:
        by_key.setdefault(action_key(run.actions[depth]), []).append((row, run.actions[depth]))
    found = []
    for took in by_key.values():
        took.sort(key=lambda one: (score_run(one[0]), -one[0]["seed"]), reverse=True)
        row, action = took[0]
        step = action.step
        works = step["kind"] in {"tool_call", "final"} and step["ok"] is not False
        works = works and find_problem(step, row["tools"]) is None
        found.append(Taken(action, [one for one, _ in took], works))
    return sorted(found, key=lambda one: (one.works, one.score), reverse=True)


def _pair(case: Case, rules: Rules, taken: Sequence[Taken], run: Run, made: Made) -> None:
    best = max((one for one in taken if one.works), key=lambda one: one.score, default=None)
    if best is None:
        made.rejects.append(make_reject(case, "step", "ineligible", "no action here worked"))
        return
    others = [one for one in taken if one is not best]
    worst = min(others, key=lambda one: (one.works, one.score))
    if worst.works or worst.value > best.value:
        worst = min(others, key=lambda one: one.score)
    ends = best.rows[0], worst.rows[-1]
    why = _no_contrast(best, worst, rules) or _unfit(case, best, worst, rules, made)
    chosen, rejected = (render_target(one.action, run.protocol) for one in (best, worst))
    if why is None and chosen == rejected:
        why = "identical_outcome", "both actions read the same"
    if why:
        made.rejects.append(make_reject(case, "step", *why, *ends))
        return
    made.rows.append(
        {
            **describe_pair(case, "step", *ends),
            "prompt": run.turns[: best.action.n_context],
            "chosen": [chosen],
            "rejected": [rejected],
            "tools": best.rows[0]["tools"] if run.protocol == "native" else [],
            "score_chosen": best.score,
            "score_rejected": worst.score,
        }
    )


def _no_contrast(best: Taken, worst: Taken, rules: Rules) -> tuple[str, str] | None:
    gap = best.value - worst.value
    if best.value == 0 and worst.value == 0:
        passes = any(row["tests_ok"] is None for row in best.rows) and best.score > worst.score
        if not (rules.allow_efficiency_pairs and passes):
            return "both_fail", "no run passes that came here"
    elif gap >= rules.min_gap or (gap >= 0 and not worst.works):
        return None
    elif not (rules.allow_efficiency_pairs and gap == 0 and best.score > worst.score):
        return "no_contrast", f"{gap:.2f} more of the runs pass, {rules.min_gap:g} are asked for"
    return None


def _unfit(
    case: Case, best: Taken, worst: Taken, rules: Rules, made: Made
) -> tuple[str, str] | None:
    for row in (best.rows[0], worst.rows[-1]):
        if why := find_leak(row, case.task):
            return why
    return retest_patches(case, best.rows[0], None, rules, made)

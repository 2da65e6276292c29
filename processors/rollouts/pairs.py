"""Build preference pairs from the rollouts of a task: whole runs, or the actions where runs diverge.

reads   ROLLOUT rows of one task
writes  PAIR, and DROPPED_PAIR with why a pair was not kept

The target decides what the sides of a pair are: the first actions in which runs diverge (`step`); one JSON
object with the patch, the last file or the final report (`patch`, `last_write`, `summary`); or the last K or
all actions with their results as turns (`truncated`, `full`).

Runs are compared by `score_run`. The value of an action is the share of passing runs among those that took
it. Two actions make a pair if their values differ by `min_gap`, or if the worse one could not be read, did
not work, failed the tests or was a loop. At least one run that took the better action must pass. The winner's
patch is tested again several times; if the sides are patches, the loser's is tested again once.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from statistics import fmean
from typing import Literal, get_args

from pimono_sdpo.options import option, options
from pimono_sdpo.schema import Turn
from pimono_sdpo.text import shorten
from processors.rollouts.conversation import (
    PROMPTS,
    Json,
    Row,
    Why,
    dump_json,
    find_problem,
    has_worked,
    make_turn,
    render_target,
)
from processors.rollouts.noise import Passing, compare_passing, find_action_noise, find_leak, find_noise

Target = Literal["step", "patch", "last_write", "truncated", "summary", "full"]
TARGETS: tuple[Target, ...] = get_args(Target)
SNIPPET = 400
MAX_FILES_CHARS = 60_000
_TESTS = re.compile(r"\s*\[TESTS (?:PASS|FAIL)\].*", re.DOTALL)
# Whether the tests of a task pass with a patch (None if they could not be run), and why.
Verdict = tuple[bool | None, str]
Retest = Callable[[Row, str], Verdict]


@options
class PairRules:
    """Options for pairing rollouts."""

    target: Target = option("What the sides of a pair of rollouts are.", default="step", decides="row")
    last_k: int = option("Actions that `truncated` keeps.", default=4, minimum=1, decides="row")
    min_gap: float = option("For `step`: minimum difference in pass rates.", default=0.5, share=True, decides="row")
    allow_efficiency_pairs: bool = option("Also pair two passing runs by their steps.", default=False, decides="row")
    flaky_reruns: int = option("Times to test the winner's patch again.", default=2, minimum=0, decides="row")
    with_outcome: bool = option("Include the output of the tests in the targets.", default=False, decides="row")


@dataclass
class Case:
    """A task with its rollouts; `task` is None without a suite."""

    task_id: str
    rows: list[Json]
    split: str
    task: Row | None = None
    # The text files an agent may see, empty if the repo is missing.
    files: Mapping[str, str] = field(default_factory=dict)
    retest: Retest | None = None
    retested: dict[str, Verdict] = field(default_factory=dict)


@dataclass
class Pairs:
    """The pairs of a task, rejected pairs with their `drop_reason`, and counts for the report."""

    rows: list[Json] = field(default_factory=list)
    rejects: list[Json] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


def score_run(row: Row) -> list[float]:
    """Return the values by which runs are compared, in order; higher is better."""
    return [
        float(bool(row["tests_ok"])),
        -float(row["n_steps"]),
        -float(row["n_tool_calls"]),
        -float(len(row["files_touched"])),
    ]


def pair_runs(case: Case, rules: PairRules) -> Pairs:
    """Return at most one pair, of the best and the worst run, and the pairs that were rejected."""
    pairs, sound = Pairs(), [row for row in case.rows if not row["error"]]
    missing = [_find_missing_target(row, rules.target) for row in sound]
    comparable = _choose_comparable([row for row, why in zip(sound, missing, strict=True) if not why], rules)
    why = None
    if len(sound) < 2 and len(sound) < len(case.rows):
        why = "infra_error", next(row["error"] for row in case.rows if row["error"])[:300]
    elif sound and not _choose_comparable(sound, rules):
        why = "no_verdict", f"none of {len(sound)} runs was tested"
    elif len(comparable) < 2:
        reasons = [reason or "it was not tested" for reason in missing]
        why = "ineligible", f"{len(comparable)} of {len(case.rows)} runs can be compared: {reasons}"[:300]
    elif comparable[0]["tests_ok"] is not None and not any(row["tests_ok"] for row in comparable):
        why = "both_fail", f"none of {len(comparable)} runs passes"
    if why:
        pairs.rejects.append(_describe(case, rules.target, why=why))
        return pairs
    ranked, passing = _rank(comparable), compare_passing(comparable)
    worst = ranked.pop()
    for best in [row for row in ranked if row["tests_ok"]] or ranked:
        pair = _pair_two(case, rules, best, worst, passing, pairs)
        if isinstance(pair, dict):
            pairs.rows.append(pair)
            break
        pairs.rejects.append(_describe(case, rules.target, best, worst, pair))
        if pair[0] in {"no_contrast", "identical_outcome"}:
            break
    return pairs


def _rank(rows: list[Json]) -> list[Json]:
    """Return the runs, best first; of equal runs, the one with the lower seed."""
    return sorted(rows, key=lambda row: (score_run(row), -row["seed"]), reverse=True)


def _find_missing_target(row: Row, target: Target) -> str | None:
    """Return why a run cannot be a side of a pair, None if it can."""
    if target == "patch":
        return None if row["patch"] else "it changed nothing"
    if target == "last_write":
        return None if _find_last_write(row) else "it wrote no file"
    if target == "summary":
        return None if _find_report(row) else "it never came to its final report"
    return None if row["steps"] else "it did nothing"


def _choose_comparable(rows: list[Json], rules: PairRules) -> list[Json]:
    """Return the runs with a verdict; if there are none and length alone may decide, return all."""
    tested = [row for row in rows if row["tests_ok"] is not None]
    return tested if tested or not rules.allow_efficiency_pairs else rows


def _pair_two(case: Case, rules: PairRules, best: Json, worst: Json, passing: Passing, pairs: Pairs) -> Json | Why:
    """Return the pair of two runs, or why there is none; tests come last because they cost the most."""
    if score_run(best) == score_run(worst):
        return "no_contrast", "the scores are equal"
    if bool(best["tests_ok"]) == bool(worst["tests_ok"]) and not rules.allow_efficiency_pairs:
        return "no_contrast", "both pass, one in fewer steps"
    paths = sorted({*best["files_touched"], *worst["files_touched"]})
    prompt, other = (_render_prompt(row, rules.target, case.files, paths) for row in (best, worst))
    if prompt is None:
        return "ineligible", "the files of the task are not here, or too long to be shown"
    if prompt != other:
        return "ineligible", "the two runs were asked differently"
    both = all(_find_report(row).get("summary") for row in (best, worst))
    chosen, rejected = (_render_side(row, rules, both) for row in (best, worst))
    if chosen == rejected:
        return "identical_outcome", "both sides read the same"
    if best["patch"] == worst["patch"] and rules.target in {"patch", "last_write"}:
        return "identical_patch", ""
    if why := find_noise(best, passing, case.task) or find_leak(worst, case.task):
        return why
    if rules.target == "truncated":
        passed = next((s["index"] for s in best["steps"] if s["tests_ok"]), None)
        if passed is not None and passed < len(best["steps"]) - rules.last_k:
            return "key_decision_truncated", f"not in the last {rules.last_k} actions"
    if why := _retest(case, best, worst if rules.target == "patch" else None, rules, pairs):
        return why
    has_calls = chosen[0].get("tool_calls") or len(chosen) > 1
    return {
        **_describe(case, rules.target, best, worst),
        "prompt": prompt,
        "chosen": chosen,
        "rejected": rejected,
        "tools": best["tools"] if has_calls and best["protocol"] == "native" else [],
    }


def _retest(case: Case, best: Json, worst: Json | None, rules: PairRules, pairs: Pairs) -> Why | None:
    """Test both patches again, up to the first verdict that differs from the run's; return why the pair is dropped."""
    for row, times in ((best, rules.flaky_reruns), (worst, min(rules.flaky_reruns, 1))):
        if row is None or row["tests_ok"] is None or not row["patch"] or not times:
            continue
        if row["run_id"] not in case.retested:
            verdict: Verdict = None, "there are no tests to run again"
            if case.retest is not None and case.task is not None:
                for _ in range(times):
                    verdict = case.retest(case.task, row["patch"])
                    if verdict[0] != row["tests_ok"]:
                        break
            case.retested[row["run_id"]] = verdict
        passes, why = case.retested[row["run_id"]]
        if passes is not None and passes != row["tests_ok"]:
            detail = f"{row['run_id']} was {row['tests_ok']}, tested again {passes}: {why}"
            return "flaky", detail[:300]
        pairs.counts["not_retested" if passes is None else "retested"] += 1
    return None


def _describe(
    case: Case, target: str, best: Json | None = None, worst: Json | None = None, why: Why | None = None
) -> Json:
    """Return the columns of a pair about its origin, and why it was dropped."""
    origin = best or worst or (case.rows[0] if case.rows else {})
    row: Json = {"target": target, "task_id": case.task_id, "split": case.split}
    row |= {"suite": origin.get("suite"), "model": origin.get("model")}
    for side, run in (("chosen", best), ("rejected", worst)):
        row[f"score_{side}"] = score_run(run) if run else None
        row[f"run_{side}"] = run["run_id"] if run else None
        row[f"seed_{side}"] = run["seed"] if run else None
    return row | ({"drop_reason": why[0], "detail": why[1]} if why else {})


def _find_last_write(row: Row) -> Json:
    for step in reversed(row["steps"]):
        if step["name"] == "write_file" and step["ok"] and isinstance(step["args"], dict):
            return {"path": step["args"].get("rel_path"), "content": step["args"].get("content")}
    return {}


def _find_report(row: Row) -> Json:
    last = row["steps"][-1] if row["steps"] else {"kind": None}
    return last["args"] or {} if last["kind"] == "final" else {}


def _render_prompt(row: Row, target: Target, files: Mapping[str, str], paths: Sequence[str]) -> list[Turn] | None:
    """Return the prompt of both sides, with the files at `paths`; None if these are missing or too long."""
    before = list(takewhile(lambda turn: turn["role"] != "assistant", row["messages"]))
    if target not in PROMPTS["forms"]:
        return before
    shown = [next((turn["content"] or "" for turn in before if turn["role"] == "user"), "")]
    for path in paths:
        if (text := files.get(path)) is None:
            shown.append(f"There is no file `{path}` yet.")
            continue
        fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
        shown.append(f"The file `{path}`:\n\n{fence}\n{text.rstrip(chr(10))}\n{fence}")
    if (paths and not files) or sum(map(len, shown[1:])) > MAX_FILES_CHARS:
        return None
    system = make_turn("system", PROMPTS["answer"].format(form=PROMPTS["forms"][target]))
    return [system, make_turn("user", "\n\n".join(shown))]


def _render_side(row: Row, rules: PairRules, with_summary: bool) -> list[Turn]:
    """Return one side of a pair; `with_summary` says that both runs have a summary of their patch."""
    if rules.target in {"truncated", "full"}:
        return _render_turns(row, rules)
    report = _find_report(row)
    outcome: Json = {"test_result": {"ok": row["tests_ok"], "output": shorten(row["test_output"] or "", SNIPPET)}}
    if rules.target == "patch":
        content: Json = {"type": "patch"}
        content |= {"summary": report.get("summary", "")} if with_summary else {}
        content |= {"patch_format": "unified_diff", "patch": row["patch"]}
        snippets = _render_snippets(row["steps"][-rules.last_k :], row["messages"])
        outcome = {"trajectory_truncated": snippets, "outcome": {"tests_ok": row["tests_ok"]}}
    elif rules.target == "last_write":
        content = {"type": "last_write", **_find_last_write(row)}
    else:
        content = {"type": "final", **{k: v for k, v in report.items() if k != "test_result"}}
    return [make_turn("assistant", dump_json(content | (outcome if rules.with_outcome else {})))]


def _render_turns(row: Row, rules: PairRules) -> list[Turn]:
    """Return actions and the results between them; the last turn is an action."""
    steps = row["steps"][-rules.last_k :] if rules.target == "truncated" else row["steps"]
    turns = row["messages"][steps[0]["n_context"] : steps[-1]["n_context"] + 1]
    targets = {step["n_context"] - steps[0]["n_context"]: render_target(row, step) for step in steps}
    if not rules.with_outcome:
        turns = [{**turn, "content": _TESTS.sub("", turn["content"] or "")} for turn in turns]
    return [targets.get(at, turn) for at, turn in enumerate(turns)]


def _render_snippets(steps: Sequence[Json], turns: Sequence[Turn]) -> list[Json]:
    """Return calls and shortened results, in the format of the first version."""
    snippets: list[Json] = []
    for step in steps:
        if step["name"]:
            snippets.append({"role": "assistant", "tool_call": {"name": step["name"], "args": step["args"]}})
            for turn in turns[step["n_context"] + 1 : step["n_context"] + 2]:
                snippets.append({"role": "tool", "tool_result_snippet": shorten(turn["content"] or "", SNIPPET)})
    return snippets


@dataclass(frozen=True)
class Candidate:
    """An action after one context, and the runs that took it, best first."""

    step: Json
    rows: list[Json]
    works: bool
    # The share of these runs that pass, and the means of their other scores.
    score: list[float]

    @property
    def rank(self) -> list[float]:
        """The score to compare actions by; with Laplace's rule, one pass of one run is less than seven of nine."""
        passed, runs = self.score[0] * len(self.rows), len(self.rows)
        return [(passed + 1) / (runs + 2), *self.score[1:]]


def pair_steps(case: Case, rules: PairRules) -> Pairs:
    """Return a pair for every context after which runs diverge, and the pairs that were rejected."""
    pairs, sound = Pairs(), [row for row in case.rows if not row["error"]]
    comparable = _choose_comparable(sound, rules)
    passing = compare_passing(comparable)
    groups = _group(comparable, 0)
    # The list grows while it is iterated.
    for depth, group in groups:
        candidates = _find_candidates(group, depth)
        if len(candidates) > 1:
            _pair_actions(case, rules, depth, candidates, passing, pairs)
        for candidate in candidates:
            groups += _group(candidate.rows, depth + 1)
    if not pairs.rows and not pairs.rejects:
        why = "no_contrast", "the runs never part after having read the same"
        if len(comparable) < 2:
            reason = "infra_error" if len(sound) < len(case.rows) else "ineligible"
            reason = "no_verdict" if sound and not comparable else reason
            why = reason, f"{len(comparable)} of {len(case.rows)} runs ended with a verdict"
        pairs.rejects.append(_describe(case, "step", why=why))
    return pairs


def _group(rows: Sequence[Json], depth: int) -> list[tuple[int, list[Json]]]:
    """Group runs by their context before action number `depth`; return the groups of two or more."""
    groups: dict[str, list[Json]] = {}
    for row in rows:
        if depth < len(row["steps"]):
            context = dump_json(row["messages"][: row["steps"][depth]["n_context"]])
            groups.setdefault(context, []).append(row)
    return [(depth, group) for group in groups.values() if len(group) > 1]


def _find_candidates(group: Sequence[Json], depth: int) -> list[Candidate]:
    """Return the different actions of runs with the same context, best first."""
    by_action: dict[str, list[Json]] = {}
    for row in group:
        step = row["steps"][depth]
        key = [step["kind"] == "final", step["name"], step["args"]]
        if step["kind"] == "parse_error":
            key = [row["messages"][step["n_context"]]["content"]]
        by_action.setdefault(dump_json(key), []).append(row)
    candidates = []
    for rows in map(_rank, by_action.values()):
        step = rows[0]["steps"][depth]
        works = has_worked(step) and step["tests_ok"] is not False and find_problem(step, rows[0]["tools"]) is None
        score = [fmean(column) for column in zip(*map(score_run, rows), strict=True)]
        candidates.append(Candidate(step, rows, works, score))
    return sorted(candidates, key=lambda candidate: (candidate.works, candidate.rank), reverse=True)


def _pair_actions(
    case: Case, rules: PairRules, depth: int, candidates: Sequence[Candidate], passing: Passing, pairs: Pairs
) -> None:
    noise = [(one, _find_candidate_noise(one, depth, passing, case.task)) for one in candidates if one.works]
    best = next((one for one, why in noise if not why), None)
    noisy = [(one, why) for one, why in noise if why]
    if best is None or (best.score[0] == 0 and any(one.score[0] for one, _ in noisy)):
        reason = noisy[0][1] if noisy else ("ineligible", "no action here worked")
        pairs.rejects.append(_describe(case, "step", why=reason))
        return
    others = [one for one in candidates if one is not best]
    worst = min(others, key=lambda one: (one.works, one.rank))
    if worst.works or worst.score[0] > best.score[0]:
        worst = min(others, key=lambda one: one.rank)
    winner, loser = best.rows[0], worst.rows[-1]
    chosen, rejected = render_target(winner, best.step), render_target(worst.rows[0], worst.step)
    why = (
        _find_lack_of_contrast(best, worst, rules)
        or find_leak(winner, case.task)
        or find_leak(loser, case.task)
        or _retest(case, winner, None, rules, pairs)
    )
    if why is None and chosen == rejected:
        why = "identical_outcome", "both actions read the same"
    if why:
        pairs.rejects.append(_describe(case, "step", winner, loser, why))
        return
    pairs.rows.append(
        {
            **_describe(case, "step", winner, loser),
            "prompt": winner["messages"][: best.step["n_context"]],
            "chosen": [chosen],
            "rejected": [rejected],
            "tools": winner["tools"] if winner["protocol"] == "native" else [],
            "score_chosen": best.score,
            "score_rejected": worst.score,
        }
    )


def _find_candidate_noise(candidate: Candidate, depth: int, passing: Passing, task: Row | None) -> Why | None:
    """Return why none of the best runs that took an action may be chosen, None if one may."""
    best = candidate.rows[0]["tests_ok"]
    if not best and passing.runs:
        # No run that took the action passes; `_find_lack_of_contrast` decides about these.
        return None
    noise = [
        find_noise(row, passing, task) or find_action_noise(row, passing, task)[depth]
        for row in candidate.rows
        if row["tests_ok"] == best
    ]
    return None if None in noise else noise[0]


def _find_lack_of_contrast(best: Candidate, worst: Candidate, rules: PairRules) -> Why | None:
    gap = best.score[0] - worst.score[0]
    is_shorter = rules.allow_efficiency_pairs and best.score > worst.score
    if best.score[0] == 0 and worst.score[0] == 0:
        if not (is_shorter and any(row["tests_ok"] is None for row in best.rows)):
            return "both_fail", "no run passes that came here"
    elif gap < rules.min_gap and (gap < 0 or worst.works) and not (is_shorter and gap == 0):
        return "no_contrast", f"{gap:.2f} more of the runs pass, {rules.min_gap:g} are asked for"
    return None

"""Pair the better run of a task with the worse one, or their actions where runs diverge.

reads   ROLLOUT rows of one task
writes  PAIR, and DROPPED_PAIR with why a pair was not kept

The sides of a target are the first actions in which runs diverge (`step`), one JSON object with the
patch, the last file or the final report (`patch`, `last_write`, `summary`), or the last K or all
actions with their results as turns (`truncated`, `full`).

Runs are compared by `score_run`. The value of an action is the share of passing runs among those that took
it; two make a pair when their values differ by `min_gap`, or when the worse one could not be read, did not
work, failed the tests or was a loop. Some run that took the better one must pass. The winner's patch is
tested again several times; where patches are the sides of the pair, so is the loser's, once.
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
# Whether the tests of a task pass with a patch, None when they could not be run; and why.
Retest = Callable[[Row, str], tuple[bool | None, str]]


@options
class Rules:
    """How pairs are made of rollouts."""

    target: Target = option("What a side of a pair of rollouts holds.", default="step", decides="row")
    last_k: int = option("Actions that `truncated` keeps.", default=4, minimum=1, decides="row")
    min_gap: float = option(
        "Of `step`: by how much the better action must pass more often.", default=0.5, share=True, decides="row"
    )
    allow_efficiency_pairs: bool = option(
        "Also pair two runs that pass, by their steps.", default=False, decides="row"
    )
    flaky_reruns: int = option("Times to test the winner's patch again.", default=2, minimum=0, decides="row")
    with_outcome: bool = option("Put the output of the tests into the targets.", default=False, decides="row")


@dataclass
class Case:
    """A task with its rollouts; `task` is None without a suite."""

    task_id: str
    rows: list[Json]
    split: str
    task: Row | None = None
    # The texts an agent may see, none when the repo is missing.
    files: Mapping[str, str] = field(default_factory=dict)
    retest: Retest | None = None
    retested: dict[str, tuple[bool | None, str]] = field(default_factory=dict)


@dataclass
class Made:
    """The pairs of a task, what gives none with its `drop_reason`, and counts for the report."""

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


def pair_runs(case: Case, rules: Rules) -> Made:
    """Return at most one pair: the best run against the worst, and why others were not kept."""
    made, sound = Made(), [row for row in case.rows if not row["error"]]
    missing = [_lacks_target(row, rules.target) for row in sound]
    able = _choose_comparable([row for row, why in zip(sound, missing, strict=True) if not why], rules)
    why = None
    if len(sound) < 2 and len(sound) < len(case.rows):
        why = "infra_error", next(row["error"] for row in case.rows if row["error"])[:300]
    elif sound and not _choose_comparable(sound, rules):
        why = "no_verdict", f"none of {len(sound)} runs was tested"
    elif len(able) < 2:
        whys = [one or "it was not tested" for one in missing]
        why = "ineligible", f"{len(able)} of {len(case.rows)} runs can be compared: {whys}"[:300]
    elif able[0]["tests_ok"] is not None and not any(row["tests_ok"] for row in able):
        why = "both_fail", f"none of {len(able)} runs passes"
    if why:
        made.rejects.append(_describe(case, rules.target, None, None, why))
        return made
    ranked = _rank(able)
    worst = ranked.pop()
    for best in [row for row in ranked if row["tests_ok"]] or ranked:
        pair = _pair_two(case, best, worst, rules, able, made)
        if isinstance(pair, dict):
            made.rows.append(pair)
            break
        made.rejects.append(_describe(case, rules.target, best, worst, pair))
        if pair[0] in {"no_contrast", "identical_outcome"}:
            break
    return made


def _rank(rows: list[Json]) -> list[Json]:
    """Return the runs, the best first; of equal ones, that of the lower seed."""
    return sorted(rows, key=lambda row: (score_run(row), -row["seed"]), reverse=True)


def _lacks_target(row: Row, target: Target) -> str | None:
    """Return why a run cannot be a side of a pair, None if it can."""
    needs = {"patch": (row["patch"], "it changed nothing")}
    needs["last_write"] = _find_last_write(row), "it wrote no file"
    needs["summary"] = _find_report(row), "it never came to its final report"
    there, why = needs.get(target, (row["steps"], "it did nothing"))
    return None if there else why


def _choose_comparable(rows: list[Json], rules: Rules) -> list[Json]:
    """Return the runs with a verdict, or all if none has one and length alone may decide."""
    judged = [row for row in rows if row["tests_ok"] is not None]
    return judged if judged or not rules.allow_efficiency_pairs else rows


def _pair_two(case: Case, best: Json, worst: Json, rules: Rules, able: Sequence[Json], made: Made) -> Json | Why:
    """Return the pair of two runs, or why there is none; testing is last because it costs most."""
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
    if why := find_noise(best, compare_passing(able), case.task) or find_leak(worst, case.task):
        return why
    if rules.target == "truncated":
        passed = next((s["index"] for s in best["steps"] if s["tests_ok"]), None)
        if passed is not None and passed < len(best["steps"]) - rules.last_k:
            return "key_decision_truncated", f"not in the last {rules.last_k} actions"
    if why := _retest(case, best, worst if rules.target == "patch" else None, rules, made):
        return why
    has_calls = chosen[0].get("tool_calls") or len(chosen) > 1
    return {
        **_describe(case, rules.target, best, worst),
        "prompt": prompt,
        "chosen": chosen,
        "rejected": rejected,
        "tools": best["tools"] if has_calls and best["protocol"] == "native" else [],
    }


def _retest(case: Case, best: Json, worst: Json | None, rules: Rules, made: Made) -> Why | None:
    """Test the patches of both again; the first verdict that differs from the run's counts."""
    for row, times in ((best, rules.flaky_reruns), (worst, min(rules.flaky_reruns, 1))):
        if row is None or row["tests_ok"] is None or not row["patch"] or not times:
            continue
        if row["run_id"] not in case.retested:
            found: tuple[bool | None, str] = None, "there is nothing to test it with"
            for _ in range(times):
                if case.retest is not None and case.task is not None:
                    found = case.retest(case.task, row["patch"])
                if found[0] != row["tests_ok"]:
                    break
            case.retested[row["run_id"]] = found
        passes, why = case.retested[row["run_id"]]
        if passes is not None and passes != row["tests_ok"]:
            detail = f"{row['run_id']} was {row['tests_ok']}, tested again {passes}: {why}"
            return "flaky", detail[:300]
        made.counts["not_retested" if passes is None else "retested"] += 1
    return None


def _describe(case: Case, target: str, best: Json | None, worst: Json | None, why: Why | None = None) -> Json:
    """Return the columns of a pair that say where it is from, and why it was dropped."""
    one = best or worst or (case.rows[0] if case.rows else {})
    found: Json = {"target": target, "task_id": case.task_id, "split": case.split}
    found |= {"suite": one.get("suite"), "model": one.get("model")}
    for side, row in (("chosen", best), ("rejected", worst)):
        found[f"score_{side}"] = score_run(row) if row else None
        found[f"run_{side}"] = row["run_id"] if row else None
        found[f"seed_{side}"] = row["seed"] if row else None
    return found | ({"drop_reason": why[0], "detail": why[1]} if why else {})


def _find_last_write(row: Row) -> Json:
    for step in reversed(row["steps"]):
        if step["name"] == "write_file" and step["ok"] and isinstance(step["args"], dict):
            return {"path": step["args"].get("rel_path"), "content": step["args"].get("content")}
    return {}


def _find_report(row: Row) -> Json:
    last = row["steps"][-1] if row["steps"] else {"kind": None}
    return last["args"] or {} if last["kind"] == "final" else {}


def _render_prompt(row: Row, target: Target, files: Mapping[str, str], paths: Sequence[str]) -> list[Turn] | None:
    """Return the prompt of both sides, with the files at `paths`; None when these cannot be shown."""
    before = list(takewhile(lambda turn: turn["role"] != "assistant", row["messages"]))
    if target not in PROMPTS["forms"]:
        return before
    shown = [next((turn["content"] or "" for turn in before if turn["role"] == "user"), "")]
    for path in paths:
        marks = "`" * max(3, 1 + max(map(len, re.findall(r"`+", files.get(path, ""))), default=0))
        text = f"The file `{path}`:\n\n{marks}\n{files.get(path, '').rstrip(chr(10))}\n{marks}"
        shown.append(text if path in files else f"There is no file `{path}` yet.")
    if (paths and not files) or sum(map(len, shown[1:])) > MAX_FILES_CHARS:
        return None
    system = make_turn("system", PROMPTS["answer"].format(form=PROMPTS["forms"][target]))
    return [system, make_turn("user", "\n\n".join(shown))]


def _render_side(row: Row, rules: Rules, with_summary: bool) -> list[Turn]:
    """Return one side of a pair; `with_summary`: both runs have one for their patch."""
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


def _render_turns(row: Row, rules: Rules) -> list[Turn]:
    """Return actions and the results between them, ending with an action."""
    steps = row["steps"][-rules.last_k :] if rules.target == "truncated" else row["steps"]
    turns = row["messages"][steps[0]["n_context"] : steps[-1]["n_context"] + 1]
    targets = {step["n_context"] - steps[0]["n_context"]: render_target(row, step) for step in steps}
    if not rules.with_outcome:
        turns = [{**turn, "content": _TESTS.sub("", turn["content"] or "")} for turn in turns]
    return [targets.get(at, turn) for at, turn in enumerate(turns)]


def _render_snippets(steps: Sequence[Json], turns: Sequence[Turn]) -> list[Json]:
    """Return calls and shortened results, in the form of the first version."""
    listed: list[Json] = []
    for step in steps:
        if step["name"]:
            listed.append({"role": "assistant", "tool_call": {"name": step["name"], "args": step["args"]}})
            for turn in turns[step["n_context"] + 1 : step["n_context"] + 2]:
                listed.append({"role": "tool", "tool_result_snippet": shorten(turn["content"] or "", SNIPPET)})
    return listed


@dataclass(frozen=True)
class Taken:
    """One action at one place, and the runs that took it, best first."""

    step: Json
    rows: list[Json]
    works: bool
    # The share of these runs that pass, and the means of their other scores.
    score: list[float]


def pair_steps(case: Case, rules: Rules) -> Made:
    """Return a pair for every place where runs diverge, or why there is none."""
    made, sound = Made(), [row for row in case.rows if not row["error"]]
    judged = _choose_comparable(sound, rules)
    why = "no_contrast", "the runs never part after having read the same"
    if len(judged) < 2:
        reason = "infra_error" if len(sound) < len(case.rows) else "ineligible"
        reason = "no_verdict" if sound and not judged else reason
        why = reason, f"{len(judged)} of {len(case.rows)} runs ended with a verdict"
    passing = compare_passing(judged)
    groups = _group(judged, 0)
    # What follows is appended while it is read.
    for depth, group in groups:
        taken = _find_actions(group, depth)
        if len(taken) > 1:
            _pair_actions(case, rules, depth, taken, passing, made)
        for one in taken:
            groups += _group(one.rows, depth + 1)
    if not made.rows and not made.rejects:
        made.rejects.append(_describe(case, "step", None, None, why))
    return made


def _group(rows: Sequence[Json], depth: int) -> list[tuple[int, list[Json]]]:
    """Group runs by what they had read before action number `depth`, in groups of two or more."""
    groups: dict[str, list[Json]] = {}
    for row in rows:
        if depth < len(row["steps"]):
            read = dump_json(row["messages"][: row["steps"][depth]["n_context"]])
            groups.setdefault(read, []).append(row)
    return [(depth, group) for group in groups.values() if len(group) > 1]


def _find_actions(group: Sequence[Json], depth: int) -> list[Taken]:
    """Return the different actions of runs at one place, the best first."""
    by_action: dict[str, list[Json]] = {}
    for row in group:
        step = row["steps"][depth]
        key = [step["kind"] == "final", step["name"], step["args"]]
        if step["kind"] == "parse_error":
            key = [row["messages"][step["n_context"]]["content"]]
        by_action.setdefault(dump_json(key), []).append(row)
    found = []
    for rows in map(_rank, by_action.values()):
        step = rows[0]["steps"][depth]
        works = has_worked(step) and step["tests_ok"] is not False and find_problem(step, rows[0]["tools"]) is None
        score = [fmean(column) for column in zip(*map(score_run, rows), strict=True)]
        found.append(Taken(step, rows, works, score))
    return sorted(found, key=lambda one: (one.works, one.score), reverse=True)


def _pair_actions(case: Case, rules: Rules, depth: int, taken: Sequence[Taken], passing: Passing, made: Made) -> None:
    noise = [(one, _find_step_noise(one, depth, passing, case.task)) for one in taken if one.works]
    best = next((one for one, why in noise if not why), None)
    barred = [(one, why) for one, why in noise if why]
    if best is None or (best.score[0] == 0 and any(one.score[0] for one, _ in barred)):
        reason = barred[0][1] if barred else ("ineligible", "no action here worked")
        made.rejects.append(_describe(case, "step", None, None, reason))
        return
    others = [one for one in taken if one is not best]
    worst = min(others, key=lambda one: (one.works, one.score))
    if worst.works or worst.score[0] > best.score[0]:
        worst = min(others, key=lambda one: one.score)
    winner, loser = best.rows[0], worst.rows[-1]
    chosen, rejected = (render_target(winner, best.step), render_target(worst.rows[0], worst.step))
    why = _lack_of_contrast(best, worst, rules)
    why = why or find_leak(winner, case.task) or find_leak(loser, case.task)
    why = why or _retest(case, winner, None, rules, made)
    if why is None and chosen == rejected:
        why = "identical_outcome", "both actions read the same"
    if why:
        made.rejects.append(_describe(case, "step", winner, loser, why))
        return
    made.rows.append(
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


def _find_step_noise(taken: Taken, depth: int, passing: Passing, task: Row | None) -> Why | None:
    """Return why none of the best runs that took an action may be chosen, None if one may."""
    best = taken.rows[0]["tests_ok"]
    if not best and passing.runs:
        # They cannot be chosen for their own sake; contrast decides.
        return None
    found = [
        find_noise(row, passing, task) or find_action_noise(row, passing, task)[depth]
        for row in taken.rows
        if row["tests_ok"] == best
    ]
    return None if None in found else found[0]


def _lack_of_contrast(best: Taken, worst: Taken, rules: Rules) -> Why | None:
    gap = best.score[0] - worst.score[0]
    shorter = rules.allow_efficiency_pairs and best.score > worst.score
    if best.score[0] == 0 and worst.score[0] == 0:
        if not (shorter and any(row["tests_ok"] is None for row in best.rows)):
            return "both_fail", "no run passes that came here"
    elif gap < rules.min_gap and (gap < 0 or worst.works) and not (shorter and gap == 0):
        return "no_contrast", f"{gap:.2f} more of the runs pass, {rules.min_gap:g} are asked for"
    return None

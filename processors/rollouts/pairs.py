"""Pair the better run of a task with the worse one, or their actions where runs diverge.

| target | chosen and rejected |
|---|---|
| `step` | the first action in which runs diverge |
| `patch` | {"type": "patch", "summary", "patch_format", "patch"}; the prompt has the files |
| `last_write` | {"type": "last_write", "path", "content"}; the prompt has the files |
| `summary` | {"type": "final", "summary", "changes"}, as the model reported it |
| `truncated` | the last K actions with their results, as turns |
| `full` | all actions with their results, as turns |

The output of tests is a label: it is left out of targets and results unless `with_outcome` is set.

reads   ROLLOUT rows of one task
writes  PAIR, and DROPPED_PAIR with why a pair was not kept

Runs are compared by passing tests, then fewer steps, fewer tool calls, fewer files. Both must have
the target, and at least one must pass. The winner's patch is then applied to the task's files and
tested again several times; where patches are the sides of the pair, so is the loser's, once.

Of `step`, each side is one turn after the same context. The value of an action is the share of
passing runs among those that took it. Two actions make a pair when their values differ by
`min_gap`, or when the worse one could not be read, did not work or was a loop. Some run that took
the better one must pass.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from statistics import fmean
from typing import Any, Literal, get_args

from pimono_sdpo.options import option, options
from pimono_sdpo.schema import Turn
from pimono_sdpo.text import shorten
from processors.rollouts.conversation import (
    Action,
    Run,
    action_key,
    dump_json,
    find_problem,
    make_turn,
    read_run,
    render_target,
)

Target = Literal["step", "patch", "last_write", "truncated", "summary", "full"]
TARGETS: tuple[Target, ...] = get_args(Target)
SNIPPET = 400
MAX_FILES_CHARS = 60_000
_TESTS = re.compile(r"\s*\[TESTS (?:PASS|FAIL)\].*", re.DOTALL)
_FORMS = {
    "patch": '{"type": "patch", "summary": "what was wrong and what changes", '
    '"patch_format": "unified_diff", "patch": "diff --git ..."}',
    "last_write": '{"type": "last_write", "path": "src/main.py", "content": "all of the file"}',
}
SYSTEM = """\
You mend a code repository: change as little as needed. Answer with exactly one JSON object and \
nothing else, of this form:
{form}"""
Json = dict[str, Any]


@dataclass
class Made:
    """The pairs of a task, what gives none with its `drop_reason`, and counts for the report."""

    rows: list[Json] = field(default_factory=list)
    rejects: list[Json] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


def ineligible(row: Mapping[str, Any], name: Target) -> str | None:
    """Return why a run cannot be a side of a pair, None if it can."""
    if name == "patch" and not row["patch"]:
        return "it changed nothing"
    if name == "last_write" and last_write(row) is None:
        return "it wrote no file"
    if name == "summary" and _report(row) is None:
        return "it never came to its final report"
    if name in {"truncated", "full"} and not row["steps"]:
        return "it did nothing"
    return None


def last_write(row: Mapping[str, Any]) -> Json | None:
    """Return path and content of the last file that was written."""
    for step in reversed(row["steps"]):
        args = step["args"]
        if step["name"] == "write_file" and step["ok"] and isinstance(args, dict):
            return {"path": args.get("rel_path"), "content": args.get("content")}
    return None


def _report(row: Mapping[str, Any]) -> Json | None:
    last = row["steps"][-1] if row["steps"] else None
    said = last["args"] if last and last["kind"] == "final" else None
    return said if isinstance(said, dict) else None


def render_prompt(
    row: Mapping[str, Any], name: Target, files: Mapping[str, str], paths: Sequence[str]
) -> list[Turn] | None:
    """Return the prompt of both sides; None when the files they change cannot be shown.

    `files` are the texts an agent may see, `paths` those that either run has changed.
    """
    before = []
    for turn in read_run(row).turns:
        if turn["role"] == "assistant":
            break
        before.append(turn)
    if name not in _FORMS:
        return before
    goal = next((turn["content"] or "" for turn in before if turn["role"] == "user"), "")
    shown = []
    for path in paths:
        if path in files:
            shown.append(f"The file `{path}`:\n\n{_fenced(files[path])}")
        elif files:
            shown.append(f"There is no file `{path}` yet.")
        else:
            return None
    if sum(map(len, shown)) > MAX_FILES_CHARS:
        return None
    system = make_turn("system", SYSTEM.format(form=_FORMS[name]))
    return [system, make_turn("user", "\n\n".join([goal, *shown]))]


def _fenced(text: str) -> str:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    marks = "`" * max(3, longest + 1)
    return f"{marks}\n{text.rstrip(chr(10))}\n{marks}"


def render_side(
    row: Mapping[str, Any], name: Target, last_k: int, with_outcome: bool, with_summary: bool
) -> list[Turn]:
    """Return one side of a pair; `with_summary`: both runs have one for their patch."""
    if name in {"truncated", "full"}:
        return _turns(read_run(row), last_k if name == "truncated" else None, with_outcome)
    report = _report(row) or {}
    result = {"ok": row["tests_ok"], "output": shorten(row["test_output"] or "", SNIPPET)}
    if name == "patch":
        said = {"type": "patch", "summary": report.get("summary", "") if with_summary else ""}
        said |= {"patch_format": "unified_diff", "patch": row["patch"]}
        if not with_summary:
            del said["summary"]
        if with_outcome:
            run = read_run(row)
            said |= {"trajectory_truncated": _snippets(run, last_k)}
            said |= {"outcome": {"tests_ok": row["tests_ok"]}}
    elif name == "last_write":
        said = {"type": "last_write", **(last_write(row) or {})}
        said |= {"test_result": result} if with_outcome else {}
    else:
        said = {"type": "final", **{k: v for k, v in report.items() if k != "test_result"}}
        said |= {"test_result": result} if with_outcome else {}
    return [make_turn("assistant", dump_json(said))]


def has_summary(row: Mapping[str, Any]) -> bool:
    """Whether a run ended with a report in words."""
    return bool((_report(row) or {}).get("summary"))


def _turns(run: Run, last: int | None, with_outcome: bool) -> list[Turn]:
    """Return the last actions and the results between them, ending with an action."""
    actions = run.actions if last is None else run.actions[-last:]
    if not actions:
        return []
    targets = {action.n_context: render_target(action, run.protocol) for action in actions}
    span = range(actions[0].n_context, actions[-1].n_context + 1)
    return [targets.get(at) or _result(run.turns[at], with_outcome) for at in span]


def _result(turn: Turn, with_outcome: bool) -> Turn:
    if with_outcome:
        return turn
    return make_turn(
        turn["role"],
        _TESTS.sub("", turn["content"] or ""),
        **{name: turn.get(name) for name in ("tool_calls", "tool_call_id", "name")},
    )


def _snippets(run: Run, last: int) -> list[Json]:
    """Return calls and shortened results, in the form of the first version."""
    listed: list[Json] = []
    for action in run.actions[-last:]:
        step = action.step
        if step["name"]:
            called = {"name": step["name"], "args": step["args"]}
            listed.append({"role": "assistant", "tool_call": called})
            listed += _result_snippet(run, action)
    return listed


def _result_snippet(run: Run, action: Action) -> list[Json]:
    after = run.turns[action.n_context + 1 : action.n_context + 2]
    return [
        {"role": "tool", "tool_result_snippet": shorten(turn["content"] or "", SNIPPET)}
        for turn in after
    ]


def cuts_decision(row: Mapping[str, Any], last: int) -> bool:
    """Whether the first write whose tests passed is before the last K actions."""
    passed = next((s["index"] for s in row["steps"] if s["tests_ok"]), None)
    return passed is not None and passed < len(row["steps"]) - last


# Whether the tests of a task pass with a patch, None when they could not be run; and why.
Retest = Callable[[Mapping[str, Any], str], "tuple[bool | None, str]"]


@options
class Rules:
    """How pairs are made of rollouts."""

    target: Target = option(
        "What a side of a pair of rollouts holds.", default="step", decides="row"
    )
    last_k: int = option("Actions that `truncated` keeps.", default=4, minimum=1, decides="row")
    min_gap: float = option(
        "Of `step`: by how much the better action must pass more often.",
        default=0.5,
        decides="row",
    )
    allow_efficiency_pairs: bool = option(
        "Also pair two runs that pass, by their steps.", default=False, decides="row"
    )
    flaky_reruns: int = option(
        "Times to test the winner's patch again.", default=2, minimum=0, decides="row"
    )
    with_outcome: bool = option(
        "Put the output of the tests into the targets.", default=False, decides="row"
    )


@dataclass
class Case:
    """A task with its rollouts; `task` is None without a suite.

    `files` are the texts an agent may see, none when the repo is missing. Retests are cached.
    """

    task_id: str
    rows: list[Json]
    split: str
    task: Mapping[str, Any] | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    retest: Retest | None = None
    retested: dict[str, tuple[bool | None, str]] = field(default_factory=dict)

    def again(self, row: Json, times: int) -> tuple[bool | None, str]:
        """Test the patch of a run again; the first result that differs from the run's counts."""
        if self.retest is None or self.task is None or not row["patch"]:
            return None, "there is nothing to test it with"
        if row["run_id"] not in self.retested:
            found: tuple[bool | None, str] = (None, "")
            for _ in range(times):
                found = self.retest(self.task, row["patch"])
                if found[0] != row["tests_ok"]:
                    break
            self.retested[row["run_id"]] = found
        return self.retested[row["run_id"]]


def score_run(row: Mapping[str, Any]) -> list[float]:
    """Return the values by which runs are compared, in order; higher is better."""
    return [
        float(bool(row["tests_ok"])),
        -float(row["n_steps"]),
        -float(row["n_tool_calls"]),
        -float(len(row["files_touched"])),
    ]


def pair_runs(case: Case, rules: Rules) -> Made:
    """Return at most one pair: the best run against the worst, and why others were not kept."""
    made = Made()
    sound = [row for row in case.rows if not row["error"]]
    able = [row for row in sound if not ineligible(row, rules.target)]
    judged = [row for row in able if row["tests_ok"] is not None]
    if not rules.allow_efficiency_pairs or judged:
        able = judged
    why = _nothing_to_compare(case, sound, able, rules)
    if why:
        made.rejects.append(make_reject(case, rules.target, *why))
        return made
    ranked = sorted(able, key=lambda row: (score_run(row), -row["seed"]), reverse=True)
    passing = [row for row in ranked if row["tests_ok"]] or ranked
    while passing:
        best = passing.pop(0)
        rest = [row for row in ranked if row is not best]
        worst = rest[-1]
        why = _no_contrast(best, worst, rules) or _find_fault(case, best, worst, rules, able, made)
        pair = None if why and why[0] == "no_contrast" else _make_pair(case, best, worst, rules)
        if isinstance(pair, tuple):
            why, pair = pair, None
        if why is None and pair is not None:
            made.rows.append(pair)
            return made
        reason = why or ("ineligible", "")
        made.rejects.append(make_reject(case, rules.target, *reason, best=best, worst=worst))
        if reason[0] in {"no_contrast", "identical_outcome"}:
            break
    return made


def _nothing_to_compare(
    case: Case, sound: Sequence[Json], able: Sequence[Json], rules: Rules
) -> tuple[str, str] | None:
    if len(sound) < 2 and len(sound) < len(case.rows):
        failed = next(row["error"] for row in case.rows if row["error"])
        return "infra_error", str(failed)[:300]
    if len(able) < 2:
        whys = [ineligible(row, rules.target) or "it was not tested" for row in sound]
        return "ineligible", f"{len(able)} of {len(case.rows)} runs can be compared: {whys}"[:300]
    if any(row["tests_ok"] is not None for row in able) and not any(r["tests_ok"] for r in able):
        return "both_fail", f"none of {len(able)} runs passes"
    return None


def _no_contrast(best: Json, worst: Json, rules: Rules) -> tuple[str, str] | None:
    if score_run(best) == score_run(worst):
        return "no_contrast", "the scores are equal"
    if bool(best["tests_ok"]) == bool(worst["tests_ok"]) and not rules.allow_efficiency_pairs:
        return "no_contrast", "both pass, one in fewer steps"
    return None


def _find_fault(
    case: Case, best: Json, worst: Json, rules: Rules, able: Sequence[Json], made: Made
) -> tuple[str, str] | None:
    """Return why these two are not a pair; testing is last because it costs most."""
    if best["patch"] == worst["patch"] and rules.target in {"patch", "last_write"}:
        return "identical_patch", ""
    passing = [row for row in able if row["tests_ok"]]
    why = find_noise(best, passing, case.task) or find_leak(worst, case.task)
    if why:
        return why
    if rules.target == "truncated" and cuts_decision(best, rules.last_k):
        return "key_decision_truncated", f"not in the last {rules.last_k} actions"
    return retest_patches(case, best, worst if rules.target == "patch" else None, rules, made)


def retest_patches(
    case: Case, best: Json, worst: Json | None, rules: Rules, made: Made
) -> tuple[str, str] | None:
    """Test the patches of both again; count those that could not be tested."""
    if not rules.flaky_reruns:
        return None
    for row, times in ((best, rules.flaky_reruns), (worst, 1)):
        if row is None or row["tests_ok"] is None or not row["patch"]:
            continue
        said, why = case.again(row, times)
        if said is None:
            made.counts["not_retested"] += 1
        elif said != row["tests_ok"]:
            return "flaky", f"{row['run_id']} was {row['tests_ok']}, tested again {said}: {why}"[
                :300
            ]
        else:
            made.counts["retested"] += 1
    return None


def _make_pair(case: Case, best: Json, worst: Json, rules: Rules) -> Json | tuple[str, str]:
    paths = sorted({*best["files_touched"], *worst["files_touched"]})
    prompts = [render_prompt(row, rules.target, case.files, paths) for row in (best, worst)]
    if prompts[0] is None:
        return "ineligible", "the files of the task are not here, or too long to be shown"
    if prompts[0] != prompts[1]:
        return "ineligible", "the two runs were asked differently"
    both = has_summary(best) and has_summary(worst)
    sides = [
        render_side(row, rules.target, rules.last_k, rules.with_outcome, both)
        for row in (best, worst)
    ]
    if sides[0] == sides[1]:
        return "identical_outcome", "both sides read the same"
    tools = best["tools"] if sides[0][0].get("tool_calls") or len(sides[0]) > 1 else []
    return {
        **describe_pair(case, rules.target, best, worst),
        "prompt": prompts[0],
        "chosen": sides[0],
        "rejected": sides[1],
        "tools": tools if best["protocol"] == "native" else [],
    }


def describe_pair(case: Case, name: str, best: Json | None, worst: Json | None) -> Json:
    """Return the columns of a pair that say where it is from."""
    one = best or worst or (case.rows[0] if case.rows else {})
    return {
        "target": name,
        "task_id": case.task_id,
        "score_chosen": score_run(best) if best else None,
        "score_rejected": score_run(worst) if worst else None,
        "run_chosen": best["run_id"] if best else None,
        "run_rejected": worst["run_id"] if worst else None,
        "suite": one.get("suite"),
        "model": one.get("model"),
        "seed_chosen": best["seed"] if best else None,
        "seed_rejected": worst["seed"] if worst else None,
        "split": case.split,
    }


def make_reject(
    case: Case,
    name: str,
    reason: str,
    detail: str = "",
    best: Json | None = None,
    worst: Json | None = None,
) -> Json:
    """Return the row of a pair that was not kept."""
    return {**describe_pair(case, name, best, worst), "drop_reason": reason, "detail": detail}


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
    why = _no_step_contrast(best, worst, rules) or _unfit(case, best, worst, rules, made)
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


def _no_step_contrast(best: Taken, worst: Taken, rules: Rules) -> tuple[str, str] | None:
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


CHURN = 3


@dataclass(frozen=True)
class Size:
    """Lines that a patch adds and removes, its hunks, and hunks that change only white space.

    Hunks of only empty lines do not count as white space changes.
    """

    lines: int
    hunks: int
    blank_hunks: int


def measure_patch(patch: str) -> Size:
    r"""Measure a unified diff.

    >>> measure_patch("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+ a\n")
    Size(lines=2, hunks=1, blank_hunks=1)
    """
    lines = hunks = blank = 0
    hunk: list[str] = []
    inside = False
    for line in [*patch.split("\n"), "@@"]:
        if line.startswith(("@@", "diff --git ")):
            hunks += bool(hunk)
            blank += _only_spaces(hunk)
            hunk, inside = [], line.startswith("@@")
        elif inside and line[:1] in {"+", "-"}:
            hunk.append(line)
            lines += 1
    return Size(lines, hunks, blank)


def _only_spaces(hunk: Sequence[str]) -> bool:
    sides = ["".join("".join(one[1:].split()) for one in hunk if one[0] == tag) for tag in "-+"]
    return any(one[1:].strip() for one in hunk) and sides[0] == sides[1]


def find_noise(
    row: Mapping[str, Any], passing: Sequence[Mapping[str, Any]], task: Mapping[str, Any] | None
) -> tuple[str, str] | None:
    """Return reason and detail why a run must not be chosen, None if it may."""
    return (
        find_leak(row, task)
        or _wrong_file(row, passing, task)
        or _non_minimal(row["patch"], [one["patch"] for one in passing])
    )


def find_leak(row: Mapping[str, Any], task: Mapping[str, Any] | None) -> tuple[str, str] | None:
    """Find runs that have seen what their task hides, which may be the answer."""
    globs = list(task["hide"]) if task else []
    for step in row["steps"]:
        if not step["ok"] or not isinstance(step["args"], dict):
            continue
        for name in ("rel_path", "rel_dir"):
            path = step["args"].get(name)
            if isinstance(path, str) and any(_matches(glob, path) for glob in globs):
                return "leaked", f"`{path}` is hidden from agents and was seen"
    return None


def _matches(glob: str, path: str) -> bool:
    """Match a glob without a slash with every part of a path, else with the path's folders."""
    parts = path.removeprefix("./").strip("/").split("/")
    if "/" not in glob.strip("/"):
        return any(fnmatchcase(part, glob.strip("/")) for part in parts)
    heads = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
    return any(fnmatchcase(head, glob.strip("/")) for head in heads)


def _wrong_file(
    row: Mapping[str, Any], passing: Sequence[Mapping[str, Any]], task: Mapping[str, Any] | None
) -> tuple[str, str] | None:
    """Find a file that is not one of the task's, or that no other passing run has changed."""
    expected = (task["metadata"] or {}).get("files") if task else None
    if isinstance(expected, list) and expected:
        stray = [path for path in row["files_touched"] if path not in expected]
        return ("wrong_file", f"`{stray[0]}` does not belong to the task") if stray else None
    others = [set(one["files_touched"]) for one in passing if one["run_id"] != row["run_id"]]
    if not others:
        return None
    stray = [path for path in row["files_touched"] if not any(path in one for one in others)]
    return ("wrong_file", f"no other passing run changes `{stray[0]}`") if stray else None


def _non_minimal(patch: str, passing: Sequence[str]) -> tuple[str, str] | None:
    size = measure_patch(patch)
    smallest = min((measure_patch(one).lines for one in passing if one), default=size.lines)
    if size.lines > CHURN * smallest:
        return "non_minimal", f"{size.lines} lines, the smallest passing patch has {smallest}"
    # If all hunks are such, they are the fix: a line moved out of a loop, a space in a string.
    if 0 < size.blank_hunks < size.hunks:
        return "non_minimal", f"{size.blank_hunks} hunks change nothing but spaces"
    return None

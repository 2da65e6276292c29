"""What a pair compares: how each target of a run is written, and which runs have it.

| target | chosen and rejected |
|---|---|
| `step` | the first action in which runs part (`processors.rollouts.step_pairs`) |
| `patch` | {"type": "patch", "summary", "patch_format", "patch"}; the prompt has the files |
| `last_write` | {"type": "last_write", "path", "content"}; the prompt has the files |
| `summary` | {"type": "final", "summary", "changes"}, as the model reported it |
| `truncated` | the last K actions with their results, as turns |
| `full` | all actions with their results, as turns |

What tests said is a label: it is left out of what is to be learned unless `with_outcome` asks for
it, and so are the tests' lines in results.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from pimono_sdpo.rollout_schema import Turn
from pimono_sdpo.text import shorten
from processors.rollouts.runs.actions import Action, Run, run_of, target
from processors.rollouts.runs.turns import as_json, turn_of

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


def ineligible(row: Mapping[str, Any], name: Target) -> str | None:
    """Say why a run cannot be on either side of a pair, None when it can."""
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


def prompt_of(
    row: Mapping[str, Any], name: Target, files: Mapping[str, str], paths: Sequence[str]
) -> list[Turn] | None:
    """Return what both sides answer; None when the files they change cannot be shown.

    `files` are the texts an agent may see, `paths` those that either run has changed.
    """
    before = []
    for turn in run_of(row).turns:
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
    system = turn_of("system", SYSTEM.format(form=_FORMS[name]))
    return [system, turn_of("user", "\n\n".join([goal, *shown]))]


def _fenced(text: str) -> str:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    marks = "`" * max(3, longest + 1)
    return f"{marks}\n{text.rstrip(chr(10))}\n{marks}"


def rendered(
    row: Mapping[str, Any], name: Target, last_k: int, with_outcome: bool, with_summary: bool
) -> list[Turn]:
    """Return one side of a pair; `with_summary`: both runs have one for their patch."""
    if name in {"truncated", "full"}:
        return _turns(run_of(row), last_k if name == "truncated" else None, with_outcome)
    report = _report(row) or {}
    result = {"ok": row["tests_ok"], "output": shorten(row["test_output"] or "", SNIPPET)}
    if name == "patch":
        said = {"type": "patch", "summary": report.get("summary", "") if with_summary else ""}
        said |= {"patch_format": "unified_diff", "patch": row["patch"]}
        if not with_summary:
            del said["summary"]
        if with_outcome:
            run = run_of(row)
            said |= {"trajectory_truncated": _snippets(run, last_k)}
            said |= {"outcome": {"tests_ok": row["tests_ok"]}}
    elif name == "last_write":
        said = {"type": "last_write", **(last_write(row) or {})}
        said |= {"test_result": result} if with_outcome else {}
    else:
        said = {"type": "final", **{k: v for k, v in report.items() if k != "test_result"}}
        said |= {"test_result": result} if with_outcome else {}
    return [turn_of("assistant", as_json(said))]


def has_summary(row: Mapping[str, Any]) -> bool:
    """Whether a run ended with a report in words."""
    return bool((_report(row) or {}).get("summary"))


def _turns(run: Run, last: int | None, with_outcome: bool) -> list[Turn]:
    """The last actions and what came back in between; behind the last there is nothing to learn."""
    actions = run.actions if last is None else run.actions[-last:]
    if not actions:
        return []
    targets = {action.n_context: target(action, run.protocol) for action in actions}
    span = range(actions[0].n_context, actions[-1].n_context + 1)
    return [targets.get(at) or _result(run.turns[at], with_outcome) for at in span]


def _result(turn: Turn, with_outcome: bool) -> Turn:
    if with_outcome:
        return turn
    return turn_of(
        turn["role"],
        _TESTS.sub("", turn["content"] or ""),
        **{name: turn.get(name) for name in ("tool_calls", "tool_call_id", "name")},
    )


def _snippets(run: Run, last: int) -> list[Json]:
    """Calls and the beginnings of their results, as the first form of a patch had them."""
    listed: list[Json] = []
    for action in run.actions[-last:]:
        step = action.step
        if step["name"]:
            called = {"name": step["name"], "args": step["args"]}
            listed.append({"role": "assistant", "tool_call": called})
            listed += _told(run, action)
    return listed


def _told(run: Run, action: Action) -> list[Json]:
    after = run.turns[action.n_context + 1 : action.n_context + 2]
    return [
        {"role": "tool", "tool_result_snippet": shorten(turn["content"] or "", SNIPPET)}
        for turn in after
    ]


def loses_the_decision(row: Mapping[str, Any], last: int) -> bool:
    """Tell whether the first write whose tests passed lies before the last K actions."""
    passed = next((s["index"] for s in row["steps"] if s["tests_ok"]), None)
    return passed is not None and passed < len(row["steps"]) - last

"""Cut runs into next-action rows: the model's context, and the action to learn.

reads   ROLLOUT and split
writes  STEP, with `problem` and `detail` where the row should not be learned

| reason | which rows |
|---|---|
| `infra_error`, `not_tested`, `tests_failed` | whole runs |
| `malformed_call` | calls that cannot be read |
| `blank_argument`, `write_failed_tests`, `overwrites_tests` | never to be learned, too |
| `unknown_tool`, `invalid_arguments`, `tool_failed` | calls that did not work |
| `loop`, `after_loop` | a repeated call, and everything after it |
| `no_recovery` | with `good_recovery`: actions that do not follow a failed one, or fail |
| `redacted` | targets with a placeholder for a secret |
| `repeat` | rows that repeat another of the same shard of rollouts |
"""

import hashlib
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

from datasets import Features, Value

from pimono_sdpo.schema import ROLLOUT, STEP, Turn
from pimono_sdpo.stage import Filter, FlatMap, Row
from processors.rollouts.conversation import (
    Action,
    As,
    Run,
    convert_to_json,
    dump_json,
    find_overwritten_test,
    find_problem,
    read_run,
    render_target,
    select_context,
)

Granularity = Literal["step", "trajectory"]
GRANULARITIES: tuple[Granularity, ...] = get_args(Granularity)
PROBLEM = {"problem": Value("string"), "detail": Value("string")}
RUN = Features({**ROLLOUT, "split": Value("string")})
SESSION_CONTEXT = 8
PLACEHOLDER = "[REDACTED:"
Json = dict[str, Any]


def drop_run(row: Row, require_success: bool) -> str | None:
    """Drop runs that ended because of a fault of ours, and runs whose tests did not pass.

    Recorded sessions have no tests, so success is only required of rollouts.
    """
    if row["error"]:
        return str(row["error"]) if row["suite"] is None else "infra_error"
    if require_success and row["suite"] is not None and not row["tests_ok"]:
        return "not_tested" if row["tests_ok"] is None else "tests_failed"
    return None


def cut_steps(
    row: Row,
    require_valid_tool_ok: bool,
    good_recovery: bool,
    with_final: bool,
    context_turns: int | None,
    tool_chars: int | None,
    granularity: Granularity,
    protocol: As,
) -> list[Json]:
    """Return a row per action, or one for the whole run."""
    run = read_run(row)
    if protocol == "json":
        run = convert_to_json(run, row["tools"])
    loop = next((n for n, a in enumerate(run.actions) if a.step["kind"] == "loop"), None)
    checked = [
        (action, _check(run.actions, at, loop, row["tools"], require_valid_tool_ok, good_recovery))
        for at, action in enumerate(run.actions)
        if with_final or action.step["kind"] != "final"
    ]
    if granularity == "trajectory":
        return _trajectory(row, run, checked, tool_chars)
    if context_turns is None and row["suite"] is None:
        # The whole of a long session, repeated for every action, would be gigabytes.
        context_turns = SESSION_CONTEXT
    made = []
    for action, wrong in checked:
        prompt = select_context(
            run.turns[: action.n_context], run.goal_of(action), context_turns, tool_chars
        )
        done = [render_target(action, run.protocol)]
        made.append(_make_row(row, run, action.step["index"], prompt, done, wrong))
    return made


def _trajectory(
    row: Row, run: Run, checked: list[tuple[Action, tuple[str, str] | None]], chars: int | None
) -> list[Json]:
    """Return one row: the request, then everything up to the last action to learn."""
    looped = next((n for n, (a, _) in enumerate(checked) if a.step["kind"] == "loop"), len(checked))
    good = checked[:looped]
    if not good:
        return []
    wrong = next((why for _, why in good if why), None)
    targets = {action.n_context: render_target(action, run.protocol) for action, _ in good}
    last = good[-1][0].n_context
    turns = [targets.get(at, turn) for at, turn in enumerate(run.turns[: last + 1])]
    goal = next((at for at, turn in enumerate(turns) if turn["role"] == "user"), 0)
    shown = select_context(turns, goal, None, chars)
    index = good[-1][0].step["index"]
    return [_make_row(row, run, index, shown[: goal + 1], shown[goal + 1 :], wrong)]


def _make_row(
    row: Row,
    run: Run,
    step: int,
    prompt: list[Turn],
    completion: list[Turn],
    wrong: tuple[str, str] | None,
) -> Json:
    learned = [turn for turn in completion if turn["role"] == "assistant"]
    if wrong is None and PLACEHOLDER in dump_json(learned):
        wrong = "redacted", ""
    return {
        "prompt": prompt,
        "completion": completion,
        "tools": row["tools"] if run.protocol == "native" else [],
        "task_id": row["task_id"],
        "run_id": row["run_id"],
        "step": step,
        "n_tokens": None,
        "split": row["split"],
        "problem": wrong[0] if wrong else None,
        "detail": wrong[1] if wrong else None,
    }


def _check(
    actions: list[Action], at: int, loop: int | None, tools: list[Json], valid: bool, recovery: bool
) -> tuple[str, str] | None:
    """Return why an action should not be learned; `loop` is the first action in a loop."""
    if loop is not None and at >= loop:
        return ("loop" if at == loop else "after_loop"), ""
    step = actions[at].step
    wrong = find_problem(step, tools)
    if wrong and (valid or wrong[0] in {"malformed_call", "blank_argument"}):
        return wrong
    if step["tests_ok"] is False:
        return "write_failed_tests", ""
    if path := find_overwritten_test(step):
        return "overwrites_tests", path
    if valid and step["kind"] == "tool_call" and step["ok"] is False:
        return "tool_failed", step["error"] or ""
    if recovery and (at == 0 or _has_worked(actions[at - 1].step) or not _has_worked(step)):
        return "no_recovery", ""
    return None


def _has_worked(step: Json) -> bool:
    return step["kind"] in {"tool_call", "final"} and step["ok"] is not False


@dataclass
class Repeats:
    """Drop rows whose prompt and completion were there before; one digest of each is kept."""

    seen: set[bytes] = field(default_factory=set)

    def __call__(self, row: Row) -> str | None:
        """Return why a row is dropped, None for the first of its kind."""
        text = dump_json([row["prompt"], row["completion"]])
        digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).digest()
        if digest in self.seen:
            return "repeat"
        self.seen.add(digest)
        return None


def drop_problems(row: Row) -> str | None:
    """Drop rows with a problem."""
    problem: str | None = row["problem"]
    return problem


def build_stages(
    *,
    require_success: bool = True,
    require_valid_tool_ok: bool = True,
    good_recovery: bool = False,
    with_final: bool = False,
    context_turns: int | None = None,
    tool_chars: int | None = None,
    granularity: Granularity = "step",
    protocol: As = "as_recorded",
) -> tuple[Filter, FlatMap, Filter]:
    """Return the stages from runs to rows."""
    cut = partial(
        cut_steps,
        require_valid_tool_ok=require_valid_tool_ok,
        good_recovery=good_recovery,
        with_final=with_final,
        context_turns=context_turns,
        tool_chars=tool_chars,
        granularity=granularity,
        protocol=protocol,
    )
    return (
        Filter(
            partial(drop_run, require_success=require_success),
            reads=("error", "suite", "tests_ok"),
        ),
        FlatMap(cut, reads=tuple(RUN), writes=Features({**STEP, **PROBLEM})),
        Filter(drop_problems, reads=("problem",)),
    )

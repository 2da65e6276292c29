"""Cut runs into next-action rows: what the model had read, and the one action to learn.

reads   ROLLOUT and split
writes  STEP, with `problem` and `detail` where the row should not be learned

| reason | which rows |
|---|---|
| `infra_error`, `not_tested`, `tests_failed` | runs that are left out as a whole |
| `malformed_call` | no call can be read |
| `unknown_tool`, `invalid_arguments`, `blank_argument`, `tool_failed` | calls that did not work |
| `loop`, `after_loop` | the same call again and again, and all that came after it |
| `no_recovery` | with `good_recovery`: actions that put no failed one right |
| `redacted` | what is to be learned holds a placeholder for a secret |
"""

from functools import partial
from typing import Any, Literal, get_args

from datasets import Features, Value

from pimono_sdpo.schema import ROLLOUT, STEP, Turn
from pimono_sdpo.stage import Filter, FlatMap, Row
from processors.rollouts.conversation import (
    Action,
    As,
    Run,
    as_json,
    in_json,
    problem_of,
    run_of,
    target,
    window,
)

Granularity = Literal["step", "trajectory"]
GRANULARITIES: tuple[Granularity, ...] = get_args(Granularity)
PROBLEM = {"problem": Value("string"), "detail": Value("string")}
RUN = Features({**ROLLOUT, "split": Value("string")})
SESSION_CONTEXT = 8
PLACEHOLDER = "[REDACTED:"
Json = dict[str, Any]


def whole_run(row: Row, require_success: bool) -> str | None:
    """Leave out runs that our own fault ended, and those whose tests did not pass.

    A recorded session has no tests; the rule of success is for rollouts.
    """
    if row["error"]:
        return str(row["error"]) if row["suite"] is None else "infra_error"
    if require_success and row["suite"] is not None and not row["tests_ok"]:
        return "not_tested" if row["tests_ok"] is None else "tests_failed"
    return None


def steps(
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
    run = run_of(row)
    if protocol == "json":
        run = in_json(run, row["tools"])
    loop = next((n for n, a in enumerate(run.actions) if a.step["kind"] == "loop"), None)
    judged = [
        (action, _judge(run.actions, at, loop, row["tools"], require_valid_tool_ok, good_recovery))
        for at, action in enumerate(run.actions)
        if with_final or action.step["kind"] != "final"
    ]
    if granularity == "trajectory":
        return _trajectory(row, run, judged, tool_chars)
    if context_turns is None and row["suite"] is None:
        # All of a long session, again for every action, would be gigabytes.
        context_turns = SESSION_CONTEXT
    made = []
    for action, wrong in judged:
        prompt = window(
            run.turns[: action.n_context], run.goal_of(action), context_turns, tool_chars
        )
        done = [target(action, run.protocol)]
        made.append(_row(row, run, action.step["index"], prompt, done, wrong))
    return made


def _trajectory(
    row: Row, run: Run, judged: list[tuple[Action, tuple[str, str] | None]], chars: int | None
) -> list[Json]:
    """One row: the request, then everything up to the last action that is to be learned."""
    looped = next((n for n, (a, _) in enumerate(judged) if a.step["kind"] == "loop"), len(judged))
    good = judged[:looped]
    if not good:
        return []
    wrong = next((why for _, why in good if why), None)
    targets = {action.n_context: target(action, run.protocol) for action, _ in good}
    last = good[-1][0].n_context
    turns = [targets.get(at, turn) for at, turn in enumerate(run.turns[: last + 1])]
    goal = next((at for at, turn in enumerate(turns) if turn["role"] == "user"), 0)
    shown = window(turns, goal, None, chars)
    index = good[-1][0].step["index"]
    return [_row(row, run, index, shown[: goal + 1], shown[goal + 1 :], wrong)]


def _row(
    row: Row,
    run: Run,
    step: int,
    prompt: list[Turn],
    completion: list[Turn],
    wrong: tuple[str, str] | None,
) -> Json:
    learned = [turn for turn in completion if turn["role"] == "assistant"]
    if wrong is None and PLACEHOLDER in as_json(learned):
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


def _judge(
    actions: list[Action], at: int, loop: int | None, tools: list[Json], valid: bool, recovery: bool
) -> tuple[str, str] | None:
    """Say why an action should not be learned; `loop` is the number of the first in a loop."""
    if loop is not None and at >= loop:
        return ("loop" if at == loop else "after_loop"), ""
    step = actions[at].step
    wrong = problem_of(step, tools)
    if wrong and (valid or wrong[0] == "malformed_call"):
        return wrong
    if valid and step["kind"] == "tool_call" and step["ok"] is False:
        return "tool_failed", step["error"] or ""
    if recovery and (at == 0 or _worked(actions[at - 1].step) or not _worked(step)):
        return "no_recovery", ""
    return None


def _worked(step: Json) -> bool:
    return step["kind"] in {"tool_call", "final"} and step["ok"] is not False


def sound(row: Row) -> str | None:
    """Drop what should not be learned."""
    problem: str | None = row["problem"]
    return problem


def stages(
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
        steps,
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
            partial(whole_run, require_success=require_success),
            reads=("error", "suite", "tests_ok"),
        ),
        FlatMap(cut, reads=tuple(RUN), writes=Features({**STEP, **PROBLEM})),
        Filter(sound, reads=("problem",)),
    )

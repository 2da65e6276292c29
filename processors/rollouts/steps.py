"""Cut runs into next-action rows: the model's context as prompt, and the action as completion.

reads   ROLLOUT and split
writes  STEP, with `problem` and `detail` if the row should not be learned

Runs are dropped as `infra_error`, `not_tested` or `tests_failed`. Rows are dropped for the reasons of
`find_problem` and `processors.rollouts.noise`, and as `write_failed_tests`, `tool_failed`, `loop`,
`after_loop`, `no_recovery` (with `good_recovery`: the action does not correct a failed one),
`redacted` (a placeholder for a secret) or, when all are made, `repeat` (of an earlier row).
"""

from collections.abc import Mapping
from functools import partial
from itertools import takewhile
from typing import Literal, cast

import xxhash
from datasets import Features, List, Value

from pimono_sdpo.options import option, options
from pimono_sdpo.schema import ROLLOUT, STEP, Turn
from pimono_sdpo.stage import Filter, FlatMap, Row
from processors.rollouts.conversation import (
    As,
    Json,
    Why,
    convert_to_json,
    dump_json,
    find_goal,
    find_problem,
    has_worked,
    is_test,
    render_target,
    select_context,
)
from processors.rollouts.noise import Passing, find_action_noise

Granularity = Literal["step", "trajectory"]
PROBLEM = {"problem": Value("string"), "detail": Value("string")}
RUN = Features({**ROLLOUT, "split": Value("string")})
PRINTED = Features({**STEP, "prints": List(Value("int64"))})
# Turns of the agent in a prompt of a session.
SESSION_CONTEXT = 8
PLACEHOLDER = "[REDACTED:"


@options
class StepRules:
    """Options for cutting runs into rows."""

    require_success: bool = option("Keep only rollouts whose tests pass.", default=True, decides="row")
    require_valid_tool_ok: bool = option(
        "Keep only calls that fit the schema of their tool and worked.", default=True, decides="row"
    )
    good_recovery: bool = option("Keep only actions that correct a failed one.", default=False, decides="row")
    with_final: bool = option("Add a row for the answer that ends a run.", default=False, decides="row")
    context_turns: int | None = option(
        "Show only the request and the last K results.",
        default=None,
        minimum=0,
        shown="all of a rollout, 8 of a session",
        decides="row",
    )
    tool_chars: int | None = option(
        "Shorten each result to this number of characters.", default=None, minimum=40, decides="row"
    )
    granularity: Granularity = option("One row per `step`, or per `trajectory`.", default="step", decides="row")
    tool_protocol: As = option(
        "Keep calls `as_recorded`, or rewrite them in the `json` protocol.", default="as_recorded", decides="row"
    )


def drop_run(row: Row, require_success: bool) -> str | None:
    """Drop runs with an infrastructure error, and rollouts whose tests did not pass."""
    if row["error"]:
        return str(row["error"]) if row["suite"] is None else "infra_error"
    if require_success and row["suite"] is not None and not row["tests_ok"]:
        return "not_tested" if row["tests_ok"] is None else "tests_failed"
    return None


def cut_steps(row: Row, rules: StepRules, passing: Mapping[str, Passing], tasks: Mapping[str, Row]) -> list[Json]:
    """Return one row per action, or one row for the whole run.

    `passing` has the passing runs, and `tasks` the tasks of a suite, by task id.
    """
    noise: list[Why | None] = [None] * len(row["steps"])
    if row["suite"] is not None:
        noise = find_action_noise(row, passing.get(row["task_id"], Passing()), tasks.get(row["task_id"]))
    run = convert_to_json(row) if rules.tool_protocol == "json" else row
    steps = run["steps"]
    loop = next((at for at, step in enumerate(steps) if step["kind"] == "loop"), len(steps))
    checked = [
        (step, _check(steps, at, loop, row["tools"], rules) or noise[at])
        for at, step in enumerate(steps)
        if rules.with_final or step["kind"] != "final"
    ]
    if rules.granularity == "trajectory":
        return _cut_trajectory(run, checked, rules.tool_chars)
    context = rules.context_turns
    if context is None and row["suite"] is None:
        # Repeating all of a long session for every action would take gigabytes.
        context = SESSION_CONTEXT
    rows = []
    for step, why in checked:
        before = run["messages"][: step["n_context"]]
        prompt = select_context(before, find_goal(run, step), context, rules.tool_chars)
        rows.append(_make_row(run, step, prompt, [render_target(run, step)], why))
    return rows


def _cut_trajectory(run: Row, checked: list[tuple[Json, Why | None]], chars: int | None) -> list[Json]:
    """Return one row, or none: the request as prompt, then everything up to the last action before a loop."""
    kept = list(takewhile(lambda pair: pair[0]["kind"] != "loop", checked))
    if not kept:
        return []
    targets = {step["n_context"]: render_target(run, step) for step, _ in kept}
    last = kept[-1][0]
    turns = [targets.get(at, turn) for at, turn in enumerate(run["messages"][: last["n_context"] + 1])]
    start = next((at for at, turn in enumerate(turns) if turn["role"] == "user"), 0) + 1
    turns = select_context(turns, 0, None, chars)
    return [_make_row(run, last, turns[:start], turns[start:], next((why for _, why in kept if why), None))]


def _make_row(run: Row, step: Row, prompt: list[Turn], completion: list[Turn], why: Why | None) -> Json:
    learned = [turn for turn in completion if turn["role"] == "assistant"]
    if why is None and PLACEHOLDER in dump_json(learned):
        why = "redacted", ""
    return {
        **dict.fromkeys(STEP),
        **{name: run[name] for name in ("task_id", "run_id", "split")},
        "prompt": prompt,
        "completion": completion,
        "tools": run["tools"] if run["protocol"] == "native" else [],
        "step": step["index"],
        "problem": why[0] if why else None,
        "detail": why[1] if why else None,
    }


def _check(steps: list[Json], at: int, loop: int, tools: list[Json], rules: StepRules) -> Why | None:
    """Return why an action should not be learned; `loop` is the index of the first action in a loop."""
    if at >= loop:
        return ("loop" if at == loop else "after_loop"), ""
    step, valid = steps[at], rules.require_valid_tool_ok
    problem = find_problem(step, tools)
    if problem and (valid or problem[0] in {"malformed_call", "blank_argument"}):
        return problem
    if step["tests_ok"] is False:
        return "write_failed_tests", ""
    path = step["args"].get("rel_path") if isinstance(step["args"], dict) else None
    if step["name"] == "write_file" and isinstance(path, str) and is_test(path):
        return "overwrites_tests", path
    if valid and step["kind"] == "tool_call" and step["ok"] is False:
        return "tool_failed", step["error"] or ""
    corrects = at > 0 and not has_worked(steps[at - 1]) and has_worked(step)
    return ("no_recovery", "") if rules.good_recovery and not corrects else None


def hash_action(row: Row) -> Json:
    """Hash the prompt and the completion of a row, to find rows that repeat an earlier one."""
    text = dump_json([row["prompt"], row["completion"]])
    return {"prints": [xxhash.xxh3_64_intdigest(text.encode("utf-8", "replace")) - 2**63]}


def drop_problems(row: Row) -> str | None:
    """Drop rows with a problem."""
    return cast("str | None", row["problem"])


def build_stages(
    rules: StepRules, passing: Mapping[str, Passing] | None = None, tasks: Mapping[str, Row] | None = None
) -> tuple[Filter, FlatMap, Filter]:
    """Return the stages that turn runs into rows; see `cut_steps` for `passing` and `tasks`."""
    return (
        Filter(partial(drop_run, require_success=rules.require_success), reads=("error", "suite", "tests_ok")),
        FlatMap(
            partial(cut_steps, rules=rules, passing=passing or {}, tasks=tasks or {}),
            reads=tuple(RUN),
            writes=Features({**STEP, **PROBLEM}),
        ),
        Filter(drop_problems, reads=("problem",)),
    )

"""Run the agent on every task with every seed: one row of ROLLOUT and one trace each.

reads   the columns of TASK, and seed
writes  the columns of ROLLOUT

The rows are mapped asynchronously, so many at a time, in order. A run that fails by a fault of the
endpoint or the sandbox is a row with `error`. What asks and what judges is given by the caller.
"""

import hashlib
import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, Value

from pimono_sdpo.agent.driver import drive
from pimono_sdpo.agent.events import write_trace
from pimono_sdpo.agent.run import Judge, Rules, Run
from pimono_sdpo.agent.schemas import definitions
from pimono_sdpo.agent.tools import Workspace
from pimono_sdpo.inference.calls import Reply, Request
from pimono_sdpo.inference.chat import Chat
from pimono_sdpo.inference.rows import map_rows
from pimono_sdpo.rollout_schema import ROLLOUT, TASK, Turn
from pimono_sdpo.suites.workspace import visible_copy

WORK = Features({**TASK, "seed": Value("int64")})
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the model is asked; rollout i of a task has the seed `seed + i`."""

    model: str
    temperature: float = 0.7
    max_tokens: int | None = None
    seed: int = 42
    rollouts: int = 4


class Roller:
    """Makes rows of rollouts; `run` never raises on what a model does.

    `judge_of` returns what judges a task, None for a task without tests. Each finished row is told
    to `done`. Traces go below `traces`, which is None to write none; the agents work below
    `spaces`, None for the system's folder of temporary files.
    """

    def __init__(
        self,
        chat: Chat,
        judge_of: Callable[[Mapping[str, Any]], Judge | None],
        rules: Rules,
        sampling: Sampling,
        traces: Path | None = None,
        done: Callable[[Json], None] = lambda row: None,
    ) -> None:
        self.chat = chat
        self.judge_of = judge_of
        self.rules = rules
        self.sampling = sampling
        self.traces = traces
        self.done = done
        self.spaces: Path | None = None

    async def run(self, task: Json) -> Json:
        """Return the ROLLOUT row of a task with a seed."""
        run_id = run_id_of(task, self.sampling, self.rules)
        about = {
            "task_id": task["task_id"], "suite": task["suite"], "seed": task["seed"],
            "model": self.sampling.model, "temperature": self.sampling.temperature,
            **asdict(self.rules),
        }  # fmt: skip

        async def ask(messages: list[Turn]) -> Reply:
            return await self.chat.ask(
                request_of(messages, task["seed"], self.sampling, self.rules)
            )

        with tempfile.TemporaryDirectory(prefix="rollout-", dir=self.spaces) as folder:
            root = Path(folder)
            visible_copy(task, root)
            space = Workspace(root, self.rules.max_tool_chars)
            judge = self.judge_of(task)
            made = await drive(run_id, task["goal"], space, ask, judge, self.rules, about)
        if self.traces is not None:
            write_trace(self.traces / f"{run_id}.jsonl", made.events)
        row = row_of(task, made, self.sampling, self.rules)
        self.done(row)
        return row


def roll_out(work: Dataset, roller: Roller, workers: int) -> Dataset:
    """Run all rows of `work`, so many at a time; their results fit into memory."""
    return map_rows(work, roller.run, ROLLOUT, in_flight=workers, desc="rollouts")


def work_of(tasks: Sequence[Mapping[str, Any]], sampling: Sampling, of: range) -> Dataset:
    """Return the rows of these numbers: tasks in order, each with all its seeds."""
    each = sampling.rollouts
    rows = [{**tasks[number // each], "seed": sampling.seed + number % each} for number in of]
    return Dataset.from_list(rows, features=WORK)


def run_id_of(task: Mapping[str, Any], sampling: Sampling, rules: Rules) -> str:
    """Name a run: task and seed, and a hash of everything else that it is asked with."""
    asked = {**asdict(sampling), **asdict(rules), "goal": task["goal"], "suite": task["suite"]}
    # More rollouts, or another base, leave the run of a seed what it was.
    del asked["rollouts"], asked["seed"]
    told = json.dumps([task["task_id"], asked], sort_keys=True)
    name = re.sub(r"[^A-Za-z0-9._+-]", "_", task["task_id"])[:150]
    return f"{name}-{task['seed']}-{hashlib.sha256(told.encode()).hexdigest()[:8]}"


def request_of(
    messages: Sequence[Turn], seed: int, sampling: Sampling, rules: Rules
) -> Request:  # fmt: skip
    """Return the question for the next turn, in the terms of the OpenAI API."""
    return Request(
        model=sampling.model,
        messages=[_sent(turn) for turn in messages],
        tools=definitions() if rules.protocol == "native" else None,
        temperature=sampling.temperature,
        seed=seed,
        max_tokens=sampling.max_tokens,
    )


def _sent(turn: Turn) -> Json:
    """A turn as the API has it: arguments as text, and no name beside the id of a call."""
    sent: Json = {"role": turn["role"], "content": turn["content"]}
    if calls := turn.get("tool_calls"):
        sent["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _json(call)}} for call in calls
        ]
    if identity := turn.get("tool_call_id"):
        sent["tool_call_id"] = identity
    return sent


def _json(call: Json) -> str:
    return json.dumps(call["function"]["arguments"], ensure_ascii=False)


def row_of(task: Mapping[str, Any], run: Run, sampling: Sampling, rules: Rules) -> Json:
    """Return the columns of ROLLOUT."""
    kinds = [step["kind"] for step in run.steps]
    turn: Json = {"tool_calls": None, "tool_call_id": None, "name": None}
    return {
        "run_id": run.run_id,
        "task_id": task["task_id"],
        "suite": task["suite"],
        "seed": task["seed"],
        "model": sampling.model,
        "temperature": sampling.temperature,
        "protocol": rules.protocol,
        "test_policy": rules.test_policy,
        "messages": [{**turn, **message} for message in run.messages],
        "tools": definitions(),
        "steps": run.steps,
        "tests_ok": run.tests_ok,
        "test_output": run.test_output,
        "patch": run.patch,
        "files_touched": list(run.files_touched),
        "n_steps": len(run.steps),
        "n_tool_calls": kinds.count("tool_call"),
        "n_test_runs": run.n_test_runs,
        "parse_errors": kinds.count("parse_error"),
        "loop_detections": kinds.count("loop"),
        "prompt_tokens": run.prompt_tokens,
        "completion_tokens": run.completion_tokens,
        "cost": run.cost,
        "error": run.error,
        "ended": run.ended,
    }

"""Run the agent on every task with every seed, shard by shard, into a folder with a report.

reads   the columns of TASK, and seed
writes  the columns of ROLLOUT

The rows are mapped asynchronously, so many at a time, in order. A run that fails by a fault of the
endpoint or the sandbox is a row with `error`.

    work/spaces/                         what agents work in
    work/rows, done                      finished shards, see `pimono_sdpo.runs.engine`
    work/out/data/train-*.parquet        or test-*, as the suite says
    work/out/traces, report.json         links to work/traces/RUN_ID.jsonl, and the counts

A shard in which a run failed by a fault of ours counts as unfinished: run again, the journal
answers what it knows, and only what failed is asked.
"""

import hashlib
import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from datasets import Dataset, Features, Value

from pimono_sdpo import __version__
from pimono_sdpo.agent.driver import Rules, Run, drive, status_of, write_trace
from pimono_sdpo.agent.task_tests import TaskResult, Tester, hash_repo
from pimono_sdpo.agent.tools import Workspace
from pimono_sdpo.errors import InferenceError
from pimono_sdpo.llm.calls import Reply, Request
from pimono_sdpo.llm.chat import Chat
from pimono_sdpo.llm.rows import map_rows
from pimono_sdpo.runs.engine import Output, Part, Piece, run_parts
from pimono_sdpo.runs.parquet import link_or_copy
from pimono_sdpo.schema import ROLLOUT, TASK, Turn
from pimono_sdpo.suites.repo_files import visible_copy
from pimono_sdpo.suites.suite import has_tests
from rewards.verifiers.tool_schemas import definitions

WORK = Features({**TASK, "seed": Value("int64")})
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the model is sampled; rollout i of a task has the seed `seed + i`."""

    model: str
    temperature: float = 0.7
    max_tokens: int | None = None
    seed: int = 42
    rollouts: int = 4


class Roller:
    """Make rows of rollouts; `run` never raises on what a model does.

    `done` is called with each finished row. Traces are written below `traces` unless it is None;
    the agents work below `spaces`, by default in the system's folder for temporary files.
    """

    def __init__(
        self,
        chat: Chat,
        tester: Tester,
        rules: Rules,
        sampling: Sampling,
        traces: Path | None = None,
        done: Callable[[Json], None] = lambda row: None,
    ) -> None:
        self.chat = chat
        self.tester = tester
        self.rules = rules
        self.sampling = sampling
        self.traces = traces
        self.done = done
        self.spaces: Path | None = None

    async def run(self, task: Json) -> Json:
        """Return the ROLLOUT row of a task with a seed."""
        run_id = make_run_id(task, self.sampling, self.rules)
        about = {
            "task_id": task["task_id"], "suite": task["suite"], "seed": task["seed"],
            "model": self.sampling.model, "temperature": self.sampling.temperature,
            **asdict(self.rules),
        }  # fmt: skip

        async def ask(messages: list[Turn]) -> Reply:
            return await self.chat.ask(
                make_request(messages, task["seed"], self.sampling, self.rules)
            )

        async def run_tests(space: Workspace) -> TaskResult:
            return await self.tester.test(task, space)

        with tempfile.TemporaryDirectory(prefix="rollout-", dir=self.spaces) as folder:
            root = Path(folder)
            visible_copy(task, root)
            space = Workspace(root, self.rules.max_tool_chars)
            made = await drive(
                run_id, task["goal"], space, ask, run_tests if has_tests(task) else None,
                self.rules, about,
            )  # fmt: skip
        if self.traces is not None:
            write_trace(self.traces / f"{run_id}.jsonl", made.events)
        row = make_row(task, made, self.sampling, self.rules)
        self.done(row)
        return row


def roll_out(work: Dataset, roller: Roller, workers: int) -> Dataset:
    """Run all rows of `work`, `workers` at a time, with the results in memory."""
    return map_rows(work, roller.run, ROLLOUT, in_flight=workers, desc="rollouts")


def make_work(tasks: Sequence[Mapping[str, Any]], sampling: Sampling, of: range) -> Dataset:
    """Return the numbered rows: tasks in order, each with all its seeds."""
    each = sampling.rollouts
    rows = [{**tasks[number // each], "seed": sampling.seed + number % each} for number in of]
    return Dataset.from_list(rows, features=WORK)


def make_run_id(task: Mapping[str, Any], sampling: Sampling, rules: Rules) -> str:
    """Name a run by task, seed, and a hash of all other parameters."""
    parameters = {**asdict(sampling), **asdict(rules), "goal": task["goal"], "suite": task["suite"]}
    # The run of a seed does not depend on the number of rollouts or on the first seed.
    del parameters["rollouts"], parameters["seed"]
    key = json.dumps([task["task_id"], parameters], sort_keys=True)
    name = re.sub(r"[^A-Za-z0-9._+-]", "_", task["task_id"])[:150]
    return f"{name}-{task['seed']}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"


def make_request(
    messages: Sequence[Turn], seed: int, sampling: Sampling, rules: Rules
) -> Request:  # fmt: skip
    """Return the request for the next turn, in the terms of the OpenAI API."""
    return Request(
        model=sampling.model,
        messages=[_to_api(turn) for turn in messages],
        tools=definitions("repo_agent") if rules.protocol == "native" else None,
        temperature=sampling.temperature,
        seed=seed,
        max_tokens=sampling.max_tokens,
    )


def _to_api(turn: Turn) -> Json:
    """Return a turn in the API's form: arguments as text, and no name beside a call id."""
    sent: Json = {"role": turn["role"], "content": turn["content"]}
    if calls := turn.get("tool_calls"):
        sent["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _encode_arguments(call)}}
            for call in calls
        ]
    if identity := turn.get("tool_call_id"):
        sent["tool_call_id"] = identity
    return sent


def _encode_arguments(call: Json) -> str:
    return json.dumps(call["function"]["arguments"], ensure_ascii=False)


def make_row(task: Mapping[str, Any], run: Run, sampling: Sampling, rules: Rules) -> Json:
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
        "tools": definitions("repo_agent"),
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


STAGE = "rollouts"
SHARD_ROWS = 256
TOLD_REASONS = 5
SUMMED = (
    "n_steps", "n_tool_calls", "n_test_runs", "parse_errors", "loop_detections", "prompt_tokens",
    "completion_tokens",
)  # fmt: skip


OUTPUTS = {"rows": Output("rows/{:05}.parquet", ROLLOUT.arrow_schema)}


@dataclass(slots=True)
class Progress:
    """How many rollouts are finished; each is handed to `done`, except those not run any more."""

    rows: int
    chat: Chat
    done: Callable[[Json, str], None]
    finished: int = 0
    failed: int = 0

    def __call__(self, row: Json) -> None:
        """Count a row and report it, with how far the run is, as `12/24`."""
        self.finished += 1
        self.failed += row["error"] is not None
        if row["error"] is None or not self.chat.stopped:
            self.done(row, f"{self.finished}/{self.rows}")


def roll_out_all(
    tasks: Sequence[Mapping[str, Any]],
    roller: Roller,
    work: Path,
    workers: int,
    done: Callable[[Json, str], None],
) -> tuple[Path, Json]:
    """Run all tasks with all seeds; return the folder of the rows, without a suite, and its report.

    Raises InferenceError when the model can no longer be asked; finished rows are kept in `work`.
    """
    rows = len(tasks) * roller.sampling.rollouts
    progress = Progress(rows, roller.chat, done)
    out = work / "out"
    shutil.rmtree(out, ignore_errors=True)
    # Below `work`, where the next run finds what a killed one has left.
    roller.done, roller.traces, roller.spaces = progress, work / "traces", work / "spaces"
    shutil.rmtree(roller.spaces, ignore_errors=True)
    roller.spaces.mkdir()
    options = {
        "rules": asdict(roller.rules), "sampling": asdict(roller.sampling),
        "prices": repr(roller.chat.prices),
    }  # fmt: skip
    given = {"tasks": list(tasks), "repos": [hash_repo(task) for task in tasks]}
    parts = []
    for number, first in enumerate(range(0, rows, SHARD_ROWS)):
        of = range(first, min(first + SHARD_ROWS, rows))
        run = partial(_roll_out_part, tasks, roller, of, workers, progress)
        parts.append(Part(number, f"rollouts {first} on", len(of), given, options, run))
    finished = run_parts(parts, work, OUTPUTS)
    shutil.rmtree(roller.spaces)
    made = [work / OUTPUTS["rows"].path.format(number) for number in finished.records]
    report = _report(made, tasks, roller)
    for name in ("data", "traces"):
        (out / name).mkdir(parents=True)
    for row in _read_columns(made, ["run_id"]):
        # A run that failed at once has none.
        if (trace := work / "traces" / f"{row['run_id']}.jsonl").is_file():
            link_or_copy(trace, out / "traces" / trace.name)
    split = tasks[0]["split"] or "train"
    for number, part in enumerate(made):
        name = f"{split}-{number:05}-of-{len(made):05}.parquet"
        link_or_copy(part, out / "data" / name)
    (out / "report.json").write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    return out, report


def _roll_out_part(
    tasks: Sequence[Mapping[str, Any]], roller: Roller, of: range, workers: int, progress: Progress
) -> Iterator[Piece]:
    # Those before it are finished, now or by an earlier run.
    progress.finished = of.start
    found = roll_out(make_work(tasks, roller.sampling, of), roller, workers)
    if roller.chat.stopped and progress.failed:
        raise InferenceError(
            f"{roller.chat.stopped.removesuffix('.')}; "
            f"{progress.finished - progress.failed} of {progress.rows} rollouts are finished, and "
            "the same command resumes there."
        )
    error = next(filter(None, found["error"]), None)
    yield Piece({"rows": found.with_format("arrow")[:]}, len(of), error=error)


def _report(made: Sequence[Path], tasks: Sequence[Mapping[str, Any]], roller: Roller) -> Json:
    """Count what became of the rollouts; nothing here depends on time."""
    sums: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    verdicts: Counter[str] = Counter()
    cost: float | None = 0.0
    for row in _read_columns(made, [*SUMMED, "ended", "error", "tests_ok", "cost"]):
        sums.update({name: row[name] for name in SUMMED})
        ended[row["ended"]] += 1
        verdicts[status_of(row)] += 1
        if row["error"] is not None:
            errors[row["error"]] += 1
        cost = None if cost is None or row["cost"] is None else cost + row["cost"]
    judged = verdicts["PASS"] + verdicts["FAIL"]
    return {
        "pimono_sdpo": __version__,
        "stage": STAGE,
        "suite": tasks[0]["suite"],
        "split": tasks[0]["split"],
        "tasks": len(tasks),
        "rollouts": sum(verdicts.values()),
        "sampling": asdict(roller.sampling),
        "rules": asdict(roller.rules),
        "verdicts": dict(sorted(verdicts.items())),
        "pass_rate": verdicts["PASS"] / judged if judged else None,
        "ended": dict(sorted(ended.items())),
        "errors": dict(errors.most_common(TOLD_REASONS)),
        "sums": {name: sums[name] for name in SUMMED},
        "cost": cost,
    }


def _read_columns(made: Sequence[Path], names: list[str]) -> Iterator[Json]:
    """Yield small columns of all rows."""
    for path in made:
        with pq.ParquetFile(path) as parquet:
            for batch in parquet.iter_batches(columns=names):
                yield from batch.to_pylist()

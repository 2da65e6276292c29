"""Run the agent on every task of a suite with every seed, into a folder with a report.

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

import asyncio
import hashlib
import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, Value

from pimono_sdpo import __version__
from pimono_sdpo.agent.driver import Rules, Run, drive, status_of, write_trace
from pimono_sdpo.agent.task_tests import TaskResult, Tester, hash_repo, open_tester
from pimono_sdpo.agent.tools import Workspace
from pimono_sdpo.errors import InferenceError, OutputError
from pimono_sdpo.llm.calls import Reply, Request
from pimono_sdpo.llm.chat import Chat, open_chat
from pimono_sdpo.llm.rows import map_rows
from pimono_sdpo.llm.settings import load_settings
from pimono_sdpo.options import argument, option, options
from pimono_sdpo.runs.engine import Output, Part, Piece, run_parts
from pimono_sdpo.runs.folders import (
    REPORT,
    only_run,
    publish_folder,
    read_json,
    require_disjoint,
)
from pimono_sdpo.runs.parquet import link_or_copy, read_tables
from pimono_sdpo.schema import ROLLOUT, TASK, Turn
from pimono_sdpo.suites import suite as suites
from pimono_sdpo.suites.stored_rollouts import ROLLOUTS
from pimono_sdpo.suites.suite import has_tests, visible_copy
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
            # A large repo takes seconds, in which the answers of other runs would wait.
            await asyncio.to_thread(visible_copy, task, root)
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
        for table in read_tables(path, SHARD_ROWS, names):
            yield from table.to_pylist()


# An estimate runs so many rollouts, each of another task.
ESTIMATED = 8
Tell = Callable[[str], None]
Done = Callable[[Json, str], None]


@options
class RolloutOptions(Rules):
    """Which rollouts are run, of which model; settings fill in what is None."""

    suite: Path = argument("JSON file of a task suite, or its folder.")
    model: str | None = option("Model that acts.", default=None, shown="chain.toml's")
    provider: str | None = option(
        "Provider: hf, together, openai, chutes, or the URL of an OpenAI-compatible server.",
        default=None,
        shown="chain.toml's, else hf",
    )
    rollouts: int = option("Rollouts of each task.", default=4, minimum=1)
    temperature: float | None = option("Sampling temperature.", default=None, shown="0.7")
    seed: int = option("Seed of the first rollout of each task.", default=42)
    max_workers: int = option("Rollouts at a time.", default=4, minimum=1)
    limit: int | None = option("Run only the first N tasks.", default=None, minimum=1, shown="all")
    max_cost: float | None = option(
        "Stop before spending more than this many USD.", default=None, minimum=0
    )
    config: Path | None = option("File of settings.", default=None, shown="chain.toml")
    journal: Path | None = option(
        "File of all answers and test results.", default=None, shown="OUT.calls.sqlite"
    )

    def rules(self) -> Rules:
        """Return the options that say how every run is driven."""
        return Rules(**{one.name: getattr(self, one.name) for one in fields(Rules)})


@dataclass(frozen=True)
class Ready:
    """The suite, the sampling, and a model that can be asked."""

    suite: suites.Suite
    tasks: tuple[suites.TaskRow, ...]
    sampling: Sampling
    chat: Chat
    journal: Path

    @property
    def rows(self) -> int:
        """The number of rollouts."""
        return len(self.tasks) * self.sampling.rollouts


def run_rollouts(
    options: RolloutOptions, out: Path, tell: Tell, done: Done, replay: bool = False
) -> Json:
    """Run the agent on a suite, write the rollouts below `out`, and return the report.

    `out` gets `data/*.parquet`, `traces/*.jsonl`, `suite.json` and `report.json`. `tell` receives
    the lines before the first rollout, `done` every finished row and the progress, as `12/24`.
    With `replay` all answers come from the journal. Raises SourceError, InferenceError or
    OutputError; then `out` is as it was, and all answers are in the journal beside it.
    """
    ready = _prepare(options, out, replay)
    out = out.resolve()
    with only_run(out) as work:
        _print_header(ready, options, tell)
        with open_tester(ready.tasks, ready.journal) as tester:
            roller = Roller(ready.chat, tester, options.rules(), ready.sampling)
            finished, report = roll_out_all(ready.tasks, roller, work, options.max_workers, done)
        suite = ready.suite
        name = finished / suites.NAME
        suites.write_suite(name, suite.name, ready.tasks, suite.description, suite.split, out)
        publish_folder(finished, out)
    return report


def estimate_rollouts(options: RolloutOptions, out: Path, tell: Tell, replay: bool = False) -> str:
    """Run a few rollouts and estimate what all will use; their answers stay in the journal."""
    ready = _prepare(options, out, replay)
    _print_header(ready, options, tell, start=False)
    tried = replace(ready.sampling, rollouts=1)
    number = min(ESTIMATED, len(ready.tasks))
    with open_tester(ready.tasks, ready.journal) as tester:
        roller = Roller(ready.chat, tester, options.rules(), tried)
        roll_out(make_work(ready.tasks, tried, range(number)), roller, options.max_workers)
    if ready.chat.stopped:
        raise InferenceError(ready.chat.stopped)
    tally, prices = ready.chat.tally, ready.chat.prices
    return tally.estimate(prices, number, ready.rows, options.max_workers)


def _prepare(options: RolloutOptions, out: Path, replay: bool) -> Ready:
    """Read suite and settings, find the model and the places to write; nothing is asked yet."""
    suite = suites.load_suite(options.suite)
    tasks = suite.tasks[: options.limit]
    for task in tasks:
        require_disjoint(Path(task["repo"]).resolve(), out.resolve())
    require_stage(out, STAGE)
    given = {
        "model": options.model,
        "provider": options.provider,
        "temperature": options.temperature,
    }
    settings = load_settings(options.config, rollout=given)
    section = settings.rollout
    if not section.model:
        raise InferenceError(
            "No model is named; give --model, or `model` in the section [rollout] of chain.toml."
        )
    sampling = Sampling(
        section.model, section.temperature, section.max_tokens, options.seed, options.rollouts
    )
    out = out.resolve()
    journal = (options.journal or out.parent / f"{out.name}.calls.sqlite").resolve()
    if replay and not journal.is_file():
        raise InferenceError(f"There is no journal `{journal}` to replay; run without --replay.")
    chat = open_chat(
        section, settings, journal, [section.model], options.max_cost,
        concurrency=options.max_workers, replay=replay,
    )  # fmt: skip
    return Ready(suite, tasks, sampling, chat, journal)


def rollouts_folder(trace_dir: Path, written: Path) -> Path:
    """Return where rollouts go: TRACE_DIR, or TRACE_DIR/rollouts if `written` lies in TRACE_DIR.

    A folder of rollouts is replaced as a whole, so nothing else may lie in it. Raises OutputError
    when TRACE_DIR is such a folder already.
    """
    if not written.resolve().is_relative_to(trace_dir.resolve()):
        return trace_dir
    if (trace_dir / "data").exists():
        raise OutputError(
            f"`{trace_dir}` holds rollouts, and a new run replaces all of it; write `{written}` "
            "to another folder, or give another folder for the rollouts."
        )
    return trace_dir / ROLLOUTS


def require_stage(out: Path, stage: str) -> None:
    """Raise OutputError when a folder has the output of another stage."""
    report = read_json(out / REPORT) if (out / REPORT).is_file() else None
    if isinstance(report, dict) and report.get("stage") != stage:
        raise OutputError(f"`{out}` has the output of another command; give another folder.")


def _print_header(ready: Ready, options: RolloutOptions, tell: Tell, start: bool = True) -> None:
    each = ready.sampling.rollouts
    tell(f"Loaded suite: {ready.suite.name} ({len(ready.tasks)} tasks)")
    tell(f"Rollouts per task: {each}")
    tell(f"Temperature: {ready.sampling.temperature}")
    tell(f"Base seed: {ready.sampling.seed}")
    if start:
        tell(
            f"Starting {ready.rows} rollouts ({len(ready.tasks)} tasks × {each} rollouts) with "  # noqa: RUF001
            f"{options.max_workers} workers"
        )

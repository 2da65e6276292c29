"""Run the agent on every task of a suite with every seed, and write rollouts, traces and a report.

reads   the columns of TASK, and seed
writes  the columns of ROLLOUT, below `data`, and a trace of each run, below `traces`

Rollouts run concurrently and are written in order. A run that fails because of the endpoint or the
sandbox becomes a row with `error`, and its part counts as unfinished. The next command repeats the
part: finished calls come from the journal, so only the failed ones are made again.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from datasets import Dataset, Features, Value

from pimono_sdpo.agent.driver import Run, RunRules, status_of
from pimono_sdpo.agent.task_tests import TaskTests, hash_repo, list_repo
from pimono_sdpo.agent.tools import Workspace
from pimono_sdpo.errors import InferenceError, OutputError, require_extra
from pimono_sdpo.llm.calls import ESTIMATED, Json, Request
from pimono_sdpo.llm.chat import Chat, map_rows, open_chat
from pimono_sdpo.llm.settings import load_settings
from pimono_sdpo.options import argument, option, options
from pimono_sdpo.runs.engine import Made, Part, Piece, run_shards
from pimono_sdpo.runs.finish import write_files
from pimono_sdpo.runs.folders import PARTS, make_output, only_run, publish_folder, require_disjoint, require_stage
from pimono_sdpo.runs.parquet import link_or_copy, read_rows, write_atomically
from pimono_sdpo.schema import ROLLOUT, TASK, TURN, Turn
from pimono_sdpo.suites.stored_rollouts import ROLLOUTS, write_sessions
from pimono_sdpo.suites.suite import NAME, Suite, TaskRow, has_tests, load_suite, read_paraphrases, write_suite
from pimono_sdpo.version import __version__
from processors.duel.answers import sum_usage
from processors.rollouts.conversation import count_steps, dump_json
from rewards.verifiers.tool_calls import definitions

WORK = Features({**TASK, "seed": Value("int64")})
STAGE = "rollouts"
SHARD_ROWS = 256
SAMPLING = ("model", "temperature", "seed", "rollouts")
Agent = Literal["repo-agent", "mini-swe-agent"]
# Prints a line.
Echo = Callable[[str], None]
# Gets each finished row and the progress, such as `12/24`.
OnFinished = Callable[[Json, str], None]


@options
class RolloutOptions(RunRules):
    """The rollouts to run; an option that is None is taken from the settings."""

    suite: Path = argument("JSON file of a task suite, or its folder.")
    model: str | None = option("Model of the agent.", default=None, shown="chain.toml's")
    provider: str | None = option(
        "Provider: hf, together, openai, chutes, or the URL of an OpenAI-compatible server.",
        default=None,
        shown="chain.toml's, else hf",
    )
    agent: Agent = option(
        "Agent to run: the one of this package, or mini-swe-agent, which runs commands in the "
        "sandbox and does not see the task's tests.",
        default="repo-agent",
    )
    rollouts: int = option("Rollouts of each task.", default=4, minimum=1)
    temperature: float | None = option("Sampling temperature.", default=None, shown="0.7")
    seed: int = option("Seed of the first rollout of each task.", default=42)
    max_workers: int = option("Rollouts at a time.", default=4, minimum=1)
    limit: int | None = option("Run only the first N tasks.", default=None, minimum=1, shown="all")
    max_cost: float | None = option("Most USD to spend in all; needs prices in chain.toml.", default=None, minimum=0)
    paraphrases: Path | None = option(
        "JSON lines of `task_id` and `goals`: paraphrases of the goal; the seed chooses one, or the goal itself.",
        default=None,
    )
    allow_outside_repo: bool = option("Also run tasks whose `repo` is outside the suite's folder.", default=False)
    sessions: bool = option("Also write each run to OUT/sessions for the Hub's trace viewer.", default=False)
    config: Path | None = option("File of settings.", default=None, shown="chain.toml")
    journal: Path | None = option("File of all answers and test results.", default=None, shown="OUT.calls.sqlite")


@dataclass
class RolloutRunner:
    """Run the rollouts of a suite; rollout i of a task has the seed `seed + i`.

    `goals` has the goal and its paraphrases for tasks with paraphrases; the seed chooses one.
    """

    suite: Suite
    tasks: tuple[TaskRow, ...]
    options: RolloutOptions
    max_tokens: int | None
    chat: Chat
    tester: TaskTests
    goals: dict[str, list[str]]
    traces: Path | None = None
    on_finished: OnFinished | None = None
    finished: int = 0
    failed: int = 0

    @property
    def rows(self) -> int:
        """The number of rollouts."""
        return len(self.tasks) * self.options.rollouts

    @property
    def sampling(self) -> Json:
        """The model and its sampling parameters."""
        return {**{name: getattr(self.options, name) for name in SAMPLING}, "max_tokens": self.max_tokens}

    @property
    def rules(self) -> Json:
        """The rules of every run, and the version of mini-swe-agent if it is used."""
        rules = {field.name: getattr(self.options, field.name) for field in fields(RunRules)}
        if self.options.agent == "mini-swe-agent":
            rules["agent"] = f"mini-swe-agent {version('mini-swe-agent')}"
        return rules

    def start(self, echo: Echo) -> None:
        """Print the lines before the first rollout."""
        options = self.options
        echo(f"Loaded suite: {self.suite.name} ({len(self.tasks)} tasks)")
        echo(f"Rollouts per task: {options.rollouts}")
        echo(f"Temperature: {options.temperature}")
        echo(f"Base seed: {options.seed}")

    def run_range(self, numbers: range) -> Dataset:
        """Run the rollouts with these numbers: tasks in order, each with all its seeds."""
        rows = []
        for index, repeat in (divmod(number, self.options.rollouts) for number in numbers):
            task, seed = self.tasks[index], self.options.seed + repeat
            goals = self.goals.get(task["task_id"], [task["goal"]])
            rows.append({**task, "goal": goals[seed % len(goals)], "seed": seed})
        tasks = Dataset.from_list(rows, features=WORK)
        return map_rows(tasks, self.run_task, ROLLOUT, in_flight=self.options.max_workers, desc="rollouts")

    async def run_task(self, task: Json) -> Json:
        """Return the ROLLOUT row of a task with a seed."""
        run_id = self.make_run_id(task)
        trace = self.traces and self.traces / f"{run_id}.jsonl"
        if self.options.agent == "mini-swe-agent":
            from pimono_sdpo.agent.mini_swe_agent import run_task

            request = self.make_request([], task["seed"])
            row = await run_task(task, run_id, request, self.chat, self.options, self.tester, trace)
        else:
            row = await self._run_repo_agent(task, run_id, trace)
        parameters = {**self.sampling, **self.rules, **task}
        row |= {name: parameters[name] for name in ROLLOUT if name in parameters}
        self.finished += 1
        self.failed += row["error"] is not None
        if self.on_finished and (row["error"] is None or not self.chat.stopped):
            self.on_finished(row, f"{self.finished}/{self.rows}")
        return row

    async def _run_repo_agent(self, task: Json, run_id: str, trace: Path | None) -> Json:
        """Run the agent of this package, write the trace, and return the columns of the row that it decides."""
        options = self.options
        run = Run(
            run_id,
            Workspace(list_repo(task["repo"], tuple(task["hide"])), options.max_tool_chars),
            lambda messages: self.chat.ask(self.make_request(messages, task["seed"])),
            partial(self.tester.test, task) if has_tests(task) else None,
            options,
        )
        metadata = {name: task[name] for name in ("task_id", "suite", "seed")}
        metadata |= {"model": options.model, "temperature": options.temperature, **self.rules}
        if task["task_id"] in self.goals:
            metadata["paraphrase"] = self.goals[task["task_id"]].index(task["goal"])
        await run.drive(task["goal"], metadata)
        if trace is not None:
            write_atomically(trace, "".join(dump_json(event) + "\n" for event in run.events).encode())
        return {
            **{name: getattr(run, name) for name in ROLLOUT if name in Run.__slots__},
            **count_steps(run.steps),
            **sum_usage(run.replies),
            "messages": [{**dict.fromkeys(TURN), **message} for message in run.messages],
            "tools": definitions("repo_agent"),
            "files_touched": list(run.files_touched),
        }

    def make_run_id(self, task: Mapping[str, Any]) -> str:
        """Return the id of a run: task, seed, and a hash of all other parameters."""
        parameters = {**self.sampling, **self.rules, "goal": task["goal"], "suite": task["suite"]}
        # The run of a seed does not depend on the number of rollouts or on the first seed.
        del parameters["rollouts"], parameters["seed"]
        key = json.dumps([task["task_id"], parameters], sort_keys=True)
        name = re.sub(r"[^A-Za-z0-9._+-]", "_", task["task_id"])[:150]
        return f"{name}-{task['seed']}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"

    def make_request(self, messages: Sequence[Turn], seed: int) -> Request:
        """Return the request for the next turn, in the format of the OpenAI API."""
        sent = []
        for turn in messages:
            # The API takes arguments as text, and no name beside a call id.
            message: Json = {key: value for key, value in turn.items() if key not in {"name", "tool_calls"}}
            if calls := turn.get("tool_calls"):
                message["tool_calls"] = [
                    {**call, "function": {**call["function"], "arguments": dump_json(call["function"]["arguments"])}}
                    for call in calls
                ]
            sent.append(message)
        return Request(
            model=str(self.options.model),
            messages=sent,
            tools=definitions("repo_agent") if self.options.protocol == "native" else None,
            temperature=self.options.temperature,
            seed=seed,
            max_tokens=self.max_tokens,
        )

    def run_part(self, numbers: range) -> Iterator[Piece]:
        """Run a part; raises InferenceError when the model can no longer be queried."""
        # Earlier parts are finished, in this run or a previous one.
        self.finished = numbers.start
        rows, stopped = self.run_range(numbers), self.chat.stopped
        if stopped and self.failed:
            raise InferenceError(
                f"{stopped.removesuffix('.')}; {self.finished - self.failed} of {self.rows} "
                "rollouts are finished, and the same command resumes there."
            )
        error = next(filter(None, rows["error"]), None)
        yield Piece(rows.with_format("arrow")[:], len(numbers), error=error)

    def run_all(self, work: Path) -> list[Made]:
        """Run all rollouts in parts; finished parts are kept in `work`."""
        made_by = {"rules": self.rules, "sampling": self.sampling, "prices": repr(self.chat.prices)}
        inputs: Json = {"tasks": list(self.tasks), "repos": [hash_repo(task) for task in self.tasks]}
        inputs |= {"goals": self.goals} if self.goals else {}
        parts = []
        for number, first in enumerate(range(0, self.rows, SHARD_ROWS)):
            numbers = range(first, min(first + SHARD_ROWS, self.rows))
            part = Part(
                name=f"{number:05}",
                title=f"rollouts {first} on",
                units=len(numbers),
                input=inputs,
                options=made_by,
                run=partial(RolloutRunner.run_part, self, numbers),
                schema=ROLLOUT.arrow_schema,
            )
            parts.append(part)
        return run_shards(parts, work / PARTS)


def run_rollouts(
    options: RolloutOptions, out: Path, echo: Echo, on_finished: OnFinished, replay: bool = False
) -> Json:
    """Run the agent on a suite, write the rollouts below `out`, and return the report.

    With `replay`, all answers come from the journal. If this raises, `out` is unchanged and all answers
    are in the journal beside it.
    """
    runner = open_runner(options, out, replay)
    out = out.resolve()
    with only_run(out, stage=STAGE) as work:
        runner.start(echo)
        echo(
            f"Starting {runner.rows} rollouts ({len(runner.tasks)} tasks × {options.rollouts} "  # noqa: RUF001
            f"rollouts) with {options.max_workers} workers"
        )
        runner.traces, runner.on_finished, suite = work / "traces", on_finished, runner.suite
        runner.traces.mkdir(exist_ok=True)
        parts = runner.run_all(work)
        files = [part.file for part in parts]
        report = _report(files, runner)
        finished = make_output(work, "data", "traces")
        for row in read_rows(files, ["run_id"]):
            trace = work / "traces" / f"{row['run_id']}.jsonl"
            link_or_copy(trace, finished / "traces" / trace.name)
        write_files(parts, finished, ROLLOUT, split=suite.split or "train")
        if options.sessions:
            write_sessions(files, finished)
        write_suite(replace(suite, tasks=runner.tasks, path=finished / NAME), out)
        publish_folder(finished, out, report)
    return report


def check_errors(report: Json, echo: Echo) -> None:
    """Print failures that were not the model's; raises InferenceError if every rollout failed."""
    for reason, count in report["errors"].items():
        echo(f"{count} failed and are tried again by the same command: {reason}")
    if report["verdicts"].get("ERROR") == report["rollouts"]:
        raise InferenceError("Every rollout failed; fix the errors above and run the command again.")


def estimate_rollouts(options: RolloutOptions, out: Path, echo: Echo, replay: bool = False) -> str:
    """Run a few rollouts and return an estimate for all; the answers stay in the journal."""
    runner = open_runner(options, out, replay)
    runner.start(echo)
    number, rows, chat = min(ESTIMATED, len(runner.tasks)), runner.rows, runner.chat
    runner.options = replace(runner.options, rollouts=1)
    runner.run_range(range(number))
    if chat.stopped:
        raise InferenceError(chat.stopped)
    return chat.tally.estimate(chat.prices, number, rows, options.max_workers)


def open_runner(options: RolloutOptions, out: Path, replay: bool) -> RolloutRunner:
    """Load suite, settings and model, and check the folders to write; makes no call."""
    suite = load_suite(options.suite, outside=options.allow_outside_repo)
    goals = read_paraphrases(options.paraphrases, suite) if options.paraphrases else {}
    out = out.resolve()
    tasks = suite.tasks[: options.limit]
    for task in tasks:
        require_disjoint(Path(task["repo"]).resolve(), out)
    require_stage(out, STAGE)
    overrides = {"model": options.model, "provider": options.provider, "temperature": options.temperature}
    settings = load_settings(options.config, rollout=overrides)
    section = settings.rollout.model_copy(update={"concurrency": options.max_workers})
    if not section.model:
        raise InferenceError("No model is named; give --model, or `model` in the section [rollout] of chain.toml.")
    journal = (options.journal or out.parent / f"{out.name}.calls.sqlite").resolve()
    if replay and not journal.is_file():
        raise InferenceError(f"There is no journal `{journal}` to replay; run without --replay.")
    options = replace(options, model=section.model, temperature=section.temperature)
    if options.agent == "mini-swe-agent":
        require_extra("agents", "minisweagent", "--agent mini-swe-agent")
        policy = options.test_policy
        options = replace(options, protocol="native", test_policy="never" if policy == "never" else "on_final")
    chat = open_chat(section, settings.prices, journal, [section.model], options.max_cost, replay)
    return RolloutRunner(suite, tasks, options, section.max_tokens, chat, TaskTests(journal), goals)


def _report(files: Sequence[Path], runner: RolloutRunner) -> Json:
    """Return the report of finished rollouts; it contains no times."""
    rows = list(read_rows(files, ["ended", "error", "tests_ok", "cost"]))
    verdicts, costs = Counter(map(status_of, rows)), [row["cost"] for row in rows]
    tested = verdicts["PASS"] + verdicts["FAIL"]
    return {
        "pimono_sdpo": __version__,
        "stage": STAGE,
        "suite": runner.suite.name,
        "split": runner.suite.split,
        "tasks": len(runner.tasks),
        "rollouts": len(rows),
        "sampling": runner.sampling,
        "rules": runner.rules,
        **({"paraphrases": runner.goals} if runner.goals else {}),
        "verdicts": dict(sorted(verdicts.items())),
        "pass_rate": verdicts["PASS"] / tested if tested else None,
        "ended": dict(sorted(Counter(row["ended"] for row in rows).items())),
        "errors": dict(Counter(row["error"] for row in rows if row["error"] is not None).most_common(5)),
        "cost": None if None in costs else sum(costs, 0.0),
    }


def rollouts_folder(trace_dir: Path, written: Path) -> Path:
    """Return where rollouts go: TRACE_DIR, or TRACE_DIR/rollouts if `written` lies in TRACE_DIR."""
    # A folder of rollouts is replaced as a whole, so it must not contain anything else.
    if not written.resolve().is_relative_to(trace_dir.resolve()):
        return trace_dir
    if (trace_dir / "data").exists():
        raise OutputError(
            f"`{trace_dir}` has rollouts, and a new run replaces the whole folder; write `{written}` "
            "to another folder, or use another folder for the rollouts."
        )
    return trace_dir / ROLLOUTS

"""Run the agent on every task of a suite with every seed, into a folder with a report.

reads   the columns of TASK, and seed
writes  the columns of ROLLOUT, below `data`, and a trace of each run, below `traces`

The rows are mapped asynchronously, so many at a time, in order. A run that fails by a fault of the
endpoint or the sandbox is a row with `error`; its part counts as unfinished, so the next run
repeats it: the journal answers what it knows, and only what failed is repeated.
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

from datasets import Dataset, Features, List, Value

from pimono_sdpo import __version__
from pimono_sdpo.agent.driver import PARAPHRASE, Rules, Run, status_of
from pimono_sdpo.agent.task_tests import TaskTests, hash_repo, list_repo
from pimono_sdpo.agent.tools import Workspace
from pimono_sdpo.errors import InferenceError, OutputError, require_extra
from pimono_sdpo.llm.calls import Request
from pimono_sdpo.llm.chat import Chat, map_rows, open_chat
from pimono_sdpo.llm.settings import load_settings
from pimono_sdpo.options import argument, option, options
from pimono_sdpo.runs.engine import Output, Part, Piece, run_parts
from pimono_sdpo.runs.folders import make_output, only_run, publish_folder, require_disjoint, require_stage
from pimono_sdpo.runs.parquet import link_or_copy, read_rows, write_atomically
from pimono_sdpo.schema import ROLLOUT, TASK, TURN, Turn
from pimono_sdpo.suites.stored_rollouts import ROLLOUTS, write_shards
from pimono_sdpo.suites.suite import NAME, Suite, TaskRow, has_tests, load_suite, read_paraphrases, write_suite
from processors.duel.answers import strip_reasoning
from processors.rollouts.conversation import count_steps, dump_json
from rewards.verifiers.tool_calls import definitions

WORK = Features({**TASK, "seed": Value("int64")})
STAGE = "rollouts"
SHARD_ROWS = 256
SHOWN_ERRORS = 5
ESTIMATED = 8  # rollouts of an estimate, each of another task
SAMPLING = ("model", "temperature", "seed", "rollouts")
OUTPUTS = {"rows": Output("rows/{:05}.parquet", ROLLOUT.arrow_schema)}
TRIES = 3  # for each other wording of a goal that is wanted
WORDED = Features({"goals": List(Value("string")), "refused": List(Value("string")), "error": Value("string")})
_WORD = re.compile(r"\w(?:[\w./:-]*\w)?")
_CALLED = re.compile(r"\w+(?=\()")
_MARKED = re.compile(r"`([^`\n]+)`")
_TELLING = re.compile(r"[_/\d]|\w\.\w|[a-z][A-Z]")
Agent = Literal["repo-agent", "mini-swe-agent"]
Json = dict[str, Any]
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
    agent: Agent = option(
        "Agent that acts: that of this package, or mini-swe-agent, which runs commands in the "
        "sandbox and is not shown the task's tests.",
        default="repo-agent",
    )
    rollouts: int = option("Rollouts of each task.", default=4, minimum=1)
    temperature: float | None = option("Sampling temperature.", default=None, shown="0.7")
    seed: int = option("Seed of the first rollout of each task.", default=42)
    max_workers: int = option("Rollouts at a time.", default=4, minimum=1)
    limit: int | None = option("Run only the first N tasks.", default=None, minimum=1, shown="all")
    max_cost: float | None = option("Most USD to spend in all; needs prices in chain.toml.", default=None, minimum=0)
    paraphrases: Path | None = option(
        "JSON lines of `task_id` and `goals`: other wordings of the goal, which take turns with it by the seed.",
        default=None,
    )
    write_paraphrases: int = option(
        "Have the model write so many other wordings of each goal; those that lose a path, name or "
        "number of the goal are refused.",
        default=0,
        minimum=0,
    )
    allow_outside_repo: bool = option(
        "Also run tasks whose `repo` is outside the folder of the suite's file.", default=False
    )
    sessions: bool = option("Also write each run to OUT/sessions, as the Hub's trace viewer shows it.", default=False)
    config: Path | None = option("File of settings.", default=None, shown="chain.toml")
    journal: Path | None = option("File of all answers and test results.", default=None, shown="OUT.calls.sqlite")


@dataclass
class Roller:
    """Makes the rollouts of a suite; rollout i of a task has the seed `seed + i`.

    `goals` has the wordings of a task's goal, of which the seed chooses one, if there are several. `done`
    gets each finished row and the progress, as `12/24`.
    """

    suite: Suite
    tasks: tuple[TaskRow, ...]
    options: RolloutOptions
    max_tokens: int | None
    chat: Chat
    tester: TaskTests
    goals: dict[str, list[str]]
    traces: Path | None = None
    done: Done | None = None
    finished: int = 0
    failed: int = 0

    @property
    def rows(self) -> int:
        """The number of rollouts."""
        return len(self.tasks) * self.options.rollouts

    @property
    def sampling(self) -> Json:
        """How the model is sampled."""
        return {**{name: getattr(self.options, name) for name in SAMPLING}, "max_tokens": self.max_tokens}

    @property
    def rules(self) -> Json:
        """How every run is driven."""
        rules = {one.name: getattr(self.options, one.name) for one in fields(Rules)}
        if self.options.agent == "mini-swe-agent":
            rules["agent"] = f"mini-swe-agent {version('mini-swe-agent')}"
        return rules

    def begin(self, tell: Tell) -> None:
        """Print the lines before the first rollout, and have the model write the wordings that are asked for."""
        options = self.options
        tell(f"Loaded suite: {self.suite.name} ({len(self.tasks)} tasks)")
        tell(f"Rollouts per task: {options.rollouts}")
        tell(f"Temperature: {options.temperature}")
        tell(f"Base seed: {options.seed}")
        if options.write_paraphrases:
            self.write_paraphrases(options.write_paraphrases, tell)

    def write_paraphrases(self, number: int, tell: Tell) -> None:
        """Have the model word each goal in `number` other ways; what loses an identifier is refused."""
        request = replace(self.make_request([], 0), tools=None)

        async def word(task: Json) -> Json:
            goals, needed = [task["goal"]], find_identifiers(task["goal"])
            asked = [{"role": "system", "content": PARAPHRASE}, {"role": "user", "content": goals[0]}]
            refused: list[str] = []
            for seed in range(TRIES * number):
                reply = await self.chat.ask(replace(request, messages=asked, seed=seed))
                if reply.error is not None:
                    return {"goals": goals, "refused": refused, "error": reply.error}
                text = strip_reasoning(reply.text)
                if lost := sorted(needed - {*_WORD.findall(text)}):
                    refused.append(f"{task['task_id']}: a wording without `{lost[0]}`")
                elif not text or text in goals or reply.finish_reason == "length":
                    refused.append(f"{task['task_id']}: a wording that is empty, cut off or a repeat")
                else:
                    goals.append(text)
                if len(goals) > number:
                    break
            return {"goals": goals, "refused": refused, "error": None}

        given = Dataset.from_list([{name: task[name] for name in ("task_id", "goal")} for task in self.tasks])
        worded = map_rows(given, word, WORDED, in_flight=self.options.max_workers, desc="wordings")
        if error := next(filter(None, worded["error"]), None):
            raise InferenceError(
                f"The wordings could not be written: {error.removesuffix('.')}; run the command again."
            )
        for task_id, goals in zip(given["task_id"], worded["goals"], strict=True):
            if len(goals) > 1:
                self.goals[task_id] = self.goals.get(task_id, goals[:1]) + goals[1:]
        refused = [line for lines in worded["refused"] for line in lines]
        tell(f"Wrote {sum(map(len, worded['goals'])) - len(given)} wordings, refused {len(refused)}")
        for line in refused[:SHOWN_ERRORS]:
            tell(f"Refused {line}")

    def roll_out(self, of: range) -> Dataset:
        """Run the numbered rollouts: tasks in order, each with all its seeds."""
        rows = []
        for at, number in (divmod(number, self.options.rollouts) for number in of):
            task, seed = self.tasks[at], self.options.seed + number
            goals = self.goals.get(task["task_id"], [task["goal"]])
            rows.append({**task, "goal": goals[seed % len(goals)], "seed": seed})
        work = Dataset.from_list(rows, features=WORK)
        return map_rows(work, self.run, ROLLOUT, in_flight=self.options.max_workers, desc="rollouts")

    async def run(self, task: Json) -> Json:
        """Return the ROLLOUT row of a task with a seed."""
        run_id = self.make_run_id(task)
        trace = self.traces and self.traces / f"{run_id}.jsonl"
        if self.options.agent == "mini-swe-agent":
            from pimono_sdpo.agent.mini_swe_agent import run_task

            request = self.make_request([], task["seed"])
            row = await run_task(task, run_id, request, self.chat, self.options, self.tester, trace)
        else:
            row = await self.run_own(task, run_id, trace)
        about = {**self.sampling, **self.rules, **task}
        row |= {name: about[name] for name in ROLLOUT if name in about}
        self.finished += 1
        self.failed += row["error"] is not None
        if self.done and (row["error"] is None or not self.chat.stopped):
            self.done(row, f"{self.finished}/{self.rows}")
        return row

    async def run_own(self, task: Json, run_id: str, trace: Path | None) -> Json:
        """Return what a run of the agent of this package gives of a row, and write its trace."""
        options = self.options
        run = Run(
            run_id,
            Workspace(list_repo(task["repo"], tuple(task["hide"])), options.max_tool_chars),
            lambda messages: self.chat.ask(self.make_request(messages, task["seed"])),
            partial(self.tester.test, task) if has_tests(task) else None,
            options,
        )
        about = {name: task[name] for name in ("task_id", "suite", "seed")}
        about |= {"model": options.model, "temperature": options.temperature, **self.rules}
        if task["task_id"] in self.goals:
            about["paraphrase"] = self.goals[task["task_id"]].index(task["goal"])
        await run.drive(task["goal"], about)
        if trace is not None:
            write_atomically(trace, "".join(dump_json(one) + "\n" for one in run.events).encode())
        return {
            **{name: getattr(run, name) for name in ROLLOUT if name in Run.__slots__},
            **count_steps(run.steps),
            "messages": [{**dict.fromkeys(TURN), **message} for message in run.messages],
            "tools": definitions("repo_agent"),
            "files_touched": list(run.files_touched),
        }

    def make_run_id(self, task: Mapping[str, Any]) -> str:
        """Name a run by task, seed, and a hash of all other parameters."""
        parameters = {**self.sampling, **self.rules, "goal": task["goal"], "suite": task["suite"]}
        # The run of a seed does not depend on the number of rollouts or on the first seed.
        del parameters["rollouts"], parameters["seed"]
        key = json.dumps([task["task_id"], parameters], sort_keys=True)
        name = re.sub(r"[^A-Za-z0-9._+-]", "_", task["task_id"])[:150]
        return f"{name}-{task['seed']}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"

    def make_request(self, messages: Sequence[Turn], seed: int) -> Request:
        """Return the request for the next turn, in the terms of the OpenAI API."""
        sent = []
        for turn in messages:
            # The API takes arguments as text, and no name beside a call id.
            copy: Json = {key: value for key, value in turn.items() if key not in {"name", "tool_calls"}}
            if calls := turn.get("tool_calls"):
                texts = [dump_json(call["function"]["arguments"]) for call in calls]
                copy["tool_calls"] = [
                    {**call, "function": {**call["function"], "arguments": text}}
                    for call, text in zip(calls, texts, strict=True)
                ]
            sent.append(copy)
        return Request(
            model=str(self.options.model),
            messages=sent,
            tools=definitions("repo_agent") if self.options.protocol == "native" else None,
            temperature=self.options.temperature,
            seed=seed,
            max_tokens=self.max_tokens,
        )

    def roll_out_part(self, of: range) -> Iterator[Piece]:
        """Run a part; raises InferenceError when the model can no longer be queried."""
        # Those before it are finished, now or by an earlier run.
        self.finished = of.start
        found, stopped = self.roll_out(of), self.chat.stopped
        if stopped and self.failed:
            raise InferenceError(
                f"{stopped.removesuffix('.')}; {self.finished - self.failed} of {self.rows} "
                "rollouts are finished, and the same command resumes there."
            )
        error = next(filter(None, found["error"]), None)
        yield Piece({"rows": found.with_format("arrow")[:]}, len(of), error=error)

    def roll_out_all(self, work: Path) -> list[Path]:
        """Run all rollouts in parts, and return their files; finished parts are kept in `work`."""
        made_by = {"rules": self.rules, "sampling": self.sampling, "prices": repr(self.chat.prices)}
        given: Json = {"tasks": list(self.tasks), "repos": [hash_repo(task) for task in self.tasks]}
        given |= {"goals": self.goals} if self.goals else {}
        parts = []
        for number, first in enumerate(range(0, self.rows, SHARD_ROWS)):
            of = range(first, min(first + SHARD_ROWS, self.rows))
            run = partial(Roller.roll_out_part, self, of)
            parts.append(Part(number, f"rollouts {first} on", len(of), given, made_by, run))
        return [work / OUTPUTS["rows"].path.format(number) for number in run_parts(parts, work, OUTPUTS)]


def find_identifiers(text: str) -> set[str]:
    """Return the paths, names, numbers and whatever is marked as code in a text.

    >>> sorted(find_identifiers("In `src`, a/b.py calls gcd(4) and readFile of my_module."))
    ['4', 'a/b.py', 'gcd', 'my_module', 'readFile', 'src']
    """
    marked = [word for span in _MARKED.findall(text) for word in _WORD.findall(span)]
    telling = [word for word in _WORD.findall(text) if _TELLING.search(word)]
    return {*marked, *telling, *_CALLED.findall(text)}


def run_rollouts(options: RolloutOptions, out: Path, tell: Tell, done: Done, replay: bool = False) -> Json:
    """Run the agent on a suite, write the rollouts below `out`, and return the report.

    With `replay` all answers come from the journal. When it raises, `out` is as it was, and all answers
    are in the journal beside it.
    """
    roller = open_roller(options, out, replay)
    with only_run(out.resolve(), stage=STAGE) as work:
        roller.begin(tell)
        tell(
            f"Starting {roller.rows} rollouts ({len(roller.tasks)} tasks × {options.rollouts} "  # noqa: RUF001
            f"rollouts) with {options.max_workers} workers"
        )
        roller.traces, roller.done, suite = work / "traces", done, roller.suite
        roller.traces.mkdir(exist_ok=True)
        made = roller.roll_out_all(work)
        report = _report(made, roller)
        finished = make_output(work, "data", "traces")
        for row in read_rows(made, ["run_id"]):
            trace = work / "traces" / f"{row['run_id']}.jsonl"
            link_or_copy(trace, finished / "traces" / trace.name)
        write_shards(made, finished, suite.split or "train", options.sessions)
        write_suite(replace(suite, tasks=roller.tasks, path=finished / NAME), out.resolve())
        publish_folder(finished, out.resolve(), report)
    return report


def check_errors(report: Json, tell: Tell) -> None:
    """Print failures that were not the model's; raises InferenceError when every rollout failed."""
    for reason, count in report["errors"].items():
        tell(f"{count} failed and are tried again by the same command: {reason}")
    if report["verdicts"].get("ERROR") == report["rollouts"]:
        raise InferenceError("Every rollout failed; fix what the lines above say and run it again.")


def estimate_rollouts(options: RolloutOptions, out: Path, tell: Tell, replay: bool = False) -> str:
    """Run a few rollouts and estimate what all will use; their answers stay in the journal."""
    roller = open_roller(options, out, replay)
    roller.begin(tell)
    # The wordings are paid for: what is estimated is the rollouts.
    roller.chat.tally.models.clear()
    number, rows, chat = min(ESTIMATED, len(roller.tasks)), roller.rows, roller.chat
    roller.options = replace(roller.options, rollouts=1)
    roller.roll_out(range(number))
    if chat.stopped:
        raise InferenceError(chat.stopped)
    return chat.tally.estimate(chat.prices, number, rows, options.max_workers)


def open_roller(options: RolloutOptions, out: Path, replay: bool) -> Roller:
    """Read suite and settings, find the model and the places to write; no call is made yet."""
    suite = load_suite(options.suite, outside=options.allow_outside_repo)
    goals = read_paraphrases(options.paraphrases, suite) if options.paraphrases else {}
    out = out.resolve()
    tasks = suite.tasks[: options.limit]
    for task in tasks:
        require_disjoint(Path(task["repo"]).resolve(), out)
    require_stage(out, STAGE)
    given = {"model": options.model, "provider": options.provider, "temperature": options.temperature}
    settings = load_settings(options.config, rollout=given)
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
    return Roller(suite, tasks, options, section.max_tokens, chat, TaskTests(journal), goals)


def _report(made: Sequence[Path], roller: Roller) -> Json:
    """Count what became of the rollouts; nothing here depends on time."""
    rows = list(read_rows(made, ["ended", "error", "tests_ok", "cost"]))
    verdicts, costs = Counter(map(status_of, rows)), [row["cost"] for row in rows]
    judged = verdicts["PASS"] + verdicts["FAIL"]
    return {
        "pimono_sdpo": __version__,
        "stage": STAGE,
        "suite": roller.suite.name,
        "split": roller.suite.split,
        "tasks": len(roller.tasks),
        "rollouts": len(rows),
        "sampling": roller.sampling,
        "rules": roller.rules,
        **({"paraphrases": roller.goals} if roller.goals else {}),
        "verdicts": dict(sorted(verdicts.items())),
        "pass_rate": verdicts["PASS"] / judged if judged else None,
        "ended": dict(sorted(Counter(row["ended"] for row in rows).items())),
        "errors": dict(Counter(row["error"] for row in rows if row["error"] is not None).most_common(SHOWN_ERRORS)),
        "cost": None if None in costs else sum(costs, 0.0),
    }


def rollouts_folder(trace_dir: Path, written: Path) -> Path:
    """Return where rollouts go: TRACE_DIR, or TRACE_DIR/rollouts if `written` lies in TRACE_DIR."""
    # A folder of rollouts is replaced as a whole, so nothing else may lie in it.
    if not written.resolve().is_relative_to(trace_dir.resolve()):
        return trace_dir
    if (trace_dir / "data").exists():
        raise OutputError(
            f"`{trace_dir}` holds rollouts, and a new run replaces all of it; write `{written}` "
            "to another folder, or give another folder for the rollouts."
        )
    return trace_dir / ROLLOUTS

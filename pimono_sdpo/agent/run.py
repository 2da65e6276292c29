"""Run the agent on every task of a suite with every seed; a killed run resumes call by call."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from pimono_sdpo.agent.driver import Rules
from pimono_sdpo.agent.rollout import STAGE, Roller, Sampling, make_work, roll_out, roll_out_all
from pimono_sdpo.agent.task_tests import open_tester
from pimono_sdpo.errors import InferenceError, OutputError
from pimono_sdpo.llm.chat import Chat
from pimono_sdpo.llm.client import open_chat
from pimono_sdpo.llm.settings import load_settings
from pimono_sdpo.options import argument, option, options
from pimono_sdpo.runs.folders import (
    REPORT,
    only_run,
    publish_folder,
    read_json,
    require_disjoint,
)
from pimono_sdpo.suites import suite as suites

# An estimate runs so many rollouts, each of another task.
ESTIMATED = 8
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

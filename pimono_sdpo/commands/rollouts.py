"""A suite to rollouts: the agent on every task with every seed, resumed call by call."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pimono_sdpo.errors import InferenceError, OutputError

if TYPE_CHECKING:
    from pimono_sdpo.agent.driver import Rules
    from pimono_sdpo.agent.rollout import Sampling
    from pimono_sdpo.llm.chat import Chat
    from pimono_sdpo.suites.suite import Suite, TaskRow

# So many rollouts are run for an estimate, each of another task.
ESTIMATED = 8
NOT_KEPT = "The journal has no answer to a question of this run; run without --replay."
Json = dict[str, Any]
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What is run and how; `provider`, `model` and `temperature` are None for the settings'.

    `journal` is None for the file beside `out`; `replay` asks nobody but the journal.
    """

    suite: Path
    out: Path
    rules: "Rules"
    model: str | None = None
    provider: str | None = None
    temperature: float | None = None
    seed: int = 42
    rollouts: int = 4
    workers: int = 4
    limit: int | None = None
    max_cost: float | None = None
    config: Path | None = None
    journal: Path | None = None
    replay: bool = False


@dataclass(frozen=True)
class Ready:
    """What a plan comes to: the suite, the sampling, and a model that can be asked."""

    suite: "Suite"
    tasks: "tuple[TaskRow, ...]"
    sampling: "Sampling"
    chat: "Chat"
    journal: Path

    @property
    def rows(self) -> int:
        """How many rollouts there are."""
        return len(self.tasks) * self.sampling.rollouts


def run_rollouts(
    plan: Plan,
    tell: Tell = lambda line: None,
    done: Callable[[Json, str], None] = lambda row, place: None,
) -> Json:
    """Run the agent on a suite, write the rollouts below `plan.out`, and return the report.

    `out` gets `data/*.parquet`, `traces/*.jsonl`, `suite.json` and `report.json`. `tell` is given
    the lines before the first rollout, `done` every finished row and where it stands, as `12/24`.
    Raises SourceError, InferenceError or OutputError; then `out` is as it was, and what was
    answered is in the journal beside it.
    """
    from pimono_sdpo.agent.rollout import Roller, roll_out_all
    from pimono_sdpo.agent.task_tests import open_tester
    from pimono_sdpo.runs.folders import only_run, publish_folder
    from pimono_sdpo.suites.suite import NAME, write

    ready = _ready(plan)
    out = plan.out.resolve()
    with only_run(out) as work:
        _header(ready, plan, tell)
        with open_tester(ready.tasks, ready.journal) as tester:
            roller = Roller(ready.chat, tester, plan.rules, ready.sampling)
            finished, report = roll_out_all(ready.tasks, roller, work, plan.workers, done)
        suite = ready.suite
        write(finished / NAME, suite.name, ready.tasks, suite.description, suite.split, out)
        publish_folder(finished, out)
    return report


def estimate_rollouts(plan: Plan, tell: Tell = lambda line: None) -> str:
    """Run a few rollouts and say what all will use; their answers wait in the journal."""
    from pimono_sdpo.agent.rollout import Roller, roll_out, work_of
    from pimono_sdpo.agent.task_tests import open_tester

    ready = _ready(plan)
    _header(ready, plan, tell, start=False)
    tried = replace(ready.sampling, rollouts=1)
    number = min(ESTIMATED, len(ready.tasks))
    with open_tester(ready.tasks, ready.journal) as tester:
        roller = Roller(ready.chat, tester, plan.rules, tried)
        roll_out(work_of(ready.tasks, tried, range(number)), roller, plan.workers)
    if ready.chat.stopped:
        raise InferenceError(ready.chat.stopped)
    tally, prices = ready.chat.tally, ready.chat.prices
    return tally.estimate(prices, number, ready.rows, plan.workers)


def _ready(plan: Plan) -> Ready:
    """Read suite and settings, find the model and the places to write; nothing is asked yet."""
    from pimono_sdpo.agent.rollout import Sampling
    from pimono_sdpo.llm.settings import load
    from pimono_sdpo.runs.folders import require_disjoint
    from pimono_sdpo.suites import suite as suites

    suite = suites.load(plan.suite)
    tasks = suite.tasks[: plan.limit]
    for task in tasks:
        require_disjoint(Path(task["repo"]).resolve(), plan.out.resolve())
    _check_other(plan.out)
    given = {"model": plan.model, "provider": plan.provider, "temperature": plan.temperature}
    settings = load(plan.config, rollout=given)
    asked = settings.rollout
    if not asked.model:
        raise InferenceError(
            "No model is named; give --model, or `model` in the section [rollout] of chain.toml."
        )
    sampling = Sampling(asked.model, asked.temperature, asked.max_tokens, plan.seed, plan.rollouts)
    chat, journal = _chat(plan, settings)
    return Ready(suite, tasks, sampling, chat, journal)


def _chat(plan: Plan, settings: Any) -> "tuple[Chat, Path]":
    from pimono_sdpo.llm.chat import Chat
    from pimono_sdpo.llm.journal import Journal
    from pimono_sdpo.llm.money import Budget
    from pimono_sdpo.llm.providers import NO_KEY, Endpoint, endpoint
    from pimono_sdpo.llm.settings import environment

    asked, prices = settings.rollout, settings.price_list()
    out = plan.out.resolve()
    path = (plan.journal or out.parent / f"{out.name}.calls.sqlite").resolve()
    if plan.replay and not path.is_file():
        raise InferenceError(f"There is no journal `{path}` to replay; run without --replay.")
    if plan.replay:
        where = Endpoint("journal", None, NO_KEY)
    else:
        where = endpoint(asked.provider, environment())
    journal = Journal(path)
    budget = None
    if plan.max_cost is not None:
        budget = Budget(plan.max_cost, [asked.model], prices, journal)
    limits = replace(asked.limits(), concurrency=plan.workers)
    chat = Chat(where, journal, prices=prices, limits=limits, budget=budget)
    chat.stopped = NOT_KEPT if plan.replay else None
    return chat, path


def _check_other(out: Path) -> None:
    """Raise OutputError when a folder holds what another stage made."""
    from pimono_sdpo.agent.rollout import STAGE
    from pimono_sdpo.runs.folders import REPORT, read_json

    there = read_json(out / REPORT) if (out / REPORT).is_file() else None
    if isinstance(there, dict) and there.get("stage") != STAGE:
        raise OutputError(f"`{out}` holds what another command made; give another folder.")


def _header(ready: Ready, plan: Plan, tell: Tell, start: bool = True) -> None:
    each = ready.sampling.rollouts
    tell(f"Loaded suite: {ready.suite.name} ({len(ready.tasks)} tasks)")
    tell(f"Rollouts per task: {each}")
    tell(f"Temperature: {ready.sampling.temperature}")
    tell(f"Base seed: {ready.sampling.seed}")
    if start:
        tell(
            f"Starting {ready.rows} rollouts ({len(ready.tasks)} tasks × {each} rollouts) with "  # noqa: RUF001
            f"{plan.workers} workers"
        )

"""What a run of the agent is: its rules, its state as it goes, what asks and what judges."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pimono_sdpo.agent.events import Event, Kind, event
from pimono_sdpo.agent.tools import Workspace
from pimono_sdpo.inference.calls import Reply
from pimono_sdpo.rollout_schema import Protocol as ToolProtocol
from pimono_sdpo.rollout_schema import TestPolicy, Turn

Ended = Literal["final", "max_iters", "loop", "parse_errors", "error"]
Ask = Callable[[list[Turn]], Awaitable[Reply]]


class Verdict(Protocol):
    """What tests said; `ok` is None when nothing was judged, and `error` then says why."""

    @property
    def ok(self) -> bool | None:
        """Whether they pass."""

    @property
    def output(self) -> str:
        """What they said."""

    @property
    def error(self) -> str | None:
        """Why nothing was judged."""


Judge = Callable[[Workspace], Awaitable[Verdict]]


@dataclass(frozen=True, slots=True)
class Rules:
    """How every run of a suite is driven."""

    protocol: ToolProtocol = "json"
    test_policy: TestPolicy = "on_write"
    max_iters: int = 20
    max_tool_chars: int = 8000
    lenient: bool = False


@dataclass(slots=True)
class Run:
    """A run as it goes; finished when `ended` says how.

    `steps` are rows of STEP_TAKEN. `error` is a fault of ours or of the endpoint: such a run says
    nothing of the model. `report` is what the model said at the end, None when it never did.
    """

    run_id: str
    messages: list[Turn]
    turn: int = 0
    steps: list[dict[str, Any]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    ended: Ended | None = None
    report: dict[str, Any] | None = None
    tests_ok: bool | None = None
    test_output: str | None = None
    tested: dict[str, bytes] | None = None
    n_test_runs: int = 0
    parse_errors_in_row: int = 0
    loops: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    told: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = 0.0
    error: str | None = None
    patch: str = ""
    files_touched: tuple[str, ...] = ()

    def log(self, kind: Kind, **fields: Any) -> None:
        """Add an event at the present turn."""
        self.events.append(event(kind, self.run_id, self.turn, **fields))

    def fail(self, why: str) -> None:
        """End the run by a fault that is not the model's."""
        self.ended, self.error, self.tests_ok = "error", why, None


def status_of(row: Mapping[str, Any]) -> str:
    """PASS or FAIL as tests said, ERROR for a fault that is not the model's, else N/A."""
    if row["error"] is not None:
        return "ERROR"
    return {True: "PASS", False: "FAIL", None: "N/A"}[row["tests_ok"]]

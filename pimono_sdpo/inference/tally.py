"""What a run has asked so far, and what the whole of it will cost."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pimono_sdpo.inference.calls import Reply
from pimono_sdpo.inference.prices import Price, cost


@dataclass
class Used:
    """Calls to one model: tokens, seconds of waiting, and how many the journal answered."""

    calls: int = 0
    replayed: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    seconds: float = 0.0


@dataclass
class Tally:
    """Calls of a run by model."""

    models: dict[str, Used] = field(default_factory=dict)

    def add(self, model: str, reply: Reply) -> None:
        """Count a reply."""
        used = self.models.setdefault(model, Used())
        used.calls += 1
        used.replayed += reply.from_journal
        used.failed += reply.error is not None
        used.prompt_tokens += reply.prompt_tokens
        used.completion_tokens += reply.completion_tokens
        used.cached_tokens += reply.cached_tokens
        used.seconds += reply.latency

    def told(self, prices: Mapping[str, Price]) -> str:
        """One line per model: calls, tokens, and USD where the price is known."""
        lines = []
        for model, used in sorted(self.models.items()):
            line = (
                f"{model}: {used.calls:,} calls ({used.replayed:,} from the journal, "
                f"{used.failed:,} failed), {_tokens(used, 1.0)}"
            )
            lines.append(line + _usd(prices, model, used, 1.0))
        return "\n".join(lines)

    def estimate(self, prices: Mapping[str, Price], done: int, rows: int, concurrency: int) -> str:
        """What `rows` will take when `done` of them took this: tokens, USD, time, by model.

        Calls that failed count as none: with failures the estimate is too low, and says so.
        """
        scale = rows / max(done, 1)
        lines = [f"estimate for {rows:,} rows, from {done:,} that were run:"]
        total: float | None = 0.0
        for model, used in sorted(self.models.items()):
            usd = _cost(prices, model, used)
            total = None if usd is None or total is None else total + usd * scale
            calls = round((used.calls - used.failed) * scale)
            lines.append(
                f"  {model}: {calls:,} calls, {_tokens(used, scale)}"
                + _usd(prices, model, used, scale)
            )
        seconds = sum(used.seconds for used in self.models.values()) * scale / concurrency
        costs = "no price is set for every model" if total is None else f"${total:,.2f}"
        lines.append(f"  in all: {costs}, {_time(seconds)} at {concurrency} calls at once")
        failed = sum(used.failed for used in self.models.values())
        if failed:
            lines.append(f"  {failed:,} calls failed and are not counted")
        return "\n".join(lines)


def _tokens(used: Used, scale: float) -> str:
    counts = (used.prompt_tokens, used.cached_tokens, used.completion_tokens)
    into, cached, out = (round(count * scale) for count in counts)
    return f"{into:,} tokens in ({cached:,} cached), {out:,} out"


def _cost(prices: Mapping[str, Price], model: str, used: Used) -> float | None:
    return cost(prices, model, used.prompt_tokens, used.completion_tokens, used.cached_tokens)


def _usd(prices: Mapping[str, Price], model: str, used: Used, scale: float) -> str:
    found = _cost(prices, model, used)
    return "" if found is None else f", ${found * scale:,.2f}"


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"

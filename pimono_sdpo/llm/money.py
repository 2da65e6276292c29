"""What calls cost: configured prices, a running total, an estimate, a limit never exceeded."""

import asyncio
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from pimono_sdpo.errors import InferenceError
from pimono_sdpo.llm.calls import Reply, Request
from pimono_sdpo.llm.journal import Journal

MILLION = 1_000_000


@dataclass(frozen=True)
class Price:
    """USD per million tokens; cached input costs as other input when no price says otherwise."""

    input: float
    output: float
    cached: float | None = None


def cost(
    prices: Mapping[str, Price], model: str, prompt: int, completion: int, cached: int
) -> float | None:
    """USD of so many tokens, `cached` being a part of `prompt`; None when the price is unknown."""
    price = prices.get(model)
    if price is None:
        return None
    cheap = price.input if price.cached is None else price.cached
    fresh = max(prompt - cached, 0)
    return (fresh * price.input + cached * cheap + completion * price.output) / MILLION


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

    def summarize(self, prices: Mapping[str, Price]) -> str:
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


# A token is hardly ever shorter than this, in bytes of UTF-8.
BYTES_PER_TOKEN = 2
# What a request without a limit of its own may answer.
MOST_TOKENS = 4096
# Seconds between two looks whether calls under way have freed what was set aside for them.
LOOK = 0.05


def need_prices(models: Sequence[str], prices: Mapping[str, Price]) -> None:
    """Raise InferenceError when one of the models has no price."""
    for model in models:
        if model not in prices:
            raise InferenceError(
                f'A limit of costs needs the price of `{model}`; set [prices."{model}"] with '
                "input and output in chain.toml."
            )


class Budget:
    """USD for all calls of a journal, those of earlier runs included.

    Never more than `most` is spent, provided that providers count tokens as expected here and bill
    nothing for calls that fail. Of several processes at once, each knows what the others had spent
    when it began. Raises InferenceError when one of the models, or one of the journal's, has no
    price.
    """

    def __init__(
        self, most: float, models: Sequence[str], prices: Mapping[str, Price], journal: Journal
    ) -> None:
        used = journal.usage()
        need_prices([*models, *[usage.model for usage in used]], prices)
        self.most = most
        self.prices = prices
        self.spent = 0.0
        self._held: list[float] = []
        for one in used:
            self._add(one.model, one.prompt_tokens, one.completion_tokens, one.cached_tokens)

    @asynccontextmanager
    async def hold(self, request: Request) -> AsyncIterator[str | None]:
        """Set aside what the call may cost; yields why it may not be made, or None.

        What does not fit now waits until calls under way have told what they really cost.
        """
        most = self._bound(request)
        while most is not None and self.spent + math.fsum(self._held) + most > self.most:
            if not self._held:
                most = None
            else:
                await asyncio.sleep(LOOK)
        if most is None:
            yield (
                f"The limit of ${self.most:.2f} is reached (${self.spent:.2f} spent); raise it to "
                "go on."
            )
            return
        self._held.append(most)
        try:
            yield None
        finally:
            self._held.remove(most)

    def paid(self, request: Request, reply: Reply) -> None:
        """Count a call that was made."""
        self._add(request.model, reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens)

    def _add(self, model: str, prompt: int, completion: int, cached: int) -> None:
        self.spent += cost(self.prices, model, prompt, completion, cached) or 0.0

    def _bound(self, request: Request) -> float | None:
        """The most a call can cost; None for a model that has no price."""
        prompt = len(request.canonical) // BYTES_PER_TOKEN
        return cost(self.prices, request.model, prompt, request.max_tokens or MOST_TOKENS, 0)

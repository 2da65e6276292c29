"""Compute what calls cost: prices, a running total, an estimate, a limit that always holds."""

import asyncio
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from pimono_sdpo.errors import InferenceError
from pimono_sdpo.llm.calls import Journal, Reply, Request, Usage
from pimono_sdpo.llm.settings import Price

# Tokens are hardly ever shorter than this, in bytes of UTF-8.
BYTES_PER_TOKEN = 2
# The assumed limit of a request without one.
MOST_TOKENS = 4096
# Seconds between checks whether calls in flight have released what they reserved.
POLL_SECONDS = 0.05


def cost(prices: Mapping[str, Price], model: str, used: Usage | Reply) -> float | None:
    """Return the USD of tokens used; None when the price is unknown."""
    price = prices.get(model)
    if price is None:
        return None
    cheap = price.input if price.cached is None else price.cached
    fresh = max(used.prompt_tokens - used.cached_tokens, 0)
    return (fresh * price.input + used.cached_tokens * cheap + used.completion_tokens * price.output) / 1_000_000


def sum_costs(prices: Mapping[str, Price], models: Mapping[str, Usage]) -> float | None:
    """Return the USD of the usage of several models, None when a price is unknown."""
    costs = [cost(prices, model, used) for model, used in models.items()]
    return None if None in costs else math.fsum(filter(None, costs))


@dataclass
class Tally:
    """The usage of a run by model."""

    models: dict[str, Usage] = field(default_factory=dict)

    def add(self, model: str, reply: Reply) -> None:
        """Count a reply."""
        self.models.setdefault(model, Usage()).add(reply)

    def summarize(self, prices: Mapping[str, Price]) -> str:
        """Return one line per model: calls, tokens, and USD where the price is known."""
        return "\n".join(
            f"{model}: {used.calls:,} calls ({used.replayed:,} from the journal, "
            f"{used.failed:,} failed), {_describe(prices, model, used, 1.0)}"
            for model, used in sorted(self.models.items())
        )

    def estimate(self, prices: Mapping[str, Price], done: int, rows: int, concurrency: int) -> str:
        """Extrapolate from `done` to `rows` rows: tokens, USD and time, by model.

        Failed calls are not counted: with failures the estimate is too low, and says so.
        """
        scale = rows / max(done, 1)
        lines = [f"estimate for {rows:,} rows, from {done:,} that were run:"]
        lines += [
            f"  {model}: {round((used.calls - used.failed) * scale):,} calls, {_describe(prices, model, used, scale)}"
            for model, used in sorted(self.models.items())
        ]
        usd = sum_costs(prices, self.models)
        total = "no price is set for every model" if usd is None else format_dollars(usd * scale)
        minutes = sum(used.seconds for used in self.models.values()) * scale / concurrency / 60
        lines.append(f"  in all: {total}, {minutes:,.0f} min at {concurrency} calls at once")
        if failed := sum(used.failed for used in self.models.values()):
            lines.append(f"  {failed:,} calls failed and are not counted")
        return "\n".join(lines)


def _describe(prices: Mapping[str, Price], model: str, used: Usage, scale: float) -> str:
    counts = (used.prompt_tokens, used.cached_tokens, used.completion_tokens)
    into, cached, out = (round(count * scale) for count in counts)
    usd = cost(prices, model, used)
    price = "" if usd is None else f", {format_dollars(usd * scale)}"
    return f"{into:,} tokens in ({cached:,} cached), {out:,} out{price}"


def format_dollars(usd: float) -> str:
    """Return an amount with cents, or with two digits where it is less than one cent.

    >>> format_dollars(1234.5), format_dollars(0.00123)
    ('$1,234.50', '$0.0012')
    """
    digits = 1 - math.floor(math.log10(usd)) if 0 < usd < 0.01 else 2
    return f"${usd:,.{digits}f}"


def need_prices(models: Sequence[str], prices: Mapping[str, Price]) -> None:
    """Raise InferenceError when one of the models has no price."""
    if missing := next((model for model in models if model not in prices), None):
        raise InferenceError(
            f'--max-cost needs the price of `{missing}`; set [prices."{missing}"] with input and output in chain.toml.'
        )


class Budget:
    """A limit in USD for all calls of a journal, including those of earlier runs.

    It is never exceeded, provided that providers count tokens as estimated here and do not bill
    failed calls. A process knows what other processes had spent when it started. Raises
    InferenceError when one of the models, or one of the journal's, has no price.
    """

    def __init__(self, most: float, models: Sequence[str], prices: Mapping[str, Price], journal: Journal) -> None:
        used = journal.usage()
        need_prices([*models, *used], prices)
        self.most = most
        self.prices = prices
        self.spent = sum_costs(prices, used) or 0.0
        self._held: list[float] = []

    @asynccontextmanager
    async def hold(self, request: Request) -> AsyncIterator[str | None]:
        """Reserve what the call may cost; yield why it may not be made, or None.

        A call that does not fit waits until calls in flight have reported their real cost.
        """
        prompt = len(request.canonical) // BYTES_PER_TOKEN
        bound = Usage(prompt_tokens=prompt, completion_tokens=request.max_tokens or MOST_TOKENS)
        most = cost(self.prices, request.model, bound) or 0.0
        while (too_much := self.spent + math.fsum(self._held) + most > self.most) and self._held:
            await asyncio.sleep(POLL_SECONDS)
        if too_much:
            limit, spent = format_dollars(self.most), format_dollars(self.spent)
            yield f"The limit of {limit} is reached ({spent} spent); raise it to go on."
            return
        self._held.append(most)
        try:
            yield None
        finally:
            self._held.remove(most)

    def paid(self, request: Request, reply: Reply) -> None:
        """Count a call that was made."""
        self.spent += cost(self.prices, request.model, reply) or 0.0

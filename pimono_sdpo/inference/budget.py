"""Keep what calls cost below a limit: before a call, the most it can cost is set aside."""

import asyncio
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from pimono_sdpo.errors import InferenceError
from pimono_sdpo.inference.calls import Reply, Request
from pimono_sdpo.inference.journal import Journal
from pimono_sdpo.inference.prices import Price, cost

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

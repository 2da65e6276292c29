"""What calls cost: tokens times the prices the user configured. No price is built in."""

from collections.abc import Mapping
from dataclasses import dataclass

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

"""When a guard is raised, on plain numbers."""

import math
import random
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import pytest

from pimono_sdpo.training.arguments import GuardedSDPOConfig
from pimono_sdpo.training.guards import (
    CLIPPED,
    ENTROPY,
    FLAT,
    GAP,
    GRADIENT,
    GUARDS,
    KL,
    LOSS,
    REPROMPTED,
    REWARD,
    Monitors,
)

WELL = {GRADIENT: 1.0, REWARD: 0.5, REPROMPTED: 1.0, FLAT: 0.0, LOSS: 0.1, CLIPPED: 0.2}
WELL |= {ENTROPY: 0.4, KL: 0.3, GAP: -0.3}


def raised(logs: Sequence[Mapping[str, float | None]], window: int = 4) -> list[list[str]]:
    monitors = Monitors(window)
    return [[*monitors.add(step, entry)] for step, entry in enumerate(logs, 1)]


def test_a_training_that_goes_well_raises_nothing() -> None:
    assert raised([WELL] * 100) == [[]] * 100


@pytest.mark.parametrize(
    ("guard", "change", "after"),
    [
        ("dead_reprompts", {REPROMPTED: 0.0}, 4),
        ("flat_groups", {FLAT: 1.0}, 4),
        ("clipped", {CLIPPED: 1.0}, 4),
        ("clipped", {CLIPPED: 0.99}, 4),
        ("loss_spike", {LOSS: 1.1}, 1),
        ("loss_spike", {LOSS: -1.1}, 1),
        ("not_finite", {LOSS: None}, 1),
        ("not_finite", {LOSS: math.inf}, 1),
        ("not_finite", {GRADIENT: math.inf}, 1),
        ("not_finite", {LOSS: 0.0, GRADIENT: math.nan}, 1),
        ("reward_collapse", {REWARD: 0.0}, 3),
        ("divergence", {ENTROPY: 2.0, REWARD: 0.4}, 3),
        ("divergence", {ENTROPY: 0.01, REWARD: 0.4}, 3),
        ("divergence", {KL: 3.0, REWARD: 0.4}, 3),
        ("divergence", {GAP: -3.0, REWARD: 0.4}, 3),
    ],
)
def test_each_guard_is_raised_once_and_again_after_it_was_well(
    guard: str, change: dict[str, float | None], after: int
) -> None:
    ill: list[dict[str, float | None]] = [{**WELL, **change}] * 6
    well: list[dict[str, float | None]] = [dict(WELL)] * 20
    found = raised([*well, *ill, *well, *ill])
    steps = [step for step, guards in enumerate(found, 1) if guards]
    assert steps == [20 + after, 46 + after]
    assert [guards for guards in found if guards] == [[guard], [guard]]


@pytest.mark.parametrize(
    "change",
    [
        {REPROMPTED: 0.1},
        {FLAT: 0.9},
        {CLIPPED: 0.98},
        {GRADIENT: 1e30},
        {LOSS: 0.9},
        {LOSS: 0.0},
        {REWARD: 0.26},
        {ENTROPY: 1.5, REWARD: 0.4},
        {KL: 9.0},
        {ENTROPY: 0.001},
        {KL: 0.0, REWARD: 0.4},
    ],
)
def test_what_is_nearly_ill_is_well(change: dict[str, float]) -> None:
    assert not any(raised([dict(WELL)] * 20 + [{**WELL, **change}] * 20))


def test_a_guard_without_its_metric_is_silent() -> None:
    """Without distillation no loss is logged; a NaN among the fractions is none."""
    assert not any(raised([{REWARD: math.nan}] * 30))
    assert not any(raised([{}] * 30))


def test_a_loss_of_zero_is_no_measure_of_its_size() -> None:
    """Steps without a teacher have the loss 0, the first one with a teacher is no spike."""
    assert not any(raised([{LOSS: loss} for loss in [0.0] * 20 + [0.3]]))


@pytest.mark.parametrize("completions", [2, 32])
@pytest.mark.parametrize("chance", [0.05, 0.3])
def test_noise_is_no_collapse(completions: int, chance: float) -> None:
    """Fifty runs of 200 steps in which the chance of success never changes."""
    false = 0
    for seed in range(50):
        draw = random.Random(seed).random
        logs = [{REWARD: fmean(draw() < chance for _ in range(completions))} for _ in range(200)]
        false += any(raised(logs, 10))
    assert false <= 1


@pytest.mark.parametrize(("completions", "at_last"), [(2, 250), (8, 130), (32, 120)])
def test_a_collapse_is_told_from_noise(completions: int, at_last: int) -> None:
    """From 0.6 to 0.1 within 20 steps."""
    for seed in range(20):
        draw = random.Random(seed).random
        chances = [0.6 - 0.5 * min(max(step - 100, 0) / 20, 1) for step in range(250)]
        found = raised([{REWARD: fmean(draw() < c for _ in range(completions))} for c in chances], 10)
        assert 100 < next(step for step, guards in enumerate(found) if guards) < at_last


@pytest.mark.parametrize(
    ("change", "told"), [({"stop_on": "flat_groups, kl"}, "--stop_on names kl; give some of reward_collapse, dive")]
)
def test_limits_that_mean_nothing_are_refused(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        GuardedSDPOConfig(output_dir="x", use_cpu=True, bf16=False, **change)


@pytest.mark.parametrize(
    ("text", "guards"), [("", set()), ("all", {*GUARDS}), ("clipped,loss_spike", {"clipped", "loss_spike"})]
)
def test_the_guards_that_stop_are_named_by_comma(text: str, guards: set[str]) -> None:
    config = GuardedSDPOConfig(output_dir="x", use_cpu=True, bf16=False, stop_on=text)
    assert config.stopping() == guards

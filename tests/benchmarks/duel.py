"""How often a gate accepts an equal, and how often it sees a better one: 2,000 simulated duels each.

    python -m tests.benchmarks.duel [--duels 2000] [--seed 0]

A panel of three judges compares two players in both orders on five metrics. What a judge thinks of
a turn is the true effect, plus what the task, the turn and the judge add, plus a bonus for the
answer shown first, plus noise for every metric; a judge says `tie` where that is small. Tasks share
what they add among their turns, which is why turns are no independent evidence. Gates: the
original's (the first order, a bootstrap over turns), ours, and ours resampling turns instead of
tasks. `min_clusters` is off, so that few tasks can be looked at; the second table is about the bound
alone, without margins. Then the time of a bound beside arena-hard's way: a loop that
draws the battles again 100 times.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import process_time
from typing import Any

import numpy as np

from pimono_sdpo.duel import gate
from pimono_sdpo.duel import gate as albedo_rules
from pimono_sdpo.schema import DUEL_METRICS
from processors.duel.scores import Array, Votes, score_turns
from tests.benchmarks.table import print_table

JUDGES = 3


@dataclass(frozen=True)
class World:
    """`tasks` with so many `turns` each; `shared` is the share of variance that a task's turns have
    in common; `effect` and `first` are in standard deviations of a turn; `unread` is the share of
    judgments that cannot be read.
    """

    name: str
    tasks: int
    turns: int
    shared: float
    effect: float = 0.0
    first: float = 0.0
    unread: float = 0.0


SIZES = (World("16 tasks x 4", 16, 4, 0.5), World("32 tasks x 8", 32, 8, 0.3))
CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("no effect", {}),
    ("no effect, first +0.3", {"first": 0.3}),
    ("no effect, 10 % unread", {"unread": 0.1}),
    ("small effect 0.3", {"effect": 0.3}),
    ("small effect 0.3, first +0.3", {"effect": 0.3, "first": 0.3}),
    ("small effect 0.3, 10 % unread", {"effect": 0.3, "unread": 0.1}),
)


def duel(world: World, rng: np.random.Generator) -> Votes:
    """Draw one duel."""
    turns = world.tasks * world.turns
    of_task = np.repeat(rng.normal(0, world.shared**0.5, world.tasks), world.turns)
    of_turn = world.effect + of_task + rng.normal(0, (1 - world.shared) ** 0.5, turns)
    shape = (turns, JUDGES, 2, len(DUEL_METRICS))
    thought = of_turn[:, None] + rng.normal(0, 0.7, shape[:2])
    position = np.array([-world.first, world.first])[:, None]
    noisy = thought[..., None, None] + position + rng.normal(0, 1.0, shape)
    values = np.where(np.abs(noisy) < 0.4, 0.5, np.where(noisy > 0, 1.0, 0.0))
    values[rng.random(shape[:3]) < world.unread] = np.nan
    instances = tuple(f"task-{number // world.turns}" for number in range(turns))
    names = tuple(f"turn-{number}" for number in range(turns))
    return Votes(names, instances, tuple("abc"), values)


def decisions(votes: Votes) -> list[bool]:
    """What the original's gate, ours, and ours over turns say; then their bounds alone."""
    scores = score_turns(votes).turn
    rules = gate.Rules(min_clusters=1, draws=999, min_parsed=0.5)
    old = albedo_rules.decide_by_albedo_rules(
        votes, albedo_rules.AlbedoRules(bootstrap_resamples=2000)
    )
    ours = [gate.decide_duel(scores, by, rules) for by in (votes.instances, votes.turns)]
    whole = [old.accepted, *(verdict.accepted for verdict in ours)]
    bounds = [old.lcb is not None and old.lcb > 0, *(v.bound > gate.PARITY for v in ours)]
    return whole + bounds


def rates(world: World, duels: int, seed: int) -> list[str]:
    """The share of duels that each gate and each bound accepts."""
    rng = np.random.default_rng(seed)
    found = np.mean([decisions(duel(world, rng)) for _ in range(duels)], axis=0)
    return [f"{rate:.1%}" for rate in found]


def arena_hard_bound(scores: Array, rounds: int = 100) -> float:
    """The 5 % quantile of means of battles drawn again, one round after the other."""
    rng = np.random.default_rng(0)
    battles: Sequence[float] = scores.tolist()
    means = []
    for _ in range(rounds):
        drawn = rng.integers(0, len(battles), len(battles))
        means.append(sum(battles[index] for index in drawn) / len(battles))
    return float(np.quantile(means, 0.05))


def times() -> list[list[str]]:
    """CPU milliseconds of one bound over 2,000 turns of 500 tasks, the smallest of 5."""
    votes = duel(World("", 500, 4, 0.3), np.random.default_rng(0))
    scores = score_turns(votes).turn
    ways: dict[str, Callable[[], object]] = {
        "ours: 9,999 rounds over tasks, BCa": lambda: gate.decide_duel(
            scores, votes.instances, gate.Rules()
        ),
        "the original: 10,000 rounds over turns": lambda: albedo_rules.decide_by_albedo_rules(
            votes, albedo_rules.AlbedoRules()
        ),
        "arena-hard's way: 100 rounds over battles": lambda: arena_hard_bound(scores),
    }
    rows = [["one bound over 2,000 turns of 500 tasks", "CPU ms"]]
    for name, way in ways.items():
        took = []
        for _ in range(5):
            started = process_time()
            way()
            took.append(process_time() - started)
        rows.append([name, f"{1000 * min(took):.0f}"])
    return rows


def main() -> None:
    """Print three tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--duels", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    header = ["panel", "case", "original", "ours", "ours, over turns"]
    whole, bounds = [header], [header]
    for size in SIZES:
        for name, changed in CASES:
            found = rates(replace(size, **changed), given.duels, given.seed)
            whole.append([size.name, name, *found[:3]])
            bounds.append([size.name, name, *found[3:]])
            print(f"{size.name}, {name} ...", file=sys.stderr)
    for title, rows in (("whole gate", whole), ("bound alone", bounds)):
        print(f"\nshare of {given.duels} duels accepted, {title}\n")
        print_table(rows)
    print()
    print_table(times())


if __name__ == "__main__":
    main()

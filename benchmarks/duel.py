"""How often a gate accepts an equal, how often it sees a better one, and what it asks for that.

    python -m benchmarks.duel [--duels 1000] [--seed 0]

A panel of three judges compares two players on five metrics. What a judge thinks of a turn is the
true effect, plus what the repository, the turn and the judge add, plus a bonus for the answer shown
first, plus noise for every metric; a judge says `tie` where that is small, and some verdicts are
flipped. Three gates judge the same kind of worlds:

- ours: one turn a task, one call a turn, up to five looks;
- the former one: the whole panel in both orders on 60 tasks of 4 turns (1,440 calls), a one-sided
  t-test over tasks;
- the original: the first order of the same votes, a bootstrap over turns.

The effect of 0.32 standard deviations gives an expected score of 57.7 with ordinary judges.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.table import print_table
from pimono_sdpo.duel.gate import LOOKS, decide, decide_by_original_rules
from pimono_sdpo.llm.settings import Duel, Gate
from pimono_sdpo.schema import DUEL_METRICS, PARITY
from processors.duel.judge import Array, choose_seats

JUDGES = ("a", "b", "c")
EFFECT = 0.32
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class World:
    """`effect` and `first` are in standard deviations of a turn, `flipped` is a share of verdicts.

    `sizes` are relative numbers of tasks of repositories, none for one of each; `shared` is the
    share of variance that a repository's tasks have in common. `rare` is the chance of a disaster:
    a task that the challenger loses whatever else, made up for by a higher mean. `obeyed` is the
    number of judges who always vote for the challenger, `tasks` how many our gate may read.
    """

    name: str
    effect: float = 0.0
    first: float = 0.0
    flipped: float = 0.0
    sizes: tuple[float, ...] = ()
    shared: float = 0.1
    rare: float = 0.0
    obeyed: int = 0
    tasks: int = 360


ZIPF = tuple(1 / rank for rank in range(1, 61))
HEAVY = (59.0, *[1.0] * 59)
EQUALS = (
    World("equal tasks"),
    World("equal tasks, first +0.8", first=0.8),
    World("Zipf repositories, 10 % of variance shared", sizes=ZIPF),
    World("one repository has half", sizes=HEAVY),
    World("rare disasters", rare=0.05),
    World("Zipf repositories, rare disasters", sizes=ZIPF, rare=0.05),
    World("one judge of three obeys the answer", obeyed=1),
    *(
        World(f"one judge of three obeys, {tasks} tasks", obeyed=1, tasks=tasks)
        for tasks in (30, 40, 60, 100, 200, 400)
    ),
)
BETTER = (
    World("ordinary judges", effect=EFFECT),
    World("first +0.8", effect=EFFECT, first=0.8),
    World("16 % of verdicts flipped", effect=EFFECT, flipped=0.16),
    World("first +0.8, 10 % flipped", effect=EFFECT, first=0.8, flipped=0.1),
    World("Zipf repositories", effect=EFFECT, sizes=ZIPF),
)
Ask = Callable[[Ints, Ints, Ints], Array]


def open_world(world: World, turns: int, each: int, rng: np.random.Generator) -> tuple[Ask, Ints]:
    """Return a function from turns, judges and orders to votes (calls, metrics), and repositories.

    `each` turns belong to one task and share half of their variance.
    """
    tasks = turns // each
    repos = np.arange(tasks)
    repo_part = np.zeros(tasks)
    if world.sizes:
        chances = np.array(world.sizes) / sum(world.sizes)
        repos = rng.choice(len(chances), tasks, p=chances)
        repo_part = rng.normal(0, world.shared**0.5, len(chances))[repos]
    own = 1 - (world.shared if world.sizes else 0)
    shared = own * 0.5 if each > 1 else own
    task_part = repo_part + rng.normal(0, shared**0.5, tasks)
    quality = np.repeat(task_part, each) + world.effect
    if each > 1:
        quality = quality + rng.normal(0, (own - shared) ** 0.5, turns)
    disaster = np.repeat(rng.random(tasks) < world.rare, each)
    # What the other tasks score more makes up for the disasters: 24 points per deviation.
    quality = np.where(disaster, -8.0, quality + world.rare * 2.19)

    def ask(turn: Ints, judge: Ints, order: Ints) -> Array:
        thought = quality[turn] + rng.normal(0, 0.7, len(turn))
        shifted = thought + np.where(order == 1, world.first, -world.first)
        noisy = shifted[:, None] + rng.normal(0, 1.0, (len(turn), len(DUEL_METRICS)))
        votes = np.where(np.abs(noisy) < 0.4, 0.5, np.where(noisy > 0, 1.0, 0.0))
        flipped = rng.random(len(turn)) < world.flipped
        votes[flipped] = 1 - votes[flipped]
        votes[judge < world.obeyed] = 1.0
        return votes

    return ask, repos


def run_ours(world: World, rng: np.random.Generator) -> tuple[bool, int]:
    """Return whether our gate accepts, and its number of calls."""
    rules = Gate(max_turns=world.tasks)
    turns = rules.max_turns
    ask, repos = open_world(world, turns, 1, rng)
    seed = int(rng.integers(1 << 30))
    seats = [
        (turn, JUDGES.index(judge), order)
        for turn in range(turns)
        for judge, order in choose_seats(f"turns-00000_{turn + 1}", JUDGES, seed)
    ]
    turn, judge, order = np.array(seats).T
    score = 100 * ask(turn, judge, order).mean(axis=1)
    scores = np.full((turns, len(JUDGES), 2), np.nan)
    scores[turn, judge, order] = score
    looks = [round(share * turns) for share in LOOKS]
    names = [str(repo) for repo in repos]
    for look, stop in enumerate(looks):
        found = decide(scores[:stop], JUDGES, names[:stop], "repo", looks, look, rules)
        if found["conclusion"] != "open":
            break
    return found["conclusion"] == "accepted", found["calls"]


def run_panel(world: World, rng: np.random.Generator) -> tuple[bool, bool]:
    """Return whether the former gate and the original's accept, of 240 turns of 60 tasks."""
    turns, each = 240, 4
    ask, _ = open_world(world, turns, each, rng)
    index = np.indices((turns, len(JUDGES), 2)).reshape(3, -1)
    votes = ask(*index).reshape(turns, len(JUDGES), 2, len(DUEL_METRICS))
    tasks = 100 * votes.reshape(turns // each, -1).mean(axis=1)
    found = stats.ttest_1samp(tasks, PARITY, alternative="greater")
    original = decide_by_original_rules(votes, Duel(bootstrap_resamples=500))
    return bool(found.pvalue < 0.05), original["accepted"]


def measure(worlds: Sequence[World], duels: int, seed: int) -> list[list[str]]:
    """Return a row for each world: shares of accepted duels, and calls."""
    rows = []
    for world in worlds:
        rng = np.random.default_rng(seed)
        ours = np.array([run_ours(world, rng) for _ in range(duels)])
        panel = np.array([run_panel(world, rng) for _ in range(duels)])
        rate, calls = ours[:, 0].mean(), ours[:, 1]
        rows.append(
            [
                world.name,
                f"{rate:.1%} +- {1.96 * (rate * (1 - rate) / duels) ** 0.5:.1%}",
                f"{calls.mean():.0f} (at most {calls.max()})",
                *(f"{share:.1%}" for share in panel.mean(axis=0)),
            ]
        )
    return rows


def main() -> None:
    """Print two tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--duels", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    header = ["accepted", "calls", "former gate (1,440 calls)", "original (720 calls)"]
    for title, worlds in (("equal players", EQUALS), ("a better challenger", BETTER)):
        print(f"\n{given.duels} duels each\n")
        print_table([[title, *header], *measure(worlds, given.duels, given.seed)])


if __name__ == "__main__":
    main()

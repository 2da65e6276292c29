"""Run trainings that go wrong on purpose, with a Trackio database of their own.

    python -m tests.training.guarded MODEL FOLDER SCENARIO...

prints a JSON line for each: what the guards recorded and what Trackio has. A process of its own,
since Trackio reads TRACKIO_DIR when it is imported; several of them under torchrun.
"""

import json
import sys
from pathlib import Path
from typing import Any

from trackio.sqlite_storage import SQLiteStorage

from pimono_sdpo.training.rewards import Scoring
from tests.training.setup import StopAfter, arguments, hand_made, letters_reward, prepare

PROJECT = "guards"


def falling(prompts: list[Any], trainer_state: Any = None, **_: object) -> list[float | None]:
    """Good for six steps, bad ever after; a little different within a group."""
    good = trainer_state is None or trainer_state.global_step < 6
    return [(0.9 if good else 0.1) - 0.02 * (number % 2) for number in range(len(prompts))]


SCENARIOS: dict[str, tuple[Any, dict[str, Any]]] = {
    "not_finite": (
        letters_reward,
        # The rollouts are used twice: from these weights none could be sampled.
        {"max_steps": 6, "learning_rate": 1e38, "num_iterations": 2, "stop_on": "all"},
    ),
    "reward_collapse": (
        falling,
        {
            "max_steps": 16,
            "guard_window": 3,
            "save_strategy": "steps",
            "save_steps": 2,
            "save_total_limit": 1,
            "stop_on": "reward_collapse,not_finite",
        },
    ),
    "well": (letters_reward, {"max_steps": 4}),
}


def run(model: Path, folder: Path, scenario: str, stop: int | None = None) -> dict[str, Any]:
    """Train in FOLDER/SCENARIO, going on where it was stopped."""
    reward, changes = SCENARIOS[scenario]
    settings = {"report_to": "trackio", "project": PROJECT, "run_name": scenario, **changes}
    args, model_args = arguments(folder / scenario, model, **settings)
    args.trackio_static_space_id = False
    prepared = prepare(args, model_args, hand_made(), Scoring(reward))
    if stop is not None:
        prepared.trainer.add_callback(StopAfter(stop))
    prepared.run_steps()
    return {
        "scenario": scenario,
        "rank": args.process_index,
        "steps": prepared.trainer.state.global_step,
        **prepared.guards.record(),
    }


def main(model: str, folder: str, *scenarios: str) -> None:
    for scenario in scenarios:
        result = run(Path(model), Path(folder), scenario)
        told = SQLiteStorage.get_alerts(PROJECT, scenario)
        sys.stdout.write(json.dumps({**result, "trackio": told}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

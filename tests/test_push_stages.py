"""Rows of the filter, steps and pairs in one dataset on the Hub, a config for each."""

from pathlib import Path
from typing import Any

import pytest

from pimono_sdpo.cli.pairs import PairOptions, write_pairs
from pimono_sdpo.cli.steps import StepOptions, write_steps
from pimono_sdpo.filtering import FilterOptions, run_filter
from tests.exports import write_samples
from tests.loopback_hub import LoopbackHub, run_client
from tests.rollout_data import OTHER, final, prose, read, rollout, write, write_folder
from tests.test_push import push

LOADED = """
import json
from datasets import get_dataset_config_names, load_dataset
names = get_dataset_config_names("me/rows")
told = {name: load_dataset("me/rows", name, split="train").num_rows for name in names}
print(json.dumps({"configs": told, "default": load_dataset("me/rows", split="train").num_rows}))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    write_samples(folder / "traces")
    run_filter(str(folder / "traces"), folder / "rows", FilterOptions(licence="mit"))
    fails = [prose(), read(), write(OTHER, False), final("done")]
    rows = [rollout("fix_a", 42), rollout("fix_a", 43, fails)]
    source = write_folder(folder / "rollouts", rows)
    write_steps(StepOptions(source=[str(source)], out=folder / "steps", require_success=False, licence="mit"))
    write_pairs(
        PairOptions(source=[str(source)], out=folder / "pairs", flaky_reruns=0, licence="mit", format="together")
    )
    return folder


def loaded(hub: LoopbackHub, home: Path) -> Any:
    return run_client(hub, home, LOADED)


def test_every_stage_has_its_config(loopback_hub: LoopbackHub, made: Path) -> None:
    for name in ("steps", "pairs", "rows"):
        done = push(loopback_hub, made / name)
        assert done.returncode == 0, done.stderr
    counts = {"steps": 3, "steps_rejects": 2, "pairs": 1}
    found = loaded(loopback_hub, made)
    assert counts.items() <= found["configs"].items()
    assert found["default"] == found["configs"]["default"]
    card = loopback_hub.files("me/rows", "dataset")["README.md"].decode()
    assert card.count("<!-- pimono-sdpo:steps -->") == card.count("# Agent steps") == 1
    assert "# SDPO rows" in card
    # The same again is no commit, and a smaller one takes only its own shards away.
    assert "nothing is left to upload" in push(loopback_hub, made / "pairs").stdout
    write_steps(StepOptions(source=[str(made / "rollouts")], out=made / "fewer", licence="mit"))
    assert push(loopback_hub, made / "fewer").returncode == 0
    again = loaded(loopback_hub, made)["configs"]
    assert again == {**{k: v for k, v in found["configs"].items() if k != "steps_rejects"}, **{
        "steps": 2, "steps_rejects": 1,
    }}  # fmt: skip
    # Rows of the filter leave the others as well.
    assert push(loopback_hub, made / "rows").returncode == 0
    assert loaded(loopback_hub, made)["configs"] == again
    assert loopback_hub.files("me/rows", "dataset")["README.md"].decode().count("# Agent steps") == 1


def test_a_dataset_without_configs_gets_none_of_ours(loopback_hub: LoopbackHub, made: Path) -> None:
    theirs = {"README.md": b"---\nlicense: mit\n---\n", "train.csv": b"a\n1\n"}
    loopback_hub.seed("me/rows", "dataset", theirs)
    done = push(loopback_hub, made / "steps")
    assert done.returncode == 2
    assert "one for steps would hide the files that are there" in done.stderr
    assert loopback_hub.files("me/rows", "dataset")["README.md"] == theirs["README.md"]


def test_a_secret_in_an_argument_stops_the_push(loopback_hub: LoopbackHub, tmp_path: Path) -> None:
    secret = f"hf_{'aB3dE5gH7j' * 4}"[:37]
    leak = write(f'TOKEN = "{secret}"\n', True)
    source = write_folder(tmp_path / "rollouts", [rollout("a", 1, [leak], protocol="native")])
    write_steps(StepOptions(source=[str(source)], out=tmp_path / "steps"))
    done = push(loopback_hub, tmp_path / "steps")
    assert done.returncode == 2
    assert "looks like a secret (huggingface_token) in its column `completion`" in done.stderr

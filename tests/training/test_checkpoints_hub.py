"""A training that goes on, on another machine, from what a bucket of the Hub has kept."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.loopback_hub import LoopbackHub
from tests.training.in_turn import in_turn
from tests.training.setup import digest

pytestmark = pytest.mark.slow

BUCKET = "me/adapter-checkpoints"
WEIGHTS = "adapter/adapter_model.safetensors"
JOB = {"JOB_ID": "0", "TIME_LIMIT": "1h", "HUB_MODEL_ID": "me/adapter"}


def turn(folder: Path, tiny: Path, filtered: Path, *argv: str, **changes: str | None) -> dict[str, Any]:
    asked = ["--config", "cpu", "--run-name", "r", "--report_to", "none", "--max_steps", "3"]
    asked += ["--dataset", str(filtered), "--model_name_or_path", str(tiny)]
    asked += ["--preflight_rows", "0", "--save_steps", "1", *argv]
    env = {name: value for name, value in {**JOB, **changes}.items() if value is not None}
    return {"cwd": str(folder), "argv": asked, "env": env}


def kept(hub: LoopbackHub) -> list[str]:
    return sorted(hub.store.buckets[BUCKET].files)


def test_a_fresh_machine_goes_on_to_the_same_adapter(
    loopback_hub: LoopbackHub, tiny: Path, filtered: Path, tmp_path: Path
) -> None:
    env = loopback_hub.env(tmp_path, xet=True)
    first, second, straight = (tmp_path / name for name in ("first", "second", "straight"))
    loopback_hub.fail_next(f"/api/buckets/{BUCKET}/batch", 409)
    (cut,) = in_turn(env, turn(first, tiny, filtered, "--time_limit", "1s"))
    assert cut[0] == 0, cut[1]
    assert "The Hub is busy (answer 409)" in cut[1]
    names = kept(loopback_hub)
    assert {"r/checkpoint-1/trainer_state.json", "r/run-local.json"} < {*names}
    assert not [name for name in names if name.endswith("training_args.bin")]
    files = loopback_hub.store.buckets[BUCKET].files
    assert loopback_hub.store.buckets[BUCKET].private
    assert b"stopped by time_limit" in loopback_hub.files("me/adapter")["README.md"]
    files["r-2/run-local.json"] = files["r/run-local.json"]

    on, alone = in_turn(
        env, turn(second, tiny, filtered), turn(straight, tiny, filtered, JOB_ID=None, HUB_MODEL_ID=None)
    )
    assert on[0] == 0, on[1]
    assert alone[0] == 0, alone[1]
    assert f"resumes from step 1, which the bucket {BUCKET} has kept" in on[1]
    out = second / "outputs" / "r"
    assert json.loads((out / "run.json").read_text())["resumed_at"] == [1]
    assert digest(out / WEIGHTS) == digest(straight / "outputs" / "r" / WEIGHTS)
    pushed = loopback_hub.files("me/adapter")
    assert pushed["adapter_model.safetensors"] == (out / WEIGHTS).read_bytes()
    assert kept(loopback_hub) == ["r-2/run-local.json"], "done: its own are forgotten"


def test_what_breaks_off_is_passed_over_and_what_is_damaged_is_told(
    loopback_hub: LoopbackHub, tiny: Path, filtered: Path, tmp_path: Path
) -> None:
    env = loopback_hub.env(tmp_path, xet=True)
    loopback_hub.add_bucket("me/public", {}, private=False)
    here, there = tmp_path / "here", tmp_path / "there"
    cut, foreign, unnamed, public = in_turn(
        env,
        turn(here, tiny, filtered, "--time_limit", "1s"),
        turn(there, tiny, filtered, "--checkpoint_bucket", "nobody/bucket"),
        turn(there, tiny, filtered, "--checkpoint_bucket", "a/b/c"),
        turn(there, tiny, filtered, "--checkpoint_bucket", "me/public"),
    )
    assert cut[0] == 0, cut[1]
    assert (foreign[0], unnamed[0], public[0]) == (2, 2, 2)
    assert "cannot be stored in the bucket `nobody/bucket` (the Hub answers 403" in foreign[1]
    assert "`a/b/c` is not a valid bucket name; give ns/name as --checkpoint_bucket" in unnamed[1]
    assert "The bucket `me/public` is public, but the files to upload are private; make it private" in public[1]
    assert not (there / "outputs").exists()

    # Every write fails from here on: the training does not, and what was there stays.
    shutil.rmtree(here / "outputs")
    before = dict(loopback_hub.store.buckets[BUCKET].files)
    loopback_hub.fail_next(f"/api/buckets/{BUCKET}/batch", 413, times=99)
    ((code, said),) = in_turn(env, turn(here, tiny, filtered))
    assert code == 0, said
    assert "The checkpoint of step 2 is not in the bucket" in said
    assert "could not be removed" in said
    assert loopback_hub.store.buckets[BUCKET].files == before

    loopback_hub.faults.clear()
    shutil.rmtree(here / "outputs")
    files = loopback_hub.store.buckets[BUCKET].files
    files["r/run-local.json"] = files["r/checkpoint-1/trainer_state.json"]
    damaged, over = in_turn(
        env, turn(here, tiny, filtered), turn(there, tiny, filtered, "--overwrite", "--max_steps", "1")
    )
    assert damaged[0] == 2
    assert "no record of their arguments" in damaged[1]
    assert over[0] == 0, over[1]
    assert json.loads((there / "outputs/r/run.json").read_text())["resumed_at"] == []
    assert kept(loopback_hub) == []

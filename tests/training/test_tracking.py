"""Runs of one name are told apart, here and in a Space that is not asked."""

from pathlib import Path
from typing import Any

import pytest

from pimono_sdpo.training import callbacks
from pimono_sdpo.training.arguments import GuardedSFTConfig


def config(folder: Path, **changes: Any) -> Any:
    given = {"run_name": "mine", "report_to": "trackio", "use_cpu": True, "bf16": False, **changes}
    return GuardedSFTConfig(output_dir=str(folder), **given)


def test_in_a_space_a_run_gets_the_id_of_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = config(tmp_path, trackio_space_id="me/space")
    monkeypatch.setenv("JOB_ID", "68b1f0aa11112222aaaabbbb")
    assert callbacks.free_run_name(args) == "mine-2222aaaabbbb"
    monkeypatch.delenv("JOB_ID")
    told_apart = callbacks.free_run_name(args).removeprefix("mine-")
    assert told_apart.replace("-", "").isdigit()
    assert callbacks.free_run_name(config(tmp_path, report_to="none")) == "mine"

"""`train --on hf:FLAVOR`: what it ships, what it says first, and what stops it."""

import json
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pimono_sdpo.filtering import FilterOptions, run_filter
from pimono_sdpo.training import SMOKE_TEST
from pimono_sdpo.version import __version__
from tests.exports import write_samples
from tests.loopback_hub import LoopbackHub, run_client, run_python
from tests.loopback_hub.call import FINE_TOKEN
from tests.loopback_hub.executor import Job

ROOT = Path(__file__).parents[2]
TRAINING = ("datasets", "pimono_sdpo.cli", "pimono_sdpo.training.sdpo")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    write_samples(tmp_path / "traces")
    run_filter(str(tmp_path / "traces"), tmp_path / "rows", FilterOptions(licence="mit"))
    return tmp_path / "rows"


def launch(
    hub: LoopbackHub, home: Path, *words: str, token: str | None = "hf_loopback"
) -> subprocess.CompletedProcess[str]:
    command = ("-m", "pimono_sdpo", "train", "rows", *words)
    return run_python(hub, home, *command, token=token, xet=True, imported=TRAINING)


# Prints what a job would install, for each origin of this installation.
FIND = """
import json, sys
from pathlib import Path
from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.training.launch import find_package
for name, origin in json.load(sys.stdin).items():
    about = Path("pimono_sdpo-0.1.0.dist-info", "direct_url.json")
    about.write_text(json.dumps(origin)) if origin else about.unlink(missing_ok=True)
    Path(name).mkdir()
    try:
        print(find_package(None, Path(name)))
    except TrainingInputError as problem:
        print(problem)
"""


def test_a_job_installs_what_is_installed_here(tmp_path: Path) -> None:
    for name in ("pimono_sdpo", "processors", "rewards", "cards"):
        shutil.copytree(ROOT / name, tmp_path / name)
    about = tmp_path / "pimono_sdpo-0.1.0.dist-info"
    about.mkdir()
    metadata = "Metadata-Version: 2.1\nName: pimono-sdpo\nVersion: 0.1.0\n"
    (about / "METADATA").write_text(metadata)
    wheel = tmp_path / "pimono_sdpo-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    vcs = {"vcs": "git", "commit_id": "c0ffee"}
    cases: dict[str, tuple[dict[str, Any], str]] = {
        "release": ({}, f"pimono-sdpo[train]=={__version__}"),
        "vcs": (
            {"url": "https://example.org/p.git", "vcs_info": vcs},
            "pimono-sdpo[train] @ git+https://example.org/p.git@c0ffee",
        ),
        "url": (
            {"url": "https://example.org/p.whl", "archive_info": {}},
            "pimono-sdpo[train] @ https://example.org/p.whl",
        ),
        "wheel": ({"url": wheel.as_uri()}, f"/{wheel.name}[train]"),
        "gone": ({"url": (tmp_path / "gone.whl").as_uri()}, "of this installation is gone; give one as --wheel FILE."),
    }
    done = subprocess.run(
        [sys.executable, "-c", FIND],
        input=json.dumps({name: origin for name, (origin, _) in cases.items()}),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for (name, (_, expected)), said in zip(cases.items(), done.stdout.splitlines(), strict=True):
        assert said.endswith(expected), name
    assert (tmp_path / "wheel" / wheel.name).read_bytes() == b"a wheel"


ON = ("--on", "hf:cpu-basic")


@pytest.mark.parametrize(
    ("words", "token", "sentence"),
    [
        (("--on", "hf:abacus"), "hf_loopback", "There is no flavor `abacus`; give one of cpu-basic"),
        (("--on", "hf:abacus"), None, "There is no flavor `abacus`"),
        (("--on", "mars"), "hf_loopback", "--on is mars; give here or hf:FLAVOR"),
        ((*ON, "--max_stepz", "3"), "hf_loopback", "Unknown argument(s) --max_stepz 3, did you mean --max_steps?"),
        ((*ON, "--max_steps", "three"), "hf_loopback", "invalid int value: 'three'"),
        ((*ON, "--split_by", "day"), "hf_loopback", "argument --split_by/--split-by: invalid choice"),
        ((*ON, "--config", "nosuch.yaml"), "hf_loopback", "There is no recipe `nosuch.yaml`"),
        ((*ON, "--config", "tiny.yaml"), "hf_loopback", "give the name of a recipe without .yaml"),
        ((*ON, "--time-limit", "soon"), "hf_loopback", "`soon` is not a valid time limit"),
        ((*ON, "--model-name-or-path=traces"), "hf_loopback", "is on this machine, where a job"),
        ((*ON, "--wheel", "gone.whl"), "hf_loopback", "The wheel `gone.whl`"),
        (ON, "hf_mistyped", "does not accept the token"),
    ],
)
def test_what_cannot_run_there_is_found_before_anything_leaves(
    loopback_hub: LoopbackHub, rows: Path, words: tuple[str, ...], token: str | None, sentence: str
) -> None:
    done = launch(loopback_hub, rows.parent, *words, token=token)
    assert done.returncode == 2, done.stdout + done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith("pimono-sdpo: ")
    assert sentence in line
    assert not loopback_hub.store.repos
    assert not loopback_hub.store.buckets
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "is_said"),
    [((), True), (("--config", "qwen3_4b"), True), (("--reward", "verifiers"), False), (("--method", "sft"), False)],
)
def test_the_first_line_says_that_the_reward_is_a_smoke_test(
    loopback_hub: LoopbackHub, rows: Path, words: tuple[str, ...], is_said: bool
) -> None:
    done = launch(loopback_hub, rows.parent, "--on", "hf:abacus", *words)
    assert (done.stdout.splitlines()[:1] == [SMOKE_TEST]) == is_said, done.stdout + done.stderr


def test_private_rows_do_not_go_to_a_public_dataset(loopback_hub: LoopbackHub, rows: Path) -> None:
    loopback_hub.seed("me/rows", "dataset", {"a.txt": b"theirs"})
    done = launch(loopback_hub, rows.parent, *ON)
    assert done.returncode == 2
    assert "The dataset `me/rows` is public" in done.stderr
    assert sorted(loopback_hub.files("me/rows", "dataset")) == [".gitattributes", "a.txt"]


@pytest.mark.parametrize("token", ["hf_loopback", FINE_TOKEN])
def test_an_account_that_cannot_pay_or_may_not_run_jobs(
    loopback_hub: LoopbackHub, rows: Path, tmp_path: Path, token: str
) -> None:
    loopback_hub.store.credit = False
    (tmp_path / "p.whl").write_bytes(b"")
    loopback_hub.seed("lab/rows", "dataset", {}, private=True)
    done = launch(loopback_hub, rows.parent, *ON, "--wheel", "p.whl", token=token)
    assert done.returncode == 2, done.stdout + done.stderr
    reason = "402, Pre-paid credit balance is insufficient" if token == "hf_loopback" else "403"
    assert f"the Hub answers {reason}" in done.stderr.splitlines()[-1]
    assert not loopback_hub.store.jobs


LEFT = """
import importlib, json, os
from pimono_sdpo.training import callbacks
importlib.reload(callbacks)
left = []
for os.environ["JOB_ID"] in {jobs}:
    left.append(callbacks.time_limit_of("3h").end - callbacks.IMPORTED)
print(json.dumps(left))
"""


def test_the_time_counts_from_the_jobs_start_by_the_hub(loopback_hub: LoopbackHub, tmp_path: Path) -> None:
    started = datetime.now(UTC) - timedelta(hours=1)
    spec = {"command": ["x"], "flavor": "cpu-basic"}
    job = Job("0" * 24, "me", spec, "RUNNING", started=started.strftime("%Y-%m-%dT%H:%M:%S.%fZ"))
    job.ended.set()
    loopback_hub.store.jobs[job.job_id] = job
    asking = LEFT.format(jobs=[job.job_id, "1" * 24])
    known, unknown = run_client(loopback_hub, tmp_path, asking, xet=True, imported=TRAINING)
    assert 0 < known <= 2 * 3600
    assert unknown == 3 * 3600

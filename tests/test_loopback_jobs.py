"""Jobs that the real `hf` submits and the Hub really runs."""

import json
from pathlib import Path

import pytest

from tests.loopback_hub import LoopbackHub
from tests.loopback_hub.hf import run_hf

SCRIPT = """
# /// script
# requires-python = ">=3.11"
# dependencies = []
#
# [tool.hf-jobs]
# flavor = "cpu-basic"
# timeout = "5m"
# secrets = ["HF_TOKEN"]
# ///
import os, pathlib, sys
print("arguments", sys.argv[1:])
print("token", os.environ["HF_TOKEN"] == "hf_loopback", os.environ["JOB_ID"])
for name in sys.argv[1:]:
    if name.endswith(".txt"):
        print("given", pathlib.Path(name).read_text())
pathlib.Path(__file__).with_name("out.txt").write_text("kept")
sys.exit("--fail" in sys.argv and 3)
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "job.py").write_text(SCRIPT)
    (tmp_path / "in.txt").write_text("a local file")
    return tmp_path


def test_a_job_runs_and_its_end_is_the_commands(loopback_hub: LoopbackHub, here: Path) -> None:
    done = run_hf(loopback_hub, here, "jobs", "uv", "run", "job.py", "--", "in.txt", "-x", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "given a local file" in done.stdout
    assert "token True 000000000000000000000001" in done.stdout
    assert "hf_loopback" not in done.stdout + done.stderr
    (job,) = loopback_hub.store.jobs.values()
    assert (job.stage, job.spec["timeoutSeconds"], job.spec["flavor"]) == ("COMPLETED", 300, "cpu-basic")
    files = loopback_hub.store.buckets["me/jobs-artifacts"].files
    assert sorted(path.split("/")[1] for path in files) == ["in.txt", "job.py", "out.txt"]

    failed = run_hf(loopback_hub, here, "jobs", "uv", "run", "job.py", "--", "--fail")
    assert failed.returncode == 1
    assert "exit code: 3" in failed.stdout + failed.stderr


@pytest.mark.slow
def test_a_job_is_waited_for_and_read_from_outside(loopback_hub: LoopbackHub, here: Path) -> None:
    script = '# /// script\n# dependencies = []\n# ///\nimport time\nprint("on")\ntime.sleep({})'
    (here / "long.py").write_text(script.format(600))
    (here / "short.py").write_text(script.format(0))
    launched = {}
    for name in ("long", "short"):
        made = run_hf(loopback_hub, here, "jobs", "uv", "run", "-d", "-q", f"{name}.py")
        launched[name] = made.stdout.splitlines()[-1]
    assert run_hf(loopback_hub, here, "jobs", "wait", launched["short"]).returncode == 0
    logs = run_hf(loopback_hub, here, "jobs", "logs", launched["short"])
    assert logs.stdout.splitlines() == ["on"]
    assert run_hf(loopback_hub, here, "jobs", "cancel", launched["long"]).returncode == 0
    assert run_hf(loopback_hub, here, "jobs", "wait", launched["long"]).returncode == 1
    seen = run_hf(loopback_hub, here, "jobs", "inspect", "--json", launched["long"])
    assert json.loads(seen.stdout)[0]["status"]["stage"] == "CANCELED"


@pytest.mark.slow
def test_a_job_ends_with_its_time(loopback_hub: LoopbackHub, here: Path) -> None:
    (here / "long.py").write_text("# /// script\n# dependencies = []\n# ///\nimport time\ntime.sleep(600)")
    done = run_hf(loopback_hub, here, "jobs", "uv", "run", "--timeout", "2s", "long.py")
    assert done.returncode == 1
    assert "Job timeout" in done.stdout + done.stderr


def test_what_the_hub_refuses_of_a_job(loopback_hub: LoopbackHub, here: Path) -> None:
    flavor = run_hf(loopback_hub, here, "jobs", "uv", "run", "--flavor", "abacus", "job.py")
    assert flavor.returncode == 1
    assert "Invalid flavor abacus" in flavor.stderr
    none = run_hf(loopback_hub, here, "jobs", "uv", "run", "job.py", HF_TOKEN="hf_loopback_read")
    assert none.returncode == 1
    assert not loopback_hub.store.jobs

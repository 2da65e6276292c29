"""The wheel as built with its real dependencies: three commands, and jobs on a loopback Hub."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from time import sleep

import pytest

from tests.exports import write_export, write_samples
from tests.loopback_hub import LoopbackHub, run_hf
from tests.loopback_hub.executor import find_links
from tests.training.setup import JOBS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("make_job", JOBS / "make_job.py")
assert SPEC is not None
assert SPEC.loader is not None
make_job = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(make_job)
UV = Path(sys.executable).with_name("uv")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build = [str(UV), "build", "--quiet", "--wheel", "--out-dir", str(folder), str(ROOT)]
    subprocess.run(build, check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture
def home(loopback_hub: LoopbackHub, tiny: Path, tmp_path: Path) -> Path:
    """A folder with sessions, and a Hub with a tiny model and an image with this Python."""
    loopback_hub.store.image = {
        "UV_CACHE_DIR": os.environ.get("UV_CACHE_DIR", str(Path.home() / ".cache" / "uv")),
        "UV_PYTHON": sys.executable,
        "OMP_NUM_THREADS": "1",
    }
    model = {path.name: path.read_bytes() for path in tiny.iterdir()}
    loopback_hub.seed("me/tiny", "model", model, private=True)
    write_samples(tmp_path / "traces")
    return tmp_path


TINY = "--config cpu --model_name_or_path me/tiny --report_to none --preflight_rows 0"


def test_three_commands_from_the_wheel(loopback_hub: LoopbackHub, wheel: Path, home: Path) -> None:
    env = loopback_hub.env(home, xet=True) | {"UV_PYTHON": sys.executable} | find_links()

    def run(words: str) -> str:
        command = [str(UV), "tool", "run", "--from", str(wheel), "pimono-sdpo", *words.split()]
        done = subprocess.run(command, cwd=home, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    run("filter traces --out rows --license mit")
    (home / "mine.py").write_text(
        "def long_reward(prompts, completions, **_):\n"
        "    return [min(0.3, len(one[0]['content']) / 999) for one in completions]\n"
    )
    said = run(f"train rows --on hf:cpu-basic --time-limit 20m --max-steps 2 --reward mine:long_reward {TINY}")
    first = said.index("leaves this machine: the rows in rows, with rejects, report and card")
    assert first < said.index("(private), in commit")
    assert f"leaves this machine: mine.py, {wheel.name}, to the private bucket me/jobs-artifacts" in said
    (job,) = loopback_hub.store.jobs.values()
    assert (job.spec["timeoutSeconds"], job.stage) == (1200, "COMPLETED")
    assert "trl==1.16.0" in job.spec["command"]
    assert "hf_loopback" not in said + str(job.spec["environment"]) + " ".join(job.spec["command"])
    pushed = loopback_hub.files("me/rows-sdpo")
    assert {"README.md", "adapter_model.safetensors", "run.json", "report.json"} < {*pushed}
    reproduce = pushed["README.md"].decode().partition("## Reproduce")[2].partition("## Use")[0]
    assert "pimono-sdpo train me/rows --method sdpo --time-limit 20m --max-steps 2 --reward mine:" in reproduce
    assert reproduce.count("time-limit") + reproduce.count("time_limit") == 1
    assert reproduce.endswith("--on hf:cpu-basic\n```\n\n")
    assert loopback_hub.repo("me/rows-sdpo").private
    assert loopback_hub.repo("me/rows", "dataset").private


@pytest.fixture
def address(wheel: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a server with the single file of the job."""
    make_job.write_job("train_sdpo", wheel.read_bytes(), tmp_path)
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_the_launch_line_of_the_reference_card(loopback_hub: LoopbackHub, home: Path, address: str) -> None:
    """By URL. The environment names repository and Space; the Space sleeps, which costs no training."""
    line = f"""hf jobs uv run {address}/train_sdpo.py
        --flavor cpu-basic --timeout 20m --secrets HF_TOKEN --env TIME_LIMIT=20m
        --env HUB_MODEL_ID=me/adapter --env TRACKIO_SPACE_ID=me/trackio
        -- --mode train --run-name first --dataset me/rows
        --config cpu --model_name_or_path me/tiny --preflight_rows 0 --max_steps 2"""
    env = loopback_hub.env(home, xet=True)
    words = "filter traces --out rows --license mit --push me/rows".split()
    filtered = [sys.executable, "-m", "pimono_sdpo", *words]
    subprocess.run(filtered, cwd=home, env=env | {"PYTHONPATH": str(ROOT)}, check=True)
    done = run_hf(loopback_hub, home, *shlex.split(line)[1:])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    pushed = loopback_hub.files("me/adapter")
    assert {"README.md", "adapter_model.safetensors", "run.json"} < {*pushed}
    assert b"me/trackio" in pushed["README.md"]


def test_the_lock_is_of_a_machine_with_cuda_and_of_this_project() -> None:
    """`make lock` writes it; every exact pin of constraints.txt that it has is the same there."""
    lock = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "jobs/requirements.txt").read_text(), re.M))
    tested = re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M)
    for name, version in tested:
        name = name.replace("_", "-")
        assert lock.get(name, version) == version, name
    assert "nvidia-cublas" in lock
    assert not any("+" in version for version in lock.values())
    for script in ("train_sdpo", "train_sft", "train_dpo"):
        header = (ROOT / "jobs" / f"{script}.py").read_text().split('"""')[0]
        pins = dict(re.findall(r'"([\w-]+)==([^"]+)"', header))
        assert pins
        assert pins.items() <= lock.items()


EXPORT = "refs/convert/parquet"
COMMAND = (
    *("jobs", "uv", "run", "--flavor", "cpu-basic", "--timeout", "20m", "-e", "TIME_LIMIT=20m"),
    *("{address}/train_sdpo.py", "--", "--config", "cpu", "--run-name", "r", "--max_steps", "6"),
    *("--model_name_or_path", "me/tiny", "--hub_model_id", "me/adapter", "--save_steps", "1"),
    *("--report_to", "none", "--preflight_rows", "0", "--source"),
)


def test_a_job_trains_is_killed_goes_on_elsewhere_and_pushes(
    loopback_hub: LoopbackHub, address: str, home: Path, tmp_path: Path
) -> None:
    command = [word.format(address=address) for word in COMMAND]
    whole = sorted((home / "traces").rglob("*.jsonl"))
    write_export(tmp_path / "export", "trace_text", whole)
    (shard,) = (tmp_path / "export").rglob("*.parquet")
    loopback_hub.seed("lab/traces", "dataset", {"README.md": b"# Traces\n"}, private=True)
    exported = {"default/train/0000.parquet": shard.read_bytes()}
    commit = loopback_hub.seed("lab/traces", "dataset", exported, revision=EXPORT)

    launched = run_hf(loopback_hub, tmp_path, *command[:3], "-d", "-q", *command[3:], "lab/traces")
    assert launched.returncode == 0, launched.stderr
    first = loopback_hub.store.jobs[launched.stdout.splitlines()[-1]]
    kept = loopback_hub.store.buckets

    def is_kept() -> bool:
        files = kept["me/adapter-checkpoints"].files if "me/adapter-checkpoints" in kept else ()
        return any(name.endswith("trainer_state.json") for name in files)

    while not first.ended.is_set() and not is_kept():
        sleep(0.05)
    first.kill("ERROR", "the machine is gone")
    first.ended.wait()
    said = "\n".join(line for _, line in first.log)
    assert (first.stage, first.message) == ("ERROR", "the machine is gone"), said
    assert list(loopback_hub.files("me/adapter")) == [".gitattributes"], "created, and empty"

    done = run_hf(loopback_hub, tmp_path, *command, "lab/traces")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "which the bucket me/adapter-checkpoints has kept" in done.stdout
    assert "the adapter and its card are in outputs/r/adapter" in done.stdout
    pushed = loopback_hub.files("me/adapter")
    assert {"README.md", "adapter_model.safetensors", "run.json", "report.json"} < {*pushed}
    assert commit.encode() in pushed["report.json"]
    assert loopback_hub.repo("me/adapter").private
    assert kept["me/adapter-checkpoints"].files == {}
    assert "hf_loopback" not in done.stdout + done.stderr

    failed = run_hf(loopback_hub, tmp_path, *command, "lab/nothing")
    assert failed.returncode == 1
    assert "train_sdpo: `lab/nothing` is neither a local path nor a dataset" in failed.stdout
    assert "exit code: 2" in failed.stdout + failed.stderr

"""The training job with everything installed by uv, as on Hugging Face Jobs.

    python -m tests.benchmarks.job_install [--wheel]

Too slow for the tests: several gigabytes are resolved and unpacked. The release that the script's
header names is this checkout's last commit, tagged, taken by git for the one on the web; with
--wheel the checkout as it is goes along as a wheel, too. Where pip is told of wheels (find-links),
uv is, and the script's header asks for the PyTorch of constraints.txt, so that one without CUDA is
used. UV_CACHE_DIR is kept.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pimono_sdpo.samples import write_export, write_samples
from pimono_sdpo.training.tiny_model import write_tiny_model
from tests.loopback_hub import loopback, run_hf
from tests.loopback_hub.release import ADDRESS, TAG

ROOT = Path(__file__).parent.parent.parent


def release(folder: Path) -> dict[str, str]:
    """Clone the checkout, tag it, and have git take it for the address on the web."""
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True)
    subprocess.run(["git", "tag", "-f", TAG], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{folder.as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": ADDRESS,
        "UV_NO_GITHUB_FAST_PATH": "1",
        "UV_CACHE_DIR": os.environ.get("UV_CACHE_DIR", str(Path.home() / ".cache" / "uv")),
        "UV_PYTHON": sys.executable,
        **wheels(),
    }


def wheels() -> dict[str, str]:
    """Where pip was told to look for wheels."""
    asked = [sys.executable, "-m", "pip", "config", "get", "global.find-links"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return {"UV_FIND_LINKS": found} if found else {}


def script_of(home: Path) -> Path:
    """The job's script; its header asks for our PyTorch where there is a wheel of it."""
    text = (ROOT / "jobs" / "train_sdpo.py").read_text()
    if wheels():
        (torch,) = re.findall("^torch==.*$", (ROOT / "constraints.txt").read_text(), re.M)
        asked = f'# [tool.uv]\n# constraint-dependencies = ["{torch}"]\n#\n# [tool.hf-jobs]'
        text = text.replace("# [tool.hf-jobs]", asked, 1)
    (home / "train_sdpo.py").write_text(text)
    return home / "train_sdpo.py"


def main() -> int:
    """Run the job once and say how long it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", action="store_true", help="ship the checkout as a wheel, too")
    with_wheel = parser.parse_args().wheel
    home = Path(tempfile.mkdtemp(prefix="job-install-"))
    command = ["jobs", "uv", "run", "--flavor", "cpu-basic", "--timeout", "1h"]
    if with_wheel:
        build = [str(Path(sys.executable).with_name("uv")), "build", "-q", "--wheel", "--out-dir"]
        subprocess.run([*build, str(home / "dist")], cwd=ROOT, check=True)
        (wheel,) = (home / "dist").glob("*.whl")
        command += ["-v", "./dist:/dist", "--with", f"/dist/{wheel.name}[train]"]
    with loopback() as hub:
        hub.store.image = release(home / "released")
        write_samples(home / "samples")
        write_export(home / "export", "trace_text", sorted((home / "samples").rglob("*.jsonl")))
        (shard,) = (home / "export").rglob("*.parquet")
        exported = {"default/train/0000.parquet": shard.read_bytes()}
        hub.seed("lab/traces", "dataset", exported, revision="refs/convert/parquet")
        model = write_tiny_model(home / "tiny")
        hub.seed("me/tiny", "model", {path.name: path.read_bytes() for path in model.iterdir()})
        script = [str(script_of(home)), "--", "--config", "tiny"]
        script += ["--model_name_or_path", "me/tiny", "--hub_model_id", "me/adapter"]
        script += ["--source", "lab/traces", "--report_to", "none", "--run-name", "r"]
        began = time.monotonic()
        done = run_hf(hub, home, *command, *script)
        print(done.stdout[-2000:], done.stderr[-1000:], sep="\n")
        print(f"exit code {done.returncode} after {time.monotonic() - began:.0f} s")
        if not done.returncode:
            print("pushed:", *hub.files("me/adapter"))
    shutil.rmtree(home)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())

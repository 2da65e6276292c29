"""The main job end to end on a CPU: sample traces, rows, a trained adapter, cards.

python jobs/demo.py [--out build/demo]
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent


def step(title: str, *command: str) -> None:
    """Run one command of the README and stop at its first failure."""
    print(f"\n== {title}\n$ {' '.join(command)}", flush=True)
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    environment.pop("HUB_MODEL_ID", None)
    environment.pop("TRACKIO_SPACE_ID", None)
    done = subprocess.run(command, env=environment, check=False)
    if done.returncode:
        sys.exit(f"demo: `{command[0]}` ended with exit code {done.returncode}, see above.")


def main() -> None:
    """Run the five steps and say what is where."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/demo"), help="folder to write to")
    out = parser.parse_args().out
    started = time.monotonic()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    traces, rows, model, run = out / "traces", out / "rows", out / "tiny-gemma4", out / "run"
    os.environ["TRACKIO_DIR"] = str((out / "trackio").resolve())

    step("sample sessions, in every layout", "pimono-sdpo", "samples", "--out", str(traces))
    step("filter", "pimono-sdpo", "filter", str(traces), "--out", str(rows))
    step("a tiny random model", "pimono-sdpo", "tiny-model", "--out", str(model))
    step(
        "SDPO with NF4 QLoRA",
        *(sys.executable, str(HERE / "train_sdpo.py"), "--config", "tiny", "--mode", "train"),
        *("--run-name", "demo", "--dataset", str(rows), "--model_name_or_path", str(model)),
        *("--output_dir", str(run)),
    )
    step(
        "the adapter on its base, in a fresh process",
        *(sys.executable, "-m", "pimono_sdpo.training.reload", str(run)),
    )
    print(summary(rows, run, out, time.monotonic() - started))


def summary(rows: Path, run: Path, out: Path, seconds: float) -> str:
    """Say what was made, with the numbers the run itself wrote down."""
    report = json.loads((rows / "report.json").read_text())
    log = json.loads((run / "run.json").read_text())
    last = log["log_history"][-1]
    project = log["trackio"]["project"]
    return f"""
== done in {seconds:.0f} s
{report["sessions"]} sessions -> {report["kept"]} rows, score {report["score"]["min"]:g} to \
{report["score"]["max"]:g}; {last["step"]} SDPO steps on {log["base_model_class"]} in NF4
rows and dataset card   {rows / "README.md"}
adapter and model card  {run / "adapter" / "README.md"}
report, run log         {rows / "report.json"}, {run / "run.json"}
dashboard               TRACKIO_DIR={out / "trackio"} trackio show --project {project}
"""


if __name__ == "__main__":
    main()

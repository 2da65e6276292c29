"""Run the whole job on a CPU: filter sample traces, and train two models with SDPO.

python benchmarks/demo.py [--out build/demo]

The first is a small model that learns; three of its answers are shown before and after. The second is
a tiny random model of the class of Gemma 4 12B, which tests NF4, LoRA and reloading.
"""

if __name__ == "__main__":
    from pimono_sdpo.__main__ import end_at_once

    end_at_once()

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from pimono_sdpo.__main__ import start

ROOT = Path(__file__).parent.parent
# Requests per split, and requests shown.
ROWS, SHOWN = 240, 3
# The file that identifies the output of a demo, which the next one may delete.
MARK = ".pimono-sdpo-demo"
FOLDERS = ("traces", "rows", "learner", "task", "learned", "tiny-gemma4", "run", "trackio")


def empty_folder(out: Path) -> None:
    """Create the folder, or delete the files of an earlier demo in it; exit if it holds anything else."""
    if out.is_file() or (out.is_dir() and any(out.iterdir()) and not (out / MARK).is_file()):
        print(f"demo: `{out}` was not written by an earlier demo; give another folder as --out.", file=sys.stderr)
        sys.exit(2)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).touch()
    for name in FOLDERS:
        shutil.rmtree(out / name, ignore_errors=True)


def run(title: str, command: str) -> None:
    """Print and run a command; exit if it fails."""
    print(f"\n== {title}\n$ {command}", flush=True)
    environment = {
        **os.environ,
        # Nothing may leave this machine.
        "HUB_MODEL_ID": "",
        "TRACKIO_SPACE_ID": "",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TQDM_DISABLE": "1",
        # The task and the weights of the small model are in the folder of the tests.
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(shlex.split(command), env=environment, check=False)
    if done.returncode:
        sys.exit(f"demo: this command failed with exit code {done.returncode}, see above.")


def main() -> None:
    """Run all commands and print where the results are."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--out", type=Path, default=Path("build/demo"), help="folder to write to")
    out = parser.parse_args().out
    started = time.monotonic()
    empty_folder(out)
    os.environ["TRACKIO_DIR"] = str((out / "trackio").resolve())
    paths = {name: shlex.quote(str(out / name)) for name in FOLDERS}
    train = f"{shlex.quote(sys.executable)} {shlex.quote(str(ROOT / 'jobs' / 'train_sdpo.py'))}"

    run("sample sessions", f"pimono-sdpo demo sessions --out {paths['traces']}")
    run("filter", f"pimono-sdpo filter {paths['traces']} --out {paths['rows']}")
    print("\n== a small model and its task", flush=True)
    write_task(out / "learner", out / "task")
    run(
        "SDPO with feedback, until it learns",
        f"{train} --config demo --run-name learned --dataset {paths['task']} "
        f"--model_name_or_path {paths['learner']} --output_dir {paths['learned']}",
    )
    print(before_and_after(out / "learned"), flush=True)
    tiny = paths["tiny-gemma4"]
    run("a tiny random model of the class of Gemma 4 12B", f"pimono-sdpo demo model --out {tiny}")
    run(
        "SDPO with NF4 QLoRA: does the whole job run?",
        f"{train} --config tiny --mode train --run-name demo --dataset {paths['rows']} "
        f"--model_name_or_path {tiny} --output_dir {paths['run']}",
    )
    from pimono_sdpo.training.models import largest_difference

    print("\n== the adapter on its base model, in another process than the training", flush=True)
    print(f"largest difference of the logits: {largest_difference(out / 'run'):g}")
    print(summary(out / "rows", out / "run", out, time.monotonic() - started))


def write_task(model: Path, rows: Path) -> None:
    """Write the small model, and rows of requests: a train and a test split."""
    from pimono_sdpo.training.console import quiet_libraries

    sys.path.insert(0, str(ROOT))
    os.environ["TQDM_DISABLE"] = "1"
    quiet_libraries()
    from benchmarks import learning_task
    from benchmarks.learning_model import unpack

    unpack(ROOT / "tests" / "training" / "learned_base.safetensors", model)
    for split, requests in zip(("train", "test"), learning_task.requests(), strict=True):
        dataset = learning_task.rows(learning_task.RARE, requests[:ROWS])
        dataset.to_parquet(rows / "data" / f"{split}-00000-of-00001.parquet")


def before_and_after(run: Path) -> str:
    """Return held-out pass rates, and answers to three held-out requests without and with LoRA."""
    from benchmarks.learning_model import sample
    from benchmarks.learning_task import requests
    from pimono_sdpo.training.models import load_adapter

    rate = json.loads((run / "run.json").read_text())["evaluation"]["pass_rate"]
    model, tokenizer = load_adapter(run)
    model.train()
    texts = [request.words for request in requests()[1][:SHOWN]]
    with model.disable_adapter():
        before = sample(model, tokenizer, texts)
    after = sample(model, tokenizer, texts)
    lines = [
        f"held-out requests answered by the right call: {rate['before']['mean']:.0%} before, "
        f"{rate['after']['mean']:.0%} after"
    ]
    for text, old, new in zip(texts, before, after, strict=True):
        lines += [f"  {text}", f"    before  {old}", f"    after   {new}"]
    return "\n".join(lines)


def summary(rows: Path, run: Path, out: Path, seconds: float) -> str:
    """Return what was written where, with numbers from report and run log."""
    report = json.loads((rows / "report.json").read_text())
    log = json.loads((run / "run.json").read_text())
    last = log["log_history"][-1]
    project = log["trackio"]["project"]
    return f"""
== done in {seconds:.0f} s
{report["sessions"]} sessions -> {report["kept"]} rows, score {report["score"]["min"]:g} to \
{report["score"]["max"]:g}; {last["step"]} SDPO steps on {log["base_model_class"]} in NF4
what was learned        {out / "learned" / "adapter" / "training.html"}
rows and dataset card   {rows / "README.md"}
adapter and model card  {run / "adapter" / "README.md"}
report, run log         {rows / "report.json"}, {run / "run.json"}
dashboard               TRACKIO_DIR={out / "trackio"} trackio show --project {project}
"""


if __name__ == "__main__":
    start(main, "demo", "interrupted; run the same command again")

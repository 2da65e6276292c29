"""The main job end to end on a CPU: rows from sample traces, and two models trained with SDPO.

python jobs/demo.py [--out build/demo]

The first is a small model that learns, with three of its answers before and after. The second is a
tiny random one of the class of Gemma 4 12B, which proves that NF4, LoRA and reload fit together.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from pimono_sdpo.training import quiet_libraries

HERE = Path(__file__).parent
ROOT = HERE.parent
# Requests of a split, and those that are shown.
ROWS, SHOWN = 240, 3
# Says that a folder was filled by an earlier demo and may be emptied by the next.
MARK = ".pimono-sdpo-demo"
PARTS = ("traces", "rows", "learner", "task", "learned", "tiny-gemma4", "run", "trackio")


def empty_folder(out: Path) -> None:
    """Make the folder and take an earlier demo out of it, or end where it is of anything else."""
    if out.is_file() or (out.is_dir() and any(out.iterdir()) and not (out / MARK).is_file()):
        print(f"demo: `{out}` is not of an earlier demo; give another folder as --out.", file=sys.stderr)
        sys.exit(2)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).touch()
    for name in PARTS:
        shutil.rmtree(out / name, ignore_errors=True)


def step(title: str, command: str) -> None:
    """Run one command of the README and stop at its first failure."""
    print(f"\n== {title}\n$ {command}", flush=True)
    environment = {
        **os.environ,
        # Nothing may leave this machine.
        "HUB_MODEL_ID": "",
        "TRACKIO_SPACE_ID": "",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TQDM_DISABLE": "1",
        # The task and the weights of the small model lie beside the tests.
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(shlex.split(command), env=environment, check=False)
    if done.returncode:
        sys.exit(f"demo: this command ended with exit code {done.returncode}, see above.")


def main() -> None:
    """Run the steps and say what is where."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--out", type=Path, default=Path("build/demo"), help="folder to write to")
    out = parser.parse_args().out
    started = time.monotonic()
    empty_folder(out)
    os.environ["TRACKIO_DIR"] = str((out / "trackio").resolve())
    at = {name: shlex.quote(str(out / name)) for name in PARTS}
    train = f"{shlex.quote(sys.executable)} {shlex.quote(str(HERE / 'train_sdpo.py'))}"

    step("sample sessions", f"pimono-sdpo demo sessions --out {at['traces']}")
    step("filter", f"pimono-sdpo filter {at['traces']} --out {at['rows']}")
    print("\n== a small model and its task", flush=True)
    write_task(out / "learner", out / "task")
    step(
        "SDPO with feedback, until it learns",
        f"{train} --config demo --run-name learned --dataset {at['task']} "
        f"--model_name_or_path {at['learner']} --output_dir {at['learned']}",
    )
    print(before_and_after(out / "learned"), flush=True)
    tiny = at["tiny-gemma4"]
    step("a tiny random model of the class of Gemma 4 12B", f"pimono-sdpo demo model --out {tiny}")
    step(
        "SDPO with NF4 QLoRA: do the pieces fit?",
        f"{train} --config tiny --mode train --run-name demo --dataset {at['rows']} "
        f"--model_name_or_path {tiny} --output_dir {at['run']}",
    )
    from pimono_sdpo.training.models import largest_difference

    print("\n== the adapter on its base, in a process that has not trained it", flush=True)
    print(f"largest difference of the logits: {largest_difference(out / 'run'):g}")
    print(summary(out / "rows", out / "run", out, time.monotonic() - started))


def write_task(model: Path, rows: Path) -> None:
    """Write the small model, and requests to train on and held out."""
    sys.path.insert(0, str(ROOT))
    os.environ["TQDM_DISABLE"] = "1"
    quiet_libraries()
    from tests.benchmarks import learning_task
    from tests.benchmarks.learning_model import unpack

    unpack(ROOT / "tests" / "training" / "learned_base.safetensors", model)
    for split, asked in zip(("train", "test"), learning_task.requests(), strict=True):
        part = learning_task.rows(learning_task.RARE, asked[:ROWS])
        part.to_parquet(rows / "data" / f"{split}-00000-of-00001.parquet")


def before_and_after(run: Path) -> str:
    """Return held-out pass rates, and answers to three held-out requests without and with LoRA."""
    from pimono_sdpo.training.models import load_adapter
    from tests.benchmarks.learning_model import sample
    from tests.benchmarks.learning_task import requests

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
    """Say what was made, with the numbers the run itself wrote down."""
    report = json.loads((rows / "report.json").read_text())
    log = json.loads((run / "run.json").read_text())
    last = log["log_history"][-1]
    project = log["trackio"]["project"]
    return f"""
== done in {seconds:.0f} s
{report["sessions"]} sessions -> {report["kept"]} rows, score {report["score"]["min"]:g} to \
{report["score"]["max"]:g}; {last["step"]} SDPO steps on {log["base_model_class"]} in NF4
what was learned        {out / "learned" / "adapter" / "training.html"} (curve: training.svg)
rows and dataset card   {rows / "README.md"}
adapter and model card  {run / "adapter" / "README.md"}
report, run log         {rows / "report.json"}, {run / "run.json"}
dashboard               TRACKIO_DIR={out / "trackio"} trackio show --project {project}
"""


if __name__ == "__main__":
    main()

"""Filter a folder of sessions and train an adapter on the rows, in one script.

    python examples/train_on_folder.py ~/.pi/agent/sessions adapter --config gemma4_12b

Options after the output folder are those of jobs/train_sdpo.py; for a CPU give
`--config tiny --model_name_or_path MODEL` with the model that `pimono-sdpo demo model` writes.
"""

import subprocess
import sys
from pathlib import Path

JOB = Path(__file__).parent.parent / "jobs" / "train_sdpo.py"


def main(source: str, out: str, *options: str) -> None:
    """Run the two commands; both resume when the script is run again."""
    rows = Path(out) / "rows"
    if not rows.exists():
        filtering = ["filter", source, "--out", str(rows)]
        subprocess.run([sys.executable, "-m", "pimono_sdpo", *filtering], check=True)
    training = ["--dataset", str(rows), "--output_dir", str(Path(out) / "run"), *options]
    subprocess.run([sys.executable, str(JOB), "--mode", "train", *training], check=True)
    print(f"The adapter and its card are in {Path(out) / 'run' / 'adapter'}.")


if __name__ == "__main__":
    main(*sys.argv[1:])

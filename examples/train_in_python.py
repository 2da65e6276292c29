"""Filter a folder of sessions and train an adapter on the rows, in Python.

    python examples/train_in_python.py ~/.pi/agent/sessions gemma4_12b google/gemma-4-12B-it

On a CPU, give the recipe `cpu` and the model that `pimono-sdpo demo model` writes.
"""

import sys

from pimono_sdpo import load_sessions, run_pipeline, train


def main(source: str, recipe: str, model: str) -> None:
    """Print where the adapter is; the training resumes when the script is run again."""
    rows = run_pipeline(load_sessions(source))
    output = train(rows, config=recipe, model_name_or_path=model, output_dir="outputs/example")
    print(f"The adapter and its card are in {output / 'adapter'}.")


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) == 4 else sys.exit(__doc__)

# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "pimono-sdpo[together] @ git+https://github.com/pimono-sdpo/pimono-sdpo@v0.1.0",
# ]
# ///
"""Fine-tune on Together with a file of `pimono-sdpo steps` or `pairs` in its format.

    finetune_together.py --dataset sft.jsonl --model MODEL --suffix NAME [--method dpo] [--watch]

Every line is checked first, by the rules of Together and for secrets. --dry-run prints the exact
request and sends nothing; it needs neither the client nor a key. Otherwise TOGETHER_API_KEY is read
from the environment and the client comes with `pip install "pimono-sdpo[together]"`. Exit code 2:
bad input, or Together refused it. Exit code 1: the job that was watched failed.
"""

import argparse
import json
import sys
from dataclasses import fields
from pathlib import Path

from pimono_sdpo.errors import PimonoError
from pimono_sdpo.training import together


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    about = argparse.RawDescriptionHelpFormatter
    found = argparse.ArgumentParser(description=__doc__, formatter_class=about, allow_abbrev=False)
    add = found.add_argument
    add("--dataset", type=Path, required=True, help="JSONL file in Together's format")
    add("--model", required=True, help="base model, as Together calls it")
    add("--suffix", help="end of the new model's name")
    add("--method", choices=["sft", "dpo"], default="sft", help="default sft")
    add("--epochs", type=_count, default=1, help="default 1")
    add("--batch-size", type=_batch, default="max", help="a number, or max (default)")
    add("--learning-rate", type=_positive, default=1e-5, help="default 1e-5")
    add(
        "--lora",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="train an adapter (default), not all weights",
    )
    add("--dpo-beta", type=_positive, default=0.1, help="of DPO; default 0.1")
    add("--rpo-alpha", type=float, default=0.2, help="of DPO: weight of the SFT loss; default 0.2")
    add("--max-cost", type=_positive, help="dollars; start no job above")
    add("--watch", action="store_true", help="wait for the end of the job")
    add("--dry-run", action="store_true", help="print the request, send nothing")
    return found


def main(argv: list[str]) -> int:
    """Run; bad input is one sentence on stderr and exit code 2."""
    given = parser().parse_args(argv)
    job = together.Job(**{one.name: vars(given)[one.name] for one in fields(together.Job)})
    try:
        if given.dry_run:
            print(json.dumps(together.dry_run(job), indent=2, ensure_ascii=False))
            return 0
        client, job_id = together.start(job, given.max_cost)
        if given.watch and together.watch(client, job_id) != "completed":
            return 1
    except PimonoError as problem:
        print(f"finetune_together: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("finetune_together: interrupted; a started job keeps running", file=sys.stderr)
        return 130
    return 0


def _count(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("give a number from 1")
    return number


def _positive(text: str) -> float:
    if not 0 < (number := float(text)) < float("inf"):
        raise argparse.ArgumentTypeError("give a number above 0")
    return number


def _batch(text: str) -> int | str:
    return text if text == "max" else _count(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

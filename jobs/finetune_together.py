# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "together>=3.1,<4",
# ]
# ///
"""Fine-tune on Together with a file that `pimono-sdpo steps` or `pairs` wrote in its format.

    finetune_together.py --dataset sft.jsonl --model MODEL --suffix NAME [--method dpo] [--watch]

Every line is checked first, by the rules of Together and for secrets. --dry-run prints the exact
request and sends nothing; it needs neither the client nor a key. Otherwise TOGETHER_API_KEY is read
from the environment and the client comes with `pip install ".[together]"`. Exit code 2:
bad input, or Together refused it. Exit code 1: the job that was watched failed.
"""

if __name__ == "__main__":
    from pimono_sdpo.__main__ import end_at_once

    end_at_once()

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from pimono_sdpo.__main__ import start as start_program
from pimono_sdpo.errors import PimonoError, SourceError, TrainingInputError, require_extra

Json = dict[str, Any]
ENDED = frozenset({"completed", "error", "cancelled", "user_error"})


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    command_line = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = command_line.add_argument
    add("--dataset", type=Path, required=True, help="JSONL file in Together's format")
    add("--model", required=True, help="base model, as Together calls it")
    add("--suffix", help="end of the new model's name")
    add("--method", choices=["sft", "dpo"], default="sft", help="default sft")
    add("--epochs", type=int, default=1, help="default 1")
    add("--batch-size", default="max", help="a number, or max (default)")
    add("--learning-rate", type=float, default=1e-5, help="default 1e-5")
    add("--lora", action=argparse.BooleanOptionalAction, default=True, help="train an adapter (default)")
    add("--dpo-beta", type=float, default=0.1, help="of DPO; default 0.1")
    add("--rpo-alpha", type=float, default=0.2, help="of DPO: weight of the SFT loss; default 0.2")
    add("--max-cost", type=float, help="in dollars; start no job that costs more")
    add("--watch", action="store_true", help="wait until the job ends")
    add("--dry-run", action="store_true", help="print the request, send nothing")
    return command_line


def build_request(job: argparse.Namespace, file_id: str) -> Json:
    """Return the arguments of `fine_tuning.create`."""
    return {
        "training_file": file_id,
        "model": job.model,
        "n_epochs": job.epochs,
        "batch_size": int(job.batch_size) if job.batch_size.isdecimal() else job.batch_size,
        "learning_rate": job.learning_rate,
        "lora": job.lora,
        "training_method": job.method,
        **({"suffix": job.suffix} if job.suffix else {}),
        **method_settings(job),
    }


def method_settings(job: argparse.Namespace) -> Json:
    """Return the settings of SFT, which trains only on turns of the assistant with weight 1, or of DPO."""
    if job.method == "dpo":
        return {"dpo_beta": job.dpo_beta, "rpo_alpha": job.rpo_alpha}
    return {"train_on_inputs": False}


def check_file(path: Path, method: str) -> int:
    """Return the number of lines; raises SourceError if Together would refuse one or one holds a secret."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise SourceError(f"`{path}` cannot be read ({error.strerror}); use a JSONL file as --dataset.") from error
    if not lines:
        raise SourceError(f"`{path}` holds no lines; use a file with rows.")
    problems = [(number, problem) for number, line in enumerate(lines, 1) if (problem := find_problem(line, method))]
    if problems:
        first = ", ".join(f"line {number}: {problem}" for number, problem in problems[:3])
        raise SourceError(
            f"{len(problems)} of {len(lines)} lines of `{path}` cannot be sent for {method} ({first}); correct or "
            "remove them, or give the other --method."
        )
    return len(lines)


def find_problem(line: bytes, method: str) -> str | None:
    """Return why a line cannot be sent, None if it can."""
    from processors.rollouts.together import check_dpo, check_sft
    from processors.secrets import redact_secrets

    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return "no_json"
    secret = "secret" if redact_secrets(json.dumps(content, ensure_ascii=False))[1] else None
    return (check_dpo if method == "dpo" else check_sft)(content) or secret


def start(client: Any, job: argparse.Namespace) -> str:
    """Upload the file, compare the price with --max-cost, start the job and return its id."""
    say(f"{job.dataset} is sent to {client.base_url.host}")
    uploaded = client.files.upload(file=str(job.dataset), purpose="fine-tune")
    estimate = client.fine_tuning.estimate_price(
        training_file=uploaded.id,
        model=job.model,
        n_epochs=job.epochs,
        training_method={"method": job.method, **method_settings(job)},
        # Without a type, the price is that of LoRA.
        **({} if job.lora else {"training_type": {"type": "Full"}}),
    )
    price = estimate.estimated_total_price if estimate.estimation_available else None
    say("price: not known" if price is None else f"price: {price:.2f} dollars by Together's count")
    if job.max_cost is not None and (price is None or price > job.max_cost):
        known = "is not known" if price is None else f"is {price:.2f} dollars"
        raise TrainingInputError(
            f"The price {known} and --max-cost is {job.max_cost:.2f}, so nothing was started (the "
            f"file is {uploaded.id}); raise it, or leave it out."
        )
    started = client.fine_tuning.create(**build_request(job, uploaded.id))
    say(f"job {started.id} is {started.status}")
    return str(started.id)


def watch(client: Any, job_id: str, seconds: float = 30.0) -> str:
    """Print each change of a job's status until it ends; return the last status."""
    status = ""
    while status not in ENDED:
        if status:
            time.sleep(seconds)
        before, status = status, str(client.fine_tuning.retrieve(job_id).status)
        if status != before:
            say(f"job {job_id} is {status}")
    return status


def run(job: argparse.Namespace) -> int:
    """Check the file and start the job; raises PimonoError."""
    lines = check_file(job.dataset, job.method)
    if job.dry_run:
        upload = {"file": str(job.dataset), "purpose": "fine-tune", "lines": lines}
        # Together counts the tokens, and so knows the price, only after the upload.
        request = {"upload": upload, "create": build_request(job, "ID_OF_THE_UPLOAD"), "price": None}
        print(json.dumps(request, indent=2, ensure_ascii=False))
        return 0
    require_extra("together", "together", "A job without --dry-run")
    from together import Together, TogetherError

    try:
        client = Together()
        job_id = start(client, job)
        return int(job.watch and watch(client, job_id) != "completed")
    # The client raises ValueError for numbers beyond the limits of the model.
    except (TogetherError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise TrainingInputError(
            f"Together refused ({type(error).__name__}: {reason}); check TOGETHER_API_KEY, the model and the file."
        ) from error


def say(text: str) -> None:
    """Print a line without buffering, since a job is watched for hours."""
    print(f"[finetune] {text}", flush=True)


def main(argv: list[str]) -> int:
    """Run the job and return the exit code; a PimonoError is printed on stderr."""
    try:
        return run(parser().parse_args(argv))
    except PimonoError as error:
        print(f"finetune_together: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    start_program(
        lambda: sys.exit(main(sys.argv[1:])), "finetune_together", "interrupted; a job that was started keeps running"
    )

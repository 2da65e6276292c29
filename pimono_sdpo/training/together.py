"""Fine-tune on Together: check the file, print the exact request, start the job and watch it.

reads the JSON lines that `steps` and `pairs` write for Together / writes nothing here
"""

import hashlib
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pimono_sdpo.errors import SourceError, TrainingInputError
from processors.rollouts.together import check_dpo, check_sft
from processors.secrets import find_secret_kinds

Json = dict[str, Any]
ENDED = frozenset({"completed", "error", "cancelled", "user_error"})
SHOWN = 3


@dataclass(frozen=True)
class Job:
    """A fine-tuning job; `build_request` gives the names that Together has for these fields."""

    dataset: Path
    method: Literal["sft", "dpo"]
    model: str
    suffix: str | None
    epochs: int
    batch_size: int | Literal["max"]
    learning_rate: float
    lora: bool
    dpo_beta: float
    rpo_alpha: float


def build_request(job: Job, file_id: str) -> Json:
    """Return the arguments of `fine_tuning.create`."""
    arguments: Json = {
        "training_file": file_id,
        "model": job.model,
        "n_epochs": job.epochs,
        "batch_size": job.batch_size,
        "learning_rate": job.learning_rate,
        "lora": job.lora,
        "training_method": job.method,
    }
    if job.suffix:
        arguments["suffix"] = job.suffix
    if job.method == "dpo":
        return arguments | {"dpo_beta": job.dpo_beta, "rpo_alpha": job.rpo_alpha}
    # Train on turns of the assistant with the weight 1 alone.
    return arguments | {"train_on_inputs": False}


def check_file(path: Path, method: str) -> Json:
    """Return lines, bytes and hash of a file; raises SourceError for one that Together refuses.

    Lines that hold what looks like a secret are refused as well: the file leaves this machine.
    """
    check = {"sft": check_sft, "dpo": check_dpo}[method]
    digest, number, size, wrong = hashlib.sha256(), 0, 0, []
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                digest.update(line)
                size += len(line)
                problem = _problem(line, check)
                if problem is not None:
                    wrong.append((number, problem))
    except OSError as error:
        raise SourceError(
            f"`{path}` cannot be read ({error.strerror}); use a JSONL file as --dataset."
        ) from error
    if not number:
        raise SourceError(f"`{path}` holds no lines; use a file with rows.")
    if wrong:
        first = ", ".join(f"line {line}: {problem}" for line, problem in wrong[:SHOWN])
        reasons = ", ".join(f"{why} {n}" for why, n in Counter(p for _, p in wrong).most_common())
        raise SourceError(
            f"{len(wrong)} of {number} lines of `{path}` cannot be sent for {method} ({reasons}; "
            f"{first}); correct or drop them, or give the other --method."
        )
    return {"lines": number, "bytes": size, "sha256": digest.hexdigest()}


def _problem(line: bytes, check: Callable[[Any], str | None]) -> str | None:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return "no_json"
    found = check(content)
    if found is None and find_secret_kinds(json.dumps(content, ensure_ascii=False)):
        return "secret"
    return found


def dry_run(job: Job) -> Json:
    """Return the two requests of a job as they would be sent, without sending anything."""
    checked = check_file(job.dataset, job.method)
    return {
        "upload": {"file": str(job.dataset), "purpose": "fine-tune", **checked},
        "create": build_request(job, "ID_OF_THE_UPLOAD"),
        # It depends on Together's own count of tokens, which needs the upload.
        "price": None,
    }


def start(job: Job, max_cost: float | None) -> tuple[Any, str]:
    """Check and upload the file, request the price, start the job; return client and job id.

    Raises TrainingInputError if `max_cost` is given and the price is higher or unknown.
    """
    check_file(job.dataset, job.method)
    with translate_errors():
        client = _client()
        uploaded = client.files.upload(file=str(job.dataset), purpose="fine-tune")
        arguments = build_request(job, uploaded.id)
        price = _price(client, arguments)
    say("price: not known" if price is None else f"price: {price:.2f} dollars by Together's count")
    if max_cost is not None and (price is None or price > max_cost):
        found = "is not known" if price is None else f"is {price:.2f} dollars"
        raise TrainingInputError(
            f"The price {found} and --max-cost is {max_cost:.2f}, so nothing was started (the file "
            f"is {uploaded.id}); raise it, or leave it out."
        )
    with translate_errors():
        started = client.fine_tuning.create(**arguments)
    say(f"job {started.id} is {started.status}")
    return client, str(started.id)


def watch(client: Any, job_id: str, seconds: float = 30.0) -> str:
    """Report each change of a job's status until it has ended; return the last status."""
    status = ""
    while True:
        with translate_errors():
            found = client.fine_tuning.retrieve(job_id)
        if found.status != status:
            status = str(found.status)
            say(f"job {job_id} is {status}")
        if status in ENDED:
            return status
        time.sleep(seconds)


def _price(client: Any, arguments: Json) -> float | None:
    """Return Together's estimate in dollars, None where it has none."""
    method: Json = {"method": arguments["training_method"]}
    names = ("dpo_beta", "rpo_alpha", "train_on_inputs")
    method |= {name: arguments[name] for name in names if name in arguments}
    found = client.fine_tuning.estimate_price(
        training_file=arguments["training_file"],
        model=arguments["model"],
        n_epochs=arguments["n_epochs"],
        training_method=method,
        # Without it the price is that of LoRA.
        **({} if arguments["lora"] else {"training_type": {"type": "Full"}}),
    )
    return found.estimated_total_price if found.estimation_available else None


def _client() -> Any:
    try:
        from together import Together
    except ModuleNotFoundError as error:
        raise TrainingInputError(
            "The client of Together is not installed: `pip install 'pimono-sdpo[together]'`, or "
            "print the request with --dry-run."
        ) from error
    return Together()


@contextmanager
def translate_errors() -> Iterator[None]:
    """Turn errors of the client into one sentence."""
    try:
        yield
    except TrainingInputError:
        raise
    except Exception as error:
        if not type(error).__module__.startswith("together"):
            raise
        reason = " ".join(str(error).split())[:300]
        raise TrainingInputError(
            f"Together refused ({type(error).__name__}: {reason}); check TOGETHER_API_KEY, the "
            "model and the file."
        ) from error


def say(text: str) -> None:
    """Print a line at once: a job is watched for hours."""
    sys.stdout.write(f"[finetune] {text}\n")
    sys.stdout.flush()

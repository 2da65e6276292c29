"""Read Inspect's `.eval` logs, which are zip files of JSON with a file for each sample.

Format: https://inspect.aisi.org.uk/eval-logs.html. A run is a sample; its verdict is the first
score, where 1 and C mean passed. `load_dataset` also reads these logs, but only those whose samples
have numbers as ids (`datasets` 5.2).
"""

from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import msgspec

from pimono_sdpo.traces.trajectories import base

Json = base.Json


def _divide(file: Path) -> Iterator[tuple[Json, Json]]:
    """Yield each sample with the specification of the log; one sample is in memory at a time."""
    with ZipFile(file) as log:
        names = log.namelist()
        # A log that is still written has no header.
        about = msgspec.json.decode(log.read("header.json" if "header.json" in names else "_journal/start.json"))
        for name in filter(_is_sample, names):
            yield about["eval"], msgspec.json.decode(log.read(name))


def _is_sample(name: str) -> bool:
    return name.startswith("samples/") and name.endswith(".json")


def _count(file: Path) -> int:
    with ZipFile(file) as log:
        return sum(map(_is_sample, log.namelist()))


def _read(record: tuple[Json, Json]) -> base.Trajectory:
    spec, sample = record
    scores = list((sample.get("scores") or {}).values())
    usage = list((sample.get("model_usage") or {}).values())
    return base.Trajectory(
        task_id=f"{spec['task']}/{sample['id']}",
        run_id=f"{spec['run_id']}-{sample['id']}-{sample['epoch']}",
        messages=[_read_message(message) for message in sample["messages"]],
        model=spec["model"],
        passed=base.to_verdict(scores[0]["value"]) if scores else None,
        test_output=scores[0].get("explanation") if scores else None,
        ended=sample["limit"]["type"] if sample.get("limit") else "final",
        error=sample["error"]["message"] if sample.get("error") else None,
        prompt_tokens=sum(model["input_tokens"] for model in usage) if usage else None,
        completion_tokens=sum(model["output_tokens"] for model in usage) if usage else None,
    )


def _read_message(message: Json) -> base.Message:
    calls = [base.Call(call["id"], call["function"], call["arguments"]) for call in message.get("tool_calls") or ()]
    read = base.Message(base.ROLES[message["role"]], base.join_text(message["content"]), calls)
    if message["role"] == "tool":
        read.call_id, read.failed = message.get("tool_call_id") or "", message.get("error") is not None
    return read


FORMAT = base.Format(
    name="inspect",
    about="Inspect's `.eval`",
    recognises=lambda file: file.suffix == ".eval",
    read=_read,
    divide=_divide,
    count=_count,
)

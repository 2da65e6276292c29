"""Read Inspect's `.eval` logs with the optional package `inspect_ai`.

Format: https://inspect.aisi.org.uk/eval-logs.html. A run is a sample; its verdict is the first
score, where 1 and C mean passed.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pimono_sdpo.errors import require_extra
from pimono_sdpo.traces.trajectories import base


def _divide(file: Path) -> Iterator[tuple[Any, Any]]:
    """Yield each sample with the specification of the log; one sample is in memory at a time."""
    inspect_log = _load()
    header = inspect_log.read_eval_log(str(file), header_only=True)
    for sample in inspect_log.read_eval_log_samples(str(file), all_samples_required=False):
        yield header.eval, sample


def _load() -> Any:
    require_extra("inspect", "inspect_ai", "Reading logs of Inspect")
    import inspect_ai.log

    return inspect_ai.log


def _read(record: tuple[Any, Any]) -> base.Trajectory:
    spec, sample = record
    scores = list((sample.scores or {}).values())
    usage = list(sample.model_usage.values())
    return base.Trajectory(
        task_id=str(sample.id),
        run_id=f"{spec.run_id}-{sample.id}-{sample.epoch}",
        messages=[_read_message(message) for message in sample.messages],
        model=spec.model,
        passed=base.to_verdict(scores[0].value) if scores else None,
        test_output=scores[0].explanation if scores else None,
        ended=sample.limit.type if sample.limit else "final",
        error=sample.error.message if sample.error else None,
        prompt_tokens=sum(one.input_tokens for one in usage) if usage else None,
        completion_tokens=sum(one.output_tokens for one in usage) if usage else None,
    )


def _read_message(message: Any) -> base.Message:
    content = message.content
    parts = content if isinstance(content, str) else [part.model_dump() for part in content]
    calls = [base.Call(call.id, call.function, call.arguments) for call in getattr(message, "tool_calls", None) or ()]
    read = base.Message(base.ROLES[message.role], base.join_text(parts), calls)
    if message.role == "tool":
        read.call_id, read.failed = message.tool_call_id or "", message.error is not None
    return read


FORMAT = base.Format(
    name="inspect",
    about="Inspect's `.eval` (extra `inspect`)",
    recognises=lambda file: file.suffix == ".eval",
    read=_read,
    divide=_divide,
    count=lambda file: len(_load().read_eval_log_sample_summaries(str(file))),
)

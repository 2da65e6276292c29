"""Find out before the first step of SFT or DPO what would be found out after hours, and tell it.

| part | what it tells | stops a training when |
|---|---|---|
| rows | how many, and which were left out | none is left |
| template | that answers pass through the chat template whole | an answer's row is left out |
| lengths | of prompts and whole rows, beside `max_length` | |
| memory | the peak by shapes | it does not fit |
"""

from typing import Any

from trl import ModelConfig

from pimono_sdpo.training.hardware import Hardware
from pimono_sdpo.training.preflight import lengths_of, memory_of, too_little_memory
from pimono_sdpo.training.preflight_text import laid_out, lines_of_memory
from pimono_sdpo.training.recorded_memory import estimate
from pimono_sdpo.training.trainer import Fitted

Json = dict[str, Any]


def preflight(
    args: Any,
    model_args: ModelConfig,
    fitted: Fitted,
    revision: str | None,
    hardware: Hardware,
    adapter: bool,
) -> Json:
    """Return everything that is found before the first step; `stops` are reasons not to train."""
    peak = estimate(args, model_args, revision, max(fitted.lengths["sequence"]), adapter)
    memory = memory_of(peak, hardware)
    return {
        "rows": {"given": fitted.given, "used": len(fitted.rows), **fitted.counts},
        "templates_checked": len(fitted.rows),
        "lengths": {
            "prompt": lengths_of(fitted.lengths["prompt"], None),
            "sequence": lengths_of(fitted.lengths["sequence"], args.max_length),
        },
        "memory": memory,
        "stops": too_little_memory(memory),
    }


def as_text(found: Json) -> str:
    """Lay out what was found in lines of a name and what is known of it."""
    rows = found["rows"]
    left_out = ", ".join(f"{reason} {count}" for reason, count in rows["left_out"].items())
    lines = [
        ("rows", f"{rows['used']} of {rows['given']} used; left out: {left_out or 'none'}"),
        ("chat template", f"keeps {found['templates_checked']} rows whole"),
    ]
    if rows["prompts_rendered_otherwise"]:
        lines.append(
            (
                "",
                f"but renders {rows['prompts_rendered_otherwise']} prompts otherwise without an "
                "answer: what is trained there is not what is sampled later",
            )
        )
    if rows["with_tool_output"]:
        lines.append(
            (
                "answers",
                f"{rows['with_tool_output']} hold turns of tools or users, which are trained on, "
                "too; rows of one action each have none",
            )
        )
    for name, told in found["lengths"].items():
        limit = "" if told["budget"] is None else f"; max_length is {told['budget']}"
        lines.append(
            (
                name,
                f"{told['p50']} tokens (median), {told['p90']} (p90), {told['max']} (most){limit}",
            )
        )
    return laid_out([*lines, *lines_of_memory(found["memory"])])

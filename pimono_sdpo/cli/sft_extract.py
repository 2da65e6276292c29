"""Write next-action rows: `steps` with older options.

pimono-sdpo sft-extract --trace-dir rollouts/traces --output sft.jsonl
"""

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import typer

from pimono_sdpo.cli import steps
from pimono_sdpo.dataset_writer import copy_lines
from pimono_sdpo.errors import EmptySelection, OutputError
from pimono_sdpo.options import option, options, same_option
from pimono_sdpo.report import explain_empty


@options
class Options:
    """Options of `sft-extract`."""

    trace_dir: str = option("Folder of rollouts, or its folder `traces`.")
    output: Path = option("JSON lines to write; NAME_meta.jsonl is written beside them.")
    require_success: bool = same_option(steps.Options, "require_success", default=True)
    require_valid_tool_ok: bool = same_option(steps.Options, "require_valid_tool_ok", default=True)
    format: Literal["json"] = option("Protocol of the calls.", default="json")


def run(options: Options) -> None:
    """Write the lines, and print what was left out."""
    counts = write_sft_lines(options)
    left_out = ", ".join(f"{name} {n}" for name, n in counts.items() if name != "written")
    typer.echo(f"Wrote {counts['written']} rows to: {options.output}")
    meta = options.output.with_name(f"{options.output.stem}_meta.jsonl")
    typer.echo(f"Wrote metadata to: {meta}")
    if left_out:
        typer.echo(f"left out: {left_out}")


def write_sft_lines(options: Options) -> dict[str, int]:
    """Write the training rows as JSON lines and return the counts.

    Raises like `write_steps`, EmptySelection, and OutputError for a file that cannot be written.
    """
    output = options.output
    if output.is_dir() or output.suffix != ".jsonl":
        raise OutputError(f"`{output}` is not a name for JSON lines; use NAME.jsonl.")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        folder = TemporaryDirectory(prefix=".sft-extract-", dir=output.parent)
    except OSError as error:
        raise OutputError(f"Cannot write `{output}` ({error.strerror}); choose another folder.") from error
    with folder:
        made = Path(folder.name) / "steps"
        given = steps.Options(
            source=[options.trace_dir],
            out=made,
            require_success=options.require_success,
            require_valid_tool_ok=options.require_valid_tool_ok,
            tool_protocol=options.format,
            format="together",
        )
        report = {**steps.write_steps(given), "source": options.trace_dir}
        if not report["rows"]:
            raise EmptySelection(explain_empty(report, steps.advise(given)))
        counts = copy_lines(made, output, report)
    return dict(Counter(report["drop_reasons"]) + Counter(counts))

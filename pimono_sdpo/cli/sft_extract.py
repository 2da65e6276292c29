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
    """Write the training rows as JSON lines, and print what was left out."""
    output = options.output
    if output.is_dir() or output.suffix != ".jsonl":
        raise OutputError(f"`{output}` is not a name for JSON lines; use NAME.jsonl.")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        folder = TemporaryDirectory(prefix=".sft-extract-", dir=output.parent)
    except OSError as error:
        raise OutputError(f"Cannot write `{output}` ({error.strerror}); choose another folder.") from error
    with folder:
        given = steps.Options(
            source=[options.trace_dir],
            out=Path(folder.name) / "steps",
            require_success=options.require_success,
            require_valid_tool_ok=options.require_valid_tool_ok,
            tool_protocol=options.format,
            format="together",
        )
        report = {**steps.write_steps(given), "source": options.trace_dir}
        if not report["rows"]:
            raise EmptySelection(explain_empty(report, steps.advise(given)))
        counts = copy_lines(given.out, output, report)
    typer.echo(f"Wrote {counts['written']} rows to: {output}")
    typer.echo(f"Wrote metadata to: {output.with_name(f'{output.stem}_meta.jsonl')}")
    left_out = Counter(report["drop_reasons"]) + Counter(counts)
    del left_out["written"]
    if left_out:
        typer.echo("left out: " + ", ".join(f"{name} {count}" for name, count in left_out.items()))

"""Write training rows to a folder with data, rejects, report, card and optionally JSON lines.

With a tokenizer, rows that are too long are dropped; a trainer would truncate them in the middle of
their JSON, or drop them silently. Tokens are counted as the trainer counts them:

reads   prompt, tools, and completion, or chosen and rejected
writes  n_tokens (of the longer one of two), problem and detail
"""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

from datasets import Features, Value

from pimono_sdpo.errors import EmptySelection, OutputError, SourceError, TrainingInputError, require_extra
from pimono_sdpo.left_out import describe_left_out, report_left_out
from pimono_sdpo.options import argument, check_values, option, options, report_options, resume_key
from pimono_sdpo.runs.duplicates import REPEATS, find_repeats
from pimono_sdpo.runs.engine import Engine, Part, add_counts, run_here, run_shards, sum_counts
from pimono_sdpo.runs.finish import SPLITS, write_files
from pimono_sdpo.runs.folders import PARTS, make_output, only_run, publish_folder, require_disjoint
from pimono_sdpo.runs.parquet import read_rows
from pimono_sdpo.runs.sessions import LEFT_OUT, UNREADABLE, Table
from pimono_sdpo.session_options import SourceOptions
from pimono_sdpo.source_options import open_sessions
from pimono_sdpo.stage import Filter, Map, Row, Stage
from pimono_sdpo.suites.split import check_leakage, read_task_ids
from pimono_sdpo.suites.stored_rollouts import Rollouts, open_rollouts
from pimono_sdpo.suites.suite import load_suite
from pimono_sdpo.text import escape_line
from pimono_sdpo.traces.sources import Source
from pimono_sdpo.training.token_budget import templated_ids
from pimono_sdpo.version import __version__
from processors.redact import redact_text
from processors.rollouts.steps import PROBLEM, drop_problems
from processors.rollouts.together import make_dpo_line, make_sft_line, write_lines

Json = dict[str, Any]
N_TOKENS = {"n_tokens": Value("int32")}


@cache
def load_tokenizer(path: str) -> Any:
    """Load a tokenizer with a chat template; raises TrainingInputError."""
    require_extra("train", "transformers", "--tokenizer")
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise TrainingInputError(
            f"Cannot load a tokenizer from `{path}` ({type(error).__name__}); give the "
            "folder or the Hub id of the model to train."
        ) from error
    if not tokenizer.chat_template:
        raise TrainingInputError(f"The tokenizer of `{path}` has no chat template; give an instruction-tuned model.")
    return tokenizer


def count_tokens(row: Row, tokenizer: str, max_length: int) -> Json:
    """Count the tokens of a row and check that they are not too many."""
    from jinja2 import TemplateError

    loaded, encoded = load_tokenizer(tokenizer), []
    try:
        for answer in [row[name] for name in ("completion", "chosen", "rejected") if name in row]:
            # Templates do not expect nulls.
            turns = [
                {name: value for name, value in turn.items() if value is not None}
                for turn in (*row["prompt"], *answer)
            ]
            encoded.append(templated_ids(loaded, turns, prompt=False, tools=list(row["tools"]) or None))
    # Templates raise many kinds of errors; a conversation that one refuses cannot be used for training.
    except (TemplateError, TypeError, KeyError, AttributeError, ValueError) as error:
        detail = f"the chat template refuses it: {error}"[:300]
        return {"n_tokens": None, "problem": "template_refused", "detail": detail}
    longest = max(map(len, encoded))
    problem: tuple[str | None, str | None] = None, None
    if len(encoded) == 2 and encoded[0][:max_length] == encoded[1][:max_length]:
        problem = "identical_after_truncation", f"the first {max_length} tokens are the same"
    elif longest > max_length:
        problem = "too_long", f"{longest} tokens, {max_length} allowed"
    return {"n_tokens": longest, "problem": problem[0], "detail": problem[1]}


Format = Literal["trl", "together"]
TOGETHER = "together"


@options
class WriterOptions:
    """Options of commands that write training rows."""

    format: Format = option("Write rows for `trl`, or for `together` its JSON lines as well.", default="trl")
    licence: str | None = option("SPDX id of the licence of the traces, for the card.", default=None, flag="--license")


@options
class RunRowsOptions(WriterOptions, SourceOptions):
    """Options of commands that make training rows from rollouts or sessions."""

    source: list[str] = argument(
        "Folder of rollouts, or recorded sessions in any form that `filter` takes, such as `claude`."
    )
    tokenizer: str | None = option(
        "Model (folder or Hub id) whose tokenizer counts for --max-length.", default=None, decides="row"
    )
    max_length: int | None = option("Drop rows with more tokens, as too_long.", default=None, minimum=1, decides="row")
    test_fraction: float = option(
        "For sessions: share of repositories whose rows go to the test split.", default=0.0, share=True, decides="row"
    )
    keep_identity: bool = option(
        "For sessions: keep the user and host names of the person who recorded them.", default=False, decides="row"
    )
    test_suite: Path | None = option("Held-out suite: refuse to write training rows of its tasks.", default=None)

    def __post_init__(self) -> None:
        """Check the values, and options that need each other; raises OutputError."""
        check_values(self)
        if (self.tokenizer is None) != (self.max_length is None):
            raise OutputError("--tokenizer and --max-length go together: use both, or neither.")

    def length_stages(self) -> list[Stage]:
        """Return the stages that drop long rows, if any."""
        if self.tokenizer is None or self.max_length is None:
            return []
        count = partial(count_tokens, tokenizer=self.tokenizer, max_length=self.max_length)
        return [
            Map(count, reads=("prompt", "tools"), writes=Features({**N_TOKENS, **PROBLEM})),
            Filter(drop_problems, reads=("problem",)),
        ]

    def describe(self) -> tuple[Json, Json]:
        """Return the resume key, with a hash of the tokenizer's content, and the options for the report."""
        name, digest = self.tokenizer, None
        if name is not None:
            loaded = load_tokenizer(name)
            content = json.dumps([loaded.chat_template, sorted(loaded.get_vocab().items())])
            digest = hashlib.sha256(content.encode()).hexdigest()
            name = Path(name).resolve().name if Path(name).exists() else name
        key = {"options": resume_key(self) | {"tokenizer": name}, "tokenizer": digest}
        return key, report_options(self) | {"tokenizer": name}


def open_runs(options: RunRowsOptions, out: Path) -> Rollouts | Source:
    """Open a folder of rollouts or recorded sessions; raises SourceError and OutputError."""
    for source in options.source:
        if (rollouts := open_rollouts(source)) is None:
            continue
        if others := options.choices() or options.source[1:]:
            raise SourceError(
                f"`{source}` holds rollouts, which must be the only source; leave out {', '.join(others)}."
            )
        for folder in (Path(source), *(Path(task["repo"]) for task in rollouts.tasks.values())):
            require_disjoint(folder.resolve(), out.resolve())
        return rollouts
    return open_sessions(options, out)


def name_source(runs: Rollouts | Source) -> tuple[str, str]:
    """Return the kind and the name of a source for a report."""
    if isinstance(runs, Rollouts):
        return "rollouts", runs.name
    return runs.kind, redact_text(runs.name, "")[0]


def write_dataset(
    parts: Sequence[Part],
    table: Table,
    out: Path,
    options: WriterOptions,
    stage: Literal["steps", "pairs", "sdpo", "recoveries"],
    source: tuple[str, str],
    used_options: Json,
    warnings: Sequence[str] = (),
    others: Mapping[str, str] = {},
    engine: Engine = run_here,
) -> Json:
    """Run the parts, write `out` and return its report; `table` has the columns of rows and rejects.

    `source` is its kind and name; `used_options`, `warnings` and `others` (see `Source`) are for the
    report. Without any rows, only the rejects are published. Training rows for tasks of the test suite of
    `options` raise Leakage and leave `out` unchanged.
    """
    from cards.lint import check_licence
    from cards.render import render_stage_card

    out = out.resolve()
    licence = check_licence(options.licence)
    test_suite = options.test_suite if isinstance(options, RunRowsOptions) else None
    held_out = load_suite(test_suite, repos=False) if test_suite is not None else None
    with only_run(out, stage=stage) as work:
        made, finished = run_shards(parts, work / PARTS, desc=stage, unit="run", engine=engine), make_output(work)
        filled = [part for part in made if part.rows]
        repeats = find_repeats(filled) if any(REPEATS in part.schema.names for part in parts) else None
        written = write_files(filled, finished, *table, repeats)
        if held_out is not None:
            used_options = {**used_options, "test_suite": held_out.name}
            check_leakage(read_task_ids(finished) if written["rows"] else [], held_out)
        counts = sum_counts(made)
        dropped = counts.pop("dropped", {})
        if repeats:
            add_counts(dropped, {"repeat": len(repeats)})
        left_out = report_left_out(counts, dropped, others)
        for key in (UNREADABLE, LEFT_OUT):
            counts.pop(key, None)
        report: Json = {
            "pimono_sdpo": __version__,
            "stage": stage,
            "source": source[1],
            "source_kind": source[0],
            "options": used_options,
            "counts": dict(sorted(counts.items())),
            **written,
            "drop_reasons": dict(sorted(dropped.items())),
            "warnings": [*warnings],
            **left_out,
            "licence": licence,
            "together": _write_lines(finished, stage) if options.format == TOGETHER else None,
        }
        (finished / "README.md").write_text(render_stage_card(report, table[0]))
        publish_folder(finished, out, report)
    return report


def _write_lines(finished: Path, stage: str) -> Json:
    """Write together/SPLIT.jsonl and SPLIT_meta.jsonl; return the counts of each split."""
    folder = finished / TOGETHER
    folder.mkdir()
    make_line = make_sft_line if stage == "steps" else make_dpo_line
    counts: Json = {}
    for split in SPLITS:
        if files := sorted((finished / "data").glob(f"{split}-*.parquet")):
            written = write_lines(read_rows(files), make_line, folder / f"{split}.jsonl")
            counts[split] = dict(sorted(written.items()))
    if not any(folder.iterdir()):
        folder.rmdir()
    return counts


def copy_lines(folder: Path, path: Path, report: Json) -> Json:
    """Copy the training lines to `path` and NAME_meta.jsonl; return their counts."""
    counts: Json = report["together"].get("train", {})
    if not counts.get("written"):
        test = report["splits"].get("test", 0)
        raise EmptySelection(
            f"`{report['source']}` gives no line to train on: of {report['rows']} {report['stage']}, {test} are of "
            f"tasks held out for testing, and of the others {counts or 'none is left'}."
        )
    for name, final in (("train", path), ("train_meta", path.with_name(f"{path.stem}_meta.jsonl"))):
        temporary = final.with_name(f"{final.name}.tmp")
        shutil.copyfile(folder / TOGETHER / f"{name}.jsonl", temporary)
        temporary.replace(final)
    return counts


def summarize(report: Json, out: Path) -> str:
    """Summarise a report in a few lines."""
    splits = ", ".join(f"{count} {split}" for split, count in report["splits"].items())
    lines = [f"{report['rows']} {report['stage']}" + (f" ({splits})" if splits else "")]
    counts_of = {"dropped": report["drop_reasons"]}
    counts_of |= {f"together/{split}.jsonl": counts for split, counts in (report["together"] or {}).items()}
    for name, counts in counts_of.items():
        if counts:
            listed = ", ".join(f"{reason} {count}" for reason, count in counts.items())
            hint = "; lines need calls as text: give --tool-protocol json" if "native_tool_calls" in counts else ""
            lines.append(f"{name}: {listed}{hint}")
    lines += [f"warning: {warning}" for warning in report["warnings"]]
    lines += describe_left_out(report)
    lines.append(f"rows, rejects, report.json and README.md are in {out}")
    return "\n".join(map(escape_line, lines))

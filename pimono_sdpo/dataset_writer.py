"""Write rows to train on: a folder with data, rejects, report, card and the lines of an export.

With a tokenizer, rows that are too long are dropped; a trainer would cut them in the middle of
their JSON, or drop them silently. Their tokens are counted as the trainer will:

reads   prompt, tools, and completion, or chosen and rejected
writes  n_tokens (of the longer one of two), problem and detail
"""

import hashlib
import json
import shutil
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

from datasets import Features, Value

from pimono_sdpo import __version__
from pimono_sdpo.errors import EmptySelection, OutputError, SourceError, TrainingInputError, require_extra
from pimono_sdpo.options import argument, check_shares, option, options, report_options, resume_key
from pimono_sdpo.report import describe_unreadable
from pimono_sdpo.runs.engine import Output, Part, run_parts, sum_counts
from pimono_sdpo.runs.folders import only_run, publish_folder, require_disjoint
from pimono_sdpo.runs.parquet import SPLITS, join_parts, read_rows
from pimono_sdpo.runs.sessions import UNREADABLE, list_unreadable
from pimono_sdpo.source_options import SourceOptions
from pimono_sdpo.stage import Filter, Map, Row, Stage
from pimono_sdpo.suites.split import check_leakage, read_task_ids
from pimono_sdpo.suites.stored_rollouts import Rollouts, open_rollouts
from pimono_sdpo.suites.suite import load_suite
from pimono_sdpo.traces.sources import Source
from pimono_sdpo.training.token_budget import templated_ids
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
    """Count the tokens of a row and say whether they are too many."""
    from jinja2 import TemplateError

    loaded, encoded = load_tokenizer(tokenizer), []
    try:
        for end in [row[name] for name in ("completion", "chosen", "rejected") if name in row]:
            # Templates take no nulls.
            turns = [
                {name: value for name, value in turn.items() if value is not None} for turn in (*row["prompt"], *end)
            ]
            encoded.append(templated_ids(loaded, turns, prompt=False, tools=list(row["tools"]) or None))
    # Templates raise many kinds of errors; a conversation that one refuses cannot be trained on.
    except (TemplateError, TypeError, KeyError, AttributeError, ValueError) as error:
        why = f"the chat template refuses it: {error}"[:300]
        return {"n_tokens": None, "problem": "template_refused", "detail": why}
    longest = max(map(len, encoded))
    problem: str | None = None
    detail: str | None = None
    if len(encoded) == 2 and encoded[0][:max_length] == encoded[1][:max_length]:
        problem = "identical_after_truncation"
        detail = f"the first {max_length} tokens are the same"
    elif longest > max_length:
        problem, detail = "too_long", f"{longest} tokens, {max_length} allowed"
    return {"n_tokens": longest, "problem": problem, "detail": detail}


Format = Literal["trl", "together"]
TOGETHER = "together"


@options
class WriterOptions:
    """How rows to train on are written."""

    format: Format = option("Write rows for `trl`, or for `together` its JSON lines as well.", default="trl")
    licence: str | None = option("SPDX id of the licence of the traces, for the card.", default=None, flag="--license")


@options
class RunRowsOptions(WriterOptions, SourceOptions):
    """What rows made of rollouts and sessions have in common."""

    source: list[str] = argument(
        "Folder of rollouts, or recorded sessions in any form that `filter` takes, such as `claude`."
    )
    tokenizer: str | None = option(
        "Model (folder or Hub id) whose tokenizer counts for --max-length.", default=None, decides="row"
    )
    max_length: int | None = option("Drop rows with more tokens, as too_long.", default=None, minimum=1, decides="row")
    test_fraction: float = option(
        "Of sessions: share of repositories whose rows go to the test split.", default=0.0, share=True, decides="row"
    )
    keep_identity: bool = option(
        "Of sessions: keep the user and host names of whoever recorded them.", default=False, decides="row"
    )
    test_suite: Path | None = option("Held-out suite: refuse to write training rows of its tasks.", default=None)

    def __post_init__(self) -> None:
        """Check what belongs together; raises OutputError."""
        check_shares(self)
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
        """Return what the rows are made by, and the options for the report; a tokenizer is known by its content."""
        name, digest = self.tokenizer, None
        if name is not None:
            loaded = load_tokenizer(name)
            known = json.dumps([loaded.chat_template, sorted(loaded.get_vocab().items())])
            digest = hashlib.sha256(known.encode()).hexdigest()
            name = Path(name).resolve().name if Path(name).exists() else name
        made_by = {"options": resume_key(self) | {"tokenizer": name}, "tokenizer": digest}
        return made_by, report_options(self) | {"tokenizer": name}


Table = tuple[Features, Features]


def open_runs(options: RunRowsOptions, out: Path) -> Rollouts | Source:
    """Open a folder of rollouts, or else recorded sessions; raises SourceError and OutputError."""
    for one in options.source:
        if (rollouts := open_rollouts(one)) is None:
            continue
        if given := options.choices() or options.source[1:]:
            raise SourceError(
                f"`{one}` holds rollouts, which are read as a whole and by themselves; leave out {', '.join(given)}."
            )
        for read in (Path(one), *(Path(task["repo"]) for task in rollouts.tasks.values())):
            require_disjoint(read.resolve(), out.resolve())
        return rollouts
    return options.open_sessions(out)


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
    stage: Literal["steps", "pairs", "sdpo"],
    source: tuple[str, str],
    used: Json,
    warnings: Sequence[str] = (),
) -> Json:
    """Run the parts, with rows and rejects of the columns in `table`; return the report of `out`.

    `source` is its kind and name, `used` are the options for the report. A run that keeps nothing publishes its
    rejects; training rows of tasks of the test suite of `options` raise Leakage and leave `out` as it was.
    """
    from cards.lint import check_licence
    from cards.render import render_stage_card

    out = out.resolve()
    licence = check_licence(options.licence)
    test_suite = options.test_suite if isinstance(options, RunRowsOptions) else None
    held_out = load_suite(test_suite, repos=False) if test_suite is not None else None
    with only_run(out, stage=stage) as work:
        outputs = {
            "rows": Output("rows/{:05}.parquet", table[0].arrow_schema, "zstd"),
            "rejects": Output("rejects/{:05}.parquet", table[1].arrow_schema),
        }
        records = run_parts(parts, work, outputs, desc=stage, unit="run")
        finished, held = join_parts(work, len(parts), *table)
        if held_out is not None:
            used = {**used, "test_suite": held_out.name}
            check_leakage(read_task_ids(finished) if held["rows"] else [], held_out)
        counts = sum_counts(records.values())
        dropped = counts.pop("dropped", {})
        unreadable = list_unreadable(counts)
        counts.pop(UNREADABLE, None)
        report: Json = {
            "pimono_sdpo": __version__,
            "stage": stage,
            "source": source[1],
            "source_kind": source[0],
            "options": used,
            "counts": dict(sorted(counts.items())),
            **held,
            "drop_reasons": dict(sorted(dropped.items())),
            "warnings": [*warnings],
            **({UNREADABLE: [redact_text(one, "")[0] for one in unreadable]} if unreadable else {}),
            "licence": licence,
            "together": _export(finished, stage) if options.format == TOGETHER else None,
        }
        (finished / "README.md").write_text(render_stage_card(report, table[0]))
        publish_folder(finished, out, report)
    return report


def _export(finished: Path, stage: str) -> Json:
    """Write together/SPLIT.jsonl and SPLIT_meta.jsonl; return the counts of each split."""
    folder = finished / TOGETHER
    folder.mkdir()
    counts: Json = {}
    for split in SPLITS:
        if files := sorted((finished / "data").glob(f"{split}-*.parquet")):
            line_of = make_sft_line if stage == "steps" else make_dpo_line
            written = write_lines(read_rows(files), line_of, folder / f"{split}.jsonl")
            counts[split] = dict(sorted(written.items()))
    if not any(folder.iterdir()):
        folder.rmdir()
    return counts


def copy_lines(folder: Path, path: Path, report: Json) -> Json:
    """Copy the lines to train on to `path` and NAME_meta.jsonl; return their counts."""
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
    """Sum a report up in a few lines."""
    splits = ", ".join(f"{count} {split}" for split, count in report["splits"].items())
    lines = [f"{report['rows']} {report['stage']}" + (f" ({splits})" if splits else "")]
    counted = {"dropped": report["drop_reasons"]}
    counted |= {f"together/{name}.jsonl": one for name, one in (report["together"] or {}).items()}
    for name, counts in counted.items():
        if counts:
            listed = ", ".join(f"{reason} {count}" for reason, count in counts.items())
            native = "; lines need calls as text: give --tool-protocol json" * ("native_tool_calls" in counts)
            lines.append(f"{name}: {listed}{native}")
    lines += [f"warning: {warning}" for warning in report["warnings"]]
    lines += describe_unreadable(report)
    lines.append(f"rows, rejects, report.json and README.md are in {out}")
    return "\n".join(lines)

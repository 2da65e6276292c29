"""Look at what was made: one page of a filter run or a training, and cards checked offline."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pimono_sdpo.errors import OutputError, SourceError
from pimono_sdpo.training import run_schema

if TYPE_CHECKING:
    from pimono_sdpo.traces.sources import Source

Json = dict[str, Any]
Key = tuple[str, str, int]
REPORT, RUN, CARD = "report.json", "run.json", "README.md"
# What the page needs of a report beside what a model card does.
SHAPE: Json = {
    "input": {"shards": [{"path": str, "bytes": int}]},
    "options": {"history_chars": int},
    "stages": [{"dropped": dict}],
}


def fetched(source: str) -> tuple[Path, str]:
    """Return a local folder and how it is called; a name of the Hub is brought into the cache.

    Raises SourceError.
    """
    from pimono_sdpo.traces.hub import fetch_repository
    from pimono_sdpo.traces.sources import HUB_ID

    folder = Path(source)
    if source and folder.is_dir():
        return folder, folder.resolve().name
    if folder.exists() or not HUB_ID.fullmatch(source):
        raise SourceError(f"`{source}` is neither a folder nor a name on the Hub (ns/name).")
    return fetch_repository(source, (REPORT, RUN, "data/*.parquet", "rejects/*.parquet")), source


def view_page(folder: Path, name: str, traces: str | None, limit: int) -> str:
    """Return the page of a folder that the filter or a training wrote.

    `traces` is where the sessions lie; None looks for them under the name they had, beside the
    folder and here. At most `limit` rows and as many rejects are listed. Raises SourceError.
    """
    from cards.view import render_page, run_view

    if (folder / RUN).is_file():
        return render_page(run_view(_object(folder / RUN, "a training", run_schema.run_misfit)))
    if not (folder / REPORT).is_file() or not (folder / "data").is_dir():
        raise SourceError(
            f"`{name}` holds neither what `filter` or `merge` writes ({REPORT} and data/) nor a "
            f"training's {RUN}; give such a folder, or the name of a dataset that was pushed."
        )
    return render_page(
        _rows_page(folder, _object(folder / REPORT, "`filter`", _report_misfit), traces, limit)
    )


def _rows_page(folder: Path, report: Json, traces: str | None, limit: int) -> Json:
    from cards.view import rows_view
    from cards.view.rows import choose_rows, key_of

    chosen = choose_rows(folder, limit)
    source = _open_traces(traces, report, folder)
    around: dict[Key, Json] = {}
    note = (
        "The traces are not here: what stands around the evidence, and what rejected rows hold, "
        "is shown with --source and the traces that were filtered."
    )
    if source is not None:
        wanted = {key_of(row) for row in (*chosen.kept, *chosen.rejected)}
        around = _look_up(source, wanted, report["options"])
        note = f"The traces of {len(around):,} of them were found and read again."
    return rows_view(report, chosen, around, note)


def _open_traces(traces: str | None, report: Json, folder: Path) -> "Source | None":
    """Open what was named, or what lies near under the source's name and has the same files."""
    from pimono_sdpo.traces.sources import open_source

    if traces is not None:
        return open_source(traces)
    if report["input"]["kind"] == "hub":
        return None
    shards = [(shard["path"], shard["bytes"]) for shard in report["input"]["shards"]]
    for near in (Path.cwd(), folder.resolve().parent):
        path = near / report["input"]["source"]
        if path.exists() and path.resolve() != folder.resolve():
            try:
                found = open_source(str(path))
            except SourceError:
                # Something else of that name.
                continue
            if [(shard.path, shard.bytes) for shard in found.shards] == shards:
                return found
    return None


def _look_up(source: "Source", wanted: set[Key], options: Mapping[str, Any]) -> dict[Key, Json]:
    """Read the traces of the wanted rows again, one session in memory at a time."""
    from pimono_sdpo.schema import SESSION
    from pimono_sdpo.stage import iterate_rows
    from pimono_sdpo.traces.sources import read_sessions
    from processors.event_window import around
    from processors.names import MAX_CHARS
    from processors.redact import redact_text

    files = {_file(key[0]): key[0] for key in wanted}
    sessions = {key[1] for key in wanted}
    found: dict[Key, Json] = {}
    for shard in source.shards:
        for table in read_sessions(shard):
            for row in iterate_rows(table, SESSION):
                name = redact_text(_file(row["source"]), "")[0][:MAX_CHARS]
                if name not in files and row["session_id"] not in sessions:
                    continue
                for record in around(row, options["unit"], options["history_chars"]):
                    # A dataset's commit may have moved on; its files keep their names.
                    recorded = files.get(_file(record["source"]), record["source"])
                    key = recorded, record["session_id"], record["episode"]
                    if key in wanted:
                        found.setdefault(key, record)
    return found


def _file(source: str) -> str:
    """The file of a row, without the dataset and commit in front of it."""
    head, at, tail = source.partition("@")
    return tail.partition("/")[2] if at and head.count("/") == 1 and "/" in tail else source


def _rows_misfit(content: object) -> str | None:
    return run_schema.misfit(content, run_schema.REPORT)


def _report_misfit(content: object) -> str | None:
    return _rows_misfit(content) or run_schema.misfit(content, SHAPE)


def _object(path: Path, writer: str, misfit_of: Callable[[object], str | None]) -> Json:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SourceError(f"`{path}` cannot be read ({error}); make it again.") from error
    if not isinstance(content, dict):
        raise SourceError(f"`{path}` is no JSON object; make it again.")
    if isinstance(content.get("stage"), str):
        raise SourceError(
            f"`{path}` is the report of `{content['stage']}`; a page, and a card that is written "
            "again, are of the rows of `filter` or `merge` and of trainings."
        )
    problem = misfit_of(content)
    if problem:
        raise SourceError(
            f"`{path}` is not as {writer} writes it (see `{problem}`); make it again."
        )
    return content


def write_page(page: str, out: Path) -> None:
    """Write the page, whole or not at all; raises OutputError."""
    from pimono_sdpo.runs.parquet import write_atomically

    try:
        write_atomically(out, page.encode())
    except OSError as error:
        raise OutputError(f"`{out}` cannot be written ({error.strerror}); give --out.") from error


def write_card(folder: Path) -> Path:
    """Write card and pictures of rows, or of a training, again; return the card.

    The same report or run gives the same bytes. Raises SourceError.
    """
    from cards import render_dataset_card, write_model_card, write_report_plots

    if (folder / RUN).is_file():
        run = _object(folder / RUN, "a training", run_schema.run_misfit)
        report = folder / REPORT
        found = _object(report, "`filter`", _rows_misfit) if report.is_file() else None
        card = card_of(folder)
        write_model_card(found, run, card.parent)
        return card
    if not (folder / REPORT).is_file():
        raise SourceError(
            f"`{folder}` holds neither {REPORT} nor {RUN} to write a card from; give the folder of "
            "rows or of a training, or --check to check the card that is there."
        )
    report_of_rows = _object(folder / REPORT, "`filter`", _report_misfit)
    write_report_plots(report_of_rows, folder)
    (folder / CARD).write_text(render_dataset_card(report_of_rows))
    return folder / CARD


def card_of(path: Path) -> Path:
    """Return where the card of a folder is; a card is its own."""
    if not path.is_dir():
        return path
    # A run's folder keeps the card with the adapter; the adapter's folder is one, too.
    a_run = (path / RUN).is_file() and (path / "adapter").is_dir()
    return path / "adapter" / CARD if a_run else path / CARD


def check_card(card: Path) -> None:
    """Check a card offline; raises OutputError with what the Hub would refuse."""
    from cards import lint_file

    if not card.is_file():
        raise SourceError(f"`{card}` does not exist; give a card or the folder of one.")
    problems = lint_file(card)
    if problems:
        raise OutputError(f"The Hub may refuse `{card}`: {' '.join(problems)}")

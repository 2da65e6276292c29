"""Write an HTML page with charts, rows and traces that works offline.

pimono-sdpo view rows/
pimono-sdpo view ns/name --out page.html --no-open

With --review, the page shows a random sample of kept and rejected rows to judge one by one with the
keyboard; it saves the answers as CSV, and --labels prints the shares that are worth training on.

pimono-sdpo view rows/ --review --seed 1
pimono-sdpo view --labels rows-labels.csv

With --card, the card of a folder is checked offline by the rules of the Hub instead.

pimono-sdpo view adapter/ --card
"""

import sys
import webbrowser
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import typer

from pimono_sdpo.errors import OutputError, SourceError
from pimono_sdpo.options import argument, option, options
from pimono_sdpo.program import print_lines
from pimono_sdpo.runs.folders import REPORT, read_json, writing
from pimono_sdpo.runs.parquet import read_rows, write_atomically
from pimono_sdpo.schema import ROLLOUT, SESSION
from pimono_sdpo.source_options import WORDS, find_own_sessions, open_one
from pimono_sdpo.stage import CRASHED, REASON, iterate_rows
from pimono_sdpo.suites.stored_rollouts import open_rollouts
from pimono_sdpo.text import describe_size
from pimono_sdpo.traces.hub import fetch_repository
from pimono_sdpo.traces.sources import HUB_ID, Source, join_sources, open_source, read_sessions
from processors.identity import find_own_names
from processors.names import MAX_CHARS
from processors.redact import redact_text

Json = dict[str, Any]
Key = tuple[str, str, int]
RUN, CARD = "run.json", "README.md"
# In the title of each page.
OURS, HEAD_BYTES = "· pimono-sdpo</title>".encode(), 4000


@options
class ViewOptions:
    """Options of `view`."""

    source: str = argument(
        "Folder that `filter`, `rollout`, `import` or a training wrote, or ns/name on the Hub; "
        "with --card, any card or folder with a card.",
        default="",
        shown="none, only with --labels",
    )
    out: Path | None = option("HTML file to write.", default=None, shown="NAME.html in the current folder")
    traces: list[str] = option(
        "The traces that were filtered, if they have moved, or a word such as `claude` or `all` as "
        "for `filter`; may be repeated.",
        default_factory=list,
        flag="--source",
    )
    rows: int | None = option(
        "List the best N rows and as many rejects; with --review, sample N of each.",
        default=None,
        minimum=1,
        shown="500; 50 with --review",
    )
    review: bool = option("Write a page for judging a random sample of rows.", default=False)
    seed: int = option("Seed of the sample.", default=0)
    labels: Path | None = option(
        "Print the shares in a CSV file that a page of --review saved, and stop.", default=None
    )
    open: bool | None = option("Show the page in a browser.", default=None, shown="on a terminal")
    card: bool = option("Check the card by the rules of the Hub, and stop.", default=False)


def run(options: ViewOptions) -> None:
    """Write the page, check a card, or count labels."""
    if options.labels is not None:
        from cards.view.rows import describe_labels, read_labels

        for line in describe_labels(read_labels(options.labels)):
            typer.echo(line)
        return
    if not options.source:
        raise SourceError("`view` needs a folder, ns/name on the Hub, or --labels.")
    if options.card:
        _check_card(Path(options.source))
        return
    if options.out and options.out.suffix.lower() not in {".html", ".htm"}:
        raise OutputError(f"`{options.out}` is not the name of a page; give --out a name that ends in .html.")
    if options.rows and options.rows > sys.maxsize:
        raise OutputError(f"--rows {options.rows} is too large; leave it out or give a smaller number.")
    folder, name = find_folder(options.source)
    out = options.out or Path(f"{name.rpartition('/')[2]}{'-review' * options.review}.html")
    if out.is_file() and OURS not in out.read_bytes()[:HEAD_BYTES]:
        raise OutputError(f"`{out}` is another page; give another name with --out, or delete it.")
    if options.review:
        page = render_review(folder, name, options.traces, options.rows or 50, options.seed)
    else:
        page = render_view(folder, options.traces, options.rows or 500)
    with writing(out, "give the path of a file with --out"):
        write_atomically(out, page.encode())
    print_lines(f"the page is {out} ({describe_size(len(page.encode()))}), on this machine only")
    if sys.stdout.isatty() if options.open is None else options.open:
        webbrowser.open(out.resolve().as_uri())


def find_folder(source: str) -> tuple[Path, str]:
    """Return a local folder and its name; a Hub repository is downloaded into the cache."""
    folder = Path(source)
    if source and folder.is_dir():
        return folder, folder.resolve().name
    if folder.exists() or not HUB_ID.fullmatch(source):
        raise SourceError(
            f"`{source}` is neither a folder nor a name on the Hub (ns/name); give a folder that `filter` wrote."
        )
    return fetch_repository(source, (REPORT, RUN, "data/*.parquet", "rejects/*.parquet")), source


def render_view(folder: Path, traces: list[str], limit: int) -> str:
    """Return the page for a folder that the filter, a training or an agent wrote, with `limit` rows and rejects.

    Without `traces`, sessions are searched for by their name, beside the folder and in the current folder.
    """
    from cards.view import render_page, run_view
    from cards.view.rows import choose_rows, rollouts_view, rows_view

    if (folder / RUN).is_file():
        return render_page(run_view(_read(folder / RUN)))
    if rollouts := open_rollouts(folder):
        if missing := [name for name in ROLLOUT if name not in pq.read_schema(rollouts.files[0]).names]:
            raise SourceError(f"`{rollouts.files[0]}` has no column `{missing[0]}`; write the rollouts again.")
        rows = read_rows(rollouts.files)
        total = sum(pq.read_metadata(file).num_rows for file in rollouts.files)
        return render_page(rollouts_view(rollouts.name, islice(rows, limit), total))
    report = _read(folder / REPORT)
    # Reports of earlier versions do not say it.
    chosen = choose_rows(folder, limit, report.get("ranked_by", "score"))
    windows = _find_windows(traces, report, folder, [*chosen.kept, *chosen.rejected])
    note = (
        "The traces were not found: use --source with the traces that were filtered to show the "
        "context of the evidence and the content of rejected rows."
    )
    if report["options"].get("unit") == "step":
        note = "These rows are of `--unit step`, which was removed: they are shown without their traces."
    if windows is None:
        typer.echo(note, err=True)
    else:
        note = f"The traces of {len(windows):,} of them were found and read again."
    return render_page(rows_view(report, chosen, windows or {}, note))


def render_review(folder: Path, name: str, traces: list[str], count: int, seed: int) -> str:
    """Return the page for judging a random sample of `count` rows and as many rejects."""
    from cards.view import render_page
    from cards.view.rows import choose_rows, review_view

    report = _read(folder / REPORT)
    chosen = choose_rows(folder, count, report.get("ranked_by", "score"), seed)
    windows = _find_windows(traces, report, folder, [*chosen.kept, *chosen.rejected], whole=True)
    if windows is None and chosen.rejected:
        note = "The traces were not found, so rejected rows are left out; use --source with those that were filtered."
        typer.echo(note, err=True)
    view = review_view(name, chosen, windows or {}, seed)
    if not view["rows"]:
        raise SourceError(f"`{name}` holds no rows that can be judged without their traces.")
    return render_page(view)


def _open_traces(traces: list[str], report: Json, folder: Path) -> Source | None:
    """Open the named traces, or nearby ones with the source's name and the same files."""
    if traces:
        return join_sources([open_one(one) for one in traces])
    if report["input"]["kind"] == "hub":
        return None
    shards = [(shard["path"], shard["bytes"]) for shard in report["input"]["shards"]]
    names = report["input"]["source"].split(", ")
    for parent in (Path.cwd(), folder.resolve().parent):
        paths = [parent / name for name in names]
        if all(path.exists() and path.resolve() != folder.resolve() for path in paths):
            with suppress(SourceError):
                # Another folder or file may have the same name.
                source = join_sources([open_source(str(path)) for path in paths])
                if [(shard.path, shard.bytes) for shard in source.shards] == shards:
                    return source
    with suppress(SourceError):
        if {*names} <= {*WORDS}:
            return join_sources([find_own_sessions(name)[0] for name in names])
    return None


def _find_windows(
    traces: list[str], report: Json, folder: Path, rows: list[Json], whole: bool = False
) -> dict[Key, Json] | None:
    """Read the events around the evidence of rows from their traces; None if the traces are not found.

    One session is in memory at a time. With `whole`, all events of a request are listed.
    """
    from cards.view.rows import key_of
    from processors.event_window import show_event_windows

    source, options = _open_traces(traces, report, folder), report["options"]
    if source is None or options.get("unit") == "step":
        return None
    is_own = {*report["input"]["source"].split(", "), source.name} & {*WORDS}
    recorder = None if options.get("keep_identity") else find_own_names() if is_own else ()
    # Reading a session again on which a stage crashed would end in the same error.
    wanted = {key_of(row) for row in rows if row.get(REASON) != CRASHED}
    source_of = {_name_file(key[0]): key[0] for key in wanted}
    session_ids = {key[1] for key in wanted}
    windows: dict[Key, Json] = {}
    tables = (table for shard in source.shards for table in read_sessions(shard))
    for row in (row for table in tables for row in iterate_rows(table, SESSION)):
        name = redact_text(_name_file(row["source"]), "")[0][:MAX_CHARS]
        if name in source_of or row["session_id"] in session_ids:
            for record in show_event_windows(row, options["unit"], options["history_chars"], whole, recorder):
                # The dataset may have a newer commit, but its files keep their names.
                recorded = source_of.get(_name_file(record["source"]), record["source"])
                key = recorded, record["session_id"], record["episode"]
                if key in wanted:
                    windows.setdefault(key, record)
    return windows


def _name_file(source: str) -> str:
    """Return the file name of a row's source, without the dataset and commit in front of it."""
    head, at, tail = source.partition("@")
    return tail.partition("/")[2] if at and head.count("/") == 1 and "/" in tail else source


def _read(path: Path) -> Json:
    """Read the report of a filter run or a training; raises SourceError for anything else."""
    content = read_json(path)
    if not path.is_file():
        raise SourceError(f"`{path.parent}` holds no {path.name}, so it is not what `filter` or a training writes.")
    if not {"pimono_sdpo", "stage"} & content.keys():
        raise SourceError(f"`{path}` is not what `filter` or a training writes; use the folder of one, or ns/name.")
    if "stage" in content:
        raise SourceError(f"`{path}` is of `{content['stage']}`; `view` shows rows of `filter` and trainings.")
    return content


def _check_card(path: Path) -> None:
    """Check a card, or the card of a folder, by the rules of the Hub."""
    from cards.lint import lint_file

    # In the folder of a training, the card is in the folder of the adapter.
    folder = path / "adapter" if (path / RUN).is_file() and (path / "adapter").is_dir() else path
    card = folder / CARD if path.is_dir() else path
    if not card.is_file():
        raise SourceError(f"`{card}` does not exist; use a card or a folder with one.")
    if problems := lint_file(card):
        raise OutputError(f"The Hub may refuse `{card}`: {' '.join(problems)}")
    print_lines(f"{card}: nothing that the Hub would refuse")

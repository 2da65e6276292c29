"""Sample the turns of a duel from trajectories, and look up the pull requests that are hidden from the king.

reads   trajectories (parquet with `instance_id`, `messages` and optionally `repo`) and records of
        pull requests
writes  DIR/turns/turns-NNNNN.parquet (TURN, at most 200 rows each), DIR/prs/prs-00000.parquet
        (PULL_REQUEST), DIR/turns.json

The same source, seed and options give the same bytes.

Tasks are drawn uniformly: a turn of one run of every task, in random order, then of another run of
each. The column of ids is read completely; the others in batches, and only from row groups with a
drawn run. Of pull requests, only ids and the records of drawn tasks are read.
"""

import hashlib
import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from pimono_sdpo.errors import EmptySelection, SourceError
from pimono_sdpo.llm.calls import Json
from pimono_sdpo.runs.parquet import write_atomically
from pimono_sdpo.schema import DUEL_TURN, PULL_REQUEST
from pimono_sdpo.text import replace_surrogates
from pimono_sdpo.traces.events import decode_json
from pimono_sdpo.traces.sources import ParquetFiles, find_parquet_files
from pimono_sdpo.traces.trajectories.base import join_text
from processors.duel.answers import classify_action

KEY = "instance_id"
NEEDED = (KEY, "messages")
TURNS, RECORDS, REPORT = "turns", "prs", "turns.json"
SHARD_ROWS = 200
# Turns with a longer history are not drawn, because judges would not read all of it.
MAX_CHARS = 120_000
# Names of the columns in records of pull requests; the first one present is used.
NAMES = {
    "problem_statement": ("problem_statement", "issue", "issue_text", "issue_body"),
    "patch": ("patch", "diff", "gold_patch"),
    "base_commit": ("base_commit", "commit", "base_sha"),
    "description": ("description", "pr_description", "pr_body", "body", "hints_text"),
}
TITLES = ("title", "pr_title")
_TARGETS = re.compile(r"^diff --git a/.{1,500}? b/(.{1,500})$", re.MULTILINE)


@dataclass(frozen=True)
class TurnOptions:
    """The number of turns to draw, the seed, and instance ids to leave out."""

    turns: int = 2000
    seed: int = 42
    exclude: frozenset[str] = frozenset()


def read_excluded_ids(path: Path) -> frozenset[str]:
    """Read instance ids from a text file, one per line; `#` starts a comment."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"`{path}` cannot be read as a list of instance ids, one per line ({error}).") from error
    return frozenset(filter(None, (line.partition("#")[0].strip() for line in lines)))


def draw_turns(source: str, records: str, options: TurnOptions, out: Path, request: str = "") -> Json:
    """Write the turns and their pull requests under `out`; return the report.

    The report stores `request`, by which a later run recognizes these turns.
    """
    drops: Counter[str] = Counter()
    files, scans = find_parquet_files(source), scan_pull_requests(records)
    turns = list(_sample_turns(files, list_ids(scans), options, drops))
    dropped = dict(sorted((+drops).items()))
    if not turns:
        reasons = ", ".join(f"{reason} {n:,}" for reason, n in dropped.items()) or "no rows"
        raise EmptySelection(f"`{source}` has no usable turn ({reasons}); give another source.")
    report: Json = {
        "source": files.source,
        "revision": files.revision,
        "request": request,
        "options": {**asdict(options), "exclude": sorted(options.exclude)},
        "turns": len(turns),
        "instances": len({turn[KEY] for turn in turns}),
        "dropped": dropped,
    }
    (out / REPORT).unlink(missing_ok=True)
    for folder in (out / TURNS, out / RECORDS):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    for number, start in enumerate(range(0, len(turns), SHARD_ROWS)):
        stem = f"{TURNS}-{number:05}"
        rows = [
            {"turn_id": f"{stem}_{order}", **turn}
            for order, turn in enumerate(turns[start : start + SHARD_ROWS], start=1)
        ]
        pq.write_table(pa.Table.from_pylist(rows, DUEL_TURN.arrow_schema), out / TURNS / f"{stem}.parquet")
    hidden = read_records(scans, {turn[KEY] for turn in turns})
    table = pa.Table.from_pylist(hidden, PULL_REQUEST.arrow_schema)
    pq.write_table(table, out / RECORDS / f"{RECORDS}-00000.parquet")
    # Written last: it marks the folder as complete.
    write_atomically(out / REPORT, (json.dumps(report, indent=2) + "\n").encode())
    return report


def _sample_turns(
    files: ParquetFiles, known: Collection[str], options: TurnOptions, drops: Counter[str]
) -> Iterator[Json]:
    runs = order_runs(files, known, options.exclude, drops, options.seed)
    seen: set[bytes] = set()
    kept = start = 0
    while kept < options.turns and (draws := draw_runs(files, runs.slice(start, options.turns - kept), options.seed)):
        start += len(draws)
        for turn in draws:
            if isinstance(turn, str):
                drops[turn] += 1
                continue
            # Many runs of a task start with the same messages.
            digest = hashlib.sha256(json.dumps(turn["messages"]).encode()).digest()
            if digest in seen:
                drops["duplicate"] += 1
                continue
            seen.add(digest)
            yield turn
            kept += 1


def order_runs(
    files: ParquetFiles, known: Collection[str], excluded: Collection[str], drops: Counter[str], seed: int
) -> pl.DataFrame:
    """Return the runs of known tasks that are not excluded, as `file` and `row`, in the order of drawing."""
    frames = []
    for index, name in enumerate(files.names):
        with files.open(index) as parquet:
            if missing := {*NEEDED} - {*parquet.schema_arrow.names}:
                raise SourceError(f"`{name}` has no column `{min(missing)}`; give trajectories.")
            ids = pl.Series("id", parquet.read([KEY])[KEY].combine_chunks(), pl.String)
        rows = pl.DataFrame({"id": ids}).with_columns(file=pl.lit(index, pl.UInt32))
        frames.append(rows.with_row_index("row"))
    runs = pl.concat(frames)
    reasons = {
        "excluded": pl.col("id").is_in(excluded),
        "no_instance_id": pl.col("id").is_null() | (pl.col("id") == ""),
        "no_pull_request": ~pl.col("id").is_in(known),
    }
    for reason, condition in reasons.items():
        drops[reason] += runs.select(condition.fill_null(True).sum()).item()
        runs = runs.filter(~condition.fill_null(True))
    rng = np.random.default_rng(seed)
    tasks = runs.select(pl.col("id").unique().sort())
    tasks = tasks.with_columns(place_of_task=pl.Series(rng.permutation(len(tasks))))
    shuffled = runs[rng.permutation(len(runs))].join(tasks, on="id", maintain_order="left")
    rank = pl.int_range(pl.len()).over("id")
    return shuffled.with_columns(rank=rank).sort("rank", "place_of_task")


def draw_runs(files: ParquetFiles, runs: pl.DataFrame, seed: int) -> list[Json | str]:
    """Return a turn of each run, or the reason why it has none, in order."""
    drawn: dict[int, Json | str] = {}
    for (index,), chosen in runs.with_row_index("place").group_by("file", maintain_order=True):
        name = files.names[int(index)]
        places = dict(zip(chosen["row"].to_list(), chosen["place"].to_list(), strict=True))
        with files.open(int(index)) as parquet:
            for at, row in _read_rows(parquet, sorted(places)):
                drawn[places[at]] = _draw_turn(row, random.Random(f"{seed}:{name}:{at}"))
    return [drawn[place] for place in sorted(drawn)]


def _read_rows(parquet: pq.ParquetFile, wanted: Sequence[int]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the wanted rows of a file with their numbers; row groups are decoded in batches."""
    columns = [name for name in (*NEEDED, "repo") if name in parquet.schema_arrow.names]
    start = 0
    for group in range(parquet.metadata.num_row_groups):
        stop = start + parquet.metadata.row_group(group).num_rows
        if not any(start <= row < stop for row in wanted):
            start = stop
            continue
        for batch in parquet.iter_batches(row_groups=[group], columns=columns):
            numbers = [row for row in wanted if start <= row < start + batch.num_rows]
            rows = batch.take(pa.array([row - start for row in numbers], pa.int64())).to_pylist()
            yield from zip(numbers, rows, strict=True)
            start += batch.num_rows


def _draw_turn(row: Mapping[str, Any], rng: random.Random) -> Json | str:
    """Choose one turn of the agent as the reference; the messages before it are the prompt."""
    instance, repo = row[KEY], row.get("repo")
    messages = read_messages(row["messages"])
    roles = [message["role"] for message in messages]
    turns = [at for at, pair in enumerate(pairwise(roles), start=1) if pair == ("user", "assistant")]
    before = list(accumulate((len(message["content"]) for message in messages), initial=0))
    readable = [at for at in turns if before[at] <= MAX_CHARS]
    if not readable:
        return "too_long" if turns else "no_turn"
    if repo is None or not str(repo).strip():
        # As in django__django-11099.
        repo = instance.rpartition("-")[0].replace("__", "/") if "__" in instance else ""
    at = rng.choice(readable)
    answer = messages[at]["content"]
    return {
        KEY: instance,
        "repo": str(repo),
        "messages": messages[:at],
        "assistant": answer,
        "turn": turns.index(at) + 1,
        "action_style": classify_action(answer),
    }


def read_messages(recorded: object) -> list[Json]:
    """Return role and text of the messages in a list, or in its JSON; tool results become user messages.

    Empty messages are left out; consecutive messages of one role are joined.
    """
    recorded = decode_json(recorded) if isinstance(recorded, str) else recorded
    messages: list[Json] = []
    for message in recorded if isinstance(recorded, list) else []:
        if not isinstance(message, dict):
            continue
        role, text = message.get("role"), replace_surrogates(join_text(message.get("content")))
        if role == "tool":
            role, text = "user", f"Observation:\n{text}"
        if role not in ("system", "user", "assistant") or not text.strip():
            continue
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += f"\n\n{text}"
        else:
            messages.append({"role": role, "content": text})
    return messages


def scan_pull_requests(source: str) -> list[pl.LazyFrame]:
    """Open records of pull requests, one frame per file; raises SourceError if columns are missing."""
    files = find_parquet_files(source)
    texts = {*TITLES, *(name for key, names in NAMES.items() for name in names if key != "base_commit")}
    for index, name in enumerate(files.names):
        with files.open(index) as parquet:
            schema = parquet.schema_arrow
        if KEY not in schema.names or "string" not in str(schema.field(KEY).type):
            raise SourceError(f"`{name}` has no text column `{KEY}`; give records of pull requests.")
        if not texts & {*schema.names}:
            raise SourceError(f"`{name}` has no column that describes a change, such as `patch`.")
    return [pl.scan_parquet(files.local(index)) for index in range(len(files.names))]


def list_ids(scans: Iterable[pl.LazyFrame]) -> frozenset[str]:
    """Return the instance ids of all records."""
    columns = (scan.select(KEY).collect(engine="streaming") for scan in scans)
    return frozenset(value for column in columns for value in column[KEY] if value)


def read_records(scans: Iterable[pl.LazyFrame], wanted: Collection[str]) -> list[Json]:
    """Return the records of these ids, sorted by id; the first record of an id is kept."""
    keys = pl.LazyFrame({KEY: sorted(wanted)}, schema={KEY: pl.String})
    records: dict[str, Json] = {}
    for scan in scans:
        columns = scan.collect_schema().names()
        needed = [KEY, *(n for names in (*NAMES.values(), TITLES) for n in names if n in columns)]
        joined = scan.select(needed).join(keys, on=KEY, how="semi", maintain_order="left")
        for row in joined.collect(engine="streaming").iter_rows(named=True):
            records.setdefault(row[KEY], make_record(row))
    return [records[key] for key in sorted(records)]


def make_record(row: Json) -> Json:
    """Convert a row to the columns of PULL_REQUEST."""
    texts = {name: _first_text(row, names) for name, names in NAMES.items()}
    title = _first_text(row, TITLES)
    if title:
        texts["description"] = f"{title}\n\n{texts['description']}".strip()
    return {
        KEY: row[KEY],
        **texts,
        "files": list(dict.fromkeys(_TARGETS.findall(texts["patch"]))),
        "pr_chars": sum(map(len, texts.values())),
    }


def _first_text(row: Json, names: Iterable[str]) -> str:
    value = next((row[name] for name in names if row.get(name) not in (None, "")), "")
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return replace_surrogates(text).strip()

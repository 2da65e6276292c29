"""Keep one row of each story: of forks, subagents, growing snapshots, the same request again.

Rows are taken best first, so that of two that share a story the one with more evidence stays: the
higher score, then the more diagnostics and corrections. All state is in one SQLite file, whose size
grows with the rows; memory does not.
"""

import hashlib
import re
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rensa import RMinHash

from pimono_sdpo.report import OVER_MAX_SAMPLES
from pimono_sdpo.runs.parquet import SPLITS, number_files, read_tables, write_tables
from pimono_sdpo.schema import REJECT, SDPO_ROW
from pimono_sdpo.text import split_shingles

# The largest integer of SQLite.
MOST = 2**63 - 1
SAME_SESSION = "duplicate_session"
SAME_PROMPT = "near_duplicate_prompt"
# Of the messages of the shorter session, this share is also in the other one.
MIN_SHARED = 0.5
MIN_SHARED_MESSAGES = 2
MIN_JACCARD = 0.8
# Each of two prompts has so many words that the other lacks: other tasks on one template.
MIN_OWN_WORDS = 3
PERMUTATIONS = 128
# 16 bands of 8: two prompts with a similarity of 0.8 meet in a band with probability 0.95.
BANDS = 16
# A message that everybody sends must not make every row meet every other.
PLACES = 8
BATCH_ROWS = 256
MAX_PARAMETERS = 500
Messages = npt.NDArray[np.int64]
_TABLES = """
CREATE TABLE candidate (shard INT, row INT, evidence INT, score REAL, ticket TEXT, source TEXT,
    session_id TEXT, episode INT, messages BLOB, prompt BLOB, words TEXT,
    PRIMARY KEY (shard, row));
CREATE TABLE message (print INT, place INT, id INT, size INT, PRIMARY KEY (print, place))
    WITHOUT ROWID;
CREATE TABLE band (band BLOB, place INT, id INT, PRIMARY KEY (band, place)) WITHOUT ROWID;
CREATE TABLE verdict (shard INT, row INT, stage TEXT, reason TEXT, detail TEXT,
    PRIMARY KEY (shard, row)) WITHOUT ROWID;
"""


class Verdict(NamedTuple):
    """Why a row does not stay: the step, the reason and a word more."""

    stage: str
    reason: str
    detail: str


class ShardFiles(NamedTuple):
    """The three files of a finished shard; they share their name."""

    rows: Path
    prints: Path
    rejects: Path


def files_of(folder: Path, index: int) -> ShardFiles:
    """Find the files of a shard, by its number in the source, in the folder of a run or a part."""
    return ShardFiles(*(folder / kind / f"{index:05}.parquet" for kind in ShardFiles._fields))


def choose_rows(
    shards: Sequence[ShardFiles],
    database_file: Path,
    max_samples: int | None,
    seed: int,
    dedupe: bool,
) -> sqlite3.Connection:
    """Decide which rows stay: one of each story, then the best `max_samples` by score."""
    database = _open_candidates(database_file)
    if dedupe or max_samples is not None:
        for number, shard in enumerate(shards):
            _add_shard(database, number, shard, seed)
    if dedupe:
        _reject_duplicates(database)
    if max_samples is not None:
        _reject_surplus(database, max_samples, OVER_MAX_SAMPLES)
    return database


def write_chosen(
    shards: Sequence[ShardFiles], work: Path, database: sqlite3.Connection
) -> tuple[Path, dict[str, Counter[str]]]:
    """Write `work/out/{data,rejects}/*.parquet`; return the folder and the reasons of each step.

    The files of the shards stay as they are, so that a kill in the middle costs only this step.
    """
    out, parts = work / "out", work / "chosen"
    for folder in (out, parts):
        shutil.rmtree(folder, ignore_errors=True)
    for name in (*SPLITS, "rejects"):
        (parts / name).mkdir(parents=True)
    dropped: dict[str, Counter[str]] = {"dedupe": Counter(), "choose": Counter()}
    for number, (path, _, rejects) in enumerate(shards):
        against = _verdicts(database, number)
        for why in against.values():
            dropped[why.stage][why.reason] += 1
        for split in SPLITS:
            chosen = (
                table.filter(
                    pc.and_(
                        pa.array(
                            [first + i not in against for i in range(table.num_rows)], pa.bool_()
                        ),
                        pc.equal(table["split"], split),
                    )
                )
                for first, table in _numbered(path)
            )
            write_tables(parts / split / path.name, chosen, SDPO_ROW.arrow_schema)
        refused = (_rejected(table, first, against) for first, table in _numbered(path))
        everything = (*read_tables(rejects, BATCH_ROWS), *refused)
        write_tables(parts / "rejects" / path.name, everything, REJECT.arrow_schema)
    for split in SPLITS:
        number_files(sorted((parts / split).iterdir()), out / "data", split)
    number_files(sorted((parts / "rejects").iterdir()), out / "rejects", "rejects")
    shutil.rmtree(parts)
    return out, dropped


def _rejected(rows: pa.Table, first: int, against: dict[int, Verdict]) -> pa.Table:
    columns = ["session_id", "source", "episode", "harness", "score", "counts"]
    rejects = [
        {
            "session_id": row["session_id"],
            "source": row["source"],
            "episode": row["episode"],
            "stage": why.stage,
            "drop_reason": why.reason,
            "detail": ", ".join(
                filter(None, [row["harness"], f"score {row['score']:g}", why.detail])
            ),
            "counts": row["counts"],
        }
        for number, row in enumerate(rows.select(columns).to_pylist(), start=first)
        if (why := against.get(number))
    ]
    return pa.Table.from_pylist(rejects, REJECT.arrow_schema)


def _numbered(path: Path) -> Iterator[tuple[int, pa.Table]]:
    """Yield the tables of a file with the number of their first row."""
    first = 0
    for table in read_tables(path, BATCH_ROWS):
        yield first, table
        first += table.num_rows


def _open_candidates(path: Path) -> sqlite3.Connection:
    """Create the file anew; the shards hold all that it is made from."""
    path.unlink(missing_ok=True)
    database = sqlite3.connect(path)
    database.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;" + _TABLES)
    return database


def _add_shard(database: sqlite3.Connection, shard: int, files: ShardFiles, seed: int) -> None:
    """Add the rows of one shard and their fingerprints, which are in the same order.

    `seed` decides among rows of equal score.
    """
    columns = ["score", "source", "session_id", "episode", "prompt"]
    both = zip(_rows(files.rows, columns), _rows(files.prints), strict=True)
    for number, (row, mark) in enumerate(both):
        messages = np.unique(np.array(mark["fingerprints"], np.int64))
        ticket = hashlib.sha256(f"{seed}:{row['session_id']}:{row['episode']}".encode())
        values = (
            *(shard, number, mark["evidence"], row["score"], ticket.hexdigest(), row["source"]),
            *(row["session_id"], row["episode"], messages.tobytes()),
            _digest(row["prompt"][-1]["content"]),
            "\n".join(sorted(_list_words(row["prompt"][-1]["content"]))),
        )
        database.execute("INSERT INTO candidate VALUES (?,?,?,?,?,?,?,?,?,?,?)", values)


def _reject_duplicates(database: sqlite3.Connection) -> None:
    """Reject every row whose story a better row tells already."""
    best_first = database.execute(
        "SELECT rowid, shard, row, messages, prompt, words FROM candidate"
        " ORDER BY score DESC, evidence DESC, length(messages) DESC, source, episode"
    )
    for number, shard, row, messages, prompt, words in best_first:
        same_session = _same_session(database, np.frombuffer(messages, np.int64))
        same = same_session or _same_prompt(database, prompt, words)
        if same is None:
            _keep(database, number, messages, prompt)
            continue
        (source,) = database.execute(
            "SELECT source FROM candidate WHERE rowid=?", (same,)
        ).fetchone()
        reason = SAME_SESSION if same_session else SAME_PROMPT
        _reject(database, shard, row, Verdict("dedupe", reason, f"same as {source}"))


def _reject_surplus(database: sqlite3.Connection, max_samples: int, reason: str) -> None:
    """Reject every row beyond the best `max_samples` that are left."""
    database.execute(
        "INSERT INTO verdict SELECT shard, row, 'choose', ?, '' FROM candidate"
        " WHERE NOT EXISTS (SELECT 1 FROM verdict v WHERE v.shard=candidate.shard"
        " AND v.row=candidate.row)"
        " ORDER BY score DESC, ticket, source, episode LIMIT -1 OFFSET ?",
        (reason, min(max_samples, MOST)),
    )


def _verdicts(database: sqlite3.Connection, shard: int) -> dict[int, Verdict]:
    """Return why rows of a shard are rejected, by row number."""
    found = database.execute(
        "SELECT row, stage, reason, detail FROM verdict WHERE shard=?", (shard,)
    )
    return {row: Verdict(*why) for row, *why in found}


def _same_session(database: sqlite3.Connection, messages: Messages) -> int | None:
    """The kept row that shares most messages, when that is most of the shorter of the two."""
    shared: Counter[tuple[int, int]] = Counter()
    for start in range(0, len(messages), MAX_PARAMETERS):
        part = [int(value) for value in messages[start : start + MAX_PARAMETERS]]
        marks = ",".join("?" * len(part))
        shared.update(
            database.execute(f"SELECT id, size FROM message WHERE print IN ({marks})", part)
        )
    for (number, size), count in sorted(shared.items(), key=lambda item: (-item[1], item[0])):
        shorter = min(size, len(messages))
        if count >= MIN_SHARED * shorter and count >= min(MIN_SHARED_MESSAGES, shorter):
            return number
    return None


def _same_prompt(database: sqlite3.Connection, prompt: bytes, words: str) -> int | None:
    """The first kept row whose prompt is nearly this one and asks for the same."""
    digest = np.frombuffer(prompt, np.uint32)
    for number, band in enumerate(np.split(digest, BANDS)):
        for (other,) in database.execute(
            "SELECT id FROM band WHERE band=? ORDER BY id", (bytes([number]) + band.tobytes(),)
        ):
            theirs, their_words = database.execute(
                "SELECT prompt, words FROM candidate WHERE rowid=?", (other,)
            ).fetchone()
            alike = np.mean(digest == np.frombuffer(theirs, np.uint32)) >= MIN_JACCARD
            if alike and not _ask_for_others(set(words.split("\n")), set(their_words.split("\n"))):
                return int(other)
    return None


# Words, with what names of files, tickets and versions are written with.
_PROMPT_WORD = re.compile(r"[\w#][\w./#:-]*\w|\w")
# What differs each time a template is filled: dates, times, hashes, ids and folders of a run.
_PASSING = re.compile(r"\d{4}-\d\d-\d\d\S*|\d{1,2}:\d\d\S*|[0-9a-f-]{7,}|\S*/(?:tmp|T)/\S*|\d{10,}")
_NAMES_ONE = re.compile(r"#?\d+|.*[a-z]-?\d.*|.*\w[/._#]\w.*")


def _list_words(prompt: str) -> set[str]:
    return {word for word in _PROMPT_WORD.findall(prompt.lower()) if not _PASSING.fullmatch(word)}


def _ask_for_others(one: set[str], other: set[str]) -> bool:
    """Compare what differs: each names its own ticket or file, or has words of its own."""
    own = one - other, other - one
    if all(len(words) >= MIN_OWN_WORDS for words in own):
        return True
    return all(any(map(_NAMES_ONE.fullmatch, words)) for words in own)


def _keep(database: sqlite3.Connection, number: int, messages: bytes, prompt: bytes) -> None:
    prints = np.frombuffer(messages, np.int64).tolist()
    database.executemany(
        "INSERT INTO message SELECT ?1, COUNT(*), ?2, ?3 FROM message WHERE print=?1"
        " HAVING COUNT(*) < ?4",
        ((value, number, len(prints), PLACES) for value in prints),
    )
    database.executemany(
        "INSERT INTO band SELECT ?1, COUNT(*), ?2 FROM band WHERE band=?1 HAVING COUNT(*) < ?3",
        (
            (bytes([band]) + values.tobytes(), number, PLACES)
            for band, values in enumerate(np.split(np.frombuffer(prompt, np.uint32), BANDS))
        ),
    )


def _reject(database: sqlite3.Connection, shard: int, row: int, why: Verdict) -> None:
    database.execute("INSERT INTO verdict VALUES (?,?,?,?,?)", (shard, row, *why))


def _digest(prompt: str) -> bytes:
    minhash = RMinHash(num_perm=PERMUTATIONS, seed=0)
    minhash.update(split_shingles(prompt))
    return np.array(minhash.digest(), np.uint32).tobytes()


def _rows(path: Path, columns: list[str] | None = None) -> Iterator[dict[str, Any]]:
    with pq.ParquetFile(path) as parquet:
        for batch in parquet.iter_batches(BATCH_ROWS, columns=columns):
            yield from batch.to_pylist()

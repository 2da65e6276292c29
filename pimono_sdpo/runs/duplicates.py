"""Find rows that tell the same story: forks, subagents, growing snapshots, the same request again.

Rows are taken best first, so that of two that share a story the one with more evidence stays: the
higher score, then the more diagnostics and corrections. All state is in one SQLite file, whose size
grows with the rows; memory does not.
"""

import hashlib
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from rensa import RMinHash

from pimono_sdpo.text import split_shingles

# What SQLite takes for a number.
MOST = 2**63 - 1
SAME_SESSION = "duplicate_session"
SAME_PROMPT = "near_duplicate_prompt"
# Of the messages of the shorter session, this share is also in the other one.
MIN_SHARED = 0.5
MIN_SHARED_MESSAGES = 2
MIN_JACCARD = 0.8
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
    session_id TEXT, episode INT, messages BLOB, prompt BLOB, PRIMARY KEY (shard, row));
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


def open_candidates(path: Path) -> sqlite3.Connection:
    """Make the file anew; what is in it can always be made again from the shards."""
    path.unlink(missing_ok=True)
    database = sqlite3.connect(path)
    database.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;" + _TABLES)
    return database


def add_shard(
    database: sqlite3.Connection, shard: int, rows: Path, prints: Path, seed: int
) -> None:
    """Add the rows of one shard and their fingerprints, which are in the same order.

    `seed` decides among rows of equal score.
    """
    columns = ["score", "source", "session_id", "episode", "prompt"]
    both = zip(_rows(rows, columns), _rows(prints), strict=True)
    for number, (row, mark) in enumerate(both):
        messages = np.unique(np.array(mark["fingerprints"], np.int64))
        ticket = hashlib.sha256(f"{seed}:{row['session_id']}:{row['episode']}".encode())
        values = (
            *(shard, number, mark["evidence"], row["score"], ticket.hexdigest(), row["source"]),
            *(row["session_id"], row["episode"], messages.tobytes()),
            _digest(row["prompt"][-1]["content"]),
        )
        database.execute("INSERT INTO candidate VALUES (?,?,?,?,?,?,?,?,?,?)", values)


def judge_duplicates(database: sqlite3.Connection) -> None:
    """Give a verdict to every row whose story a better row tells already."""
    best_first = database.execute(
        "SELECT rowid, shard, row, source, messages, prompt FROM candidate"
        " ORDER BY score DESC, evidence DESC, length(messages) DESC, source, episode"
    )
    for number, shard, row, _, messages, prompt in best_first:
        same_session = _same_session(database, np.frombuffer(messages, np.int64))
        same = same_session or _same_prompt(database, prompt)
        if same is None:
            _keep(database, number, messages, prompt)
            continue
        (source,) = database.execute(
            "SELECT source FROM candidate WHERE rowid=?", (same,)
        ).fetchone()
        reason = SAME_SESSION if same_session else SAME_PROMPT
        _convict(database, shard, row, Verdict("dedupe", reason, f"same as {source}"))


def judge_surplus(database: sqlite3.Connection, max_samples: int, reason: str) -> None:
    """Give a verdict to every row beyond the best `max_samples` that have none."""
    database.execute(
        "INSERT INTO verdict SELECT shard, row, 'choose', ?, '' FROM candidate"
        " WHERE NOT EXISTS (SELECT 1 FROM verdict v WHERE v.shard=candidate.shard"
        " AND v.row=candidate.row)"
        " ORDER BY score DESC, ticket, source, episode LIMIT -1 OFFSET ?",
        (reason, min(max_samples, MOST)),
    )


def verdicts(database: sqlite3.Connection, shard: int) -> dict[int, Verdict]:
    """Return the verdicts on the rows of one shard by row number."""
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


def _same_prompt(database: sqlite3.Connection, prompt: bytes) -> int | None:
    """The first kept row whose prompt is nearly this one."""
    digest = np.frombuffer(prompt, np.uint32)
    for number, band in enumerate(np.split(digest, BANDS)):
        for (other,) in database.execute(
            "SELECT id FROM band WHERE band=? ORDER BY id", (bytes([number]) + band.tobytes(),)
        ):
            (theirs,) = database.execute(
                "SELECT prompt FROM candidate WHERE rowid=?", (other,)
            ).fetchone()
            if np.mean(digest == np.frombuffer(theirs, np.uint32)) >= MIN_JACCARD:
                return int(other)
    return None


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


def _convict(database: sqlite3.Connection, shard: int, row: int, why: Verdict) -> None:
    database.execute("INSERT INTO verdict VALUES (?,?,?,?,?)", (shard, row, *why))


def _digest(prompt: str) -> bytes:
    minhash = RMinHash(num_perm=PERMUTATIONS, seed=0)
    minhash.update(split_shingles(prompt))
    return np.array(minhash.digest(), np.uint32).tobytes()


def _rows(path: Path, columns: list[str] | None = None) -> Iterator[dict[str, Any]]:
    with pq.ParquetFile(path) as parquet:
        for batch in parquet.iter_batches(BATCH_ROWS, columns=columns):
            yield from batch.to_pylist()

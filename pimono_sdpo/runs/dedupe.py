"""Keep one row of each story: of forks, subagents, growing snapshots, the same request again.

Rows are taken best first, so that of two that share a story the one with more evidence stays: the
higher score, then the more diagnostics and corrections. All state is in one SQLite file, whose size
grows with the rows; memory does not.
"""

import hashlib
import json
import re
import shutil
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rensa import RMinHash

from pimono_sdpo.report import OVER_MAX_SAMPLES
from pimono_sdpo.runs.folders import make_output
from pimono_sdpo.runs.parquet import SPLITS, number_files, read_rows, read_tables
from pimono_sdpo.runs.sessions import OUTPUTS, PRINTS, REJECTS, ROWS
from pimono_sdpo.text import split_shingles

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
# `step`, `reason` and `detail` say why a candidate does not stay.
_TABLES = """
CREATE TABLE candidate (id INTEGER PRIMARY KEY, shard INT, row INT, evidence INT, score REAL,
    ticket TEXT, source TEXT, episode INT, messages BLOB, prompt BLOB, words TEXT,
    step TEXT, reason TEXT, detail TEXT, UNIQUE (shard, row));
CREATE TABLE message (print INT, place INT, id INT, size INT, PRIMARY KEY (print, place))
    WITHOUT ROWID;
CREATE TABLE band (band BLOB, place INT, id INT, PRIMARY KEY (band, place)) WITHOUT ROWID;
"""
Files = Mapping[str, Path]
Verdict = tuple[str, str, str]


def choose_rows(
    shards: Sequence[Files], work: Path, max_samples: int | None, seed: int, dedupe: bool
) -> tuple[Path, dict[str, Counter[str]]]:
    """Keep one row of each story, then the best `max_samples`; return WORK/out and the reasons of each step.

    The files of the shards stay as they are, so that a kill in the middle costs only this step.
    """
    # All is made anew; the shards hold all that it is made from.
    database_file, out, parts = work / "candidates.sqlite", make_output(work), work / "chosen"
    database_file.unlink(missing_ok=True)
    shutil.rmtree(parts, ignore_errors=True)
    for name in (*SPLITS, REJECTS):
        (parts / name).mkdir(parents=True)
    dropped: dict[str, Counter[str]] = {"dedupe": Counter(), "choose": Counter()}
    with closing(sqlite3.connect(database_file)) as database:
        # A candidate takes kilobytes.
        settings = "PRAGMA page_size=8192; PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;"
        database.executescript(settings + _TABLES)
        if dedupe or max_samples is not None:
            for number, files in enumerate(shards):
                _add_shard(database, number, files, seed)
        if dedupe:
            _reject_duplicates(database)
        if max_samples is not None:
            database.execute(
                "UPDATE candidate SET step='choose', reason=?, detail='' WHERE id IN"
                " (SELECT id FROM candidate WHERE step IS NULL"
                " ORDER BY score DESC, ticket, source, episode LIMIT -1 OFFSET ?)",
                (OVER_MAX_SAMPLES, min(max_samples, 2**63 - 1)),
            )
        for number, files in enumerate(shards):
            found = database.execute(
                "SELECT row, step, reason, detail FROM candidate WHERE shard=? AND step IS NOT NULL", (number,)
            )
            against: dict[int, Verdict] = {row: (step, *why) for row, step, *why in found}
            for step, reason, _ in against.values():
                dropped[step][reason] += 1
            _write_shard(files, parts, against)
    for name in (*SPLITS, REJECTS):
        number_files(sorted((parts / name).iterdir()), out / (REJECTS if name == REJECTS else "data"), name)
    shutil.rmtree(parts)
    return out, dropped


def _write_shard(files: Files, parts: Path, against: Mapping[int, Verdict]) -> None:
    """Write the rows of a shard by split, and its rejects with those that `against` holds by their number."""
    with ExitStack() as stack:
        schemas = {**dict.fromkeys(SPLITS, OUTPUTS[ROWS].schema), REJECTS: OUTPUTS[REJECTS].schema}
        writers = {
            name: stack.enter_context(pq.ParquetWriter(parts / name / files[ROWS].name, schema))
            for name, schema in schemas.items()
        }
        for table in read_tables(files[REJECTS], BATCH_ROWS):
            writers[REJECTS].write_table(table)
        first = 0
        for table in read_tables(files[ROWS], BATCH_ROWS):
            verdicts = [against.get(first + i) for i in range(table.num_rows)]
            chosen = table.filter(pa.array([why is None for why in verdicts], pa.bool_()))
            for split in SPLITS:
                writers[split].write_table(chosen.filter(pc.equal(chosen["split"], split)))
            writers[REJECTS].write_table(_rejected(table, verdicts))
            first += table.num_rows


def _rejected(rows: pa.Table, verdicts: list[Verdict | None]) -> pa.Table:
    rejects = []
    columns = ["session_id", "source", "episode", "harness", "score", "counts"]
    for row, why in zip(rows.select(columns).to_pylist(), verdicts, strict=True):
        if why is not None:
            step, reason, detail = why
            details = filter(None, [row["harness"], f"score {row['score']:g}", detail])
            new = {"stage": step, "drop_reason": reason, "detail": ", ".join(details)}
            rejects.append({**row, **new})
    return pa.Table.from_pylist(rejects, OUTPUTS[REJECTS].schema)


def _add_shard(database: sqlite3.Connection, shard: int, files: Files, seed: int) -> None:
    """Add the rows of one shard and their fingerprints; `seed` decides among rows of equal score."""
    columns = ["score", "source", "session_id", "episode", "prompt", "verifier_spec"]
    both = zip(read_rows([files[ROWS]], columns), read_rows([files[PRINTS]]), strict=True)
    for number, (row, mark) in enumerate(both):
        messages = np.unique(np.array(mark["fingerprints"], np.int64))
        ticket = hashlib.sha256(f"{seed}:{row['session_id']}:{row['episode']}".encode())
        prompt = row["prompt"][-1]["content"]
        if row["prompt"][0]["role"] == "system":
            # Steps of a session share their conversations: what differs is the call that failed.
            prompt = json.dumps(json.loads(row["verifier_spec"])["failed_call"]) + prompt
        minhash = RMinHash(num_perm=PERMUTATIONS, seed=0)
        minhash.update(split_shingles(prompt))
        words = {w for w in _PROMPT_WORD.findall(prompt.lower()) if not _PASSING.fullmatch(w)}
        values = (
            *(shard, number, mark["evidence"], row["score"], ticket.hexdigest(), row["source"]),
            *(row["episode"], messages.tobytes()),
            *(np.array(minhash.digest(), np.uint32).tobytes(), "\n".join(sorted(words))),
        )
        database.execute("INSERT INTO candidate VALUES (NULL,?,?,?,?,?,?,?,?,?,?,NULL,NULL,NULL)", values)


def _reject_duplicates(database: sqlite3.Connection) -> None:
    """Reject every row whose story a better row tells already."""
    best_first = database.execute(
        "SELECT id, messages, prompt, words FROM candidate"
        " ORDER BY score DESC, evidence DESC, length(messages) DESC, source, episode"
    )
    for number, blob, prompt, words in best_first:
        messages: list[int] = np.frombuffer(blob, np.int64).tolist()
        same_session = _same_session(database, messages)
        same = same_session or _same_prompt(database, prompt, words)
        if same is None:
            _keep(database, number, messages, prompt)
        else:
            database.execute(
                "UPDATE candidate SET step='dedupe', reason=?, detail='same as ' ||"
                " (SELECT source FROM candidate WHERE id=?) WHERE id=?",
                (SAME_SESSION if same_session else SAME_PROMPT, same, number),
            )


def _same_session(database: sqlite3.Connection, messages: list[int]) -> int | None:
    """The kept row that shares most messages, when that is most of the shorter of the two."""
    sharing = database.execute(
        "SELECT id, size, COUNT(*) FROM message WHERE print IN (SELECT value FROM json_each(?))"
        " GROUP BY id, size ORDER BY 3 DESC, id, size",
        (json.dumps(messages),),
    )
    for number, size, count in sharing:
        shorter = min(size, len(messages))
        if count >= MIN_SHARED * shorter and count >= min(MIN_SHARED_MESSAGES, shorter):
            return int(number)
    return None


def _bands(prompt: bytes) -> list[bytes]:
    width = len(prompt) // BANDS
    return [bytes([band]) + prompt[band * width : (band + 1) * width] for band in range(BANDS)]


def _same_prompt(database: sqlite3.Connection, prompt: bytes, words: str) -> int | None:
    """The first kept row whose prompt is nearly this one and asks for the same."""
    digest = np.frombuffer(prompt, np.uint32)
    for band in _bands(prompt):
        for other, theirs, their_words in database.execute(
            "SELECT id, prompt, words FROM band JOIN candidate USING (id) WHERE band=? ORDER BY id", (band,)
        ):
            alike = np.mean(digest == np.frombuffer(theirs, np.uint32)) >= MIN_JACCARD
            if alike and not _ask_for_others(set(words.split("\n")), set(their_words.split("\n"))):
                return int(other)
    return None


# Words, with what names of files, tickets and versions are written with.
_PROMPT_WORD = re.compile(r"[\w#][\w./#:-]*\w|\w")
# What differs each time a template is filled: dates, times, hashes, ids and folders of a run.
_PASSING = re.compile(r"\d{4}-\d\d-\d\d\S*|\d{1,2}:\d\d\S*|[0-9a-f-]{7,}|\S*/(?:tmp|T)/\S*|\d{10,}")
_NAMES_ONE = re.compile(r"#?\d+|.*[a-z]-?\d.*|.*\w[/._#]\w.*")


def _ask_for_others(one: set[str], other: set[str]) -> bool:
    """Compare what differs: each names its own ticket or file, or has words of its own."""
    own = one - other, other - one
    if all(len(words) >= MIN_OWN_WORDS for words in own):
        return True
    return all(any(map(_NAMES_ONE.fullmatch, words)) for words in own)


def _keep(database: sqlite3.Connection, number: int, messages: list[int], prompt: bytes) -> None:
    database.executemany(
        "INSERT INTO message SELECT ?1, COUNT(*), ?2, ?3 FROM message WHERE print=?1 HAVING COUNT(*) < ?4",
        ((value, number, len(messages), PLACES) for value in messages),
    )
    database.executemany(
        "INSERT INTO band SELECT ?1, COUNT(*), ?2 FROM band WHERE band=?1 HAVING COUNT(*) < ?3",
        ((band, number, PLACES) for band in _bands(prompt)),
    )

"""Remove duplicate rows (forks, subagents, snapshots, repeated requests) and keep the best `max_samples`.

Rows are compared best first, so that of two duplicates the one with the higher score stays, or with
more diagnostics and corrections. All state is in one SQLite file, which grows with the rows; memory
does not.
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
# Two sessions are the same if they share this part of the messages of the shorter one.
MIN_SHARED = 0.5
MIN_SHARED_MESSAGES = 2
MIN_JACCARD = 0.8
# If two similar prompts each have so many words of their own, they are different tasks on one template.
MIN_OWN_WORDS = 3
PERMUTATIONS = 128
# 16 bands of 8: two prompts with a similarity of 0.8 share a band with probability 0.95.
BANDS = 16
# The most rows kept per message or band: a message that everybody sends must not pair all rows.
PLACES = 8
BATCH_ROWS = 256
# `step`, `reason` and `detail` say why a candidate is rejected.
_TABLES = """
CREATE TABLE candidate (id INTEGER PRIMARY KEY, shard INT, row INT, evidence INT, score REAL,
    ticket TEXT, source TEXT, episode INT, messages BLOB, prompt BLOB, words TEXT,
    step TEXT, reason TEXT, detail TEXT, UNIQUE (shard, row));
CREATE TABLE message (print INT, place INT, id INT, size INT, PRIMARY KEY (print, place))
    WITHOUT ROWID;
CREATE TABLE band (band BLOB, place INT, id INT, PRIMARY KEY (band, place)) WITHOUT ROWID;
"""
Files = Mapping[str, Path]
# Why a row is rejected: step, reason and detail.
Rejection = tuple[str, str, str]


def choose_rows(
    shards: Sequence[Files], work: Path, max_samples: int | None, seed: int, dedupe: bool
) -> tuple[Path, dict[str, Counter[str]]]:
    """Remove duplicates, then keep the best `max_samples`; return WORK/out and the drop reasons of each step.

    The files of the shards are not changed, so that a run killed here repeats only this step.
    """
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
            cursor = database.execute(
                "SELECT row, step, reason, detail FROM candidate WHERE shard=? AND step IS NOT NULL", (number,)
            )
            rejections: dict[int, Rejection] = {row: (step, reason, detail) for row, step, reason, detail in cursor}
            for step, reason, _ in rejections.values():
                dropped[step][reason] += 1
            _write_shard(files, parts, rejections)
    for name in (*SPLITS, REJECTS):
        number_files(sorted((parts / name).iterdir()), out / (REJECTS if name == REJECTS else "data"), name)
    shutil.rmtree(parts)
    return out, dropped


def _write_shard(files: Files, parts: Path, rejections: Mapping[int, Rejection]) -> None:
    """Write the rows of a shard by split, and its rejects; `rejections` are by number of the row."""
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
            of_rows = [rejections.get(first + i) for i in range(table.num_rows)]
            kept = table.filter(pa.array([rejection is None for rejection in of_rows], pa.bool_()))
            for split in SPLITS:
                writers[split].write_table(kept.filter(pc.equal(kept["split"], split)))
            writers[REJECTS].write_table(_build_rejects(table, of_rows))
            first += table.num_rows


def _build_rejects(rows: pa.Table, rejections: list[Rejection | None]) -> pa.Table:
    rejects = []
    columns = ["session_id", "source", "episode", "harness", "score", "counts"]
    for row, rejection in zip(rows.select(columns).to_pylist(), rejections, strict=True):
        if rejection is not None:
            step, reason, detail = rejection
            details = filter(None, [row["harness"], f"score {row['score']:g}", detail])
            rejects.append({**row, "stage": step, "drop_reason": reason, "detail": ", ".join(details)})
    return pa.Table.from_pylist(rejects, OUTPUTS[REJECTS].schema)


def _add_shard(database: sqlite3.Connection, shard: int, files: Files, seed: int) -> None:
    """Add the rows of one shard and their fingerprints; `seed` decides among rows of equal score."""
    columns = ["score", "source", "session_id", "episode", "prompt", "verifier_spec"]
    rows = zip(read_rows([files[ROWS]], columns), read_rows([files[PRINTS]]), strict=True)
    for number, (row, fingerprint) in enumerate(rows):
        messages = np.unique(np.array(fingerprint["fingerprints"], np.int64))
        ticket = hashlib.sha256(f"{seed}:{row['session_id']}:{row['episode']}".encode())
        prompt = row["prompt"][-1]["content"]
        if row["prompt"][0]["role"] == "system":
            # Steps of a session share their conversation and differ by the call that failed.
            prompt = json.dumps(json.loads(row["verifier_spec"])["failed_call"]) + prompt
        minhash = RMinHash(num_perm=PERMUTATIONS, seed=0)
        minhash.update(split_shingles(prompt))
        words = {w for w in _PROMPT_WORD.findall(prompt.lower()) if not _VARIABLE.fullmatch(w)}
        values = (
            *(shard, number, fingerprint["evidence"], row["score"], ticket.hexdigest(), row["source"]),
            *(row["episode"], messages.tobytes()),
            *(np.array(minhash.digest(), np.uint32).tobytes(), "\n".join(sorted(words))),
        )
        database.execute("INSERT INTO candidate VALUES (NULL,?,?,?,?,?,?,?,?,?,?,NULL,NULL,NULL)", values)


def _reject_duplicates(database: sqlite3.Connection) -> None:
    """Reject every row that duplicates a better row."""
    best_first = database.execute(
        "SELECT id, messages, prompt, words FROM candidate"
        " ORDER BY score DESC, evidence DESC, length(messages) DESC, source, episode"
    )
    for row_id, blob, prompt, words in best_first:
        messages: list[int] = np.frombuffer(blob, np.int64).tolist()
        same_session = _find_same_session(database, messages)
        original = same_session or _find_same_prompt(database, prompt, words)
        if original is not None:
            database.execute(
                "UPDATE candidate SET step='dedupe', reason=?, detail='same as ' ||"
                " (SELECT source FROM candidate WHERE id=?) WHERE id=?",
                (SAME_SESSION if same_session else SAME_PROMPT, original, row_id),
            )
            continue
        database.executemany(
            "INSERT INTO message SELECT ?1, COUNT(*), ?2, ?3 FROM message WHERE print=?1 HAVING COUNT(*) < ?4",
            ((value, row_id, len(messages), PLACES) for value in messages),
        )
        database.executemany(
            "INSERT INTO band SELECT ?1, COUNT(*), ?2 FROM band WHERE band=?1 HAVING COUNT(*) < ?3",
            ((band, row_id, PLACES) for band in _split_bands(prompt)),
        )


def _find_same_session(database: sqlite3.Connection, messages: list[int]) -> int | None:
    """Return the kept row that shares most messages, if that is at least half of the shorter session."""
    sharing = database.execute(
        "SELECT id, size, COUNT(*) FROM message WHERE print IN (SELECT value FROM json_each(?))"
        " GROUP BY id, size ORDER BY 3 DESC, id, size",
        (json.dumps(messages),),
    )
    for row_id, size, count in sharing:
        shorter = min(size, len(messages))
        if count >= MIN_SHARED * shorter and count >= min(MIN_SHARED_MESSAGES, shorter):
            return int(row_id)
    return None


def _split_bands(prompt: bytes) -> list[bytes]:
    width = len(prompt) // BANDS
    return [bytes([band]) + prompt[band * width : (band + 1) * width] for band in range(BANDS)]


def _find_same_prompt(database: sqlite3.Connection, prompt: bytes, words: str) -> int | None:
    """Return the first kept row whose prompt is nearly the same and asks for the same."""
    digest = np.frombuffer(prompt, np.uint32)
    for band in _split_bands(prompt):
        for row_id, other_prompt, other_words in database.execute(
            "SELECT id, prompt, words FROM band JOIN candidate USING (id) WHERE band=? ORDER BY id", (band,)
        ):
            is_similar = np.mean(digest == np.frombuffer(other_prompt, np.uint32)) >= MIN_JACCARD
            if is_similar and not _differ_in_task(set(words.split("\n")), set(other_words.split("\n"))):
                return int(row_id)
    return None


# Words, including the signs in names of files, tickets and versions.
_PROMPT_WORD = re.compile(r"[\w#][\w./#:-]*\w|\w")
# What differs each time a template is filled: dates, times, hashes, ids and folders of a run.
_VARIABLE = re.compile(r"\d{4}-\d\d-\d\d\S*|\d{1,2}:\d\d\S*|[0-9a-f-]{7,}|\S*/(?:tmp|T)/\S*|\d{10,}")
_NAME = re.compile(r"#?\d+|.*[a-z]-?\d.*|.*\w[/._#]\w.*")


def _differ_in_task(words: set[str], other_words: set[str]) -> bool:
    """Return whether both prompts have several words of their own, or each names another ticket or file."""
    own = words - other_words, other_words - words
    return all(len(one) >= MIN_OWN_WORDS for one in own) or all(any(map(_NAME.fullmatch, one)) for one in own)

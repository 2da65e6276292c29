"""Find duplicate rows (forks, subagents, snapshots, repeated requests), and choose the best `max_samples`.

Rows are compared best first, so that of two duplicates the one with the higher score stays, or with more diagnostics
and corrections. A row has prints: hashes of its messages, and of bands of the MinHash of its prompt. Only rows that
share a print with another row are compared. They are read in place from a file in the working folder, so that memory
grows only with the number of prints that occur in several rows.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence, Set
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from datasets import Features, List, Value
from numpy.typing import NDArray
from rensa import RMinHash

from pimono_sdpo.report import OVER_MAX_SAMPLES
from pimono_sdpo.runs.engine import Made
from pimono_sdpo.runs.finish import DROPS, read_part
from pimono_sdpo.stage import KEPT
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
# Prints in memory at a time, of 8 bytes each.
PASS_PRINTS = 2**24
# Prompts whose words are in memory.
CACHED = 1024
# What a part stores of each row to find its duplicates.
PRINTS = Features({"messages": List(Value("int64")), "bands": List(Value("int64")), "minhash": Value("binary")})
_CANDIDATE = pa.schema(
    [
        *((name, pa.int64()) for name in ("part", "row", "evidence", "size", "episode")),
        ("score", pa.float64()),
        ("source", pa.string()),
        # Places of prints among those that occur in several rows.
        *((name, pa.list_(pa.int32())) for name in ("messages", "bands")),
        ("minhash", pa.binary()),
        # Of rows that share a band.
        ("prompt", pa.string()),
    ]
)
Json = dict[str, Any]
Ints = NDArray[np.int64]


def add_prints(rows: pa.Table) -> tuple[pa.Table, int]:
    """Add the columns of PRINTS to rows of the filter, null for rejects; return the number of prints as well."""
    prints: list[Json] = []
    for row in rows.select([KEPT, "fingerprints", "prompt", "verifier_spec"]).to_pylist():
        if not row[KEPT]:
            prints.append({})
            continue
        minhash = RMinHash(num_perm=PERMUTATIONS, seed=0)
        minhash.update(split_shingles(_read_prompt(row)))
        digest = np.array(minhash.digest(), np.uint32)
        bands = [xxhash.xxh3_64_intdigest(band.tobytes(), seed) for seed, band in enumerate(np.split(digest, BANDS))]
        messages = np.unique(np.array(row["fingerprints"], np.int64))
        signed = np.array(bands, np.uint64).view(np.int64)
        prints.append({"messages": messages, "bands": signed, "minhash": digest.tobytes()})
    for column in PRINTS.arrow_schema:
        rows = rows.append_column(column, pa.array([one.get(column.name) for one in prints], column.type))
    return rows, sum(len(one["messages"]) + BANDS for one in prints if one)


def _read_prompt(row: Json) -> str:
    prompt: str = row["prompt"][-1]["content"]
    if row["prompt"][0]["role"] == "system":
        # Steps of a session share their conversation and differ by the call that failed.
        return json.dumps(json.loads(row["verifier_spec"])["failed_call"]) + prompt
    return prompt


def choose_rows(parts: Sequence[Made], work: Path, max_samples: int | None, seed: int, dedupe: bool) -> pa.Table:
    """Return the rows to drop as a table of DROPS: duplicates, then all but the best `max_samples`.

    `seed` decides among rows of equal score.
    """
    drops = _find_duplicates(parts, work / "candidates.arrow") if dedupe else DROPS.empty_table()
    if max_samples is not None:
        drops = pa.concat_tables([drops, _find_worst(parts, drops, max_samples, seed)])
    return drops.sort_by([("part", "ascending"), ("row", "ascending")])


def _read_kept(part: Made, columns: Sequence[str]) -> tuple[pa.Table, Ints]:
    """Return columns of the kept rows of a part, and the numbers of the rows."""
    table = pa.concat_tables(read_part(part.file, [KEPT, *columns]))
    return table.filter(table[KEPT]), np.flatnonzero(table[KEPT].to_numpy())


def _find_repeated(parts: Sequence[Made], column: str) -> Ints:
    """Return the prints that occur in several rows, sorted."""
    passes = 1 + sum(part.counts.get("prints", 0) for part in parts) // PASS_PRINTS
    found = []
    for number in range(passes):
        prints = [np.empty(0, np.int64)]
        for part in parts:
            values = _read_kept(part, [column])[0][column].combine_chunks().flatten().to_numpy()
            prints.append(values[values % passes == number])
        values = np.sort(np.concatenate(prints))
        found.append(np.unique(values[1:][values[1:] == values[:-1]]))
    return np.sort(np.concatenate(found))


def _match(lists: pa.ChunkedArray, repeated: Ints) -> tuple[pa.ListArray, NDArray[np.bool_]]:
    """Return each row's places of its repeated prints, and which rows have any."""
    values, lengths = lists.combine_chunks().flatten().to_numpy(), pc.list_value_length(lists).to_numpy()
    places = np.searchsorted(repeated, values)
    is_repeated = np.append(repeated, 0)[places] == values
    is_repeated &= places < len(repeated)
    counts = np.bincount(np.repeat(np.arange(len(lengths)), lengths)[is_repeated], minlength=len(lengths))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, places[is_repeated].astype(np.int32)), counts > 0


def _find_duplicates(parts: Sequence[Made], file: Path) -> pa.Table:
    messages, bands = _find_repeated(parts, "messages"), _find_repeated(parts, "bands")
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, _CANDIDATE) as writer:
        for number, part in enumerate(parts):
            writer.write_table(_find_candidates(part, number, messages, bands))
    with pa.memory_map(str(file)) as source:
        rows = pa.ipc.open_file(source).read_all()
        found = list(_compare(rows, _Index(len(messages)), _Index(len(bands))))
        at, originals = (pa.array([pair[side] for pair in found], pa.int64()) for side in (0, 1))
        dropped, sources = rows.select(["part", "row"]).take(at), rows["source"].take(originals).to_pylist()
    file.unlink()
    given = {
        "part": dropped["part"],
        "row": dropped["row"],
        "stage": ["dedupe"] * len(found),
        "drop_reason": [reason for _, _, reason in found],
        "detail": [f"same as {source}" for source in sources],
    }
    return pa.table(given, DROPS)


def _find_candidates(part: Made, number: int, messages: Ints, bands: Ints) -> pa.Table:
    """Return the rows of a part that share a print with another row."""
    columns = ["evidence", "episode", "score", "source", "messages", "bands", "minhash"]
    table, rows = _read_kept(part, columns)
    table = table.append_column("part", pa.array(np.full(len(rows), number)))
    table = table.append_column("row", pa.array(rows))
    table = table.append_column("size", pc.list_value_length(table["messages"]))
    prompts: list[str | None] = [None] * len(rows)
    is_candidate = np.zeros(len(rows), bool)
    for name, repeated in (("messages", messages), ("bands", bands)):
        places, has_any = _match(table[name], repeated)
        table = table.set_column(table.schema.get_field_index(name), name, places)
        is_candidate |= has_any
    if has_any.any():
        # The bands come last.
        given, _ = _read_kept(part, ["prompt", "verifier_spec"])
        for at in np.flatnonzero(has_any).tolist():
            (prompts[at],) = map(_read_prompt, given.slice(at, 1).to_pylist())
    table = table.append_column("prompt", pa.array(prompts, pa.string()))
    return table.select(_CANDIDATE.names).cast(_CANDIDATE).filter(pa.array(is_candidate))


class _Index:
    """The rows that are kept, by the place of a print."""

    def __init__(self, prints: int) -> None:
        # Numbers of rows, from 1; 0 is free.
        self.rows = np.zeros((prints, PLACES), np.int32)
        self.used = np.zeros(prints, np.int8)

    def add(self, places: Ints, row: int) -> None:
        free = places[self.used[places] < PLACES]
        self.rows[free, self.used[free]] = row + 1
        self.used[free] += 1

    def find(self, places: Ints) -> NDArray[np.int32]:
        """Return the rows that have any of these prints, print by print, each in order."""
        rows = np.sort(self.rows[places], axis=1).ravel()
        return rows[rows > 0] - 1


def _compare(rows: pa.Table, messages: _Index, bands: _Index) -> Iterator[tuple[int, int, str]]:
    """Yield the number of each duplicate row, that of the better row, and the reason."""
    sizes = rows["size"].to_numpy()

    @lru_cache(maxsize=CACHED)
    def read_words(row: int) -> frozenset[str]:
        words = _PROMPT_WORD.findall(rows["prompt"][row].as_py().lower())
        return frozenset(word for word in words if not _VARIABLE.fullmatch(word))

    def find_same_session(row: int, others: NDArray[np.int32]) -> int | None:
        """Return the row that shares most messages, if that is at least half of the shorter session."""
        found, counts = np.unique(others, return_counts=True)
        shorter = np.minimum(sizes[found], sizes[row])
        counts[(counts < MIN_SHARED * shorter) | (counts < np.minimum(MIN_SHARED_MESSAGES, shorter))] = 0
        return int(found[counts.argmax()]) if counts.any() else None

    def find_same_prompt(row: int, others: NDArray[np.int32]) -> int | None:
        """Return the first row whose prompt is nearly the same and asks for the same."""
        digest = read_digest(row)
        for other in dict.fromkeys(others.tolist()):
            is_similar = np.mean(digest == read_digest(other)) >= MIN_JACCARD
            if is_similar and not _differ_in_task(read_words(row), read_words(other)):
                return int(other)
        return None

    def read_digest(row: int) -> NDArray[np.uint32]:
        return np.frombuffer(rows["minhash"][row].as_buffer(), np.uint32)

    order = ("score", "evidence", "size"), ("source", "episode")
    best_first = [(name, "descending") for name in order[0]] + [(name, "ascending") for name in order[1]]
    for row in pc.sort_indices(rows, best_first).to_pylist():
        said, asked = (rows[name][row].values.to_numpy() for name in ("messages", "bands"))
        original, reason = find_same_session(row, messages.find(said)), SAME_SESSION
        if original is None:
            original, reason = find_same_prompt(row, bands.find(asked)), SAME_PROMPT
        if original is not None:
            yield row, original, reason
            continue
        messages.add(said, row)
        bands.add(asked, row)


# Words, including the signs in names of files, tickets and versions.
_PROMPT_WORD = re.compile(r"[\w#][\w./#:-]*\w|\w")
# What differs each time a template is filled: dates, times, hashes, ids and folders of a run.
_VARIABLE = re.compile(r"\d{4}-\d\d-\d\d\S*|\d{1,2}:\d\d\S*|[0-9a-f-]{7,}|\S*/(?:tmp|T)/\S*|\d{10,}")
_NAME = re.compile(r"#?\d+|.*[a-z]-?\d.*|.*\w[/._#]\w.*")


def _differ_in_task(words: Set[str], other_words: Set[str]) -> bool:
    """Return whether both prompts have several words of their own, or each names another ticket or file."""
    own = words - other_words, other_words - words
    return all(len(one) >= MIN_OWN_WORDS for one in own) or all(any(map(_NAME.fullmatch, one)) for one in own)


def _find_worst(parts: Sequence[Made], drops: pa.Table, max_samples: int, seed: int) -> pa.Table:
    """Return all rows but the best `max_samples` of those that are left."""
    left: list[tuple[Ints, NDArray[np.float64]]] = []
    for number, part in enumerate(parts):
        table, rows = _read_kept(part, ["score"])
        is_left = ~np.isin(rows, drops.filter(pc.equal(drops["part"], number))["row"].to_numpy())
        left.append((rows[is_left], table["score"].to_numpy()[is_left]))
    scores = np.concatenate([np.empty(0), *(some for _, some in left)])
    if len(scores) <= max_samples:
        return DROPS.empty_table()
    cut = np.partition(scores, -max_samples)[-max_samples]
    worse, equal = [], []
    for number, (part, (rows, some)) in enumerate(zip(parts, left, strict=True)):
        worse.append(pa.table({"part": np.full(np.sum(some < cut), number), "row": rows[some < cut]}))
        if (some == cut).any():
            table, numbers = _read_kept(part, ["session_id", "source", "episode"])
            table = table.append_column("row", pa.array(numbers)).filter(pa.array(np.isin(numbers, rows[some == cut])))
            names = zip(table["session_id"].to_pylist(), table["episode"].to_pylist(), strict=True)
            tickets = [
                hashlib.sha256(f"{seed}:{session}:{episode}".encode()).hexdigest() for session, episode in names
            ]
            table = table.append_column("ticket", pa.array(tickets, pa.string()))
            equal.append(table.append_column("part", pa.array(np.full(len(tickets), number))))
    lots = pa.concat_tables(equal).sort_by([(name, "ascending") for name in ("ticket", "source", "episode")])
    worse.append(lots.slice(max_samples - int(np.sum(scores > cut))).select(["part", "row"]))
    dropped = pa.concat_tables(worse)
    why = {"stage": ["choose"] * len(dropped), "drop_reason": [OVER_MAX_SAMPLES] * len(dropped)}
    given = {"part": dropped["part"], "row": dropped["row"], **why, "detail": [None] * len(dropped)}
    return pa.table(given, DROPS)

"""Find duplicate rows (forks, subagents, snapshots, repeated requests), rank the others and choose the best.

Rows are compared best first, so that of two duplicates the one with the higher score stays, or with more diagnostics
and corrections. A row has prints: hashes of its messages, and of bands of the MinHash of its prompt. Only rows that
share a print with another one are compared; they are read in place from a file in the working folder. So memory grows
only with the number of prints that occur in several rows.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack
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
# 16 bands of 8: two prompts with a similarity of 0.8 share a band with probability 0.95.
BANDS = 16
# The most rows kept per message or band: a message that everybody sends must not pair all rows.
PLACES = 8
# Prints in memory at a time, of 8 bytes each.
PASS_PRINTS = 2**24
# The columns that a part stores to find the duplicates of its rows.
PRINTS = Features({"messages": List(Value("int64")), "bands": List(Value("int64")), "minhash": Value("binary")})
# The column with a print of each row that may repeat an earlier one.
REPEATS = "prints"
# The better of two duplicates comes first.
ORDER = {**dict.fromkeys(("score", "evidence", "size"), "descending"), "source": "ascending", "episode": "ascending"}
Json = dict[str, Any]
Ints = NDArray[np.int64]


def add_prints(rows: pa.Table) -> tuple[pa.Table, int]:
    """Add the columns of PRINTS to rows of the filter, null for rejects; return the number of prints as well."""
    prints: list[Json] = []
    for row in rows.select([KEPT, "fingerprints", "prompt"]).to_pylist():
        prints.append({})
        if row[KEPT]:
            minhash = RMinHash(num_perm=8 * BANDS, seed=0)
            minhash.update(split_shingles(row["prompt"][-1]["content"]))
            digest = np.array(minhash.digest(), np.uint32)
            bands = [xxhash.xxh3_64_intdigest(part.tobytes(), at) for at, part in enumerate(np.split(digest, BANDS))]
            prints[-1] = {"bands": np.array(bands, np.uint64).view(np.int64), "minhash": digest.tobytes()}
            prints[-1]["messages"] = np.unique(np.array(row["fingerprints"], np.int64))
    for column in PRINTS.arrow_schema:
        rows = rows.append_column(column, pa.array([one.get(column.name) for one in prints], column.type))
    return rows, sum(len(one["messages"]) + BANDS for one in prints if one)


def choose_rows(
    parts: Sequence[Made], work: Path, max_samples: int | None, seed: int, dedupe: bool, rank_by: str = "worth"
) -> tuple[pa.Table, pa.Table]:
    """Return the rows to drop as a table of DROPS (duplicates, then all but the best `max_samples`), and the others.

    The others have the numbers of part and row, best first. `seed` decides among equal rows.
    """
    drops = _find_duplicates(parts, work / "candidates.arrow") if dedupe else DROPS.empty_table()
    ranked = _rank_rows(parts, drops, rank_by, seed)
    if max_samples is not None:
        worst, ranked = ranked.slice(max_samples), ranked.slice(0, max_samples)
        why = ["choose"] * len(worst), [OVER_MAX_SAMPLES] * len(worst), [None] * len(worst)
        drops = pa.concat_tables([drops, pa.table([worst["part"], worst["row"], *why], DROPS)])
    return drops.sort_by([("part", "ascending"), ("row", "ascending")]), ranked


def _read_kept(parts: Sequence[Made], number: int, columns: Sequence[str]) -> pa.Table:
    """Return columns of the kept rows of a part, and the numbers of the part and of each row."""
    table = pa.concat_tables(read_part(parts[number].file, [KEPT, *columns]))
    rows = np.flatnonzero(table[KEPT].to_numpy())
    table = table.select(list(columns)).take(rows)
    return table.append_column("row", pa.array(rows)).append_column("part", pa.array(np.full(len(rows), number)))


def _find_repeated(parts: Sequence[Made], column: str) -> Ints:
    """Return the prints that occur in several rows, sorted."""
    passes = 1 + sum(part.counts.get("prints", 0) for part in parts) // PASS_PRINTS
    found = []
    for one in range(passes):
        prints = [np.empty(0, np.int64)]
        for number in range(len(parts)):
            values = pc.list_flatten(_read_kept(parts, number, [column])[column]).to_numpy()
            prints.append(values[values % passes == one])
        values = np.sort(np.concatenate(prints))
        found.append(np.unique(values[1:][values[1:] == values[:-1]]))
    return np.sort(np.concatenate(found))


def _find_places(prints: pa.ChunkedArray, repeated: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """Return the place of each print among the repeated ones, and whether it is one of them."""
    values = pc.list_flatten(prints).to_numpy()
    places = np.searchsorted(repeated, values)
    return places, (places < len(repeated)) & (np.append(repeated, 0)[places] == values)


def find_repeats(parts: Sequence[Made]) -> pa.Table:
    """Return the rows to drop, as a table of DROPS, that repeat an earlier one: those with an equal print."""
    repeated = _find_repeated(parts, REPEATS)
    seen, drops = np.zeros(len(repeated), bool), [DROPS.empty_table()]
    for number in range(len(parts)):
        table = _read_kept(parts, number, [REPEATS])
        places, is_repeated = _find_places(table[REPEATS], repeated)
        table, places = table.filter(pa.array(is_repeated)), places[is_repeated]
        is_again = np.ones(len(places), bool)
        is_again[np.unique(places, return_index=True)[1]] = False
        table = table.filter(pa.array(is_again | seen[places]))
        seen[places] = True
        why = ([one] * len(table) for one in (None, "repeat", None))
        drops.append(pa.table([table["part"], table["row"], *why], DROPS))
    return pa.concat_tables(drops).combine_chunks()


def _find_duplicates(parts: Sequence[Made], file: Path) -> pa.Table:
    repeated = {column: _find_repeated(parts, column) for column in ("messages", "bands")}
    if not any(map(len, repeated.values())):
        return DROPS.empty_table()
    with pa.OSFile(str(file), "wb") as sink, ExitStack() as stack:
        writer = None
        for number in range(len(parts)):
            candidates = _find_candidates(parts, number, repeated)
            writer = writer or stack.enter_context(pa.ipc.new_file(sink, candidates.schema))
            writer.write_table(candidates)
    with pa.memory_map(str(file)) as source:
        rows = pa.ipc.open_file(source).read_all()
        found = list(_compare(rows, *(_Index(len(prints)) for prints in repeated.values())))
        at, originals = (pa.array([one[side] for one in found], pa.int64()) for side in range(2))
        dropped = rows.select(["part", "row"]).take(at)
        reasons = [reason for _, _, reason in found]
        details = [f"same as {source}" for source in rows["source"].take(originals).to_pylist()]
    file.unlink()
    return pa.table([*dropped.columns, ["dedupe"] * len(found), reasons, details], DROPS)


def _find_candidates(parts: Sequence[Made], number: int, repeated: Mapping[str, Ints]) -> pa.Table:
    """Return the rows of a part that share a print, with the places of their prints among the repeated ones."""
    table = _read_kept(parts, number, ["evidence", "episode", "score", "source", "minhash", *repeated])
    table = table.append_column("size", pc.list_value_length(table["messages"]))
    is_candidate = np.zeros(len(table), bool)
    for column, prints in repeated.items():
        places, is_repeated = _find_places(table[column], prints)
        sizes = pc.list_value_length(table[column]).to_numpy()
        counts = np.bincount(np.repeat(np.arange(len(sizes)), sizes)[is_repeated], minlength=len(sizes))
        offsets = pa.array(np.append(0, np.cumsum(counts)), pa.int32())
        lists = pa.ListArray.from_arrays(offsets, pa.array(places[is_repeated], pa.int32()))
        table = table.set_column(table.schema.get_field_index(column), column, lists)
        is_candidate |= counts > 0
    prompts = _read_kept(parts, number, ["prompt"]).filter(pa.array(is_candidate))["prompt"].to_pylist()
    asked = pa.array([prompt[-1]["content"] for prompt in prompts], pa.string())
    return table.filter(pa.array(is_candidate)).append_column("prompt", asked)


class _Index:
    """The rows that are kept, by the places of their prints."""

    def __init__(self, prints: int) -> None:
        # Numbers of rows, from 1; 0 is free.
        self.rows = np.zeros((prints, PLACES), np.int32)
        self.used = np.zeros(prints, np.int8)

    def add(self, places: Ints, row: int) -> None:
        free = places[self.used[places] < PLACES]
        self.rows[free, self.used[free]] = row + 1
        self.used[free] += 1

    def find(self, places: Ints) -> NDArray[np.int32]:
        """Return the rows that have any of these prints: print by print, and in order."""
        rows = np.sort(self.rows[places], axis=1).ravel()
        return rows[rows > 0] - 1


def _compare(rows: pa.Table, messages: _Index, bands: _Index) -> Iterator[tuple[int, int, str]]:
    """Yield the number of each duplicate row, that of the better row, and the reason."""
    sizes = rows["size"].to_numpy()

    def read_digest(row: int) -> NDArray[np.uint32]:
        return np.frombuffer(rows["minhash"][row].as_buffer(), np.uint32)

    @lru_cache
    def read_words(row: int) -> Set[str]:
        words = _PROMPT_WORD.findall(rows["prompt"][row].as_py().lower())
        return {word for word in words if not _VARIABLE.fullmatch(word)}

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

    for row in pc.sort_indices(rows, [*ORDER.items()]).to_pylist():
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


def _rank_rows(parts: Sequence[Made], drops: pa.Table, rank_by: str, seed: int) -> pa.Table:
    """Return the numbers of part and row of those that are left, best first: by score, or by worth and then score."""
    best = dict.fromkeys((rank_by, "score"), "descending")
    left = [pa.table({name: pa.array([], pa.int64()) for name in ("part", "row", *best, "lot")})]
    for number in range(len(parts)):
        table = _read_kept(parts, number, [*best, "session_id", "episode"])
        dropped = drops.filter(pc.equal(drops["part"], number))["row"]
        table = table.filter(pc.invert(pc.is_in(table["row"], dropped)))
        names = zip(table["session_id"].to_pylist(), table["episode"].to_pylist(), strict=True)
        digests = [hashlib.sha256(f"{seed}:{name}:{episode}".encode()).digest() for name, episode in names]
        lots = pa.array([int.from_bytes(digest[:8]) for digest in digests], pa.uint64())
        left.append(table.select(["part", "row", *best]).append_column("lot", lots))
    rows = pa.concat_tables(left[1:] or left)
    return rows.sort_by([*best.items(), ("lot", "ascending")]).select(["part", "row"])

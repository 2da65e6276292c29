"""Draw the turns of a duel: what both players are asked, and what only one of them may see.

reads   trajectories (parquet with `instance_id` and `messages`) and records of pull requests, or
        recorded sessions of any harness
writes  DIR/turns/turns-NNNNN.parquet (TURN, at most 200 rows each), DIR/prs/prs-00000.parquet
        (PULL_REQUEST), DIR/turns.json

The same source, seed and options give the same bytes.
"""

import hashlib
import heapq
import json
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Features

from pimono_sdpo.errors import EmptySelection, SourceError
from pimono_sdpo.runs.parquet import write_atomically
from pimono_sdpo.schema import DUEL_TURN, PULL_REQUEST
from pimono_sdpo.traces.sources import ParquetFiles, find_parquet_files, open_source, read_sessions
from processors.duel.pull_requests import PullRequests
from processors.duel.session_turns import draw_from_session
from processors.duel.trajectories import NEEDED, draw_from_trajectories

Json = dict[str, Any]
SHARD_ROWS = 200
TURNS, RECORDS, REPORT = "turns", "prs", "turns.json"


@dataclass(frozen=True)
class Options:
    """How many turns to draw, the seed, rows per window, and instance ids to leave out."""

    turns: int = 2000
    seed: int = 42
    window: int = 20
    exclude: frozenset[str] = frozenset()


def read_excluded_ids(path: Path) -> frozenset[str]:
    """Read instance ids from a text file, one per line; `#` starts a comment.

    Raises SourceError.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(
            f"`{path}` cannot be read ({error}); give a text file with one instance id per line."
        ) from error
    return frozenset(filter(None, (line.partition("#")[0].strip() for line in lines)))


def draw_turns(
    source: str, records: str | None, options: Options, out: Path, request: str = ""
) -> Json:
    """Write the turns and what is hidden from them under `out`; return the report.

    The report stores `request`, by which a later run knows these turns. Raises SourceError, and
    EmptySelection when no turn is left.
    """
    drops: Counter[str] = Counter()
    if is_trajectories(source):
        if records is None:
            raise SourceError(
                "Trajectories need the records of their pull requests, which are hidden from the "
                "king; give --records, such as nebius/SWE-rebench-V2-PRs."
            )
        files = find_parquet_files(source)
        pull_requests = PullRequests(records)
        turns = list(_select_from_trajectories(files, pull_requests.ids(), options, drops))
        hidden = pull_requests.records({turn["instance_id"] for turn in turns})
        name, revision = files.source, files.revision
    else:
        opened = open_source(source)
        turns, hidden = _select_from_sessions(source, options, drops)
        name, revision = opened.name, opened.revision
    if not turns:
        reasons = ", ".join(f"{reason} {n:,}" for reason, n in sorted(drops.items())) or "no rows"
        raise EmptySelection(f"`{source}` has no usable turn ({reasons}); give another source.")
    report: Json = {
        "source": name,
        "revision": revision,
        "request": request,
        "options": {**asdict(options), "exclude": sorted(options.exclude)},
        "turns": len(turns),
        "instances": len({turn["instance_id"] for turn in turns}),
        "dropped": dict(sorted(drops.items())),
    }
    _write_turns(turns, hidden, report, out)
    return report


def is_trajectories(source: str) -> bool:
    """Whether a source is parquet with the columns of trajectories, not recorded sessions."""
    path = Path(source)
    if path.is_file() and path.suffix != ".parquet":
        return False
    if path.is_dir() and not any(path.rglob("*.parquet")):
        return False
    files = find_parquet_files(source)
    with files.open(0) as parquet:
        return set(NEEDED) <= set(parquet.schema_arrow.names)


def _select_from_trajectories(
    files: ParquetFiles, known: Collection[str], options: Options, drops: Counter[str]
) -> Iterator[Json]:
    seen: set[bytes] = set()
    kept = 0
    for drawn in draw_from_trajectories(files, options.seed, options.window):
        reason = drawn.drop_reason
        if drawn.turn is not None:
            # Many runs of one task begin alike: ask the same question once.
            question = hashlib.sha256(json.dumps(drawn.turn["messages"]).encode()).digest()
            if drawn.turn["instance_id"] in options.exclude:
                reason = "excluded"
            elif drawn.turn["instance_id"] not in known:
                reason = "no_pull_request"
            elif question in seen:
                reason = "duplicate"
            seen.add(question)
        if reason is not None or drawn.turn is None:
            drops[reason or ""] += 1
            continue
        yield drawn.turn
        kept += 1
        if kept == options.turns:
            return


def _select_from_sessions(
    source: str, options: Options, drops: Counter[str]
) -> tuple[list[Json], list[Json]]:
    """Take one turn of each session, then a second, until there are enough; a hash decides."""
    opened = open_source(source)
    sessions = sum(shard.sessions for shard in opened.shards)
    # Many sessions have none, so the others may give more than their share.
    most = min(4 * -(-options.turns // max(sessions, 1)) + 4, options.turns)
    best: list[tuple[int, int, int, Json, Json]] = []
    number = 0
    for shard in opened.shards:
        for table in read_sessions(shard):
            for session in table.to_pylist():
                for rank, drawn in enumerate(draw_from_session(session, options.seed, most)):
                    number += 1
                    reason = drawn.drop_reason
                    if drawn.turn and drawn.turn["instance_id"] in options.exclude:
                        reason = "excluded"
                    if reason or drawn.turn is None or drawn.record is None:
                        drops[reason or ""] += 1
                        continue
                    # First turns of sessions come before second ones; the worst entry is on top.
                    place = (-rank, -_hash_turn(options.seed, drawn.turn), -number)
                    entry = (*place, drawn.turn, drawn.record)
                    if len(best) < options.turns:
                        heapq.heappush(best, entry)
                    else:
                        heapq.heappushpop(best, entry)
                        drops["not_drawn"] += 1
    best.sort(key=lambda entry: entry[:3], reverse=True)
    records = {record["instance_id"]: record for *_, record in best}
    return [turn for *_, turn, _ in best], [records[key] for key in sorted(records)]


def _hash_turn(seed: int, turn: Json) -> int:
    key = json.dumps([seed, turn["instance_id"], turn["turn"], turn["assistant"]])
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8])


def _write_turns(turns: Sequence[Json], records: list[Json], report: Json, out: Path) -> None:
    (out / REPORT).unlink(missing_ok=True)
    for folder in (TURNS, RECORDS):
        (out / folder).mkdir(parents=True, exist_ok=True)
        for stale in (out / folder).glob("*.parquet"):
            stale.unlink()
    for number, start in enumerate(range(0, len(turns), SHARD_ROWS)):
        stem = f"{TURNS}-{number:05}"
        rows = [
            {"turn_id": f"{stem}_{order}", **turn}
            for order, turn in enumerate(turns[start : start + SHARD_ROWS], start=1)
        ]
        _write_parquet(rows, DUEL_TURN, out / TURNS / f"{stem}.parquet")
    _write_parquet(records, PULL_REQUEST, out / RECORDS / f"{RECORDS}-00000.parquet")
    # Written last: it marks the folder as complete.
    write_atomically(out / REPORT, (json.dumps(report, indent=2) + "\n").encode())


def _write_parquet(rows: list[Json], features: Features, path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(rows, schema=features.arrow_schema), path)

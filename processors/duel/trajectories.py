"""Draw turns of recorded trajectories from windows of parquet row groups, not reading all of it.

reads   instance_id, messages, and repo where there is one
writes  candidate turns: TURN without `turn_id`

A file comes early by a chance that follows its bytes, a row group of it by its rows; of each row
group a window of rows is taken, drawn without order. So a few row groups of a dataset of any size
are read, in batches, and of them the needed columns alone.
"""

import json
import random
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, count
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pimono_sdpo.errors import SourceError
from pimono_sdpo.text import replace_surrogates
from pimono_sdpo.traces.sources import ParquetFiles
from processors.duel.action import action_style

Json = dict[str, Any]
NEEDED = ("instance_id", "messages")
BATCH_ROWS = 64
# What no judge reads to the end.
MAX_CHARS = 120_000
_TOLD_BY_TOOLS = "Observation:\n"


class Draw(NamedTuple):
    """A candidate turn, or why a row gives none."""

    turn: Json | None
    drop_reason: str | None


def draw_turns(files: ParquetFiles, seed: int, window: int) -> Iterator[Draw]:
    """Yield one draw per row of the windows, in an order that the seed decides, to the last row."""
    for index, group, rows in _windows(files, seed, window):
        with files.open(index) as parquet:
            for row, at in _rows(parquet, group, rows):
                place = f"{seed}:{files.names[index]}:{group}:{at}"
                yield _turn_of(row, random.Random(place))


def _windows(files: ParquetFiles, seed: int, window: int) -> Iterator[tuple[int, int, list[int]]]:
    """Files in turn; of each its next window: file, row group, rows in the order drawn."""
    order = _weighted(files.sizes, random.Random(f"{seed}:files"))
    plans: dict[int, Iterator[tuple[int, list[int]]]] = {}
    while order:
        for index in list(order):
            if index not in plans:
                with files.open(index) as parquet:
                    _check(parquet, files.names[index])
                    groups = parquet.metadata.num_row_groups
                    sizes = [parquet.metadata.row_group(g).num_rows for g in range(groups)]
                plans[index] = _of_one_file(sizes, f"{seed}:{files.names[index]}", window)
            found = next(plans[index], None)
            if found is None:
                order.remove(index)
            else:
                yield (index, *found)


def _of_one_file(sizes: Sequence[int], seed: str, window: int) -> Iterator[tuple[int, list[int]]]:
    """The first window of each row group, then the second of each, until all rows were drawn."""
    groups = _weighted(sizes, random.Random(seed))
    for start in count(0, window):
        groups = [group for group in groups if start < sizes[group]]
        if not groups:
            return
        for group in groups:
            rows = list(range(sizes[group]))
            random.Random(f"{seed}:{group}").shuffle(rows)
            yield group, rows[start : start + window]


def _weighted(weights: Sequence[int], rng: random.Random) -> list[int]:
    """All indexes, the heavier ones rather early (Efraimidis and Spirakis); those of 0 last."""
    keys = [rng.random() ** (1 / weight) if weight else -1.0 for weight in weights]
    return sorted(range(len(weights)), key=lambda index: (-keys[index], index))


def _check(parquet: pq.ParquetFile, name: str) -> None:
    columns = parquet.schema_arrow.names
    missing = [column for column in NEEDED if column not in columns]
    if missing:
        raise SourceError(
            f"`{name}` has no column `{missing[0]}` but {', '.join(columns[:8])}; give "
            "trajectories with `instance_id` and `messages`, or recorded sessions."
        )


def _rows(
    parquet: pq.ParquetFile, group: int, wanted: Sequence[int]
) -> Iterator[tuple[Mapping[str, Any], int]]:
    """The wanted rows of a row group, as drawn; the group is decoded in batches."""
    columns = [name for name in (*NEEDED, "repo") if name in parquet.schema_arrow.names]
    found: dict[int, Json] = {}
    start, last = 0, max(wanted)
    for batch in parquet.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns):
        stop = start + batch.num_rows
        here = [row for row in wanted if start <= row < stop]
        taken = batch.take(pa.array([row - start for row in here], pa.int64())).to_pylist()
        found |= dict(zip(here, taken, strict=True))
        start = stop
        if start > last:
            break
    return ((found[row], row) for row in wanted)


def _turn_of(row: Mapping[str, Any], rng: random.Random) -> Draw:
    """Choose one of the agent's turns: what was said before is given, what it did the reference."""
    instance = row["instance_id"]
    if not isinstance(instance, str) or not instance:
        return Draw(None, "no_instance_id")
    messages = messages_of(row["messages"])
    places = turns_of(messages)
    if not places:
        return Draw(None, "no_turn")
    readable = places[: fitting(messages, places)]
    if not readable:
        return Draw(None, "too_long")
    at = rng.choice(readable)
    said = messages[at]["content"]
    turn = {
        "instance_id": instance,
        "repo": row.get("repo") or instance.rpartition("-")[0].replace("__", "/"),
        "messages": messages[:at],
        "assistant": said,
        "turn": places.index(at) + 1,
        "action_style": action_style(said),
    }
    return Draw(turn, None)


def turns_of(messages: Sequence[Json]) -> list[int]:
    """Where the agent answered the user."""
    return [
        at
        for at in range(1, len(messages))
        if messages[at]["role"] == "assistant" and messages[at - 1]["role"] == "user"
    ]


def fitting(messages: Sequence[Json], places: Sequence[int]) -> int:
    """How many of the places have a history short enough to be read."""
    told = list(accumulate((len(message["content"]) for message in messages), initial=0))
    return bisect_right(places, MAX_CHARS, key=lambda at: told[at])


def messages_of(recorded: object) -> list[Json]:
    """Role and text of each message; results of tools are told by the user; empty ones left out.

    A list, or JSON of one; content may be text or parts. What has another shape gives none.
    """
    if isinstance(recorded, str):
        try:
            recorded = json.loads(recorded)
        except (ValueError, RecursionError):
            return []
    messages: list[Json] = []
    for message in recorded if isinstance(recorded, list) else []:
        if not isinstance(message, dict):
            continue
        role, text = message.get("role"), _text(message.get("content"))
        if role == "tool":
            role, text = "user", _TOLD_BY_TOOLS + text
        if role not in ("system", "user", "assistant") or not text.strip():
            continue
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += "\n\n" + replace_surrogates(text)
        else:
            messages.append({"role": role, "content": replace_surrogates(text)})
    return messages


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))

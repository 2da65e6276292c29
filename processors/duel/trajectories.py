"""Draw turns of recorded trajectories from windows of parquet row groups, without reading all.

reads   instance_id, messages, and repo where there is one
writes  candidate turns: TURN without `turn_id`

Files are visited in a random order weighted by their bytes, row groups of a file in one weighted by
their rows; each visit takes a random window of the row group's rows. So only a few row groups are
read of a dataset of any size, in batches, and only the columns needed.
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
from processors.duel.answer_format import classify_action

Json = dict[str, Any]
NEEDED = ("instance_id", "messages")
BATCH_ROWS = 64
# No judge reads a longer history to its end.
MAX_CHARS = 120_000
_OBSERVATION = "Observation:\n"


class Draw(NamedTuple):
    """A candidate turn, or why a row gives none."""

    turn: Json | None
    drop_reason: str | None


def draw_from_trajectories(files: ParquetFiles, seed: int, window: int) -> Iterator[Draw]:
    """Yield one draw per row of the windows, in an order that the seed decides, to the last row."""
    for index, group, rows in _plan_windows(files, seed, window):
        with files.open(index) as parquet:
            for row, at in _read_rows(parquet, group, rows):
                place = f"{seed}:{files.names[index]}:{group}:{at}"
                yield _draw_turn(row, random.Random(place))


def _plan_windows(
    files: ParquetFiles, seed: int, window: int
) -> Iterator[tuple[int, int, list[int]]]:
    """Yield the next window of each file in turn: file, row group, rows in the order drawn."""
    order = _weighted_order(files.sizes, random.Random(f"{seed}:files"))
    plans: dict[int, Iterator[tuple[int, list[int]]]] = {}
    while order:
        for index in list(order):
            if index not in plans:
                with files.open(index) as parquet:
                    _check_columns(parquet, files.names[index])
                    groups = parquet.metadata.num_row_groups
                    sizes = [parquet.metadata.row_group(g).num_rows for g in range(groups)]
                plans[index] = _plan_file(sizes, f"{seed}:{files.names[index]}", window)
            found = next(plans[index], None)
            if found is None:
                order.remove(index)
            else:
                yield (index, *found)


def _plan_file(sizes: Sequence[int], seed: str, window: int) -> Iterator[tuple[int, list[int]]]:
    """Yield the first window of each row group, then the second of each, until all are drawn."""
    groups = _weighted_order(sizes, random.Random(seed))
    for start in count(0, window):
        groups = [group for group in groups if start < sizes[group]]
        if not groups:
            return
        for group in groups:
            rows = list(range(sizes[group]))
            random.Random(f"{seed}:{group}").shuffle(rows)
            yield group, rows[start : start + window]


def _weighted_order(weights: Sequence[int], rng: random.Random) -> list[int]:
    """Shuffle indexes by weight (Efraimidis and Spirakis); those of weight 0 come last."""
    keys = [rng.random() ** (1 / weight) if weight else -1.0 for weight in weights]
    return sorted(range(len(weights)), key=lambda index: (-keys[index], index))


def _check_columns(parquet: pq.ParquetFile, name: str) -> None:
    columns = parquet.schema_arrow.names
    missing = [column for column in NEEDED if column not in columns]
    if missing:
        raise SourceError(
            f"`{name}` has no column `{missing[0]}` but {', '.join(columns[:8])}; give "
            "trajectories with `instance_id` and `messages`, or recorded sessions."
        )


def _read_rows(
    parquet: pq.ParquetFile, group: int, wanted: Sequence[int]
) -> Iterator[tuple[Mapping[str, Any], int]]:
    """Return the wanted rows of a row group, as drawn; the group is decoded in batches."""
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


def _draw_turn(row: Mapping[str, Any], rng: random.Random) -> Draw:
    """Choose one of the agent's turns: the messages before it are given, it is the reference."""
    instance = row["instance_id"]
    if not isinstance(instance, str) or not instance:
        return Draw(None, "no_instance_id")
    messages = read_messages(row["messages"])
    places = find_turns(messages)
    if not places:
        return Draw(None, "no_turn")
    readable = places[: count_readable(messages, places)]
    if not readable:
        return Draw(None, "too_long")
    at = rng.choice(readable)
    answer = messages[at]["content"]
    turn = {
        "instance_id": instance,
        "repo": row.get("repo") or instance.rpartition("-")[0].replace("__", "/"),
        "messages": messages[:at],
        "assistant": answer,
        "turn": places.index(at) + 1,
        "action_style": classify_action(answer),
    }
    return Draw(turn, None)


def find_turns(messages: Sequence[Json]) -> list[int]:
    """Return the indexes of the agent's answers to the user."""
    return [
        at
        for at in range(1, len(messages))
        if messages[at]["role"] == "assistant" and messages[at - 1]["role"] == "user"
    ]


def count_readable(messages: Sequence[Json], places: Sequence[int]) -> int:
    """Count the places whose history is short enough to be read."""
    before = list(accumulate((len(message["content"]) for message in messages), initial=0))
    return bisect_right(places, MAX_CHARS, key=lambda at: before[at])


def read_messages(recorded: object) -> list[Json]:
    """Return role and text of each message; tool results become messages of the user.

    `recorded` is a list or the JSON of one; content may be text or parts. Empty messages are left
    out; anything else gives no messages.
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
        role, text = message.get("role"), _join_parts(message.get("content"))
        if role == "tool":
            role, text = "user", _OBSERVATION + text
        if role not in ("system", "user", "assistant") or not text.strip():
            continue
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += "\n\n" + replace_surrogates(text)
        else:
            messages.append({"role": role, "content": replace_surrogates(text)})
    return messages


def _join_parts(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))

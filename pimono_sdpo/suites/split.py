"""Split a suite by task into training and test suites, and check training rows for tasks of the test suite.

    threshold    md5(task_id) % 100 < 100 * train: a task's side does not depend on other tasks
    rank         tasks sorted by md5, the first round(train * n): exact sizes
    shuffle      sorted task ids, shuffled by a seed, the first round(train * n)

Tasks of one group stay together: the group's name replaces the id. A task without tests can only be
trained on, so it is left out if its group is for testing.

columns read  task_id, split (rows of the split `test` are not trained on)
"""

import hashlib
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import msgspec
import pyarrow.parquet as pq
from datasets import Dataset

from pimono_sdpo.errors import OutputError, SourceError
from pimono_sdpo.runs.folders import read_json
from pimono_sdpo.runs.parquet import read_rows
from pimono_sdpo.suites.suite import START_OF, Suite, TaskRow, has_tests, load_suite, write_suite

COLUMNS = ("task_id", "split")
ENDINGS = (".parquet", ".jsonl", ".arrow")
Method = Literal["threshold", "rank", "shuffle"]


@dataclass(frozen=True, slots=True)
class Division:
    """The tasks of each side in the order of the suite; tasks of `left_out` are on neither side."""

    train: list[TaskRow]
    test: list[TaskRow]
    left_out: list[TaskRow]


def split_suite(
    suite_file: Path, out: Path, train: float, method: Method, group_by: str | None, seed: int
) -> tuple[Division, list[Path]]:
    """Write `train.json` and `test.json` under `out`; return the tasks of each side, and the paths."""
    suite = load_suite(suite_file, repos=False)
    division = divide(suite.tasks, train, method, group_by, seed)
    sides = {"train": division.train, "test": division.test}
    for side in sides:
        path = out / f"{side}.json"
        if path.exists() and "tasks" not in read_json(path):
            raise OutputError(f"`{path}` exists and is not a suite; give another folder.")
        if path.resolve() == suite.path.resolve():
            raise OutputError(f"`{path}` is the suite to be split; give another folder.")
    return division, [
        write_suite(Suite(f"{suite.name}-{side}", tuple(tasks), out / f"{side}.json", suite.description, side))
        for side, tasks in sides.items()
    ]


def divide(
    tasks: Sequence[TaskRow], train: float, method: Method = "threshold", group_by: str | None = None, seed: int = 0
) -> Division:
    """Divide tasks into training and test; `group_by` is `repo` or a key of the metadata."""
    if not 0 < train < 1:
        raise OutputError(f"--train {train:g} is not between 0 and 1.")
    groups = [task["repo"] if group_by == "repo" else task["metadata"].get(group_by or "") for task in tasks]
    if group_by and all(group is None for group in groups):
        raise SourceError(f"No task has `{group_by}` in its metadata; use another key, or `repo`.")
    group_of = {
        task["task_id"]: task["task_id"] if group is None else str(group)
        for group, task in zip(groups, tasks, strict=True)
    }
    # A task with another start state stays with the original task.
    originals = [task["metadata"].get(START_OF, task["task_id"]) for task in tasks]
    grouped = [(group_of.get(original, original), task) for original, task in zip(originals, tasks, strict=True)]
    tested = Counter(group for group, task in grouped if has_tests(task))
    if len(tested) < 2:
        raise OutputError(
            f"Cannot split: only {len(tested)} task group has tests. Use a larger suite or drop --group-by."
        )
    train_groups = _choose_groups(tested, train, method, seed)
    division = Division([], [], [])
    for group, task in grouped:
        if group in train_groups or group not in tested:
            division.train.append(task)
        else:
            (division.test if has_tests(task) else division.left_out).append(task)
    for side, side_tasks in (("train", division.train), ("test", division.test)):
        if not side_tasks:
            raise OutputError(
                f"The method `{method}` at {train:g} leaves no task for the {side} suite; use "
                "`rank`, or another share."
            )
    return division


def hash_name(name: str) -> int:
    """Return the md5 of a name as a number.

    >>> hash_name("fix_gcd") % 100
    16
    """
    return int(hashlib.md5(name.encode(), usedforsecurity=False).hexdigest(), 16)


def _choose_groups(sizes: Mapping[str, int], train: float, method: Method, seed: int) -> set[str]:
    """Return the groups for training; `sizes` has the number of tasks of each group."""
    if method == "threshold":
        # Rounded, because 100 * 0.07 is slightly more than 7.
        return {name for name in sizes if hash_name(name) % 100 < round(100 * train, 6)}
    names = sorted(sizes)
    if method == "rank":
        names.sort(key=hash_name)
    else:
        random.Random(seed).shuffle(names)
    remaining, chosen = round(train * sum(sizes.values())), set()
    for name in names:
        # A group larger than the rest is skipped.
        if sizes[name] <= remaining:
            chosen.add(name)
            remaining -= sizes[name]
    return chosen


class Leakage(SourceError):
    """Training rows come from tasks of the test suite."""


def check_leakage(rows: Iterable[Mapping[str, Any]], test_suite: Suite) -> int:
    """Return the number of training rows; raises Leakage if any is of a task of `test_suite`.

    All start states of a task count as that task. Of a `Dataset`, only two columns are read.
    """
    if isinstance(rows, Dataset) and "task_id" in rows.column_names:
        rows = rows.select_columns([name for name in COLUMNS if name in rows.column_names])
    held_out = {task["metadata"].get(START_OF, task["task_id"]) for task in test_suite.tasks}
    number, leaked = 0, Counter[str]()
    for row in rows:
        task = row.get("task_id")
        if not isinstance(task, str):
            raise SourceError(
                f"Row {number + 1} has no `task_id`, so it cannot be checked against the test suite; add the column."
            )
        if row.get("split") != "test":
            number += 1
            # A task with another start state is named TASK+STATE, and both may contain a plus.
            names = accumulate(re.split(r"(?=\+)", task))
            leaked.update([] if held_out.isdisjoint(names) else [task])
    if leaked:
        some = ", ".join(f"`{name}` ({count})" for name, count in sorted(leaked.items())[:5])
        more = f" and {len(leaked) - 5} more" if len(leaked) > 5 else ""
        raise Leakage(
            f"{leaked.total()} of {number} training rows are of tasks of the test suite "
            f"`{test_suite.name}`: {some}{more}; drop these rows, or split the suite first."
        )
    return number


def read_task_ids(source: Path) -> Iterator[dict[str, Any]]:
    """Yield `task_id` and `split` of rows: parquet, JSON lines, a saved dataset, or a folder of these.

    If a folder has a folder `data`, only that is read. Files in a folder that have no `task_id` are ignored.
    """
    if not source.exists():
        raise SourceError(f"`{source}` does not exist; give rows as parquet or JSON lines.")
    folder = source / "data" if (source / "data").is_dir() else source
    files = [source] if source.is_file() else sorted(p for p in folder.rglob("*") if p.suffix in ENDINGS)
    is_empty = True
    for path in files:
        for row in _read_file(path):
            if source.is_dir() and "task_id" not in row:
                break
            is_empty = False
            yield row
    if is_empty:
        raise SourceError(
            f"`{source}` has no rows with `task_id`; give rows that `steps` or `pairs` made from "
            "rollouts of a suite (sessions, which `filter` reads, have no task)."
        )


def _read_file(path: Path) -> Iterator[dict[str, Any]]:
    try:
        if path.suffix in (".jsonl", ".json"):
            with path.open(encoding="utf-8") as lines:
                for line in filter(str.strip, lines):
                    row = msgspec.json.decode(line, type=dict[str, Any])
                    yield {key: row[key] for key in COLUMNS if key in row}
        elif path.suffix == ".arrow":
            # Written by `Dataset.save_to_disk`.
            saved = Dataset.from_file(str(path))
            yield from saved.select_columns([name for name in COLUMNS if name in saved.column_names])
        else:
            columns = [name for name in COLUMNS if name in pq.read_schema(path).names]
            yield from read_rows([path], columns)
    except (OSError, ValueError) as error:
        raise SourceError(f"`{path}` cannot be read ({str(error)[:200]}).") from error

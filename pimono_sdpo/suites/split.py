"""A suite divided into one for training and one for testing: by task, never by step.

    threshold    md5(task_id) % 100 < 100 * train: a task's side never depends on the others
    rank         tasks by their md5, the first round(train * n): exact sizes
    shuffle      task ids in order, shuffled by a seed, the first round(train * n)

Tasks of one group stay together: the group's name takes the place of the id. A task without tests
can only be trained on; when its group is for testing it is left out.
"""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pimono_sdpo.errors import OutputError, SourceError
from pimono_sdpo.suites.suite import TaskRow, has_tests

Method = Literal["threshold", "rank", "shuffle"]
METHODS = ("threshold", "rank", "shuffle")


@dataclass(frozen=True, slots=True)
class Divided:
    """The tasks of each side in the suite's order; `left_out` has those that may be on neither."""

    train: list[TaskRow]
    test: list[TaskRow]
    left_out: list[TaskRow]


def divide(
    tasks: Sequence[TaskRow],
    train: float = 0.7,
    method: Method = "threshold",
    group_by: str | None = None,
    seed: int = 0,
) -> Divided:
    """Divide tasks; `group_by` is `repo` or a field of the metadata.

    Raises SourceError for a field that no task has, OutputError when a side would be empty.
    """
    if not 0 < train < 1:
        raise OutputError(f"The share for training is {train:g}; give a number between 0 and 1.")
    key = {task["task_id"]: _key(task, group_by) for task in tasks}
    if group_by and all(key[task["task_id"]] is None for task in tasks):
        raise SourceError(
            f"No task has `{group_by}` in its metadata; name a field that they have, or `repo`."
        )
    groups: dict[str, int] = {}
    for task in tasks:
        name = key[task["task_id"]] or task["task_id"]
        groups[name] = groups.get(name, 0) + has_tests(task)
    tested = {name: size for name, size in groups.items() if size}
    if len(tested) < 2:
        raise OutputError(
            f"There is nothing to divide: {len(tested)} of the groups of tasks has tests; give "
            "a suite with more, or leave --group-by out."
        )
    for_training = _for_training(tested, train, method, seed)
    divided = Divided([], [], [])
    for task in tasks:
        name = key[task["task_id"]] or task["task_id"]
        if name in for_training or name not in tested:
            divided.train.append(task)
        else:
            (divided.test if has_tests(task) else divided.left_out).append(task)
    for side in ("train", "test"):
        if not getattr(divided, side):
            raise OutputError(
                f"No task is left for the {side} suite by `{method}` at {train:g}; use the method "
                "`rank`, or another share."
            )
    return divided


def digest(name: str) -> int:
    """Return the md5 of a name as a number.

    >>> digest("fix_gcd") % 100
    16
    """
    return int(hashlib.md5(name.encode(), usedforsecurity=False).hexdigest(), 16)


def _for_training(groups: dict[str, int], train: float, method: Method, seed: int) -> set[str]:
    """Choose groups by their names; `groups` has the number of tasks of each."""
    if method == "threshold":
        # Rounded: 100 * 0.07 is a little more than 7.
        return {name for name in groups if digest(name) % 100 < round(100 * train, 6)}
    names = sorted(groups)
    if method == "rank":
        names.sort(key=digest)
    else:
        random.Random(seed).shuffle(names)
    wanted, chosen = round(train * sum(groups.values())), set()
    for name in names:
        # A group that is too large for what is left gives way to the next.
        if groups[name] <= wanted:
            chosen.add(name)
            wanted -= groups[name]
    return chosen


def _key(task: TaskRow, group_by: str | None) -> str | None:
    if group_by is None:
        return None
    found = task["repo"] if group_by == "repo" else task["metadata"].get(group_by)
    return None if found is None else str(found)

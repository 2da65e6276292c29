"""Assign each row to the training or the test split, all rows of a repository to the same.

Traces of one repository are split by session instead: they would all go to one side.

reads   cwd, source; split by session, session_id, source
writes  split (train or test)
"""

import hashlib
import re
from functools import partial
from typing import Any

from datasets import Features, Value

from pimono_sdpo.filter_options import SplitBy
from pimono_sdpo.stage import Map, Row

_CONTAINERS = frozenset(
    """app-data code coding data desktop dev developer development documents downloads git github
    gitlab go home mnt opt private projects project programming repos repositories root sites src
    srv tmp users usr var volumes w work workspace workspaces www""".split()
)


def split(row: Row, test_fraction: float, by: SplitBy = "repository") -> dict[str, Any]:
    """Choose the split by a hash of the repository, so that adding sessions moves no others."""
    name = name_repository(row) if by == "repository" else str(row["session_id"] or row["source"])
    place = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) / 2**64
    return {"split": "test" if place < test_fraction else "train"}


def name_repository(row: Row) -> str:
    """Return the name of a session's repository, the same for every clone and folder of it.

    It is the first folder of the workspace that is neither a home nor a usual place for projects;
    without a workspace it is the folder of the session's file.

    >>> name_repository({"cwd": "/home/ann/code/App/packages/ai", "source": "x.jsonl"})
    'app'
    """
    parts = [part for part in re.split(r"[/\\\\]+", str(row["cwd"]).lower()) if part not in {"", "."}]
    if parts[:1] and re.fullmatch(r"[a-z]:", parts[0]):
        parts = parts[1:]
    if parts[:1] and parts[0] in {"users", "home"}:
        parts = parts[2:]
    named = [part for part in parts if part not in _CONTAINERS]
    # The workspace of a container may consist of such folders alone.
    name = (named or parts or [""])[0]
    return name or str(row["source"]).rpartition("/")[0] or str(row["source"])


def stage(test_fraction: float, by: SplitBy = "repository") -> Map:
    """Build the stage for one share of test repositories, or of test sessions."""
    return Map(
        partial(split, test_fraction=test_fraction, by=by),
        reads=("cwd", "source") if by == "repository" else ("session_id", "source"),
        writes=Features({"split": Value("string")}),
    )

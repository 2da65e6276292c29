"""Put each row on the training or the test side, all rows of one repository on the same.

reads   cwd, source
writes  split (train or test)
"""

import hashlib
from functools import partial
from typing import Any

from datasets import Features, Value

from pimono_sdpo.stage import Map, Row


def split(row: Row, test_fraction: float) -> dict[str, Any]:
    """Say the side by a hash of the repository: adding sessions never moves the others."""
    place = int.from_bytes(hashlib.sha256(repository(row).encode()).digest()[:8]) / 2**64
    return {"split": "test" if place < test_fraction else "train"}


def repository(row: Row) -> str:
    """Name what a session worked on: its workspace, or the folder of its file.

    >>> repository({"cwd": "/home/ann/app/", "source": "x.jsonl"})
    '/home/ann/app'
    """
    cwd = str(row["cwd"]).rstrip("/\\")
    return cwd or str(row["source"]).rpartition("/")[0] or str(row["source"])


def stage(test_fraction: float) -> Map:
    """Build the stage for one share of test repositories."""
    return Map(
        partial(split, test_fraction=test_fraction),
        reads=("cwd", "source"),
        writes=Features({"split": Value("string")}),
    )

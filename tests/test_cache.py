"""Test that an edit of the code invalidates what `datasets` has cached."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pimono_sdpo.traces.sources import open_source, read_sessions
from tests.exports import write_samples
from tests.loopback_hub.forked import Forked

# Prints the stages that were computed, one per line; reused ones add no file to the cache.
SCRIPT = """
import os, sys
from pathlib import Path
from datasets import Dataset
from pimono_sdpo.schema import SESSION
from pimono_sdpo.stage import apply, name_of
from processors import PIPELINE

cache = Path(os.environ["HF_DATASETS_CACHE"])
dataset = Dataset.from_parquet(sys.argv[1], cache_dir=str(cache), features=SESSION)
for stage in PIPELINE:
    before = set(cache.rglob("*.arrow"))
    dataset = apply(dataset, stage)
    if set(cache.rglob("*.arrow")) - before:
        print(name_of(stage))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project that tests can edit, and sessions."""
    root = Path(__file__).parents[1]
    for package in ("pimono_sdpo", "processors"):
        shutil.copytree(root / package, tmp_path / package)
    write_samples(tmp_path / "samples")
    source = open_source(str(tmp_path / "samples" / "trace_text"))
    tables = [table for shard in source.shards for table in read_sessions(shard)]
    pq.write_table(pa.concat_tables(tables), tmp_path / "sessions.parquet")
    return tmp_path


@pytest.fixture
def forked(tmp_path: Path) -> Iterator[Forked]:
    """A process that has imported only `datasets`."""
    started = Forked(("datasets",), {**os.environ, "HF_DATASETS_CACHE": str(tmp_path / "cache")})
    yield started
    started.close()


def computed(project: Path, forked: Forked) -> list[str]:
    script = f"import sys; sys.path.insert(0, {str(project)!r})\n{SCRIPT}"
    arguments = ["-c", script, str(project / "sessions.parquet")]
    run = forked.run(arguments, project, {**os.environ, "HF_DATASETS_CACHE": str(project / "cache")})
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


def edit(project: Path, name: str, old: str, new: str) -> None:
    path = project / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_an_edit_of_code_or_tables_invalidates_the_cache(project: Path, forked: Forked) -> None:
    every = "evidence split names keep redact grade threshold context rows".split()
    assert computed(project, forked) == every
    assert computed(project, forked) == []
    edit(project, "processors/grade.py", "CONTINUED = 1.5", "CONTINUED = 2.5")
    assert computed(project, forked) == every
    edit(project, "processors/grade.py", "CONTINUED = 2.5", "CONTINUED = 1.5")
    assert computed(project, forked) == []
    edit(project, "pimono_sdpo/failures.toml", "weight = 0.5", "weight = 0.75")
    assert computed(project, forked) == every

"""Reading a Hub dataset through its parquet export, with the real clients."""

from pathlib import Path

import pytest

from pimono_sdpo.samples import SAMPLE_SESSIONS, is_whole, write_export
from tests.loopback_hub import LoopbackHub, run_client

EXPORT = "refs/convert/parquet"

FILTER = """
import json, pathlib
from pimono_sdpo.commands.filter import run_filter
report = run_filter("lab/traces", pathlib.Path("rows"))
rows = sorted(pathlib.Path("rows/data").glob("*.parquet"))
import pyarrow.parquet as pq
sources = [source for path in rows for source in pq.read_table(path)["source"].to_pylist()]
print(json.dumps([report, sources]))
"""

REFUSED = """
import json, pathlib, sys
from pimono_sdpo.errors import SourceError
from pimono_sdpo.export import open_source
try:
    open_source({name!r})
except SourceError as problem:
    print(json.dumps(str(problem)))
"""


def sessions() -> list[Path]:
    """The well-formed samples: the list layouts hold parsed lines."""
    return [path for path in sorted(Path(str(SAMPLE_SESSIONS)).glob("*.jsonl")) if is_whole(path)]


def test_the_export_is_read_at_a_pinned_commit(loopback_hub: LoopbackHub, tmp_path: Path) -> None:
    half = len(sessions()) // 2
    shards = {}
    for number, part in enumerate((sessions()[:half], sessions()[half:])):
        folder = tmp_path / "export" / str(number)
        write_export(folder, "trace_text", part)
        (file,) = folder.rglob("*.parquet")
        shards[f"default/train/{number:04}.parquet"] = file.read_bytes()
    loopback_hub.seed("lab/traces", "dataset", {"README.md": b"# Traces\n"})
    commit = loopback_hub.seed("lab/traces", "dataset", shards, revision=EXPORT)
    report, sources = run_client(loopback_hub, tmp_path, FILTER)
    assert report["input"]["kind"] == "hub"
    assert report["input"]["source"] == "lab/traces"
    assert report["input"]["revision"] == commit
    assert [shard["path"] for shard in report["input"]["shards"]] == [
        f"lab/traces/{name}" for name in shards
    ]
    assert report["sessions"] == len(sessions())
    assert sources
    assert all(source.startswith(f"lab/traces@{commit}/") for source in sources)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("lab/nothing", "neither a local path nor a dataset"),
        ("lab/raw", "has no parquet export at refs/convert/parquet"),
        ("lab/secret", "neither a local path nor a dataset"),
        ("lab/gated", "is gated: accept its terms"),
        ("lab/damaged", "is damaged (Parquet file size is 4 bytes"),
    ],
)
def test_what_cannot_be_read_says_why(
    loopback_hub: LoopbackHub, tmp_path: Path, name: str, sentence: str
) -> None:
    loopback_hub.seed("lab/raw", "dataset", {"a.jsonl": b"{}"})
    loopback_hub.seed("lab/secret", "dataset", {"a.jsonl": b"{}"}, private=True)
    loopback_hub.seed("lab/gated", "dataset", {"a/b/0.parquet": b"PAR1" * 99}, EXPORT, gated=True)
    loopback_hub.seed("lab/damaged", "dataset", {"a/b/0.parquet": b"PAR1"}, EXPORT)
    found = run_client(loopback_hub, tmp_path, REFUSED.format(name=name), token=None)
    assert sentence in found
    assert name in found


def test_a_hub_that_fails_is_no_traceback(loopback_hub: LoopbackHub, tmp_path: Path) -> None:
    loopback_hub.seed("lab/traces", "dataset", {"x": b""}, revision=EXPORT)
    loopback_hub.fail_next("lab/traces", 500, times=9)
    found = run_client(loopback_hub, tmp_path, REFUSED.format(name="lab/traces"))
    assert "the Hub could not be asked" in found

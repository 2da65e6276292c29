"""Test reading a Hub dataset through its parquet export, with the real clients."""

from pathlib import Path

import pytest

from pimono_sdpo.samples import SAMPLE_SESSIONS
from tests.exports import is_intact, write_export
from tests.loopback_hub import TOKEN, LoopbackHub, run_client
from tests.loopback_hub.call import EXPIRED_TOKEN, OTHER_TOKEN

EXPORT = "refs/convert/parquet"

FILTER = """
import json, pathlib
from pimono_sdpo.filtering import run_filter
report = run_filter("lab/traces", pathlib.Path("rows"))
rows = sorted(pathlib.Path("rows/data").glob("*.parquet"))
import pyarrow.parquet as pq
sources = [source for path in rows for source in pq.read_table(path)["source"].to_pylist()]
print(json.dumps([report, sources, pathlib.Path("rows/README.md").read_text()]))
"""

REFUSED = """
import json, pathlib, sys
from pimono_sdpo.errors import SourceError
from pimono_sdpo.traces.sources import open_source
try:
    open_source({name!r})
except SourceError as problem:
    print(json.dumps(str(problem)))
"""


def sessions() -> list[Path]:
    """The well-formed samples, since the list layouts contain parsed lines."""
    return [path for path in sorted(Path(str(SAMPLE_SESSIONS)).glob("*.jsonl")) if is_intact(path)]


@pytest.fixture
def shards(tmp_path: Path) -> dict[str, bytes]:
    """The samples as an export of three shards."""
    files = {}
    for number in range(3):
        folder = tmp_path / "export" / str(number)
        write_export(folder, "trace_text", sessions()[number::3])
        (file,) = folder.rglob("*.parquet")
        files[f"default/train/{number:04}.parquet"] = file.read_bytes()
    return files


def in_cache(home: Path) -> list[str]:
    cache = home / "hf_home" / "hub"
    return sorted(path.name for path in cache.rglob("*.parquet"))


def downloads(hub: LoopbackHub) -> list[str]:
    """Return the names of fully downloaded files, in order."""
    return [
        seen.path.rsplit("/", 1)[1]
        for seen in hub.requests
        if seen.method == "GET" and seen.path.endswith(".parquet") and seen.status == 200
    ]


def test_the_export_is_read_at_a_pinned_commit(
    loopback_hub: LoopbackHub, tmp_path: Path, shards: dict[str, bytes]
) -> None:
    loopback_hub.seed("lab/traces", "dataset", {"README.md": b"---\nlicense: odbl\n---\n# Traces\n"})
    commit = loopback_hub.seed("lab/traces", "dataset", shards, revision=EXPORT)
    loopback_hub.repo("lab/traces", "dataset").days = 3
    loopback_hub.seed("lab/traces", "dataset", {"a.jsonl": b"{}"})
    head = loopback_hub.seed("lab/traces", "dataset", {"b.jsonl": b"{}"})
    report, sources, card = run_client(loopback_hub, tmp_path, FILTER)
    assert report["input"]["kind"] == "hub"
    assert report["input"]["source"] == "lab/traces"
    assert report["input"]["revision"] == commit
    behind = {"commits_behind": 2, "days_behind": 3}
    assert report["input"]["upstream"] == {"commit": head, "licence": "odbl", **behind}
    assert report["licence"] == "odbl"
    assert "\nlicense: odbl\n" in card
    assert f"at `{head}`: 2 newer commits, up to 3 days later, are not in it." in card
    assert [shard["path"] for shard in report["input"]["shards"]] == [f"lab/traces/{name}" for name in shards]
    assert report["sessions"] == len(sessions())
    assert sources
    assert all(source.startswith(f"lab/traces@{commit}/") for source in sources)
    assert in_cache(tmp_path) == ["0000.parquet", "0001.parquet", "0002.parquet"]
    assert [path for path in (tmp_path / "hf_home").rglob("*") if path.suffix == ".incomplete"] == []


def test_a_file_that_is_in_the_cache_is_read_there(
    loopback_hub: LoopbackHub, tmp_path: Path, shards: dict[str, bytes]
) -> None:
    loopback_hub.seed("lab/traces", "dataset", shards, revision=EXPORT)
    first = run_client(loopback_hub, tmp_path, FILTER)
    assert downloads(loopback_hub) == ["0000.parquet", "0001.parquet", "0002.parquet"]
    loopback_hub.requests.clear()
    again = run_client(loopback_hub, tmp_path, FILTER.replace('Path("rows', 'Path("again'))
    assert downloads(loopback_hub) == []
    assert again[1] == first[1]


def test_dropped_connections_do_not_change_the_result(
    loopback_hub: LoopbackHub, tmp_path: Path, shards: dict[str, bytes]
) -> None:
    loopback_hub.seed("lab/traces", "dataset", shards, revision=EXPORT)
    alone, _, _ = run_client(loopback_hub, tmp_path, FILTER)
    loopback_hub.drop_next("0000.parquet", after=100, method="GET")
    loopback_hub.drop_next("0002.parquet", after=3000, times=3, method="GET")
    loopback_hub.slow_next("0001.parquet", 0.3)
    again, _, _ = run_client(loopback_hub, tmp_path / "again", FILTER)
    assert not loopback_hub.faults
    assert again == alone


@pytest.mark.parametrize(
    ("name", "token", "sentence"),
    [
        ("lab/nothing", None, "neither a local path nor a dataset"),
        ("lab/nothing", TOKEN, "neither a local path nor a dataset"),
        ("lab/raw", None, "has no parquet export at refs/convert/parquet"),
        ("lab/secret", None, "neither a local path nor a dataset"),
        ("lab/secret", OTHER_TOKEN, "neither a local path nor a dataset"),
        ("lab/gated", None, "is gated: accept its terms"),
        ("lab/gated", OTHER_TOKEN, "is gated: accept its terms"),
        ("lab/damaged", None, "is damaged (Parquet file size is 4 bytes"),
        ("lab/raw", EXPIRED_TOKEN, "the Hub does not accept the token; create a new one"),
        ("lab/raw", "hf_mistyped", "the Hub does not accept the token; create a new one"),
    ],
)
def test_unreadable_datasets_are_explained(
    loopback_hub: LoopbackHub, tmp_path: Path, name: str, sentence: str, token: str | None
) -> None:
    loopback_hub.seed("lab/raw", "dataset", {"a.jsonl": b"{}"})
    loopback_hub.seed("lab/secret", "dataset", {"a.jsonl": b"{}"}, private=True)
    loopback_hub.seed("lab/gated", "dataset", {"a/b/0.parquet": b"PAR1" * 99}, EXPORT, gated=True)
    loopback_hub.seed("lab/damaged", "dataset", {"a/b/0.parquet": b"PAR1"}, EXPORT)
    found = run_client(loopback_hub, tmp_path, REFUSED.format(name=name), token)
    assert sentence in found
    assert name in found


def test_a_failing_hub_gives_no_traceback(loopback_hub: LoopbackHub, tmp_path: Path) -> None:
    loopback_hub.seed("lab/traces", "dataset", {"x": b""}, revision=EXPORT)
    loopback_hub.fail_next("lab/traces", 500, times=9)
    found = run_client(loopback_hub, tmp_path, REFUSED.format(name="lab/traces"))
    assert "the Hub answers 500" in found


ADDRESSES = """
import json
from pimono_sdpo.errors import SourceError
from pimono_sdpo.traces.sources import open_source, read_sessions
results = []
for address in {addresses!r}:
    try:
        source = open_source(address)
        rows = sum(table.num_rows for shard in source.shards for table in read_sessions(shard))
        results.append([source.name, source.revision, rows, [one.path for one in source.shards]])
    except SourceError as problem:
        results.append(str(problem))
print(json.dumps(results))
"""


def test_files_of_datasets_and_buckets_are_read_by_their_address(loopback_hub: LoopbackHub, tmp_path: Path) -> None:
    first, second, *_ = (path.read_bytes() for path in sessions())
    files = {"a/one.jsonl": first, "a/two.jsonl": second, "b/three.jsonl": first, "b/x.txt": b"x"}
    commit = loopback_hub.seed("lab/raw", "dataset", files)
    loopback_hub.seed("lab/raw", "dataset", {"a/four.jsonl": second})
    loopback_hub.add_bucket("lab/kept", {"a/one.jsonl": first, "b/two.jsonl": second})
    place = f"hf://datasets/lab/raw@{commit}"
    addresses = [
        *(f"{place}/a", f"{place}/a/one.jsonl", f"{place}/*/t*.jsonl", "hf://datasets/lab/raw"),
        *("hf://buckets/lab/kept", "hf://buckets/lab/kept/b"),
        *(f"{place}/b/x.txt", f"{place}/gone", "hf://spaces/a/b", "hf://datasets/lab/gone/x"),
    ]
    results = run_client(loopback_hub, tmp_path, ADDRESSES.format(addresses=addresses))
    assert results[0] == ["lab/raw", commit, 2, ["a/one.jsonl and 1 more"]]
    assert results[1] == ["lab/raw", commit, 1, ["a/one.jsonl"]]
    assert results[2][2:] == [2, ["a/two.jsonl and 1 more"]]
    assert results[3][2] == 4
    assert results[3][1] != commit
    assert results[4][:3] == ["lab/kept", None, 2]
    assert results[5][2:] == [1, ["b/two.jsonl"]]
    assert all("has no file that ends with" in sentence for sentence in results[6:8])
    assert "is not a source; use hf://datasets/" in results[8]
    assert "lab/gone" in results[9]

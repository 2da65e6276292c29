"""Test reading sessions of real users; set PIMONO_TRACES to their folder."""

import csv
import json
import os
import re
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pimono_sdpo.filtering import run_filter
from pimono_sdpo.traces.layouts import decode_lossy
from pimono_sdpo.traces.parse import read_trace

COUNTS: dict[str, list[object]] = json.loads((Path(__file__).parent / "real_trace_counts.json").read_text())
TRACES = Path(os.environ.get("PIMONO_TRACES", ""))
pytestmark = pytest.mark.skipif(not os.environ.get("PIMONO_TRACES"), reason="PIMONO_TRACES is not set")


def rows_of(source: Path, out: Path) -> pa.Table:
    run_filter(str(source), out)
    files = sorted((out / "data").glob("*.parquet"))
    return pa.concat_tables([pq.read_table(file) for file in files]).sort_by("source")


def test_the_three_layouts_give_identical_rows(tmp_path: Path) -> None:
    first, *others = (
        rows_of(TRACES / "viewer_export" / layout, tmp_path / layout)
        for layout in ("traces_list", "trace_list", "trace_text")
    )
    assert first.num_rows > 5
    assert all(other.equals(first) for other in others)


def test_raw_sessions_give_the_rows_of_their_export(tmp_path: Path) -> None:
    exported = rows_of(TRACES / "viewer_export" / "trace_text", tmp_path / "export")
    raw = rows_of(TRACES / "pi", tmp_path / "raw")
    names = set(exported.column("source").to_pylist())
    shared = raw.filter(pa.array([name in names for name in raw.column("source").to_pylist()]))
    assert shared.equals(exported)
    assert raw.num_rows > exported.num_rows


@pytest.mark.parametrize("folder", ["pi", "odd", "claude_code", "codex", "droid"])
def test_every_file_is_read_or_says_why_not(folder: str) -> None:
    for path in sorted((TRACES / folder).glob("*.jsonl")):
        text = path.read_bytes().decode("utf-8", errors="replace")
        trace = read_trace(text)
        filled = sum(1 for line in text.split("\n") if line.strip("\0\ufeff \t\r"))
        assert trace.lines.parsed + trace.lines.repaired + trace.lines.skipped == filled
        assert (trace.problem is None) == any(
            event.kind in {"user", "assistant", "tool_call", "tool_result", "bash"} for event in trace.events
        )
        assert [event.index for event in trace.events] == list(range(len(trace.events)))
        if folder == "pi":
            assert trace.problem is None


def counts(path: Path) -> list[object]:
    """Harness; users, assistants, calls, results, errors, compactions, off the path; lines."""
    read = read_trace(decode_lossy(path.read_bytes())[0])
    kinds = Counter(event.kind for event in read.events)
    return [
        read.harness,
        *(kinds[kind] for kind in ("user", "assistant", "tool_call")),
        kinds["tool_result"] + kinds["bash"],
        sum(event.is_error for event in read.events),
        kinds["compaction"],
        sum(not event.on_active_branch for event in read.events),
        read.lines.repaired,
        read.lines.skipped,
    ]


@pytest.mark.parametrize("name", list(COUNTS))
def test_the_counts_of_each_file_stay_the_same(name: str) -> None:
    assert counts(TRACES / name) == COUNTS[name]


def test_pi_sessions_match_their_list_of_sources() -> None:
    with (TRACES / "SOURCES.csv").open() as file:
        listed = [row for row in csv.DictReader(file) if row["file"].startswith("pi/")]
    assert len(listed) == 23
    for row in listed:
        _, users, _, _, results, errors, _, _, repaired, _ = map(str, counts(TRACES / row["file"]))
        wanted = [row["n_user"], row["n_tool_results"], row["n_is_error"]]
        # The reader that made the list skipped broken lines.
        shell = re.search(r"bashExecution=(\d+)", row["note"])
        slack = int(repaired) + int(shell[1] if shell else 0)
        for got, want in zip((users, results, errors), wanted, strict=True):
            assert 0 <= int(got) - int(want) <= slack, row["file"]

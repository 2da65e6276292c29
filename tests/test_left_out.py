"""Test what is read from a folder beside plain session files, and that all else is counted and named."""

import gzip
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pimono_sdpo.errors import SourceError
from pimono_sdpo.source_options import find_project
from pimono_sdpo.traces import sources
from pimono_sdpo.traces.harness import HARNESSES
from pimono_sdpo.traces.parse import read_trace
from pimono_sdpo.traces.sources import list_files, load_sessions, open_source, read_sessions
from tests.shards import cli
from tests.traces import HEADER, bash, trace, user

FIELD = Path(__file__).parents[2] / "shared" / "field"


def session(name: str) -> str:
    failed = bash(f"npm test {name}", f"{name}: é 1 failed\n\nCommand exited with code 1", error=True)
    return trace({**HEADER, "id": name, "cwd": f"/w/{name}"}, user(f"Fix the parser of {name}, it drops é"), *failed)


def run_filter(source: Path, *words: object) -> tuple[str, dict[str, Any], set[str]]:
    """Filter a source; return what is printed, the report, and the files of the rows."""
    out = source.parent / "rows"
    done = cli("filter", source, "--out", out, "--min-worth", 0, *words)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads((out / "report.json").read_text())
    return done.stdout, report, set(pq.read_table(out / "data")["source"].to_pylist())


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "a.jsonl").write_text(session("a"))
    return tmp_path / "traces"


def write_bombs(folder: Path, size: int) -> list[Path]:
    """Write two small files that become `size` bytes."""
    part = b'{"type": "message"}\n' * 2**20
    packed = gzip.compress(part)
    bombs = [folder / "bomb.jsonl.gz", folder / "bomb.jsonl.zst"]
    with bombs[0].open("wb") as file, pa.CompressedOutputStream(str(bombs[1]), "zstd") as stream:
        for _ in range(size // len(part)):
            file.write(packed)
            stream.write(part)
    return bombs


LIMITED = """
import resource, sys
import pimono_sdpo.cli.filter, processors
from pimono_sdpo.cli import main

pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
main()
"""


def test_a_file_does_not_fill_the_memory(traces: Path, tmp_path: Path) -> None:
    """2 GB in each of three files, with less than half of that to allocate."""
    bombs = write_bombs(traces, 2 * 10**9)
    assert all(bomb.stat().st_size < 10**7 for bomb in bombs)
    bombs.append(traces / "plain.jsonl")
    with bombs[-1].open("wb") as plain:
        plain.truncate(2 * 10**9)
    words = ("filter", str(traces), "--out", str(tmp_path / "rows"), "--min-worth", "0")
    command = [sys.executable, "-c", LIMITED, str(900 * 10**6), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.split("\n") if line.startswith("skipped"))
    for bomb in bombs:
        assert f"{bomb.name} (it has more than 512.0 MB)" in line
    report = json.loads((tmp_path / "rows" / "report.json").read_text())
    assert (report["kept"], report["sessions"]) == (1, 1)
    assert len(report["unreadable"]) == 3
    assert report["bytes"]["unreadable"] == sum(bomb.stat().st_size for bomb in bombs)


def test_the_limit_is_that_of_one_session(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = (traces / "a.jsonl").stat().st_size
    for name in ("b", "c"):
        (traces / f"{name}.jsonl.gz").write_bytes(gzip.compress(session(name).encode()))
    larger = session("d") + "\n"
    (traces / "d.jsonl").write_text(larger)
    (traces / "d.jsonl.gz").write_bytes(gzip.compress(larger.encode()))
    pq.write_table(pa.table({"trace": [session("e"), larger], "file_path": ["e", "d"]}), traces / "d.parquet")
    monkeypatch.setattr(sources, "MAX_SESSION", size)
    output, report, found = run_filter(traces)
    assert found == {"a.jsonl", "b.jsonl.gz", "c.jsonl.gz", "e"}
    assert [one.split(" (")[0] for one in report["unreadable"]] == ["d", "d.jsonl", "d.jsonl.gz"]
    assert report["sessions"] == 4
    assert "4  sessions read\n" in output


def test_large_sessions_are_read_in_tables_of_their_own(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b", "c"):
        (traces / f"{name}.jsonl.gz").write_bytes(gzip.compress(session(name).encode()))
    monkeypatch.setattr(sources, "BATCH_BYTES", (traces / "a.jsonl").stat().st_size + 1)
    (shard,) = open_source(str(traces)).shards
    assert [table["source"].to_pylist() for table in read_sessions(shard)] == [
        ["a.jsonl", "b.jsonl.gz"],
        ["c.jsonl.gz"],
    ]


def test_symbolic_links_are_followed_once(traces: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared" / "project"
    shared.mkdir(parents=True)
    (shared / "b.jsonl").write_text(session("b"))
    (traces / "one").symlink_to(shared)
    (traces / "two").symlink_to("../shared")
    (traces / "own").mkdir()
    (traces / "own" / "c.jsonl").write_text(session("c"))
    (traces / "again").symlink_to("own")
    (traces / "loop").symlink_to(".")
    (traces / "own" / "up").symlink_to("../..")
    (traces / "d.jsonl").symlink_to(shared / "b.jsonl")
    files, left_out = list_files(traces)
    assert not left_out
    names = [file.relative_to(traces).as_posix() for file in sorted(files) if file.suffix == ".jsonl"]
    assert names == ["a.jsonl", "d.jsonl", "one/b.jsonl", "own/c.jsonl"]
    _, report, found = run_filter(traces)
    assert report["sessions"] == 4
    # d.jsonl is a second name of b.jsonl, and so the same session.
    assert found == {"a.jsonl", "d.jsonl", "own/c.jsonl"}
    shards = open_source(str(traces / "**" / "*.jsonl")).shards
    names = sorted(file.relative_to(traces).as_posix() for shard in shards for file in shard.files)
    assert len(names) == 4
    assert {name.rpartition("/")[2] for name in names} == {"a.jsonl", "b.jsonl", "c.jsonl", "d.jsonl"}


def write_problems(folder: Path) -> dict[str, list[str]]:
    """Write what cannot be read, also by root; return the names by the reason."""
    (folder / "gone").symlink_to("nowhere")
    (folder / "self.jsonl").symlink_to("self.jsonl")
    (folder / "long.jsonl").symlink_to("x" * 300)
    (folder / "longer").symlink_to("x" * 300)
    (folder / "none.jsonl").mkdir()
    (folder / "some.jsonl").mkdir()
    (folder / "some.jsonl" / "notes.txt").write_text("mine")
    os.mkfifo(folder / "pipe.jsonl")
    with socket.socket(socket.AF_UNIX) as one:
        here = Path.cwd()
        os.chdir(folder)
        one.bind("socket.jsonl")
        os.chdir(here)
    return {
        ".txt": ["some.jsonl/notes.txt"],
        "empty folder": ["none.jsonl"],
        "link without a target": ["gone"],
        "named pipe": ["pipe.jsonl"],
        "socket": ["socket.jsonl"],
        "with file name too long": ["long.jsonl", "longer"],
        "with too many levels of symbolic links": ["self.jsonl"],
    }


@pytest.mark.parametrize("how", ["folder", "glob", "claude"])
def test_what_is_no_file_is_counted_and_named(how: str, traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = traces
    if how == "claude":
        monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(traces.parent / "claude"))
        (traces.parent / "claude").mkdir()
        shutil.move(traces, folder := traces.parent / "claude" / "projects")
    problems = write_problems(folder)
    out = traces.parent / "rows"
    source = {"folder": traces, "glob": traces / "**" / "*", "claude": "claude"}[how]
    done = cli("filter", source, "--out", out, "--min-worth", 0)
    assert done.returncode == 0, done.stderr
    report = json.loads((out / "report.json").read_text())
    assert report["sessions"] == 1
    assert {reason: one["names"] for reason, one in report["not_read"].items()} == problems
    assert "2 with file name too long (long.jsonl, longer)" in done.stdout


def test_a_dataset_warns_of_what_is_left_out(traces: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_problems(traces)
    assert len(load_sessions(traces, streaming=True).take(5).to_list()) == 1
    assert "`gone` is skipped (link without a target)" in caplog.text
    assert "notes.txt" not in caplog.text


# A process without capabilities: its root opens what its permissions allow, like other users.
AS_USER = """
import ctypes
from pimono_sdpo.cli import main

VERSION_3 = 0x20080522
assert ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(VERSION_3, 0), (ctypes.c_uint32 * 6)()) == 0
main()
"""


@pytest.mark.parametrize("word", ["traces", "claude", "all"])
def test_locked_folders_are_counted_and_named(word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traces, locked = tmp_path / ("traces" if word == "traces" else ".claude/projects"), tmp_path / "locked"
    for folder in (traces, traces / "sub", locked):
        folder.mkdir(parents=True)
    (traces / "a.jsonl").write_text(session("a"))
    (traces / "link").symlink_to(locked / "folder")
    (traces / "link.jsonl").symlink_to(locked / "b.jsonl")
    (tmp_path / ".codex").mkdir()
    shut = (traces / "sub", locked, tmp_path / ".codex")
    for folder in shut:
        folder.chmod(0)
    for variable in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "PI_CODING_AGENT_DIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-c", AS_USER, "filter", word, "--out", "rows", "--min-worth", "0"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = ["archived_sessions", "link", "link.jsonl"] if word == "all" else ["link", "link.jsonl", "sub"]
    report = json.loads(Path("rows/report.json").read_text())
    assert report["not_read"] == {"with permission denied": {"count": 5 if word == "all" else 3, "names": names}}
    if word == "claude":
        (traces / "a.jsonl").unlink()
        done = subprocess.run(command, capture_output=True, text=True)
        assert "projects`, only 3 with permission denied; give " in done.stderr
    for folder in shut:
        folder.chmod(0o700)


def test_own_sessions_may_be_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with GNU Stow, or a folder that machines share."""
    projects, shared = tmp_path / "home" / ".claude" / "projects", tmp_path / "shared" / "-w-shop"
    for folder, name in ((projects / "-w-blog", "a"), (shared, "b")):
        folder.mkdir(parents=True)
        (folder / f"{name}.jsonl").write_text(session(name))
    (projects / "-w-shop").symlink_to("../../../shared/-w-shop")
    (projects / "-w-blog" / "notes.md").write_text("mine")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    done = cli("filter", "claude", "--out", tmp_path / "rows", "--min-worth", 0)
    assert "Claude Code: 2 sessions of 2 projects" in done.stdout
    assert "not read: 1 .md (-w-blog/notes.md)" in done.stdout
    found = pq.read_table(tmp_path / "rows" / "data")["source"].to_pylist()
    assert sorted(found) == ["-w-blog/a.jsonl", "-w-shop/b.jsonl"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-16-le", "be with mark"])
@pytest.mark.parametrize("packed", [False, True])
def test_utf_16_is_read(traces: Path, encoding: str, packed: bool) -> None:
    text = session("b").replace("\n", "\r\n") + "\r\n"
    content = b"\xfe\xff" + text.encode("utf-16-be") if encoding == "be with mark" else text.encode(encoding)
    name = "b.jsonl.gz" if packed else "b.jsonl"
    (traces / name).write_bytes(gzip.compress(content) if packed else content)
    _, report, found = run_filter(traces)
    assert found == {"a.jsonl", name}
    assert report["lines"] == {"parsed": 8, "repaired": 0, "skipped": 0}
    # Counted in UTF-8.
    assert report["bytes"]["parsed"] == len(session("a").encode()) + len(text.encode())
    assert find_project(traces / name) == "/w/b"
    _, report, found = run_filter(traces, "--project", "/w/b")
    assert found == {name}


@pytest.mark.parametrize("content", [b"\0" * 10, b"{\0", b"{\0}\0", b"a\0b\0", b"\0{\0}"])
def test_null_bytes_alone_are_not_utf_16(traces: Path, content: bytes) -> None:
    (traces / "b.jsonl").write_bytes(content)
    (table,) = read_sessions(open_source(str(traces)).shards[0])
    assert table["trace"][1].as_py() == content


@pytest.mark.parametrize("name", ["A.JSONL", "A.Jsonl.GZ", "A.PARQUET"])
def test_the_case_of_an_ending_does_not_matter(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    if name == "A.PARQUET":
        pq.write_table(pa.table({"trace": [session("a")], "file_path": ["a"]}), file)
    else:
        file.write_bytes(gzip.compress(session("a").encode()) if name.endswith("GZ") else session("a").encode())
    for source in (file, tmp_path):
        (shard,) = open_source(str(source)).shards
        assert [len(table) for table in read_sessions(shard)] == [1]


METADATA = """\
{"type": "mode", "mode": "normal", "sessionId": "5f2c"}
{"type": "ai-title", "aiTitle": "Repair the cart", "sessionId": "5f2c"}
{"type": "cost-state", "sessionId": "5f2c", "usd": 0.1}
"""
JOURNAL = '{"type": "started", "key": "v1:3", "agentId": "a1"}\n{"type": "result", "key": "v1:3", "result": "done"}\n'
FOREIGN = '{"timestamp": 1.5, "message": {"type": "TurnBegin", "payload": {"user_input": "Fix the parser"}}}\n'


def write_others(traces: Path) -> None:
    for number in range(5):
        (traces / f"{number}.json").write_text("{}")
    for name in ("opencode.db", "README.md", "LICENSE", ".DS_Store", "gone.JSON"):
        (traces / name).write_bytes(b"\0")
    (traces / ".git").mkdir()
    (traces / ".git" / "config.json").write_text("{}")
    (traces / "only-metadata.jsonl").write_text(METADATA)
    (traces / "journal.jsonl").write_text(JOURNAL)
    (traces / "kimi.jsonl").write_text(FOREIGN)


def test_everything_that_is_not_read_is_counted_and_named(traces: Path) -> None:
    write_others(traces)
    output, report, found = run_filter(traces)
    assert found == {"a.jsonl"}
    assert report["drop_reasons"] == {"no_messages": 2, "unknown_harness": 1}
    assert report["not_read"] == {
        "no_messages": {"count": 2, "names": ["journal.jsonl", "only-metadata.jsonl"]},
        "unknown_harness": {"count": 1, "names": ["kimi.jsonl"]},
        ".db": {"count": 1, "names": ["opencode.db"]},
        ".json": {"count": 6, "names": ["0.json", "1.json", "2.json"]},
        ".md": {"count": 1, "names": ["README.md"]},
        "without an ending": {"count": 1, "names": ["LICENSE"]},
    }
    (foreign,) = [line for line in output.split("\n") if line.startswith("unknown_harness")]
    assert foreign.startswith("unknown_harness: kimi.jsonl (not written by ")
    assert all(harness.name in foreign for harness in HARNESSES)
    assert "no_messages: journal.jsonl, only-metadata.jsonl (" in output
    assert "6 .json (0.json, 1.json, 2.json and 3 more), 1 .md (README.md), 1 without an ending (LICENSE); " in output
    _, report, _ = run_filter(traces, "--exclude", "*.json", "--exclude", "*.JSON", "--exclude", "[jo]*")
    assert set(report["not_read"]) == {"unknown_harness", ".md", "without an ending"}


def test_steps_name_what_is_not_read(traces: Path, tmp_path: Path) -> None:
    write_others(traces)
    (traces / "journal.jsonl").write_text(json.dumps({**HEADER, "id": "its-id"}))
    done = cli("steps", traces, "--out", tmp_path / "out")
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["not_read"]["unknown_harness"] == {"count": 1, "names": ["kimi.jsonl"]}
    assert report["not_read"]["no_messages"] == {"count": 2, "names": ["journal.jsonl", "only-metadata.jsonl"]}
    assert report["not_read"][".json"]["count"] == 6
    assert "unknown_harness: kimi.jsonl (not written by " in done.stdout + done.stderr
    assert "6 .json (0.json, " in done.stdout + done.stderr


def test_names_of_files_are_redacted(traces: Path) -> None:
    (traces / "hf_abcdefghijklmnopqrstuvwx.json").write_text("{}")
    output, report, _ = run_filter(traces)
    assert "hf_abc" not in output + json.dumps(report)
    assert report["not_read"] == {".json": {"count": 1, "names": ["[REDACTED:huggingface_token].json"]}}


def test_parts_name_the_same_files(traces: Path, tmp_path: Path) -> None:
    write_others(traces)
    _, whole, _ = run_filter(traces)
    command = ("filter", traces, "--out", tmp_path / "rows", "--min-worth", 0)
    for only in ((), ("--only", "1/2"), ("--only", "2/2"), ()):
        assert cli(*command, *only).returncode == 0
    assert json.loads((tmp_path / "rows" / "report.json").read_text())["not_read"] == whole["not_read"]


def test_a_folder_of_other_files_says_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "goose.duckdb").write_bytes(b"SQLite format 3\0")
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text("{}")
    agents = ", ".join(harness.name for harness in HARNESSES[:-1])
    with pytest.raises(
        SourceError, match=rf"neither .parquet nor .jsonl files, only 2 .json, 1 .duckdb; .* of {agents} or "
    ):
        open_source(str(tmp_path))
    with pytest.raises(SourceError, match=r"is neither a .parquet nor a .jsonl file; .* session files of claude_code"):
        open_source(str(tmp_path / "goose.duckdb"))


def test_a_source_of_metadata_alone_says_what_to_do(traces: Path, tmp_path: Path) -> None:
    (traces / "a.jsonl").write_text(METADATA)
    done = cli("filter", traces, "--out", tmp_path / "rows")
    assert done.returncode == 2
    assert "gives no rows (1 no_messages; no_messages: a.jsonl (" in done.stderr
    assert "); use whole sessions of claude_code, " in done.stderr


@pytest.mark.skipif(not FIELD.is_dir(), reason=f"{FIELD} is not there")
def test_cases_of_the_field_are_read() -> None:
    problems: dict[str, tuple[str, str | None]] = {}
    for case in ("14-claude-new-metadata-types", "16-utf16-powershell-redirect"):
        for table in read_sessions(open_source(str(FIELD / case)).shards[0]):
            read = {
                name: read_trace(trace)
                for name, trace in zip(*table.select(["source", "trace"]).to_pydict().values(), strict=True)
            }
            problems |= {name: (trace.harness, trace.problem) for name, trace in read.items()}
    assert problems == {
        "s.jsonl": ("claude_code", None),
        "only-metadata.jsonl": ("claude_code", "no_messages"),
        "run.jsonl": ("claude_code", None),
    }

"""Test the SQLite files of agents: read while they are written, read again only where they changed, or named."""

import json
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from pimono_sdpo.cli import app
from pimono_sdpo.errors import SourceError
from pimono_sdpo.filter_options import FilterOptions
from pimono_sdpo.filtering import make_parts, run_filter
from pimono_sdpo.session_options import SourceOptions
from pimono_sdpo.source_options import open_sessions
from pimono_sdpo.traces import stores
from pimono_sdpo.traces.harness import OWN
from pimono_sdpo.traces.parse import Trace, read_trace
from pimono_sdpo.traces.sources import Source, open_source, read_sessions

Json = dict[str, Any]
TASK, WRONG = "Fix the failing test of the parser in src/parser.py.", "No, that is wrong: change src/lexer.py instead."
FAILED = "E   AssertionError: expected 1\nFAILED tests/test_parser.py::test_one\n1 failed in 0.1s"
# The columns of each agent that are read, and some that are not.
OPENCODE = """
    CREATE TABLE project (id text PRIMARY KEY, worktree text NOT NULL);
    CREATE TABLE session (id text PRIMARY KEY, project_id text NOT NULL, parent_id text, directory text NOT NULL,
        title text NOT NULL, version text NOT NULL, revert text, time_created integer, time_updated integer);
    CREATE TABLE message (id text PRIMARY KEY, session_id text NOT NULL, time_created integer, time_updated integer,
        data text NOT NULL);
    CREATE TABLE part (id text PRIMARY KEY, message_id text NOT NULL, session_id text NOT NULL, time_created integer,
        time_updated integer, data text NOT NULL);
"""
HERMES = """
    CREATE TABLE sessions (id TEXT PRIMARY KEY, source TEXT NOT NULL, model_config TEXT, parent_session_id TEXT,
        started_at REAL NOT NULL, ended_at REAL, message_count INTEGER DEFAULT 0, cwd TEXT);
    CREATE TABLE messages (id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL, role TEXT NOT NULL,
        content TEXT, tool_call_id TEXT, tool_calls TEXT, tool_name TEXT, timestamp REAL NOT NULL,
        finish_reason TEXT, active INTEGER NOT NULL DEFAULT 1, compacted INTEGER NOT NULL DEFAULT 0,
        display_identity BLOB);
"""
OPENCLAW = """
    CREATE TABLE transcript_events (session_id TEXT NOT NULL, seq INTEGER NOT NULL, event_json TEXT,
        created_at INTEGER NOT NULL, event_zstd BLOB, PRIMARY KEY (session_id, seq)) STRICT;
"""
AGENTSVIEW = """
    CREATE TABLE sessions (id TEXT PRIMARY KEY, project TEXT NOT NULL, agent TEXT NOT NULL DEFAULT 'claude',
        cwd TEXT NOT NULL DEFAULT '', relationship_type TEXT NOT NULL DEFAULT '', deleted_at TEXT);
    CREATE TABLE messages (id INTEGER PRIMARY KEY, session_id TEXT NOT NULL, ordinal INTEGER NOT NULL,
        role TEXT NOT NULL, content TEXT NOT NULL, timestamp TEXT, is_system INTEGER NOT NULL DEFAULT 0);
    CREATE TABLE tool_calls (id INTEGER PRIMARY KEY, message_id INTEGER NOT NULL, session_id TEXT NOT NULL,
        tool_name TEXT NOT NULL, category TEXT NOT NULL, tool_use_id TEXT, input_json TEXT, result_content TEXT);
    CREATE TABLE tool_result_events (id INTEGER PRIMARY KEY, session_id TEXT NOT NULL,
        tool_call_message_ordinal INTEGER NOT NULL, call_index INTEGER NOT NULL DEFAULT 0, status TEXT NOT NULL,
        content TEXT NOT NULL, timestamp TEXT);
"""
SCHEMAS = {"opencode": OPENCODE, "hermes": HERMES, "openclaw": OPENCLAW, "agentsview": AGENTSVIEW}


def make(agent: str, file: Path, sessions: int = 1) -> Path:
    """Write a database of an agent with sessions of one failed call and a correction."""
    with closing(connect(file)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.executescript(SCHEMAS[agent])
        for number in range(sessions):
            add_session(agent, database, f"ses_{number:03}")
        database.commit()
    return file


def connect(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(file)


def insert(database: sqlite3.Connection, table: str, **row: Any) -> None:
    names = ", ".join(row)
    values = [json.dumps(value) if isinstance(value, (dict, list)) else value for value in row.values()]
    database.execute(f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(row))})", values)


def add_session(agent: str, database: sqlite3.Connection, name: str) -> None:
    command = {"command": "python -m pytest -q"}
    if agent == "opencode":
        tool = {"status": "completed", "input": command, "output": FAILED, "metadata": {"exit": 1}}
        parts: list[list[Json]] = [
            [{"type": "text", "text": TASK}],
            [{"type": "step-start"}, {"type": "tool", "callID": "c", "tool": "bash", "state": tool}],
            [{"type": "text", "text": WRONG}],
            [{"type": "step-start"}, {"type": "text", "text": "I have changed src/lexer.py."}],
        ]
        insert(
            database, "session",
            id=name, project_id="p", directory="/w/app", title="t", version="1.2.0", time_created=1, time_updated=4,
        )  # fmt: skip
        for at, some in enumerate(parts):
            message, role = f"msg_{name}_{at}", ("user", "assistant")[at % 2]
            insert(
                database, "message", id=message, session_id=name, time_created=at, time_updated=at, data={"role": role}
            )
            for number, part in enumerate(some):
                ids = {"id": f"prt_{name}_{at}{number}", "message_id": message, "session_id": name}
                insert(database, "part", **ids, time_created=at, time_updated=at, data=part)
    elif agent == "hermes":
        insert(database, "sessions", id=name, source="cli", started_at=1_767_225_600.0, cwd="/w/app")
        call = {"id": "c", "function": {"name": "terminal", "arguments": json.dumps(command)}}
        output = json.dumps({"output": FAILED, "exit_code": 1, "error": None})
        rows: list[Json] = [
            {"role": "user", "content": TASK},
            {"role": "assistant", "content": "", "tool_calls": [call], "display_identity": b"\1"},
            {"role": "tool", "tool_call_id": "c", "tool_name": "terminal", "content": output},
            {"role": "user", "content": WRONG},
            {"role": "assistant", "content": "I have changed src/lexer.py."},
        ]
        for row in rows:
            insert(database, "messages", session_id=name, timestamp=1_767_225_601.0, **row)
    elif agent == "openclaw":
        messages = (
            {"role": "user", "content": TASK},
            {"role": "assistant", "content": [{"type": "toolCall", "id": "c", "name": "exec", "arguments": command}]},
            {"role": "toolResult", "toolCallId": "c", "toolName": "exec", "isError": True, "content": FAILED},
            {"role": "user", "content": WRONG},
            {"role": "assistant", "content": [{"type": "text", "text": "I have changed src/lexer.py."}]},
        )
        lines: list[Json] = [{"type": "session", "version": 3, "id": name, "cwd": "/w/app"}]
        lines += [{"type": "message", "message": message} for message in messages]
        for seq, line in enumerate(lines):
            text = json.dumps(line)
            packed = pa.compress(text.encode(), "zstd", asbytes=True) if seq == 3 else None
            json_of = None if packed else text
            insert(
                database,
                "transcript_events",
                session_id=name,
                seq=seq,
                created_at=seq,
                event_json=json_of,
                event_zstd=packed,
            )
    elif agent == "agentsview":
        insert(database, "sessions", id=name, project="app", agent="cursor", cwd="/w/app")
        said = (TASK, f"[Bash]\n$ {command['command']}", WRONG, "I have changed src/lexer.py.")
        numbers = []
        for ordinal, text in enumerate(said):
            role = ("user", "assistant")[ordinal % 2]
            cursor = database.execute(
                "INSERT INTO messages (session_id, ordinal, role, content, timestamp) VALUES (?, ?, ?, ?, ?)",
                (name, ordinal, role, text, "2026-01-01T00:00:00Z"),
            )
            numbers.append(cursor.lastrowid)
        insert(
            database, "tool_calls",
            message_id=numbers[1], session_id=name, tool_name="Bash", category="Bash", tool_use_id="c", input_json=command,
            result_content=FAILED,
        )  # fmt: skip
        insert(
            database, "tool_result_events",
            session_id=name, tool_call_message_ordinal=1, status="errored", content=FAILED,
        )  # fmt: skip


def read_all(source: Source) -> dict[str, bytes]:
    """Return the trace of each session by its name."""
    tables = [table for shard in source.shards for table in read_sessions(shard, {})]
    rows = [row for table in tables for row in table.to_pylist()]
    return {row["source"]: row["trace"] for row in rows}


def only_trace(source: Source) -> Trace:
    (trace,) = read_all(source).values()
    return read_trace(trace)


@pytest.fixture(params=SCHEMAS)
def agent(request: pytest.FixtureRequest) -> str:
    return str(request.param)


NAMES = {"openclaw": "pi", "agentsview": "cursor"}


def test_a_session_of_each_agent(agent: str, tmp_path: Path) -> None:
    source = open_source(str(make(agent, tmp_path / "store.db")))
    trace = only_trace(source)
    assert (source.kind, trace.harness, trace.session_id, trace.cwd) == (
        "sqlite",
        NAMES.get(agent, agent),
        "ses_000",
        "/w/app",
    )
    assert [event.text for event in trace.events if event.kind == "user"] == [TASK, WRONG]
    (result,) = (event for event in trace.events if event.kind == "tool_result")
    assert (result.text, result.is_error) == (FAILED, True)
    assert result.exit_code == (1 if agent in ("opencode", "hermes") else None)
    assert next(event.text for event in trace.events if event.kind == "assistant") == ""
    (call,) = (event for event in trace.events if event.kind == "tool_call")
    assert call.tool_name == "bash"
    assert json.loads(call.arguments) == {"command": "python -m pytest -q"}
    assert trace.lines.bytes_skipped == trace.lines.bytes_repaired == 0


def test_a_store_becomes_rows_and_its_report_and_card_say_what_is_missing(agent: str, tmp_path: Path) -> None:
    with closing(connect(make(agent, tmp_path / "store.db", 2))) as database:
        if agent == "agentsview":
            database.execute("UPDATE sessions SET agent = 'claude' WHERE id = 'ses_001'")
            database.commit()
    report = run_filter(str(tmp_path / "store.db"), tmp_path / "rows", FilterOptions(min_worth=0, dedupe=False))
    card = (tmp_path / "rows/README.md").read_text()
    assert report["kept"]
    assert report["input"]["kind"] == "sqlite"
    assert "database" in card
    notes = report["input"].get("notes", [])
    assert all(note in card for note in notes)
    if agent == "agentsview":
        assert ([*report["agents"]], report["sessions"]) == (["cursor"], 1)
        assert ["no exit codes" in notes[0], "1 sessions of claude" in notes[1]] == [True, True]
    else:
        assert not notes


def test_a_writer_does_not_disturb(agent: str, tmp_path: Path) -> None:
    file = make(agent, tmp_path / "store.db")
    with closing(connect(file)) as writer:
        add_session(agent, writer, "ses_001")
        writer.commit()
        add_session(agent, writer, "ses_002")
        # The log has one session, and the transaction of the other is open.
        assert file.with_name("store.db-wal").stat().st_size > 0
        assert [*read_all(open_source(str(file)))] == ["store.db#ses_000", "store.db#ses_001"]
        writer.commit()
        assert len(read_all(open_source(str(file)))) == 3


def test_only_the_changed_part_is_read_again(agent: str, tmp_path: Path) -> None:
    file = make(agent, tmp_path / "store.db", 130)
    before = [shard.list_names() for shard in open_source(str(file)).shards]
    assert [len(names) for names in before] == [64, 64, 2]
    with closing(connect(file)) as database:
        add_session(agent, database, "ses_130")
        table, text = {
            "opencode": ("part", "data"),
            "hermes": ("messages", "content"),
            "openclaw": ("transcript_events", "event_json"),
            "agentsview": ("messages", "content"),
        }[agent]
        database.execute(f"UPDATE {table} SET {text} = {text} || ' ' WHERE session_id = 'ses_070'")
        database.commit()
    after = [shard.list_names() for shard in open_source(str(file)).shards]
    changed = [
        sum(one != two for one, two in zip(old, new, strict=False)) for old, new in zip(before, after, strict=True)
    ]
    assert (changed, len(after[2])) == ([0, 1, 0], 3)


def test_a_second_run_makes_only_the_changed_parts(tmp_path: Path) -> None:
    file, out = make("opencode", tmp_path / "store.db", 65), tmp_path / "rows"
    options = FilterOptions(min_worth=0)
    assert make_parts(str(file), out, options, (1, 1))["columns"]
    parts = sorted(tmp_path.rglob("0*.parquet"))
    before = [path.stat().st_mtime_ns for path in parts]
    with closing(connect(file)) as database:
        add_session("opencode", database, "ses_065")
        database.commit()
    make_parts(str(file), out, options, (1, 1))
    changed = [path.stat().st_mtime_ns != time for path, time in zip(parts, before, strict=True)]
    assert changed == [False, True]


def locked(file: Path) -> Iterator[None]:
    make("hermes", file)
    with closing(connect(file)) as writer:
        writer.execute("PRAGMA journal_mode = DELETE")
        writer.execute("BEGIN EXCLUSIVE")
        yield


def corrupt(file: Path) -> Iterator[None]:
    content = make("hermes", file, 40).read_bytes()
    file.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    yield


def not_a_database(file: Path) -> Iterator[None]:
    file.write_bytes(b"This is some other file of an editor. " * 100)
    yield


@pytest.mark.parametrize("state", [locked, corrupt, not_a_database])
def test_a_database_that_cannot_be_read_is_named(state: Any, tmp_path: Path) -> None:
    make("hermes", tmp_path / "good.db")
    for _ in state(tmp_path / "bad.db"):
        report = run_filter(str(tmp_path), tmp_path.parent / "rows", FilterOptions(min_worth=0))
        assert report["kept"] == 1
        assert any(name.startswith("bad.db") for name in report["unreadable"]), report["unreadable"]


@pytest.mark.parametrize(
    "content", ["", "CREATE TABLE notes (id INTEGER, body TEXT); INSERT INTO notes VALUES (1, 'x')"]
)
def test_empty_and_foreign_databases_are_named_and_left_out(content: str, tmp_path: Path) -> None:
    with closing(connect(tmp_path / "other.db")) as database:
        database.executescript(content)
        database.commit()
    (tmp_path / "other.db").touch()
    with pytest.raises(SourceError, match=r"1 \.db"):
        open_source(str(tmp_path))
    with pytest.raises(SourceError, match="is a database without sessions of an agent that is read"):
        open_source(str(tmp_path / "other.db"))
    make("hermes", tmp_path / "state.db")
    source = open_source(str(tmp_path))
    assert (source.others, len(read_all(source))) == ({"other.db": ".db"}, 1)


def test_a_store_beside_which_sqlite_cannot_make_files(agent: str, tmp_path: Path) -> None:
    """As on a read-only disk, but also for a test that root runs."""
    file = make(agent, tmp_path / "store.db")
    (tmp_path / "store.db-shm").mkdir()
    assert len(read_all(open_source(str(file)))) == 1


def test_damaged_rows_are_counted(tmp_path: Path) -> None:
    with closing(connect(make("opencode", tmp_path / "store.db"))) as database:
        database.execute('UPDATE part SET data = \'{"type": "text", "text": \' WHERE id LIKE \'%_20\'')
        database.execute('UPDATE part SET data = \'{"type": "text",\n"text": "two lines"}\' WHERE id LIKE \'%_31\'')
        database.commit()
    (trace,) = read_all(open_source(str(tmp_path / "store.db"))).values()
    lines = read_trace(trace).lines
    assert (lines.repaired + lines.skipped, lines.bytes_parsed + lines.bytes_repaired + lines.bytes_skipped) == (
        1,
        len(trace),
    )
    assert "two lines" in [event.text for event in read_trace(trace).events]


DAMAGES: tuple[Any, ...] = (
    *(None, 7, -1.5, 2**63 - 1, float("inf"), b"\xff\xfe", b"", "", "{", "[]", "null", "7", '"x"', "\ud7ff\0", "x\ny"),
    *('{"role": []}', '{"type": "tool", "state": 7}', '{"type": "session"}', '[{"function": {"arguments": 7}}]'),
)


def spoil_rows(file: Path, draw: Random) -> None:
    """Overwrite some values of any column."""
    with closing(connect(file)) as database:
        tables = [
            name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE sql LIKE 'CREATE TABLE%'")
        ]
        for _ in range(draw.randint(1, 6)):
            table = draw.choice(tables)
            column = draw.choice([row[1] for row in database.execute(f"PRAGMA table_info({table})")])
            try:
                sql = f"UPDATE {table} SET {column} = ? WHERE rowid % ? = 0"
                database.execute(sql, (draw.choice(DAMAGES), draw.randint(1, 3)))
            except sqlite3.IntegrityError:
                # The agent cannot have written it either.
                continue
        database.commit()


def spoil_bytes(file: Path, draw: Random) -> None:
    content = bytearray(file.read_bytes())
    for _ in range(draw.randint(1, 40)):
        content[draw.randrange(len(content))] = draw.randrange(256)
    file.write_bytes(content[: draw.choice((None, None, draw.randrange(len(content))))])


@pytest.mark.parametrize("spoil", [spoil_rows, spoil_bytes])
def test_no_damaged_database_crashes(spoil: Any, agent: str, tmp_path: Path) -> None:
    original = make(agent, tmp_path / "original.db", 3)
    for number in range(40):
        file = tmp_path / f"{number}.db"
        shutil.copy(original, file)
        spoil(file, Random(number))
        try:
            source = open_source(str(file))
        except SourceError:
            # Its schema is gone, or all of its sessions.
            continue
        for shard in source.shards:
            unreadable: dict[str, dict[str, int]] = {}
            traces = [row["trace"] for table in read_sessions(shard, unreadable) for row in table.to_pylist()]
            assert not shard.stored or len(traces) + len(unreadable) == len(shard.stored), number
            for trace in traces:
                lines = read_trace(trace).lines
                assert lines.bytes_parsed + lines.bytes_repaired + lines.bytes_skipped == len(trace), number


def test_what_was_deleted_after_it_was_listed(tmp_path: Path) -> None:
    file = make("hermes", tmp_path / "state.db", 2)
    source = open_source(str(file))
    file.unlink()
    unreadable: dict[str, dict[str, int]] = {}
    assert not [*read_sessions(source.shards[0], unreadable)]
    assert [*unreadable] == ["state.db"]


def test_times_of_all_kinds() -> None:
    times = (None, 5, 1_767_225_600_000, 1_767_225_600.0, "2026-01-01T00:00:00Z", "soon", b"")
    assert [stores._read_time(value) for value in times] == [0.0, 5.0, *[1_767_225_600.0] * 3, 0.0, 0.0]


def test_the_json_files_of_older_versions(tmp_path: Path) -> None:
    storage = tmp_path / "opencode/storage"
    texts = {
        "session/p1/ses_1.json": {"id": "ses_1", "version": "0.15.0", "directory": "/w/app", "projectID": "p1"},
        "message/ses_1/msg_1.json": {"id": "msg_1", "sessionID": "ses_1", "role": "user"},
        "message/ses_1/msg_2.json": {"id": "msg_2", "sessionID": "ses_1", "role": "assistant"},
        "part/msg_1/prt_1.json": {
            "id": "prt_1",
            "messageID": "msg_1",
            "sessionID": "ses_1",
            "type": "text",
            "text": TASK,
        },
        "part/msg_2/prt_2.json": {
            "id": "prt_2",
            "messageID": "msg_2",
            "sessionID": "ses_1",
            "type": "text",
            "text": "Yes.",
        },
        "session_diff/ses_1.json": [],
    }
    for name, content in texts.items():
        (storage / name).parent.mkdir(parents=True, exist_ok=True)
        (storage / name).write_text(json.dumps(content, indent=2))
    source = open_source(str(tmp_path))
    trace = only_trace(source)
    assert source.others == {}
    assert (trace.harness, trace.version, trace.cwd) == ("opencode", "0.15.0", "/w/app")
    assert [(event.kind, event.text) for event in trace.events[-2:]] == [("user", TASK), ("assistant", "Yes.")]


def test_exports(tmp_path: Path) -> None:
    info = {"id": "ses_1", "directory": "/w/app", "version": "1.2.0"}
    part = {"id": "prt_1", "messageID": "msg_1", "sessionID": "ses_1", "type": "text", "text": TASK}
    exported = {"info": info, "messages": [{"info": {"id": "msg_1", "role": "user"}, "parts": [part]}]}
    (tmp_path / "one.json").write_text(json.dumps(exported, indent=2))
    trace = only_trace(open_source(str(tmp_path / "one.json")))
    assert (trace.session_id, [event.text for event in trace.events if event.kind == "user"]) == ("ses_1", [TASK])
    lines = [
        {"id": name, "source": "cli", "started_at": 1.0, "messages": [{"role": "user", "content": f"{TASK} {name}"}]}
        for name in ("a", "b")
    ]
    (tmp_path / "all.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    read = read_all(open_source(str(tmp_path / "all.jsonl")))
    assert [read_trace(trace).session_id for trace in read.values()] == ["a", "b"]
    assert [*read] == ["all.jsonl#a", "all.jsonl#b"]


PLACES = {
    "opencode": ".local/share/opencode/opencode.db",
    "hermes": ".hermes/state.db",
    "openclaw": ".openclaw/agents/main/agent/openclaw-agent.sqlite",
    "agentsview": ".agentsview/sessions.db",
}


def test_the_word_of_an_agent(agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "home" / PLACES[agent]
    file.parent.mkdir(parents=True)
    make(agent, file, 2)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_DATA_HOME", "OPENCODE_DB", "HERMES_HOME", "OPENCLAW_STATE_DIR", "AGENTSVIEW_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["filter", agent, "--min-worth", "0", "--no-dedupe", "--out", "rows"])
    assert done.exit_code == 0, done.output
    assert f"{OWN[agent].title}: 2 sessions of 1 project, " in done.output
    report = json.loads((tmp_path / "rows/report.json").read_text())
    assert (report["input"]["kind"], report["sessions"], report["kept"] > 0) == ("sqlite", 2, True)
    assert all(note in done.output for note in report["input"].get("notes", []))


def test_sessions_of_a_database_are_selected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(connect(make("opencode", tmp_path / "store.db", 3))) as database:
        database.execute("UPDATE session SET directory = '/w/shop' WHERE id = 'ses_001'")
        now = int(time.time() * 1000)
        database.execute("UPDATE session SET time_updated = ? WHERE id = 'ses_002'", (now,))
        database.commit()
    cases: tuple[Json, ...] = ({"project": "SHOP"}, {"since": "7d"}, {"exclude": ["*#ses_00[12]"]})
    for chosen, name in zip(cases, ("ses_001", "ses_002", "ses_000"), strict=True):
        options = SourceOptions(source=[str(tmp_path / "store.db")], **chosen)
        shards = open_sessions(options, tmp_path / "rows").shards
        assert [session.id for shard in shards for session in shard.stored] == [name]
    with pytest.raises(SourceError, match="3 in all"):
        open_sessions(SourceOptions(source=[str(tmp_path / "store.db")], project="blog"), tmp_path / "rows")


def test_a_copy_gives_the_same(agent: str, tmp_path: Path) -> None:
    """A copy on another machine gives the same parts."""
    file = make(agent, tmp_path / "store.db", 3)
    (tmp_path / "copy").mkdir()
    shutil.copy(file, tmp_path / "copy")
    one, two = (open_source(str(path)) for path in (file, tmp_path / "copy/store.db"))
    assert one.describe() == two.describe()
    assert [shard.list_names() for shard in one.shards] == [shard.list_names() for shard in two.shards]

"""Test that a bug drops one session and not the run: in a copy of the project with planted bugs."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from pimono_sdpo.errors import InferenceError
from pimono_sdpo.runs.sessions import run_on_table
from pimono_sdpo.schema import REJECT, SESSION
from pimono_sdpo.stage import STRICT, Filter, Fused, apply
from pimono_sdpo.traces.harness import HARNESSES
from pimono_sdpo.traces.harness.base import Harness
from pimono_sdpo.traces.sources import load_sessions
from processors import names, pipeline, run_pipeline
from tests.plug import copy_project, insert_line, run_python
from tests.traces import HEADER, assistant, bash, trace, user

# Where each bug is planted: a file, the line before it, and the bug.
BUGS = {
    "reader": (
        "pimono_sdpo/traces/harness/pi.py",
        '"""Return the events in file order; entries off the active path are marked, not dropped."""',
        '    if any("crash in the reader" in repr(entry) for entry in entries): {}["missing"]',
    ),
    "stage": (
        "processors/grade.py",
        'def grade(row: Row, reference_terms: bool = False) -> dict[str, Any]:',
        '    if "crash in the stage" in row["prompt"]: row["prompt"].missing',
    ),
    "column": (
        "processors/evidence.py",
        "def hash_messages(events: Sequence[Event]) -> list[int]:",
        '    if any("crash in the column" in event.text for event in events): return [2**70]',
    ),
    "memory": (
        "processors/rollouts/steps.py",
        "def drop_run(row: Row, require_success: bool) -> str | None:",
        '    if "crash in the memory" in repr(row["messages"]): raise MemoryError',
    ),
}  # fmt: skip


def session(name: str, *more: str) -> str:
    """A session with two requests, and another one for each further text."""
    asked = (f"Fix the parser of {name}, it drops the last line", f"Now add a command for {name}", *more)
    header = {**HEADER, "id": name, "cwd": f"/w/{name}"}
    failed = bash(f"npm test {name}", f"{name}: 1 failed\n\nCommand exited with code 1", error=True)
    return trace(header, *(entry for text in asked for entry in (user(text), *failed, assistant(f"{name} is done."))))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = copy_project(tmp_path_factory.mktemp("planted") / "project")
    for file, line, bug in BUGS.values():
        insert_line(project / file, bug, after=line)
    return project


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with `traces`, where crashes are contained."""
    monkeypatch.delenv(STRICT)
    (tmp_path / "traces").mkdir()
    for name in ("one", "two", "three"):
        (tmp_path / "traces" / f"{name}.jsonl").write_text(session(name))
    return tmp_path


def run(project: Path, *words: object) -> subprocess.CompletedProcess[str]:
    return run_python(project, "-m", "pimono_sdpo", *map(str, words))


def rows(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(folder).to_pylist()
    return found


def test_a_crash_drops_its_session_and_is_counted(project: Path, work: Path) -> None:
    traces, bad, out = work / "traces", work / "bad", work / "rows"
    bad.mkdir()
    assert run(project, "filter", traces, "--out", work / "without", "--min-worth", "0").returncode == 0
    for bug in ("reader", "stage", "column"):
        # The crash in the stage is that of the last of three rows.
        (bad / f"{bug}-hf_abcdefghijklmnopqrstuvwx.jsonl").write_text(
            session(bug, f"Please repair the crash in the {bug}")
        )
    filtering = ("filter", traces, bad, "--out", out, "--min-worth", "0")
    done = run(project, *filtering, "--workers", "2")
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("pimono-sdpo: All other sessions are written; 3 sessions crashed in pimono-sdpo (")
    assert re.search(r"^3  no row: .*\(crashed\)$", done.stdout, re.MULTILINE)
    assert rows(out / "data") == rows(work / "without" / "data") != []
    report = json.loads((out / "report.json").read_text())
    assert report["drop_reasons"]["crashed"] == 3
    crashed = {row["stage"]: row for row in rows(out / "rejects") if row["drop_reason"] == "crashed"}
    assert {row["source"] for row in crashed.values()} == {
        f"{bug}-[REDACTED:huggingface_token].jsonl" for bug in ("reader", "stage", "column")
    }
    lines = {name: (project / file).read_text().split("\n").index(bug) + 1 for name, (file, _, bug) in BUGS.items()}
    assert crashed["evidence"]["detail"] == f"KeyError at pimono_sdpo/traces/harness/pi.py:{lines['reader']}"
    assert crashed["grade"]["detail"] == f"AttributeError at processors/grade.py:{lines['stage']}"
    assert crashed["rows"]["detail"].startswith("OverflowError at pimono_sdpo/stage.py:")
    assert report["crashed"] == {row["detail"]: 1 for row in crashed.values()}
    # All bytes of a crashed session count as skipped.
    counted = sum(report["bytes"][name] for name in ("parsed", "repaired", "skipped"))
    assert counted == sum(file.stat().st_size for folder in (traces, bad) for file in folder.iterdir())
    assert report["stages"][0]["rows_in"] == 6
    for before, after in zip(report["stages"], report["stages"][1:], strict=False):
        assert before["rows_out"] == after["rows_in"]
    shown = run(project, "view", out, "--source", traces, "--source", bad, "--no-open", "--out", work / "page.html")
    assert shown.returncode == 0, shown.stderr
    strict = run(project, *filtering, "--strict")
    assert strict.returncode == 1
    assert "KeyError: 'missing'" in strict.stderr
    assert "Traceback" in strict.stderr


def test_steps_contain_crashes_too(project: Path, work: Path) -> None:
    turns = trace(
        {**HEADER, "id": "edits"}, user("Rename the parser"), *[json.loads(json.dumps(entry)) for entry in EDITS]
    )
    (work / "traces" / "edits.jsonl").write_text(turns)
    (work / "traces" / "bad.jsonl").write_text(session("bad", "Please repair the crash in the reader"))
    done = run(project, "steps", work / "traces", "--out", work / "out")
    assert done.returncode == 1, done.stderr
    assert "1 session crashed in pimono-sdpo (KeyError at pimono_sdpo/traces/harness/pi.py:" in done.stderr
    assert rows(work / "out" / "data")
    (reject,) = [row for row in rows(work / "out" / "rejects") if row["drop_reason"] == "crashed"]
    assert reject["task_id"] == "bad.jsonl"
    assert reject["detail"].startswith("KeyError at ")
    report = json.loads((work / "out" / "report.json").read_text())
    assert report["crashed"] == {reject["detail"]: 1}
    assert report["counts"]["runs"] == 5
    strict = run(project, "steps", work / "traces", "--out", work / "out", "--strict")
    assert "KeyError: 'missing'" in strict.stderr


EDITS = [
    {"type": "message", "message": {"role": "assistant", "content": [{"type": "toolCall", "id": call_id, "name": "edit", "arguments": {"path": "a.ts", "oldText": old, "newText": "b"}}]}}
    if kind == "call" else
    {"type": "message", "message": {"role": "toolResult", "toolCallId": call_id, "toolName": "edit", "isError": failed, "content": "Could not find it" if failed else "Replaced"}}
    for call_id, old, failed in (("c1", "x", True), ("c2", "a", False)) for kind in ("call", "result")
]  # fmt: skip


def test_a_run_without_rows_says_that_a_bug_is_the_cause(project: Path, work: Path) -> None:
    for file in (work / "traces").iterdir():
        file.write_text(session(file.stem, "Please repair the crash in the reader"))
    for command in ("filter", "steps"):
        done = run(project, command, work / "traces", "--out", work / "out")
        assert done.returncode == 1
        assert "(3 crashed); 3 sessions crashed in pimono-sdpo (KeyError at pimono_sdpo/traces/" in done.stderr


def test_a_lack_of_memory_ends_the_run(project: Path, work: Path) -> None:
    (work / "traces" / "bad.jsonl").write_text(session("bad", "Please repair the crash in the memory"))
    done = run(project, "steps", work / "traces", "--out", work / "out")
    assert done.returncode == 1
    assert "MemoryError" in done.stderr
    assert not (work / "out").exists()


OWN = """
from pimono_sdpo import Filter

def refuse(row):
    return row["missing"]

STAGE = Filter(refuse, reads=("score",))
"""


def test_an_error_of_an_own_stage_ends_the_run(project: Path, work: Path) -> None:
    (project / "mine.py").write_text(OWN)
    done = run(project, "filter", work / "traces", "--out", work / "out", "--min-worth", "0", "--stage", "mine:STAGE")
    assert done.returncode == 2
    assert "The stage `mine:STAGE` failed: KeyError: 'missing' (mine.py, line 5)" in done.stderr
    assert not (work / "out").exists()


def refuse(row: Any) -> str | None:
    raise ZeroDivisionError


def test_what_is_not_a_bug_of_a_session_is_raised(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = load_sessions(work / "traces")
    assert isinstance(sessions, Dataset)
    table: pa.Table = sessions.data.table
    own = Fused((*pipeline(min_worth=0), Filter(refuse, reads=("prompt",))), SESSION, REJECT)
    with pytest.raises(ZeroDivisionError):
        run_on_table(table, own)

    def fail(error: BaseException) -> None:
        def redact(text: str, cwd: str) -> None:
            raise error

        monkeypatch.setattr(names, "redact_text", redact)

    whole = Fused(pipeline(), SESSION, REJECT)
    for error in (MemoryError(), KeyboardInterrupt(), InferenceError("no key")):
        fail(error)
        with pytest.raises(type(error)):
            run_on_table(table, whole)
    fail(ValueError("a bug"))
    assert set(run_on_table(table, whole)["drop_reason"].to_pylist()) == {"crashed"}
    assert run_pipeline(sessions, keep_rejects=True)["drop_reason"] == ["crashed"] * 3
    # Nothing else would say that rows are missing.
    with pytest.raises(ValueError, match="a bug"):
        run_pipeline(sessions)
    with pytest.raises(ValueError, match="a bug"):
        apply(apply(sessions, pipeline()[0]), names.STAGE)
    monkeypatch.setenv(STRICT, "1")
    with pytest.raises(ValueError, match="a bug"):
        run_on_table(table, whole)


def lines_of(text: str) -> list[str]:
    return [line for line in text.split("\n") if line]


SINGLE = [(harness, line) for harness in HARNESSES for line in lines_of(harness.sample)]


@pytest.mark.parametrize(("harness", "line"), SINGLE, ids=lambda one: getattr(one, "name", ""))
def test_a_session_may_be_a_single_line(harness: Harness, line: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(line)
    done = run_pipeline(load_sessions(tmp_path), keep_rejects=True)
    assert len(done) == 1


def test_strict_is_on_in_every_other_test() -> None:
    assert os.environ[STRICT] == "1"

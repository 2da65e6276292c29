"""Calls are checked against the known content of the session's files."""

import json
from typing import Any

import pytest

from pimono_sdpo.replay.workspace import Workspace
from rewards.verifiers.replay import verify
from rewards.verifiers.rubric import BadSpec
from tests.predictions import dump_workspace

TEXT = "import a\n\nlet x = 1\nlet y = x\n"


def spec() -> dict[str, Any]:
    workspace = Workspace("/w")
    workspace.file("a.ts").see(TEXT, is_whole=True)
    workspace.file("part.ts").see(TEXT, is_whole=False)
    workspace.file("old.ts").see(TEXT, is_whole=True)
    workspace.file("old.ts").mark_stale()
    workspace.file("a.json").see('{"a": 1}', is_whole=True)
    workspace.file("b.json").see('{"a": 1', is_whole=True)
    workspace.file("part.json").see('"a": 1, "b": 2, "c": 3, "d": 4', is_whole=False)
    return {"tools": "pi", "format": "qwen3", "workspace": dump_workspace(workspace)}


def write_calls(*calls: tuple[str, dict[str, Any]]) -> str:
    texts = (json.dumps({"name": name, "arguments": given}) for name, given in calls)
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in texts) + "<|im_end|>"


def edit(path: str, old: str, new: str = "new") -> tuple[str, dict[str, Any]]:
    return ("edit", {"path": path, "oldText": old, "newText": new})


@pytest.mark.parametrize(
    ("calls", "status", "feedback"),
    [
        ([edit("a.ts", "let y = x")], "passed", ""),
        ([edit("/w/a.ts", "let y = x")], "passed", ""),
        ([edit("part.ts", TEXT)], "passed", ""),
        ([("read", {"path": "a.ts"})], "passed", ""),
        ([("write", {"path": "a.ts", "content": "other"})], "passed", ""),
        ([edit("a.ts", "let y  = x")], "failed", "nearest lines are:\nlet y = x"),
        ([edit("a.ts", "nothing like it")], "failed", "Could not find the exact text in a.ts"),
        ([edit("a.ts", "let")], "failed", "must be unique"),
        ([edit("a.ts", "let y = x", "let y = x")], "failed", "No changes made"),
        ([("write", {"path": "a.ts", "content": TEXT})], "failed", "already"),
        ([edit("a.ts", "let y", "let z"), edit("a.ts", "let y")], "failed", "Could not find"),
        ([edit("a.ts", "let y", "let z"), edit("a.ts", "let z")], "passed", ""),
        ([("bash", {"command": "ls"}), edit("a.ts", "gone")], "failed", "Could not find"),
        ([edit("$WORKSPACE/a.ts", "let y = x")], "skipped", "not known from the session"),
        # Does the file still parse?
        ([edit("a.json", "1", "2")], "passed", ""),
        ([edit("a.json", "1}", "2")], "failed", "a.json would no longer parse. Line 1"),
        ([("write", {"path": "a.json", "content": "{"})], "failed", "would no longer parse"),
        ([edit("b.json", "1", "{2")], "passed", ""),
        ([edit("part.json", '"a": 1, "b": 2, "c": 3', "{2")], "passed", ""),
        ([edit("part.ts", "gone")], "skipped", "not known from the session"),
        ([edit("old.ts", "gone")], "skipped", "not known from the session"),
        ([edit("unseen.ts", "gone")], "skipped", "not known from the session"),
        ([("read", {"path": "unseen.ts"})], "skipped", "not known from the session"),
        ([("bash", {"command": "sed -i s/x/q/ a.ts"}), edit("a.ts", "gone")], "skipped", ""),
        ([("bash", {"command": "ls"})], "skipped", "not known from the session"),
        ([("edit", {"path": 3})], "skipped", "not known from the session"),
        ([("edit", {"path": "a.ts", "edits": "\ud800"})], "skipped", "not known from the session"),
        ([("edit", {"input": "*** Update File: a.ts\n@@\n-let y = x\n+q"})], "passed", ""),
        ([("edit", {"input": "*** Update File: a.ts\n@@\n-let z\n+q"})], "failed", "find the expected lines"),
        ([("edit", {"input": "*** Update File: a.ts\nlet y = x\n+q"})], "failed", "Failed to read the patch"),
        ([("apply_patch", {"input": "*** Update File: a.ts"})], "failed", "Failed to read the patch"),
        ([], "skipped", "not known from the session"),
    ],
)
def test_calls_pass_fail_or_are_skipped(calls: list[tuple[str, dict[str, Any]]], status: str, feedback: str) -> None:
    verdict = verify(write_calls(*calls), spec())
    assert (verdict.status, feedback in verdict.feedback) == (status, True)
    if status == "failed":
        assert verdict.score is not None
        assert verdict.score < 0.7


def test_a_row_without_files_is_skipped() -> None:
    assert verify(write_calls(edit("a.ts", "x")), {"tools": "pi"}).status == "skipped"
    broken = {"tools": "pi", "workspace": {"files": {"/w/a.ts": "text"}}}
    with pytest.raises(BadSpec):
        verify(write_calls(edit("a.ts", "x")), broken)


def test_the_spec_does_not_change() -> None:
    given = spec()
    before = json.dumps(given)
    verify(write_calls(edit("a.ts", "let y = x"), ("write", {"path": "part.ts", "content": "q"})), given)
    assert json.dumps(given) == before

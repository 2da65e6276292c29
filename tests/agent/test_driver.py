"""The driver: runs of different models, in both protocols and under each test policy."""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pimono_sdpo.agent.driver import MOST_PARSE_ERRORS, Run, RunRules
from pimono_sdpo.agent.task_tests import TaskResult
from pimono_sdpo.agent.tools import Workspace
from pimono_sdpo.llm.calls import Reply
from pimono_sdpo.schema import Turn
from pimono_sdpo.suites.suite import list_files
from processors.duel.answers import sum_usage

BUGGY, FIXED = "def f():\n    return 1\n", "def f():\n    return 2\n"
Json = dict[str, Any]


def call(tool: str, **args: object) -> str:
    return json.dumps({"type": "tool_call", "name": tool, "args": args})


READ = call("read_file", rel_path="a.py")
WRITE = call("write_file", rel_path="a.py", content=FIXED)
SPOIL = call("write_file", rel_path="a.py", content="def f(:\n")
FINAL = json.dumps({"type": "final", "summary": "2 was wanted."})


def native(text: str) -> Reply:
    """The same answer in the native protocol."""
    action = json.loads(text)
    if action["type"] == "final":
        return Reply(action["summary"], prompt_tokens=7, completion_tokens=1)
    function = {"name": action["name"], "arguments": json.dumps(action["args"])}
    one = {"id": "random", "type": "function", "function": function}
    return Reply(tool_calls=[one], prompt_tokens=7, completion_tokens=1)


def passes(text: str) -> TaskResult:
    ok = text == FIXED
    return TaskResult(ok, "1 passed" if ok else "f() gives 1, expected 2")


def run(
    folder: Path, answers: Iterable[str | Reply], rules: RunRules, judged: Callable[[str], TaskResult] | None = passes
) -> Run:
    """Drive a run on one buggy file; a text is an answer in the protocol of the rules."""
    folder.mkdir(exist_ok=True)
    (folder / "a.py").write_text(BUGGY)
    action = iter(answers)

    async def ask(messages: list[Turn]) -> Reply:
        answer = next(action)
        if isinstance(answer, Reply):
            return answer
        return native(answer) if rules.protocol == "native" else Reply(answer, cost=0.5)

    async def run_tests(changed: Mapping[str, bytes]) -> TaskResult:
        assert judged
        return judged(changed.get("a.py", BUGGY.encode()).decode())

    space = Workspace(list_files(folder), rules.max_tool_chars)
    result = Run("r-1", space, ask, run_tests if judged else None, rules)
    asyncio.run(result.drive("f() gives 1.", {"seed": 42}))
    assert (folder / "a.py").read_text() == BUGGY
    return result


def kinds(result: Run) -> list[str]:
    return [step["kind"] for step in result.steps]


def test_a_run_in_the_json_protocol(tmp_path: Path) -> None:
    result = run(tmp_path, [READ, WRITE, FINAL], RunRules())
    assert (result.ended, result.tests_ok, result.error) == ("final", True, None)
    assert [turn["role"] for turn in result.messages] == [
        "system", "user", "assistant", "user", "assistant", "user", "assistant",
    ]  # fmt: skip
    assert result.messages[1]["content"] == "GOAL:\nf() gives 1."
    assert result.messages[3]["content"] == f"[tool_result]\n{BUGGY.rstrip()}"
    assert result.messages[5]["content"] == ("[tool_result]\nwrote a.py (22 characters)\n\n[TESTS PASS]\n1 passed")
    assert [result.messages[step["n_context"]]["content"] for step in result.steps] == [
        READ, WRITE, FINAL,
    ]  # fmt: skip
    assert [step["tests_ok"] for step in result.steps] == [None, True, None]
    assert result.steps[2]["args"] == {"summary": "2 was wanted."}
    assert result.files_touched == ("a.py",)
    assert "-    return 1\n+    return 2\n" in result.patch
    assert (result.n_test_runs, sum_usage(result.replies)["cost"]) == (1, 1.5)
    assert [event["kind"] for event in result.events] == [
        "run_start", "llm_request", "llm_action", "tool_result", "llm_request", "llm_action",
        "tool_result", "tests", "llm_request", "llm_action", "final", "run_end",
    ]  # fmt: skip
    assert result.events[-2]["final"] == {
        "type": "final", "summary": "2 was wanted.",
        "changes": [{"path": "a.py", "description": "written"}],
        "test_result": {"ok": True, "output": "1 passed"},
    }  # fmt: skip
    # The trace holds every message once, but the last answer, which is an event of its own.
    requested = [turn for event in result.events for turn in event.get("messages", [])]
    assert requested == [turn for turn in result.messages if turn["role"] != "assistant"]


def test_the_same_run_in_the_native_protocol(tmp_path: Path) -> None:
    result = run(tmp_path, [READ, WRITE, FINAL], RunRules(protocol="native"))
    other = run(tmp_path, [READ, WRITE, FINAL], RunRules(protocol="json"))
    told = ("index", "kind", "name", "args", "ok", "n_context", "tests_ok")
    assert [[step[key] for key in told] for step in result.steps] == [
        [step[key] for key in told] for step in other.steps
    ]
    assert (result.patch, result.tests_ok) == (other.patch, other.tests_ok)
    assert result.messages[2]["tool_calls"] == [
        {"id": "call00002", "type": "function", "function": {"name": "read_file", "arguments": {"rel_path": "a.py"}}}
    ]
    assert result.messages[3] == {
        "role": "tool", "content": BUGGY.rstrip(), "tool_call_id": "call00002",
        "name": "read_file",
    }  # fmt: skip
    assert result.messages[-1] == {"role": "assistant", "content": "2 was wanted."}


def test_of_several_native_calls_the_first_is_taken(tmp_path: Path) -> None:
    both = Reply(tool_calls=[*native(READ).tool_calls, *native(WRITE).tool_calls])
    result = run(tmp_path, [both, FINAL], RunRules(protocol="native"))
    assert len(result.messages[2]["tool_calls"] or ()) == 1
    assert "2 calls in one answer" in (result.messages[3]["content"] or "")
    assert "2 calls" in result.steps[0]["malformed"]
    assert result.patch == ""


@pytest.mark.parametrize(
    ("policy", "answers", "tests_ok", "n_test_runs", "shown"),
    [
        ("on_write", [SPOIL, WRITE, FINAL], True, 2, ["FAIL", "PASS"]),
        ("on_write", [WRITE, WRITE, FINAL], True, 1, ["PASS"]),
        ("on_write", [READ, FINAL], False, 1, []),  # never wrote: judged once, at the end
        ("on_final", [SPOIL, WRITE, FINAL], True, 1, []),
        ("on_final", [READ, FINAL], False, 1, []),
        ("never", [WRITE, FINAL], None, 0, []),
    ],
)
def test_policies(
    tmp_path: Path, policy: Any, answers: list[str], tests_ok: bool | None, n_test_runs: int,
    shown: list[str],
) -> None:  # fmt: skip
    result = run(tmp_path, answers, RunRules(test_policy=policy))
    assert (result.tests_ok, result.n_test_runs, result.ended) == (tests_ok, n_test_runs, "final")
    action = "\n".join(str(turn["content"]) for turn in result.messages[2:])
    assert [part.split("]")[0] for part in action.split("[TESTS ")[1:]] == shown


def test_a_task_without_tests_has_no_verdict(tmp_path: Path) -> None:
    result = run(tmp_path, [WRITE, FINAL], RunRules(), judged=None)
    assert (result.tests_ok, result.n_test_runs, result.ended) == (None, 0, "final")


@pytest.mark.parametrize("protocol", ["json", "native"])
def test_prose_gets_a_note_and_ends_the_run_at_last(tmp_path: Path, protocol: Any) -> None:
    bad = Reply("I think..." if protocol == "json" else "")
    result = run(tmp_path, [bad, WRITE, *[bad] * MOST_PARSE_ERRORS], RunRules(protocol=protocol))
    assert kinds(result) == ["parse_error", "tool_call", *["parse_error"] * MOST_PARSE_ERRORS]
    assert (result.ended, result.tests_ok) == ("parse_errors", True)
    assert result.messages[3]["role"] == "user"
    assert "could not be read: it is" in str(result.messages[3]["content"])
    assert result.messages[2]["content"] == ("I think..." if protocol == "json" else "(no answer)")
    assert result.steps[0]["malformed"]


def test_a_call_that_cannot_be_read_leaves_no_broken_call_in_the_history(tmp_path: Path) -> None:
    function = {"name": "grep", "arguments": '{"pattern": '}
    broken = Reply(tool_calls=[{"id": "x", "type": "function", "function": function}])
    result = run(tmp_path, [broken, FINAL], RunRules(protocol="native"))
    assert result.messages[2] == {"role": "assistant", "content": 'grep({"pattern": )'}
    assert result.ended == "final"


def test_a_native_call_in_the_json_protocol(tmp_path: Path) -> None:
    result = run(tmp_path, [native(WRITE), FINAL], RunRules())
    assert result.steps[0]["malformed"] == "it is a native call and no text"
    assert kinds(result) == ["parse_error", "final"]


def test_a_thought_is_left_out_of_the_history(tmp_path: Path) -> None:
    result = run(tmp_path, [f"<think>It is 2.</think>\n{WRITE}", FINAL], RunRules())
    assert result.messages[2]["content"] == WRITE
    raw = [event["raw"]["text"] for event in result.events if event["kind"] == "llm_action"]
    assert raw[0].startswith("<think>")


def test_a_call_with_another_thought_is_the_same_call(tmp_path: Path) -> None:
    looks = [call("read_file", rel_path="a.py", thought=f"look {n}") for n in range(5)]
    assert run(tmp_path, looks, RunRules()).ended == "loop"


def test_a_loop_is_reported_to_the_model_and_ends_the_run(tmp_path: Path) -> None:
    result = run(tmp_path, [READ] * 9, RunRules())
    assert kinds(result) == ["tool_call", "tool_call", "loop", "loop", "loop"]
    assert result.ended == "loop"
    assert "Loop detected" in str(result.messages[7]["content"])
    assert result.steps[2]["error"].startswith("Loop detected")
    # Reading again what was written in between is no loop.
    result = run(tmp_path, [READ, READ, WRITE, READ, READ, FINAL], RunRules())
    assert "loop" not in kinds(result)


def test_iterations_end(tmp_path: Path) -> None:
    looks = [call("grep", pattern=f"x{n}", rel_dir=".") for n in range(9)]
    result = run(tmp_path, looks, RunRules(max_iters=4))
    assert (result.ended, len(result.steps), result.tests_ok) == ("max_iters", 4, False)
    assert "final" not in [event["kind"] for event in result.events]


def test_errors_of_tools_are_shown_to_the_model(tmp_path: Path) -> None:
    escape = call("read_file", rel_path="../../etc/passwd")
    unknown = call("run_tests")
    result = run(tmp_path, [escape, unknown, FINAL], RunRules())
    assert [step["ok"] for step in result.steps] == [False, False, True]
    assert str(result.messages[3]["content"]).startswith("[tool_result]\n[tool_error] `../../etc")
    assert "Unknown tool `run_tests`" in result.steps[1]["error"]


def test_long_results_and_long_prose_are_cut(tmp_path: Path) -> None:
    many = call("grep", pattern=".", rel_dir=".", max_hits=500)
    (tmp_path / "big").write_text("x" * 200 + "\n" + "y" * 200 + "\n" + "z" * 200)
    result = run(tmp_path, [many, "prose " * 1000, FINAL], RunRules(max_tool_chars=300))
    assert len(str(result.messages[3]["content"])) < 330
    assert len(str(result.messages[4]["content"])) <= 300


@pytest.mark.parametrize("at", [0, 1])
def test_a_failure_of_the_endpoint_is_an_error_without_a_verdict(tmp_path: Path, at: int) -> None:
    answers: list[str | Reply] = [WRITE, Reply(error="`x` answered 503: busy")]
    result = run(tmp_path, answers[1 - at :], RunRules())
    assert (result.ended, result.error) == ("error", "`x` answered 503: busy")
    assert result.tests_ok is None
    assert len(result.steps) == at


def test_a_failure_of_the_sandbox_is_an_error_without_a_verdict(tmp_path: Path) -> None:
    result = run(tmp_path, [WRITE, FINAL], RunRules(), judged=lambda text: TaskResult(None, "", "no backend"))
    assert (result.ended, result.tests_ok) == ("error", None)
    assert result.error == "tests could not be run: no backend"
    assert kinds(result) == ["tool_call"]

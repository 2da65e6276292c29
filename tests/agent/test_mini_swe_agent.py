"""mini-swe-agent from its package against a scripted server: rows, resuming and readers of the rows."""

import json
from pathlib import Path

from typer.testing import CliRunner

from pimono_sdpo.cli import app
from tests.agent.suite_of_three import FIXED, Json, about, write_suite
from tests.agent.test_rollouts import arguments, files_of, roll, rows_of
from tests.chat_server import ChatServer, busy, tool_call

MINI = ("--agent", "mini-swe-agent", "--rollouts", "2", "--max-iters", "5")
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def policy(body: Json) -> Json:
    """Looks around, repairs with even seeds, is at a loss once with odd ones, submits."""
    name, seed, turns = about(body)
    path = f"programs/{name}.py"
    if turns == 0:
        return tool_call("bash", command=f"ls answers; cat {path}\0")
    if turns == 1:
        fix = f"cat > {path} <<'EOF'\n{FIXED[name]}EOF\n" if seed % 2 == 0 else ""
        return tool_call("bash", command=f"{fix}date +%N; mkdir new; printf 'a' > new/a.txt; printf '\\0' > b")
    if turns == 2:
        is_last = name == "last"
        return tool_call("bash", command="cat new/a.txt; rm -f programs/last.py" if is_last else "exit 3")
    if turns == 3 and seed % 2 and "Tool call error" not in body["messages"][-1]["content"]:
        return {"content": "I am done."}
    return tool_call("bash", command=SUBMIT)


def test_rows_have_its_steps_the_verdict_of_the_suite_and_what_it_changed(
    tmp_path: Path, chat_server: ChatServer
) -> None:
    chat_server.policy = policy
    out = tmp_path / "out"
    roll(write_suite(tmp_path), out, chat_server.url, *MINI, "--sessions")
    rows = {(row["task_id"], row["seed"]): row for row in rows_of(out)}
    assert {key: row["tests_ok"] for key, row in rows.items()} == {
        ("fix_gcd", 42): True, ("fix_gcd", 43): False, ("fix_flat", 42): True,
        ("fix_flat", 43): False, ("fix_last", 42): False, ("fix_last", 43): False,
    }  # fmt: skip
    good = rows["fix_gcd", 42]
    assert good["files_touched"] == ["b", "new/a.txt", "programs/gcd.py"]
    assert "+    return a if b == 0 else gcd(b, a % b)" in good["patch"]
    assert "GIT binary" not in good["patch"]
    assert "deleted file mode 100644\n--- a/programs/last.py" in rows["fix_last", 42]["patch"]
    assert [step["ok"] for step in good["steps"]] == [True, True, False, True]
    assert (good["ended"], good["n_steps"], good["protocol"]) == ("final", 4, "native")
    shown = good["messages"][3]["content"]
    assert "gcd(a % b, b)" in shown
    assert "cannot access" in shown
    assert rows["fix_gcd", 43]["parse_errors"] == 1
    (tool,) = chat_server.hits[0].body["tools"]
    assert tool["function"]["name"] == "bash"
    # Its traces are sessions, and so are those of any rollouts on request.
    for trace in (out / "traces").iterdir():
        assert (out / "sessions" / "00000" / trace.name).read_bytes() == trace.read_bytes()
        assert b'"harness":"mini-swe-agent"' in trace.read_bytes()
    report = json.loads((out / "report.json").read_text())
    assert report["rules"]["agent"].startswith("mini-swe-agent 2.")
    for command in (["pairs", str(out), "--out", "pairs"], ["steps", str(out), "--out", "steps"]):
        assert CliRunner().invoke(app, command).exit_code == 0
    assert len(rows_of(tmp_path / "pairs")) == 2
    assert rows_of(tmp_path / "steps")
    compared = ["evaluate", str(tmp_path / "suite.json"), "--baseline", str(out), "--out", "e"]
    assert CliRunner().invoke(app, compared).exit_code == 0


def test_a_run_that_failed_halfway_is_resumed_without_repeating_a_call(
    tmp_path: Path, chat_server: ChatServer
) -> None:
    chat_server.policy = policy
    suite, out = write_suite(tmp_path), tmp_path / "out"
    chat_server.choose_fault = lambda body, before: busy(400) if about(body)[2] == 2 else None
    result = CliRunner().invoke(app, arguments(suite, out, chat_server.url, *MINI))
    assert "Every rollout failed" in str(result.exception)
    chat_server.choose_fault = lambda body, before: None
    roll(suite, out, chat_server.url, *MINI)
    assert set(chat_server.answered().values()) == {1}
    assert {row["error"] for row in rows_of(out)} == {None}
    asked = len(chat_server.hits)
    more = ("--journal", f"{out}.calls.sqlite", "--replay", *MINI)
    roll(suite, tmp_path / "again", chat_server.url, *more)
    assert len(chat_server.hits) == asked
    first, again = files_of(out), files_of(tmp_path / "again")
    assert all(again[name] == first[name] for name in first if name != "suite.json")

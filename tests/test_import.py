"""Runs of other agents become rollouts: every message is counted, every verdict is kept."""

import json
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from pimono_sdpo.agent.imported_runs import ImportOptions, import_runs
from pimono_sdpo.cli import app
from pimono_sdpo.errors import EmptySelection, SourceError
from pimono_sdpo.runs.parquet import read_rows
from pimono_sdpo.suites.stored_rollouts import open_rollouts
from pimono_sdpo.traces.harness.simple import encode_session
from tests.rollout_data import FIXED, OTHER, final, rollout, write, write_folder
from tests.rollout_data import read as read_file

Json = dict[str, Any]
TASK = "Fix the rounding of `total`."
FAILURE = "E  AssertionError: expected 3, got 4\n=== 1 failed, 2 passed in 0.03s ==="
PATCH = "diff --git a/cart.py b/cart.py\n--- a/cart.py\n+++ b/cart.py\n@@ -1 +1 @@\n-a\n+b\n"
SYSTEM = {"role": "system", "content": "You are an agent."}
USER = {"role": "user", "content": TASK}


def call(name: str, arguments: Any, call_id: str) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def native(*outputs: str) -> list[Json]:
    """Return messages with two calls in one answer, then a finish without a result."""
    return [
        SYSTEM,
        USER,
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                call("bash", '{"command": "cat cart.py"}', "a"),
                call("bash", '{"command": "pytest"}', "b"),
            ],
        },
        *(
            {"role": "tool", "content": text, "tool_call_id": call_id}
            for text, call_id in zip(outputs, "ab", strict=True)
        ),
        {"role": "assistant", "content": "", "tool_calls": [call("finish", '{"message": "Rounded."}', "c")]},
    ]


def write_nebius(folder: Path, rows: list[Json]) -> Path:
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / "train-00000-of-00001.parquet")
    return folder


def nebius_row(run: int, resolved: int, output: str = "ok") -> Json:
    return {
        "trajectory_id": f"run-{run}",
        "instance_id": "shop__cart-7",
        "trajectory": native("total = round(x)", output),
        "model_patch": PATCH,
        "exit_status": "submit",
        "resolved": resolved,
    }


def write_mini(folder: Path) -> Path:
    """Version 1 has commands in fences and no calls."""
    messages = [
        SYSTEM,
        USER,
        {"role": "assistant", "content": "THOUGHT: look\n\n```bash\ncat cart.py\n```"},
        {"role": "user", "content": "<returncode>1</returncode>\n<output>\nno cart</output>"},
        {"role": "assistant", "content": "```bash\necho COMPLETE_TASK_AND_SUBMIT\n```"},
        {"role": "user", "content": "<returncode>0</returncode>\n<output>\n</output>"},
        {"role": "exit", "content": "diff"},
    ]
    info = {"exit_status": "Submitted", "submission": PATCH, "model_stats": {"instance_cost": 0.5}}
    trajectory = {"info": info, "messages": messages, "trajectory_format": "mini-swe-agent-1.1"}
    run = folder / "shop__cart-7"
    run.mkdir(parents=True)
    (run / "shop__cart-7.traj.json").write_text(json.dumps(trajectory))
    report = {"resolved_ids": ["shop__cart-7"], "unresolved_ids": []}
    (folder / "me.report.json").write_text(json.dumps(report))
    return folder


def write_swe_agent(folder: Path) -> Path:
    history = [
        SYSTEM,
        {"role": "user", "content": "an example", "is_demo": True},
        USER,
        {
            "role": "assistant", "content": "Look.\n```\ncat cart.py\n```", "thought": "Look.\n",
            "action": "cat cart.py\n",
        },
        {"role": "user", "content": "total = round(x)"},
        {"role": "assistant", "content": "submit", "thought": "Done.", "action": "submit"},
        {"role": "user", "content": ""},
    ]  # fmt: skip
    info = {"exit_status": "submitted", "submission": PATCH, "model_stats": {"tokens_sent": 7}}
    folder.mkdir(parents=True)
    trajectory = {"history": history, "info": info, "trajectory": []}
    (folder / "shop__cart-7.traj").write_text(json.dumps(trajectory))
    return folder


def write_atif(folder: Path) -> Path:
    steps = [
        {"step_id": 1, "source": "system", "message": "You are an agent."},
        {"step_id": 2, "source": "user", "message": TASK},
        {
            "step_id": 3,
            "source": "agent",
            "message": "I look.",
            "tool_calls": [{"tool_call_id": "a", "function_name": "bash", "arguments": {"command": "pytest"}}],
            "observation": {"results": [{"source_call_id": "a", "content": "Process exited with code 2"}]},
        },
        {"step_id": 4, "source": "agent", "message": "Rounded."},
    ]
    trajectory = {
        "schema_version": "ATIF-v1.6",
        "session_id": "s-1",
        "agent": {"name": "terminus-2", "version": "2", "model_name": "m"},
        "steps": steps,
        "final_metrics": {"total_cost_usd": 0.1, "total_prompt_tokens": 9},
    }
    trial = folder / "shop-cart__x1"
    (trial / "agent").mkdir(parents=True)
    (trial / "verifier").mkdir()
    (trial / "agent" / "trajectory.json").write_text(json.dumps(trajectory))
    (trial / "verifier" / "reward.txt").write_text("0\n")
    (trial / "result.json").write_text(json.dumps({"task_name": "shop-cart"}))
    return folder


def run_command(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def read(source: Path, out: Path) -> tuple[list[Json], Json]:
    report = import_runs(ImportOptions(source=str(source), out=out, sessions=True))
    rollouts = open_rollouts(out)
    assert rollouts is not None
    return [*read_rows(rollouts.files)], report


def shape(row: Json) -> list[str]:
    """Return each turn as its role, with the command that it calls."""
    calls = [turn["tool_calls"] for turn in row["messages"]]
    names = [f" {one[0]['function']['arguments']['command']}" if one else "" for one in calls]
    return [turn["role"] + name for turn, name in zip(row["messages"], names, strict=True)]


def test_openai_messages(tmp_path: Path) -> None:
    rows = [nebius_row(0, 1), nebius_row(1, 0, "Process exited with code 1")]
    (good, bad), report = read(write_nebius(tmp_path / "n", rows), tmp_path / "out")
    assert report["messages"] == {"turns": 12}
    assert report["verdicts"] == {"PASS": 1, "FAIL": 1}
    assert (good["run_id"], good["task_id"], good["tests_ok"]) == ("run-0", "shop__cart-7", True)
    assert good["files_touched"] == ["cart.py"]
    # Each call is followed by its own result, and the call that ends the run is the last answer.
    assert shape(good) == [
        "system", "user", "assistant cat cart.py", "tool", "assistant pytest", "tool", "assistant",
    ]  # fmt: skip
    assert good["messages"][-1]["content"] == "Rounded."
    assert [step["n_context"] for step in good["steps"]] == [2, 4, 6]
    assert [step["ok"] for step in good["steps"]] == [True, True, True]
    assert [step["ok"] for step in bad["steps"]] == [True, False, True]
    assert bad["tests_ok"] is False


def test_tests_that_failed_before_a_pipe_have_failed_though_the_status_is_0(tmp_path: Path) -> None:
    (file,) = write_mini(tmp_path / "mini").rglob("*.traj.json")
    text = file.read_text().replace("cat cart.py", "pytest -q | tail -5").replace("<returncode>1<", "<returncode>0<")
    file.write_text(text.replace("no cart", "=== 1 failed, 3 passed in 0.1s ==="))
    [row], _ = read(tmp_path / "mini", tmp_path / "out")
    assert [step["ok"] for step in row["steps"]] == [False, True]


def test_mini_swe_agent(tmp_path: Path) -> None:
    [row], report = read(write_mini(tmp_path / "mini"), tmp_path / "out")
    assert report["messages"] == {"turns": 6}
    assert shape(row)[2:] == [
        "assistant cat cart.py", "tool", "assistant echo COMPLETE_TASK_AND_SUBMIT", "tool",
    ]  # fmt: skip
    assert [step["ok"] for step in row["steps"]] == [False, True]
    assert (row["tests_ok"], row["cost"], row["ended"]) == (True, 0.5, "final")


def test_swe_agent(tmp_path: Path) -> None:
    [row], report = read(write_swe_agent(tmp_path / "swe"), tmp_path / "out")
    assert report["messages"] == {"turns": 6}
    assert shape(row) == [
        "system", "user", "assistant cat cart.py", "tool", "assistant submit", "tool",
    ]  # fmt: skip
    assert row["messages"][2]["content"] == "Look."
    assert (row["tests_ok"], row["prompt_tokens"]) == (None, 7)


def test_atif(tmp_path: Path) -> None:
    [row], report = read(write_atif(tmp_path / "jobs"), tmp_path / "out")
    assert report["messages"] == {"turns": 5}
    assert (row["task_id"], row["run_id"], row["tests_ok"]) == ("shop-cart", "s-1", False)
    assert shape(row) == ["system", "user", "assistant pytest", "tool", "assistant"]
    assert [step["ok"] for step in row["steps"]] == [False, True]
    assert (row["model"], row["cost"], row["prompt_tokens"]) == ("m", 0.1, 9)


def test_inspect(tmp_path: Path) -> None:
    sample = {
        "id": "t",
        "epoch": 1,
        "messages": [
            {"role": "user", "content": TASK},
            {
                "role": "assistant",
                "content": [{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "I look."}],
                "tool_calls": [{"id": "a", "function": "bash", "arguments": {"command": "pytest"}}],
            },
            {"role": "tool", "content": "", "tool_call_id": "a", "error": {"type": "timeout", "message": "too slow"}},
            {"role": "assistant", "content": "Rounded."},
        ],
        "scores": {"includes": {"value": "C", "explanation": "found"}},
        "model_usage": {"mockllm/model": {"input_tokens": 7, "output_tokens": 3}},
    }
    file = tmp_path / "logs" / "shop.eval"
    file.parent.mkdir()
    with ZipFile(file, "w") as log:
        log.writestr("header.json", json.dumps({"eval": {"run_id": "r", "task": "shop", "model": "mockllm/model"}}))
        log.writestr("samples/t_epoch_1.json", json.dumps(sample))
    [row], report = read(file.parent, tmp_path / "out")
    assert report["messages"] == {"turns": 4}
    assert shape(row) == ["user", "assistant pytest", "tool", "assistant"]
    assert [step["ok"] for step in row["steps"]] == [False, True]
    assert (row["task_id"], row["tests_ok"], row["test_output"]) == ("shop/t", True, "found")
    assert (row["run_id"], row["model"], row["prompt_tokens"]) == ("r-t-1", "mockllm/model", 7)
    content = file.read_bytes()
    for size in (0, len(content) // 2, len(content) - 20):
        (file.parent / f"cut-{size}.eval").write_bytes(content[:size])
    rows, report = read(file.parent, tmp_path / "more")
    assert (len(rows), report["unreadable"]) == (1, 3)
    rejects = pq.read_table(tmp_path / "more" / "rejects").to_pylist()
    assert all(f"{one['file']}: it cannot be read (" in one["problem"] for one in rejects)


def test_imported_rollouts_become_steps_pairs_and_rows(tmp_path: Path) -> None:
    runs = [nebius_row(0, 1), nebius_row(1, 0, FAILURE)]
    runs[1]["trajectory"][2]["tool_calls"][0] = call("bash", '{"command": "ls"}', "a")
    source, out = str(write_nebius(tmp_path / "n", runs)), tmp_path / "out"
    steps, pairs, rows = (tmp_path / name for name in ("steps", "pairs", "rows"))
    assert "rollouts: 2 (1 FAIL, 1 PASS)" in run_command("import", source, "--out", str(out))
    run_command("steps", str(out), "--out", str(steps))
    assert len(pq.read_table(steps / "data")) == 2
    run_command("pairs", str(out), "--target", "step", "--out", str(pairs))
    [pair] = pq.read_table(pairs / "data").to_pylist()
    assert (pair["run_chosen"], pair["run_rejected"]) == ("run-0", "run-1")
    run_command("filter", str(out), "--min-worth", "0", "--out", str(rows))
    [row] = pq.read_table(rows / "data").to_pylist()
    assert row["harness"] == "openai-messages"
    assert "expected 3, got 4" in row["privileged_context"]
    output = run_command("evaluate", str(out), "--baseline", str(out), "--out", str(tmp_path / "e"))
    assert "| pass_rate | 0.5 |" in output
    assert "2 runs of 1 tasks" in output
    run_command("view", str(out), "--out", str(tmp_path / "runs.html"))
    assert "Rollouts of out" in (tmp_path / "runs.html").read_text()


@pytest.mark.parametrize("protocol", ["json", "native"])
def test_own_rollouts_are_sessions_for_the_filter_and_the_hub(tmp_path: Path, protocol: Any) -> None:
    actions = [read_file(), write(OTHER, False), write(FIXED, True), final()]
    row = rollout("fix_add", 1, actions, protocol=protocol)
    lines = [json.loads(line) for line in encode_session(row).splitlines()]
    assert lines[0] == {"type": "session", "harness": "repo_agent", "id": "fix_add-1", "model": "m"}
    assert {line["type"] for line in lines[1:]} == {"message"}
    messages = [line["message"] for line in lines[1:]]
    calls = [one["toolCalls"][0] for one in messages if "toolCalls" in one]
    results = [one for one in messages if one["role"] == "tool"]
    assert [one["toolCallId"] for one in results] == [call["id"] for call in calls]
    assert json.loads(calls[1]["function"]["arguments"]) == {"rel_path": "add.py", "content": OTHER}
    assert results[1]["content"].startswith("ok\n[TESTS FAIL]")
    folder = write_folder(tmp_path / "own", [row])
    run_command("filter", str(folder), "--min-worth", "0", "--out", str(tmp_path / "rows"))
    [kept] = pq.read_table(tmp_path / "rows" / "data").to_pylist()
    assert (kept["harness"], kept["session_id"]) == ("repo_agent", "fix_add-1")


def test_what_cannot_be_read_is_rejected_by_name(tmp_path: Path) -> None:
    runs = [nebius_row(0, 1), nebius_row(1, 0)]
    runs[1]["trajectory"][1] = {"role": "narrator", "content": "x"}
    _, report = read(write_nebius(tmp_path / "n", runs), tmp_path / "out")
    assert (report["rollouts"], report["unreadable"]) == (1, 1)
    [reject] = pq.read_table(tmp_path / "out" / "rejects").to_pylist()
    assert (reject["number"], reject["problem"]) == (
        1,
        "train-00000-of-00001.parquet: a message has the role 'narrator'",
    )


def test_ids_that_are_used_again_or_missing(tmp_path: Path) -> None:
    def converse(*ids: str | None) -> list[Json]:
        conversation: list[Json] = [SYSTEM, USER]
        for number, one in enumerate(ids):
            answer = call("bash", json.dumps({"command": f"make {number}"}), "same")
            answer["id"] = one
            conversation.append({"role": "assistant", "content": "", "tool_calls": [answer]})
            conversation.append({"role": "tool", "content": f"made {number}", "tool_call_id": one})
        return conversation

    runs = [nebius_row(0, 1), nebius_row(1, 0)]
    runs[0]["trajectory"], runs[1]["trajectory"] = converse("a", "a", "a"), converse(None, None)
    (again, missing), report = read(write_nebius(tmp_path / "n", runs), tmp_path / "out")
    assert report["messages"] == {"turns": 14}
    for row in (again, missing):
        for number, turn in enumerate(row["messages"][2::2]):
            result = row["messages"][3 + 2 * number]
            assert turn["tool_calls"][0]["function"]["arguments"] == {"command": f"make {number}"}
            assert result["content"] == f"made {number}"
            assert result["tool_call_id"] == turn["tool_calls"][0]["id"]
        ids = [turn["tool_call_id"] for turn in row["messages"] if turn["role"] == "tool"]
        assert len(set(ids)) == len(ids)


def test_calls_in_the_text(tmp_path: Path) -> None:
    view = "I look.\n<function=edit>\n<parameter=path>a.py</parameter>\n</function>"
    conversation = [USER, {"role": "assistant", "content": view}, {"role": "user", "content": "a = 1"}]
    row = {"instance_id": "t", "traj_id": "t.1", "messages": json.dumps(conversation), "resolved": True}
    [rollout], _ = read(write_nebius(tmp_path / "n", [row]), tmp_path / "out")
    [step] = rollout["steps"]
    assert (step["name"], step["args"]) == ("edit", {"path": "a.py"})
    assert [turn["content"] for turn in rollout["messages"][1:]] == ["I look.", "a = 1"]
    assert rollout["tools"][0]["function"]["name"] == "edit"


def test_an_answer_with_a_truncated_call_is_not_the_final_one(tmp_path: Path) -> None:
    run = nebius_row(0, 1)
    cut = call("bash", '{"command": "make"}', "d")
    run["trajectory"][-1] = {"role": "assistant", "content": "I make it.", "tool_calls": [cut]}
    [row], _ = read(write_nebius(tmp_path / "n", [run]), tmp_path / "out")
    assert row["messages"][-1]["content"] == "I make it."
    assert [step["kind"] for step in row["steps"]] == ["tool_call", "tool_call"]


def test_the_call_that_submits_has_its_output_in_exit(tmp_path: Path) -> None:
    submit = call("bash", '{"command": "echo COMPLETE_TASK_AND_SUBMIT"}', "s")
    messages = [
        USER,
        {"role": "assistant", "content": "I submit.", "tool_calls": [submit]},
        {"role": "exit", "content": PATCH},
    ]
    (tmp_path / "mini").mkdir()
    trajectory = {"info": {"exit_status": "Submitted"}, "messages": messages}
    (tmp_path / "mini" / "t.traj.json").write_text(json.dumps(trajectory))
    [row], report = read(tmp_path / "mini", tmp_path / "out")
    assert report["messages"] == {"turns": 3}
    assert shape(row) == ["user", "assistant echo COMPLETE_TASK_AND_SUBMIT", "tool"]
    assert row["messages"][-1]["content"] == PATCH


def test_the_action_that_submits_is_the_last_answer_of_swe_agent(tmp_path: Path) -> None:
    file = write_swe_agent(tmp_path / "swe") / "shop__cart-7.traj"
    trajectory = json.loads(file.read_text())
    del trajectory["history"][-1]
    file.write_text(json.dumps(trajectory))
    [row], _ = read(file.parent, tmp_path / "out")
    assert row["messages"][-1]["content"] == "Done.\n\nsubmit"
    assert row["steps"][-1]["kind"] == "final"


def test_atif_calls_that_were_observed_together(tmp_path: Path) -> None:
    file = write_atif(tmp_path / "jobs") / "shop-cart__x1" / "agent" / "trajectory.json"
    trajectory = json.loads(file.read_text())
    calls = trajectory["steps"][2]["tool_calls"]
    calls.append(calls[0] | {"tool_call_id": "b", "arguments": {"command": "ls"}})
    trajectory["steps"][2]["observation"] = {"results": [{"content": "both"}]}
    file.write_text(json.dumps(trajectory))
    file.with_name("trajectory.summarization-1-summary.json").write_text(json.dumps(trajectory))
    # Other tools name the file otherwise; what it is stands in it.
    file.rename(file.with_name("run.json"))
    file.with_name("about.json").write_text('{"formats": ["ATIF-v1.4"]}')
    [row], _ = read(tmp_path / "jobs", tmp_path / "out")
    assert shape(row)[2:] == ["assistant pytest", "tool", "assistant ls", "tool", "assistant"]
    assert [turn["content"] for turn in row["messages"][3:6:2]] == ["", "both"]


def continue_atif(folder: Path, reference: str) -> Path:
    """Write a run in two files: the second repeats the steps of the first one, and begins with a dispatch."""
    first = write_atif(folder) / "shop-cart__x1" / "agent" / "trajectory.json"
    content = json.loads(first.read_text()) | {"schema_version": "ATIF-v1.7"}
    *before, final = content["steps"]
    asked = {"step_id": 4, "source": "user", "message": "Summarize your work."}
    copies = [step | {"is_copied_context": True} for step in [*before, asked]]
    call = {"tool_call_id": "d", "function_name": "bash", "arguments": {"command": "git status"}}
    dispatch = {"step_id": 5, "source": "agent", "message": "", "llm_call_count": 0, "tool_calls": [call]}
    dispatch["observation"] = {"results": [{"source_call_id": "d", "content": "clean"}]}
    steps = [*copies, dispatch, final | {"step_id": 6, "metrics": {"prompt_tokens": 5}}]
    last = first.with_name("trajectory.cont-1.json")
    last.write_text(json.dumps(content | {"session_id": "s-1-cont-1", "steps": steps}))
    content |= {"steps": before, "continued_trajectory_ref": reference}
    first.write_text(json.dumps(content))
    return first


@pytest.mark.parametrize("reference", ["trajectory.cont-1.json", "/logs/agent/trajectory.cont-1.json"])
def test_an_atif_run_in_two_files_is_one_run_whose_copies_and_dispatches_are_no_targets(
    tmp_path: Path, reference: str
) -> None:
    continue_atif(tmp_path / "jobs", reference)
    [row], report = read(tmp_path / "jobs", tmp_path / "out")
    assert (report["rollouts"], report["verdicts"], row["run_id"]) == (1, {"FAIL": 1}, "s-1")
    assert shape(row) == ["system", "user", "assistant pytest", "tool", "user", "user", "assistant"]
    assert row["messages"][5]["content"] == 'bash {"command":"git status"}\nclean'
    assert [(step["name"], step["n_context"]) for step in row["steps"]] == [("bash", 2), (None, 6)]
    assert (row["prompt_tokens"], row["error"]) == (5, None)


def test_an_atif_continuation_that_is_not_there_or_names_its_own_run(tmp_path: Path) -> None:
    first = continue_atif(tmp_path / "jobs", "gone.json")
    last = first.with_name("trajectory.cont-1.json")
    alone, lost = read(tmp_path / "jobs", tmp_path / "out")[0]
    assert lost["error"] == "its continuation gone.json is not there"
    # By itself, the steps that are copies are its context.
    assert (alone["run_id"], [step["n_context"] for step in alone["steps"]]) == ("s-1-cont-1", [5])
    for file, name in ((first, last.name), (last, first.name)):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"continued_trajectory_ref": name}))
    rows, _ = read(first, tmp_path / "cycle")
    assert len(rows) == 1


def test_equal_and_odd_ids_of_runs_keep_a_session_each(tmp_path: Path) -> None:
    ids = ["a/b", "a_b", "..", "L" * 300, "L" * 301]
    rows = [nebius_row(0, 1) | {"trajectory_id": one} for one in ids]
    source = write_nebius(tmp_path / "n", rows)
    pq.write_table(pa.Table.from_pylist(rows[:1]), source / "train-00001-of-00002.parquet")
    imported, _ = read(source, tmp_path / "out")
    sessions = list((tmp_path / "out" / "sessions").glob("*/[!.]*.jsonl"))
    assert len(sessions) == len(imported) == 6
    assert [row["run_id"] for row in imported[:3]] == ["a_b", "a_b-2", "run"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b'{"messages": [{"role": "us', "it is not JSON in UTF-8"),
        (b"\xff\x00{}", "it is not JSON in UTF-8"),
        (b'{"messages": [1, 2]}', "a value has an unexpected type"),
        (b'{"messages": [], "info": "x"}', "a value has an unexpected type"),
    ],
)
def test_a_broken_file_is_rejected_and_the_others_are_read(tmp_path: Path, text: bytes, problem: str) -> None:
    source = write_mini(tmp_path / "mini")
    (source / "broken.traj.json").write_bytes(text)
    (source / "report.json").write_text('{"resolved_ids": [["x"], 1]}')
    rows, report = read(source, tmp_path / "out")
    assert (len(rows), report["unreadable"]) == (1, 1)
    [reject] = pq.read_table(tmp_path / "out" / "rejects").to_pylist()
    assert reject["problem"] == f"broken.traj.json: {problem}"


def test_metadata_of_another_type_is_left_out(tmp_path: Path) -> None:
    row = nebius_row(0, 1) | {"model": 7, "model_patch": ["x"], "test_output": 3}
    [read_row], _ = read(write_nebius(tmp_path / "n", [row]), tmp_path / "out")
    assert (read_row["model"], read_row["patch"], read_row["test_output"]) == (None, "", None)


def test_bad_sources_get_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="has no runs of a known format; these are read"):
        import_runs(ImportOptions(source=str(tmp_path / "empty"), out=tmp_path / "out"))
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "x.traj").write_text("not JSON")
    with pytest.raises(EmptySelection, match="has no run that can be read"):
        import_runs(ImportOptions(source=str(tmp_path / "bad"), out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    (tmp_path / "bad" / "x.traj").unlink()
    (tmp_path / "bad" / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(EmptySelection, match=r"can be read \(x\.parquet: it cannot be read \("):
        import_runs(ImportOptions(source=str(tmp_path / "bad"), out=tmp_path / "out"))


def test_a_file_cut_short_is_rejected_beside_the_good_ones(tmp_path: Path) -> None:
    size = 300
    source = write_nebius(tmp_path / "n", [nebius_row(0, 1)])
    content = next(source.glob("*.parquet")).read_bytes()
    assert "rollouts: 1 (1 PASS), from n" in run_command("import", str(source), "--out", str(tmp_path / "x"))
    (source / "cut.parquet").write_bytes(content[:size])
    (source / "odd.parquet").write_bytes(content[:size].ljust(len(content) - 8, b"x") + content[-8:])
    rows, report = read(source, tmp_path / "out")
    assert (len(rows), report["unreadable"]) == (1, 2)
    problems = pq.read_table(tmp_path / "out" / "rejects")["problem"].to_pylist()
    assert [text.partition(" (")[0] for text in problems] == [
        "cut.parquet: it cannot be read",
        "odd.parquet: it cannot be read",
    ]


def test_the_same_bytes_again_and_after_an_interrupted_run(tmp_path: Path) -> None:
    source = write_nebius(tmp_path / "n", [nebius_row(number, number % 2) for number in range(40)])
    for name in ("one", "two"):
        read(source, tmp_path / name)
    files = [path for path in (tmp_path / "one").rglob("*") if path.is_file()]
    assert len(files) == 40 + 2
    for file in files:
        again = tmp_path / "two" / file.relative_to(tmp_path / "one")
        assert again.read_bytes() == file.read_bytes()

"""Exercises from failing steps: what the rows hold, and that they share the filter's pipeline."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pimono_sdpo.filtering import FilterOptions, run_filter
from tests.failing_steps import NEW, OLD, REQUEST, SESSION
from tests.traces import HEADER, bash, trace, user

Row = dict[str, Any]


def make(folder: Path, session: str = SESSION, **options: Any) -> tuple[list[Row], Row]:
    source = folder / "traces"
    source.mkdir(exist_ok=True)
    (source / "one.jsonl").write_text(session)
    report = run_filter(str(source), folder / "out", FilterOptions(unit="step", **options))
    files = sorted((folder / "out" / "data").glob("*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()], report


def test_each_failure_and_each_correction_is_a_row(tmp_path: Path) -> None:
    rows, report = make(tmp_path, corrections=True)
    kinds = [json.loads(row["verifier_spec"])["goal"]["kind"] for row in rows]
    assert sorted(kinds) == ["change", "change", "correction", "folder", "path", "program"]
    assert report["exercises"] == {
        "change": 2, "correction": 1, "folder": 1, "path": 1, "program": 1,
    }  # fmt: skip
    # All events are counted once.
    assert sum(row["counts"]["lines_parsed"] for row in rows) == SESSION.count("\n") + 1


def test_the_prompt_ends_where_the_model_acts_and_hides_what_followed(tmp_path: Path) -> None:
    rows, _ = make(tmp_path)
    row = next(row for row in rows if "Could not find" in row["privileged_context"])
    roles = [turn["role"] for turn in row["prompt"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert '"name": "edit"' in row["prompt"][0]["content"]
    assert row["prompt"][1]["content"] == REQUEST
    assert json.loads(row["prompt"][2]["content"])["args"] == {"path": "src/app.py"}
    assert row["prompt"][3]["content"].endswith("[your plan]\nNow I open the file as UTF-8 in load.")
    assert "# text" not in json.dumps(row["prompt"])
    assert NEW not in row["privileged_context"]
    spec = json.loads(row["verifier_spec"])
    assert OLD in spec["workspace"]["files"]["$WORKSPACE/src/app.py"]["whole"]
    assert spec["resolved_call"]["args"]["edits"] == [{"oldText": OLD, "newText": NEW}]


def test_the_teacher_sees_the_call_that_worked_on_request(tmp_path: Path) -> None:
    rows, _ = make(tmp_path, resolving_call=True)
    row = next(row for row in rows if "Could not find" in row["privileged_context"])
    assert json.dumps(NEW)[1:-1] in row["privileged_context"]


def test_the_conversation_stays_within_its_budget(tmp_path: Path) -> None:
    looks = [
        event for number in range(40) for event in bash(f"sed -n '{number}p' log", "word " * 400, call_id=f"x{number}")
    ]
    bad = bash("cat src/nothing.py", "cat: src/nothing.py: No such file or directory", True, "y")
    (row,), _ = make(tmp_path, trace(HEADER, user(REQUEST), *looks, *bad), prompt_tokens=1000)
    assert row["prompt"][1]["content"] == REQUEST
    assert 2000 < sum(len(turn["content"]) for turn in row["prompt"][1:]) < 4500


def test_secrets_and_homes_reach_no_column(tmp_path: Path) -> None:
    secret = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    shown = bash("env", f"HOME=/home/ann\nGITHUB_TOKEN={secret}", call_id="x")
    bad = bash(
        f"cat /home/ann/app/x.py # {secret}", "cat: /home/ann/app/x.py: No such file or directory",
        True, "y",
    )  # fmt: skip
    (row,), report = make(tmp_path, trace(HEADER, user(REQUEST), *shown, *bad))
    assert secret not in json.dumps(row)
    assert "/home/ann" not in json.dumps(row)
    assert json.loads(row["verifier_spec"])["goal"]["path"] == "$WORKSPACE/x.py"
    assert report["secrets_redacted"]["github_token"] >= 3


def test_what_cannot_be_an_exercise_is_rejected_with_its_reason(tmp_path: Path) -> None:
    red = bash("npm test", "1 failed, 3 passed\n\nCommand exited with code 1", True, "x")
    stopped = bash("rm -rf build", "HARD BLOCK: rm -rf is not allowed here", True, "y")
    missing = bash("cat a/b.py", "cat: a/b.py: No such file or directory", True, "z")
    rows, report = make(tmp_path, trace(HEADER, user(REQUEST), *red, *stopped, *missing))
    assert len(rows) == 1
    assert report["drop_reasons"] == {"not_decidable": 1, "refused": 1}

"""Rollouts and recorded sessions become next-action rows."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from datasets import Dataset, load_dataset
from typer.testing import CliRunner

from pimono_sdpo.cli import app
from pimono_sdpo.cli.older_names import ExtractOptions as LineOptions
from pimono_sdpo.cli.older_names import sft_extract as extract
from pimono_sdpo.cli.steps import StepOptions, run, write_steps
from pimono_sdpo.dataset_writer import summarize
from pimono_sdpo.errors import EmptySelection, OutputError, PimonoError, TrainingInputError
from pimono_sdpo.schema import DROPPED_STEP, STEP
from pimono_sdpo.stage import run_stages
from pimono_sdpo.suites.split import Leakage
from pimono_sdpo.training.tiny_model import write_tiny_model
from processors.rollouts import steps, together
from tests.exports import write_samples
from tests.rollout_data import BUGGY, FIXED, OTHER, final, prose, read, rollout, write, write_folder

Json = dict[str, Any]
LOOP = {**read(), "kind": "loop"}


def cut(row: Json, **options: Any) -> tuple[list[Json], list[str]]:
    """The rows of one run, and why others were dropped."""
    given = Dataset.from_list([{**row, "split": "train"}], features=steps.RUN)
    done = list(run_stages(given, steps.build_stages(steps.StepRules(**options)), rejects=DROPPED_STEP))
    kept = [{name: one[name] for name in STEP} for one in done if one["kept"]]
    return kept, [one["drop_reason"] for one in done if not one["kept"]]


def test_a_row_per_call_with_all_that_was_read_before_it() -> None:
    rows, dropped = cut(rollout())
    assert dropped == []
    assert [len(row["prompt"]) for row in rows] == [2, 4]
    called = [json.loads(row["completion"][0]["content"]) for row in rows]
    assert called[1] == {"type": "tool_call", "name": "write_file", "args": {"rel_path": "add.py", "content": FIXED}}
    assert rows[1]["prompt"][2]["content"].startswith("Let me see.")


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (prose(), "malformed_call"),
        ({**read(), "args": {"rel_path": " "}}, "blank_argument"),
        ({**read(), "args": {}}, "invalid_arguments"),
        ({**read(), "args": {"rel_path": "a", "limit": 3}}, "invalid_arguments"),
        ({**read(), "name": "bash"}, "unknown_tool"),
        ({**read(), "ok": False}, "tool_failed"),
    ],
)
def test_a_failed_call_is_not_a_target(action: Json, reason: str) -> None:
    row = rollout(actions=[action, read(), write(FIXED, True)])
    rows, dropped = cut(row)
    assert dropped == [reason]
    assert len(rows) == 2
    kept, _ = cut(row, require_valid_tool_ok=False)
    assert len(kept) == (2 if reason in {"malformed_call", "blank_argument"} else 3)


def test_a_file_may_be_emptied() -> None:
    rows, dropped = cut(rollout(actions=[write("", True)]))
    assert (len(rows), dropped) == (1, [])


def test_nothing_after_a_loop_is_kept() -> None:
    row = rollout(actions=[read(), LOOP, write(FIXED, True)])
    rows, dropped = cut(row)
    assert (len(rows), dropped) == (1, ["loop", "after_loop"])


def test_good_recovery_keeps_actions_that_correct_a_failed_call() -> None:
    bad = {**read("nope.py"), "ok": False}
    rows, dropped = cut(rollout(actions=[bad, read(), write(FIXED, True)]), good_recovery=True)
    assert [json.loads(r["completion"][0]["content"])["name"] for r in rows] == ["read_file"]
    assert dropped == ["tool_failed", "no_recovery"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tests_ok": False}, "tests_failed"),
        ({"tests_ok": None}, "not_tested"),
        ({"error": "timeout", "tests_ok": None}, "infra_error"),
    ],
)
def test_runs_that_are_left_out(changes: Json, reason: str) -> None:
    assert cut({**rollout(), **changes}) == ([], [reason])
    rows, dropped = cut({**rollout(), **changes}, require_success=False)
    assert (rows == []) == (reason == "infra_error") == (dropped == [reason])


def test_the_window_keeps_system_request_and_the_last_results() -> None:
    row = rollout(actions=[read(), read("b.py", "x" * 500), read("c.py"), write(FIXED, True)])
    rows, _ = cut(row, context_turns=1, tool_chars=100)
    assert [len(r["prompt"]) for r in rows] == [2, 4, 4, 4]
    assert [t["role"] for t in rows[3]["prompt"]] == ["system", "user", "assistant", "user"]
    assert "c.py" in rows[3]["prompt"][2]["content"]
    assert len(rows[2]["prompt"][3]["content"]) <= 100
    assert cut(row, context_turns=0)[0][3]["prompt"] == rows[0]["prompt"]


def test_a_trajectory_is_one_row() -> None:
    row = rollout(actions=[read(), write(FIXED, True), final()])
    ((only,), _) = cut(row, granularity="trajectory")
    assert len(only["prompt"]) == 2
    assert [t["role"] for t in only["completion"]] == ["assistant", "user", "assistant"]
    assert json.loads(only["completion"][0]["content"])["name"] == "read_file"
    assert cut(rollout(actions=[prose(), read()], tests_ok=True), granularity="trajectory") == ([], ["malformed_call"])


def test_native_calls_can_be_written_in_the_json_protocol() -> None:
    row = rollout(protocol="native")
    rows, _ = cut(row, tool_protocol="json", with_final=True)
    assert len(rows) == 3
    for made in rows:
        assert made["tools"] == []
        assert made["prompt"][0]["role"] == "system"
        assert "read_file" in made["prompt"][0]["content"]
        assert isinstance(together.make_sft_line(made), dict)
    assert rows[1]["prompt"][3]["content"] == f"[tool_result]\n{BUGGY}"
    assert together.make_sft_line(cut(row)[0][1]) == "native_tool_calls"


def runs() -> list[Json]:
    rows = []
    for name in ("fix_a", "fix_b", "fix_c"):
        rows += [rollout(name, 42), rollout(name, 43, [read(), write(OTHER, False)])]
        rows += [rollout(name, 44, [prose(), read(), write(FIXED, True), final()])]
    return rows


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def test_a_folder_of_rollouts_becomes_a_dataset(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "rollouts", runs())
    report = write_steps(StepOptions(source=[str(source)], out=tmp_path / "steps", format="together"))
    assert report["splits"] == {"train": 12}
    assert report["drop_reasons"] == {"malformed_call": 3, "tests_failed": 3}
    assert report["counts"] == {"runs": 9}
    loaded = load_dataset(str(tmp_path / "steps"), cache_dir=str(tmp_path / "cache"))
    assert set(loaded["train"]["task_id"]) == {"fix_a", "fix_b", "fix_c"}
    rejects = load_dataset(str(tmp_path / "steps"), "steps_rejects", split="train", cache_dir=str(tmp_path / "cache"))
    assert len(rejects) == report["rejected"] == 6
    lines = (tmp_path / "steps/together/train.jsonl").read_text().splitlines()
    known = (tmp_path / "steps/together/train_meta.jsonl").read_text().splitlines()
    assert len(lines) == len(known) == 12
    assert all(together.check_sft(json.loads(line)) is None for line in lines)
    assert [sum(t["weight"] for t in json.loads(line)["messages"]) for line in lines] == [1] * 12
    assert json.loads(known[0])["run_id"] == "fix_a-42"
    # The folder `traces` means the folder around it, and the same input gives the same bytes.
    write_steps(StepOptions(source=[str(source / "traces")], out=tmp_path / "again", format="together"))
    assert bytes_of(tmp_path / "steps") == bytes_of(tmp_path / "again")


def test_a_folder_that_was_written_again_gives_its_new_rows(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "rollouts", runs())
    for success in (True, False):
        report = write_steps(StepOptions(source=[str(source)], out=tmp_path / "steps", require_success=success))
        loaded = load_dataset(str(tmp_path / "steps"), cache_dir=str(tmp_path / "cache"))
        rejects = load_dataset(str(tmp_path / "steps"), "steps_rejects", cache_dir=str(tmp_path / "cache"))
        assert len(loaded["train"]) == report["rows"]
        assert len(rejects["train"]) == report["rejected"]


def test_held_out_tasks_are_not_training_rows_even_without_their_suite(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "rollouts", runs(), split="test")
    report = write_steps(StepOptions(source=[str(source)], out=tmp_path / "steps"))
    assert report["splits"] == {"test": 12}
    assert not list((tmp_path / "steps" / "data").glob("train*"))
    (source / "suite.json").unlink()
    assert write_steps(StepOptions(source=[str(source)], out=tmp_path / "steps"))["splits"] == {"test": 12}


def test_a_row_that_repeats_one_of_another_file_is_rejected(tmp_path: Path) -> None:
    """There are eight runs in a file. The first row stays, and what repeats it has its own values but for the reason."""
    rows = [rollout("fix_a", 42 + n, [read(), write(FIXED, True), write(OTHER, n > 8), final()]) for n in range(20)]
    source = write_folder(tmp_path / "rollouts", rows)
    report = write_steps(StepOptions(source=[str(source)], out=tmp_path / "steps"))
    assert (report["rows"], report["drop_reasons"]) == (3, {"repeat": 30, "tests_failed": 9})
    kept = pq.read_table(tmp_path / "steps" / "data").to_pylist()
    assert [(row["run_id"], row["step"]) for row in kept] == [("fix_a-51", 0), ("fix_a-51", 1), ("fix_a-51", 2)]
    repeats = [
        row for row in pq.read_table(tmp_path / "steps" / "rejects").to_pylist() if row["drop_reason"] == "repeat"
    ]
    assert len({(row["run_id"], row["step"]) for row in repeats}) == 30
    assert all(row["detail"] is None and row["completion"] for row in repeats)
    assert pq.read_schema(next((tmp_path / "steps" / "data").iterdir())).equals(STEP.arrow_schema)


def test_what_is_finished_waits_for_the_next_run(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "rollouts", runs())
    write_steps(StepOptions(source=[str(source)], out=tmp_path / "whole"))
    second = source / "data" / "train-00001-of-00002.parquet"
    good = second.read_bytes()
    # The columns that compare runs stay whole, so that the first file can be finished.
    names = pq.read_schema(second).names
    start = pq.read_metadata(second).row_group(0).column(names.index("seed")).data_page_offset
    second.write_bytes(good[:start] + b"no parquet" * 4 + good[start + 40 :])
    with pytest.raises(PimonoError, match=r"Cannot read .*train-00001-of-00002.parquet`"):
        write_steps(StepOptions(source=[str(source)], out=tmp_path / "steps"))
    work = tmp_path / ".steps.partial"
    assert [path.name for path in (work / "parts").iterdir()] == ["00000.parquet"]
    assert not (tmp_path / "steps").exists()
    second.write_bytes(good)
    (work / "parts" / "00001.parquet").write_bytes(b"half a file")
    write_steps(StepOptions(source=[str(source)], out=tmp_path / "steps"))
    assert bytes_of(tmp_path / "whole") == bytes_of(tmp_path / "steps")
    assert not work.exists()


def test_an_empty_source_gets_no_advice_about_rules(tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").write_text('{"role": "user"}\n')
    with pytest.raises(
        EmptySelection, match=r"\(1 unknown_harness; .*: other.jsonl .*\); use whole sessions of claude_"
    ):
        run(StepOptions(source=[str(tmp_path / "other.jsonl")], out=tmp_path / "steps"))


def test_recorded_sessions_become_rows(tmp_path: Path) -> None:
    write_samples(tmp_path / "samples")
    report = write_steps(
        StepOptions(source=[str(tmp_path / "samples" / "trace_text")], out=tmp_path / "steps", format="together")
    )
    rows = load_dataset(str(tmp_path / "steps"), split="train", cache_dir=str(tmp_path / "cache"))
    assert report["rows"] == len(rows) > 10
    assert {"no_messages", "tool_failed"} <= set(report["drop_reasons"])
    assert report["together"]["train"] == {"native_tool_calls": len(rows)}
    assert not (tmp_path / "steps" / "together").exists()
    assert "lines need calls as text: give --tool-protocol json" in summarize(report, tmp_path)
    for row in rows:
        assert row["prompt"][0]["role"] == "user"
        (turn,) = row["completion"]
        (call,) = turn["tool_calls"]
        assert call["function"]["name"] in {tool["function"]["name"] for tool in row["tools"]}
        assert isinstance(call["function"]["arguments"], dict)
    assert "/home/" not in json.dumps(rows.to_list())


def test_tokens_are_counted_and_long_rows_dropped(tmp_path: Path) -> None:
    model = str(write_tiny_model(tmp_path / "tiny"))
    source = write_folder(tmp_path / "rollouts", runs())
    report = write_steps(StepOptions(source=[str(source)], out=tmp_path / "steps", tokenizer=model, max_length=200))
    rows = load_dataset(str(tmp_path / "steps"), split="train", cache_dir=str(tmp_path / "cache"))
    assert report["drop_reasons"]["too_long"] == 6
    assert max(rows["n_tokens"]) <= 200
    assert report["options"]["tokenizer"] == "tiny"
    rejects = load_dataset(str(tmp_path / "steps"), "steps_rejects", split="train", cache_dir=str(tmp_path / "cache"))
    long = [row for row in rejects if row["drop_reason"] == "too_long"]
    assert all("200 allowed" in row["detail"] and row["n_tokens"] > 200 for row in long)
    with pytest.raises(TrainingInputError, match="Cannot load a tokenizer"):
        write_steps(StepOptions(source=[str(source)], out=tmp_path / "x", tokenizer=str(tmp_path), max_length=9))
    with pytest.raises(OutputError, match="go together"):
        write_steps(StepOptions(source=[str(source)], out=tmp_path / "x", max_length=9))


def test_what_keeps_nothing_leaves_its_rejects(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "rollouts", [rollout(tests_ok=False)])
    with pytest.raises(EmptySelection, match="1 tests_failed"):
        run(StepOptions(source=[str(source)], out=tmp_path / "steps"))
    (reject,) = load_dataset(
        str(tmp_path / "steps"), "steps_rejects", split="train", cache_dir=str(tmp_path / "cache")
    )
    assert reject["drop_reason"] == "tests_failed"


def test_the_older_name_writes_lines(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "rollouts", runs())
    command = ["sft-extract", "--trace-dir", str(source / "traces"), "--format", "json"]
    lines = tmp_path / "sft.jsonl"
    done = CliRunner().invoke(app, [*command, "--output", str(lines)])
    assert done.exit_code == 0, done.output
    assert f"Wrote 12 rows to: {lines}" in done.output
    assert len(lines.read_text().splitlines()) == 12
    assert sorted(path.name for path in tmp_path.iterdir()) == ["repo", "rollouts", "sft.jsonl", "sft_meta.jsonl"]
    loose = [*command, "--no-require-success", "--no-require-valid-tool-ok"]
    done = CliRunner().invoke(app, [*loose, "--output", str(lines)])
    assert "Wrote 12 rows" in done.output
    assert "left out: malformed_call 3, repeat 3, write_failed_tests 3" in done.output


def test_a_file_without_lines_to_train_on_is_reported_in_one_sentence(tmp_path: Path) -> None:
    lines = tmp_path / "sft.jsonl"
    held_out = write_folder(tmp_path / "held" / "rollouts", runs(), split="test")
    with pytest.raises(EmptySelection, match="of 12 steps, 12 are of tasks held out"):
        extract(LineOptions(trace_dir=str(held_out), output=lines))
    failed = write_folder(tmp_path / "failed" / "rollouts", [rollout(tests_ok=False)])
    with pytest.raises(EmptySelection, match="tests_failed") as nothing:
        extract(LineOptions(trace_dir=str(failed), output=lines))
    assert "The rejects are in" not in str(nothing.value)
    assert str(nothing.value).startswith(f"`{failed}` gives no steps")
    assert str(nothing.value).endswith("--no-require-success, or --no-require-valid-tool-ok.")
    prose = write_folder(tmp_path / "prose" / "rollouts", [rollout(actions=[])])
    with pytest.raises(EmptySelection, match=r"more runs, or --no-require-valid-tool-ok\.$"):
        extract(LineOptions(trace_dir=str(prose), output=lines, require_success=False))
    assert not lines.exists()


@pytest.mark.parametrize("command", ["steps", "pairs"])
def test_rows_of_tasks_that_are_held_out_are_refused(command: str, tmp_path: Path) -> None:
    fails = [read(), write(OTHER, False), final("done")]
    rows = [rollout(name, seed, fails if seed else None) for name in "ab" for seed in (0, 1)]
    source = write_folder(tmp_path / "rollouts", rows)
    held = write_folder(tmp_path / "held", [rollout("b")], split="test")
    other = write_folder(tmp_path / "other", [rollout("c")], split="test")

    def run(out: Path, *more: str) -> Any:
        return CliRunner().invoke(app, [command, str(source), "--out", str(out), *more])

    assert run(tmp_path / "out").exit_code == 0
    before = bytes_of(tmp_path / "out")
    failed = run(tmp_path / "out", "--test-suite", str(held))
    assert isinstance(failed.exception, Leakage)
    assert "training rows are of tasks of the test suite `tiny`: `b` (" in str(failed.exception)
    assert bytes_of(tmp_path / "out") == before
    assert run(tmp_path / "out", "--test-suite", str(other / "suite.json")).exit_code == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["options"]["test_suite"] == "tiny"
    missing = run(tmp_path / "out", "--test-suite", "gone.json")
    assert "`gone.json` cannot be read" in str(missing.exception)

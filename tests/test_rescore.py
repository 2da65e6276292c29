"""Stored completions are scored with the command and the function."""

import json
import os
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, DatasetDict, load_dataset

from pimono_sdpo.cli.rescore import Options, score_completions
from pimono_sdpo.errors import EmptySelection, OutputError, OwnCodeError, SourceError
from rewards import rescore
from rewards.verifiers.rubric import NotAVerifier, Rubric
from rewards.verifiers.tool_calls import definitions
from tests.shards import cli

GOOD = '<tool_call>\n{"name": "read", "arguments": {"path": "a.ts"}}\n</tool_call><|im_end|>'
BAD = GOOD.replace('"path"', '"pat"')
SPEC = json.dumps({"tools": "pi", "format": "qwen3"})
ROWS = {
    "completion": [GOOD, BAD, "just words", GOOD],
    "verifier_spec": [SPEC, SPEC, SPEC, None],
    "prompt": ["a", "b", "c", "d"],
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    Dataset.from_dict(ROWS).to_parquet(tmp_path / "in" / "rollouts.parquet")
    return tmp_path / "in"


def test_verdicts_are_added_to_the_rows(source: Path, tmp_path: Path) -> None:
    report = score_completions(
        Options(source=str(source), out=tmp_path / "out", gate=["tool_calls"], grade=["replay=2"])
    )
    assert (report["rows"], report["judged"], report["passed"]) == (4, 3, 1)
    assert report["verdicts"]["tool_calls"] == {"passed": 1, "failed": 2, "error": 0, "skipped": 0}
    assert report["rejected"] == {"the row has no `verifier_spec`": 1}
    rows = load_dataset("parquet", data_dir=str(tmp_path / "out" / "data"), split="train")
    assert rows["prompt"] == ROWS["prompt"]
    assert rows["reward"][0] == 1.0
    assert 0.0 < rows["reward"][1] < 1.0
    assert rows["reward"][2:] == [0.0, None]
    assert "Validation failed for tool" in rows["feedback"][1][0]
    again = score_completions(
        Options(source=str(tmp_path / "out" / "data"), out=tmp_path / "again", gate=["tool_calls"])
    )
    assert again["passed"] == 1


def test_a_run_resumes_after_its_last_slice(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescore, "SLICE", 1)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    score_completions(Options(source=str(source), out=whole, gate=["tool_calls"]))
    judged: list[str] = []
    real = rescore.rescore

    def stopping(row: rescore.Row, rubric: Rubric) -> rescore.Row:
        judged.append(row["prompt"])
        if len(judged) == 3:
            raise KeyboardInterrupt
        return real(row, rubric)

    monkeypatch.setattr(rescore, "rescore", stopping)
    with pytest.raises(KeyboardInterrupt):
        score_completions(Options(source=str(source), out=broken, gate=["tool_calls"]))
    score_completions(Options(source=str(source), out=broken, gate=["tool_calls"]))
    assert judged == ["a", "b", "c", "c", "d"]
    files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())
    assert len(files) == 5
    assert [(whole / f).read_bytes() for f in files] == [(broken / f).read_bytes() for f in files]


@pytest.mark.parametrize(
    ("columns", "gates", "graded", "problem", "message"),
    [
        (ROWS, [], [], OutputError, "no verifiers"),
        (ROWS, ["gone"], [], OutputError, "`gone` is not a verifier"),
        (ROWS, ["json:loads:x"], [], OwnCodeError, "`loads:x` is not in the module `json`"),
        (ROWS, [], ["syntax=much"], OutputError, "cannot be built"),
        (ROWS, [], ["syntax=0"], OutputError, "cannot be built"),
        (ROWS, [], ["syntax=inf"], OutputError, "cannot be built"),
        (ROWS, ["syntax"], ["syntax=2"], OutputError, "`syntax` is given twice"),
        ({**ROWS, "verifier_spec": ['{"tools": "nope"}'] * 4}, ["tool_calls"], [], SourceError, "row 1: .*'nope'"),
        ({**ROWS, "verifier_spec": ["{}"] * 4}, ["tests"], [], SourceError, "row 1: The row has no tests"),
        (ROWS, ["os:system"], [], OutputError, "`os:system` is not a verifier"),
        (ROWS, ["json:dumps"], [], OutputError, "`json:dumps` is not a verifier"),
        (ROWS, ["operator:eq"], [], OutputError, "is not a verifier"),
        (ROWS, ["copy:deepcopy"], [], NotAVerifier, "returns str"),
        ({"prompt": ["a"]}, ["syntax"], [], SourceError, "give `completion` or `completions`"),
        ({**ROWS, "verifier_spec": ["{"] * 4}, ["syntax"], [], SourceError, "not a JSON object"),
        ({**ROWS, "verifier_spec": [None] * 4}, ["syntax"], [], SourceError, "no `verifier_spec`"),
        ({**ROWS, "verifier_spec": [{"a": 1}] * 4}, ["syntax"], [], SourceError, "json.dumps"),
        ({**ROWS, "completions": [["a"]] * 4}, ["syntax"], [], SourceError, "give `completion` or `completions`"),
        ({"completion": [3], "verifier_spec": ["{}"]}, ["syntax"], [], SourceError, "is neither text"),
        ({"completion": [["a"]], "verifier_spec": ["{}"]}, ["syntax"], [], SourceError, "neither"),
        ({"completions": ["a"], "verifier_spec": ["{}"]}, ["syntax"], [], SourceError, "has no completion"),
        ({"completions": [[]], "verifier_spec": ["{}"]}, ["syntax"], [], SourceError, "have no completion"),
        ({"completion": ["a"]}, ["syntax"], [], SourceError, "and `verifier_spec` as JSON text"),
        ({name: [] for name in ROWS}, ["syntax"], [], EmptySelection, "has no rows"),
    ],
)
def test_bad_input_is_an_error_of_one_sentence(
    tmp_path: Path,
    columns: dict[str, list[Any]],
    gates: list[str],
    graded: list[str],
    problem: type[Exception],
    message: str,
) -> None:
    (tmp_path / "in").mkdir()
    Dataset.from_dict(columns).to_parquet(tmp_path / "in" / "x.parquet")
    with pytest.raises(problem, match=message):
        score_completions(Options(source=str(tmp_path / "in"), out=tmp_path / "out", gate=gates, grade=graded))
    assert not (tmp_path / "out").exists()


def test_the_command_prints_the_result(source: Path, tmp_path: Path) -> None:
    done = cli("rescore", source, "--out", tmp_path / "out", "--gate", "tool_calls")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == [
        "verifier     passed   failed    error  skipped",
        "tool_calls        1        2        0        0",
        "rejected: 1, the row has no `verifier_spec` (first in row 4)",
        f"rows and report.json are in {tmp_path / 'out'}",
    ]
    assert "4 rows, 3 judged, 1 passed" in done.stdout
    assert done.stderr == "", "no bar without a terminal"


def test_the_tools_of_a_row_are_added_to_its_spec(tmp_path: Path) -> None:
    call = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
    rows = [
        {"completion": call, "verifier_spec": '{"harness": "codex"}', "tools": definitions(name)}
        for name in ("codex", "repo_agent")
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    rubric = rescore.build_rubric(["tool_calls"], [])
    report = rescore.rescore_dataset(str(tmp_path / "rows.jsonl"), tmp_path / "out", rubric)
    assert (report["judged"], report["passed"]) == (2, 1)


def test_calls_of_a_model_need_the_extra(tmp_path: Path) -> None:
    call = '<tool_call>\n{"name": "read", "arguments": {"path": "a.py"}}\n</tool_call>'
    row = {"completion": call, "verifier_spec": json.dumps({"tools": "pi"})}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    program = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *given: None if name == "transformers" else find(name, *given)
from pimono_sdpo.cli import main
main()
"""
    words = ["rescore", str(tmp_path / "rows.jsonl"), "--out", str(tmp_path / "out"), "--gate", "tool_calls"]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "Reading the tool calls of a model needs the extra `train`: run" in done.stderr


def test_a_terminal_shows_the_same_bar_as_filter(source: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pimono_sdpo", "rescore", str(source)]
    command += ["--out", str(tmp_path / "out"), "--gate", "tool_calls"]
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, check=True)
    os.close(theirs)
    shown = b""
    while chunk := _read(ours):
        shown += chunk
    assert b"rescore: 100%" in shown
    assert b"4/4" in shown
    assert b"Map" not in shown
    assert b"1 passed" in done.stdout


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux says so when the other side is closed
        os.close(terminal)
        return b""


def test_completions_of_every_shape_are_read(tmp_path: Path) -> None:
    call = {"type": "function", "function": {"name": "read", "arguments": '{"path": "a.ts"}'}}
    messages = [{"role": "assistant", "content": GOOD, "tool_calls": None}]
    shapes: dict[str, list[dict[str, Any]]] = {
        "text": [{"completion": GOOD}, {"completion": BAD}],
        "messages": [{"completion": messages}, {"completion": [{"role": "assistant", "content": BAD}]}],
        "texts": [{"completions": [GOOD, BAD]}, {"completions": []}],
        "conversations": [{"completions": [messages]}, {"completions": [messages[:0], messages]}],
        "mixed": [{"completion": messages}, {"completion": GOOD}, {"completion": 3}],
        "calls": [{"completion": [{"role": "assistant", "content": "", "tool_calls": [call]}]}],
    }
    passed = {}
    for name, rows in shapes.items():
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"verifier_spec": SPEC, **row}) + "\n" for row in rows))
        report = score_completions(Options(source=str(path), out=tmp_path / f"out-{name}", gate=["tool_calls"]))
        passed[name] = (report["rows"], report["passed"])
        if name == "mixed":
            assert report["rejected"] == {"the completion is neither text nor messages": 1}
        data = str(tmp_path / f"out-{name}" / "data")
        scored = load_dataset("parquet", data_dir=data, split="train")
        assert "completions" not in scored.column_names
        assert len(scored["completion"]) == report["rows"]
    assert passed.pop("calls")[0] == 1
    assert passed == {"text": (2, 1), "messages": (2, 1), "texts": (2, 1), "conversations": (3, 2), "mixed": (3, 2)}


def test_completions_of_a_saved_dataset_are_read(tmp_path: Path) -> None:
    DatasetDict({"train": Dataset.from_dict(ROWS)}).save_to_disk(tmp_path / "saved")
    given = Options(source=str(tmp_path / "saved" / "train"), out=tmp_path / "out", gate=["tool_calls"])
    report = score_completions(given)
    assert (report["rows"], report["passed"]) == (4, 1)
    with pytest.raises(SourceError, match="several splits; give the folder of one"):
        score_completions(Options(source=str(tmp_path / "saved"), out=tmp_path / "other", gate=["tool_calls"]))


SLOW = """
import os
from pathlib import Path
from rewards.verifiers.rubric import passed

LOG = Path(os.environ["LOG"])

def verify(completion, spec):
    with LOG.open("a") as log:
        log.write(completion + "\\n")
    if completion == os.environ.get("KILL"):
        os.kill(os.getpid(), 9)
    return passed("slow", length=len(completion))
"""


@pytest.mark.slow
def test_a_killed_run_resumes(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    names = [f"answer {number}" for number in range(2 * rescore.SLICE + 9)]
    rows = [{"completion": name, "verifier_spec": "{}"} for name in names]
    stored = tmp_path / "rows.jsonl"
    stored.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(out: str, **more: str) -> tuple[int, list[str]]:
        log = tmp_path / f"{out}.log"
        command = [sys.executable, "-m", "pimono_sdpo", "rescore", str(stored)]
        command += ["--out", str(tmp_path / out), "--grade", "slow:verify", "--workers", "1"]
        path = os.pathsep.join([str(tmp_path), *sys.path])
        environment = {**os.environ, "PYTHONPATH": path, "LOG": str(log), **more}
        done = subprocess.run(command, env=environment, capture_output=True, check=False)
        judged = log.read_text().splitlines()
        log.unlink()
        return done.returncode, judged

    killed = rescore.SLICE + 5
    assert run("broken", KILL=names[killed]) == (-9, names[: killed + 1])
    assert not (tmp_path / "broken").exists()
    assert run("broken") == (0, names[rescore.SLICE :])
    assert run("whole") == (0, names)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())
    assert [(whole / f).read_bytes() for f in files] == [(broken / f).read_bytes() for f in files]
    assert len(files) == 4
    assert not list(tmp_path.glob(".broken*"))


def test_rows_without_a_verdict_are_counted_and_do_not_stop_the_others(tmp_path: Path) -> None:
    diff = "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"
    spec: dict[str, Any] = {"files": {"a.py": "x = 1\n"}}
    specs = [
        json.dumps(spec),
        "{",
        "[" * 100_000,
        "3",
        None,
        "{}",
        json.dumps({**spec, "allowed": 3}),
        json.dumps(spec),
    ]
    rows = {"completion": [*[diff] * 7, None], "verifier_spec": specs}
    stored = tmp_path / "rows.parquet"
    Dataset.from_dict(rows).to_parquet(stored)
    report = score_completions(Options(source=str(stored), out=tmp_path / "out", gate=["syntax"], grade=["patches"]))
    assert (report["rows"], report["judged"], report["passed"]) == (8, 1, 1)
    assert report["rejected"]["`verifier_spec` is not a JSON object"] == 3
    assert sum(report["rejected"].values()) == 7
    assert report["rejected"]["the row has no completion"] == 1
    assert any("`allowed` of the spec is 3" in reason for reason in report["rejected"])
    assert any("The spec has no `files`" in reason for reason in report["rejected"])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.jsonl", b'{"completion": "a"', "cannot be read"),
        ("x.jsonl", b'{"completion": "a", "verifier_spec": null}\n', "no `verifier_spec`"),
        ("x.jsonl", b"\xff\xfe\x00", "cannot be read"),
        ("x.jsonl", b"", "has no rows"),
        ("x.jsonl", b'{"completion": "a", "verifier_spec": {"files": {}}}\n', "as JSON text from json.dumps"),
        ("x.parquet", b"PAR1 and nothing", "cannot be read"),
        ("x.csv", b"a,b", "neither parquet nor JSONL"),
    ],
)
def test_unreadable_files_are_an_error_of_one_sentence(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    done = cli("rescore", tmp_path / name, "--out", tmp_path / "out", "--gate", "syntax")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith("pimono-sdpo: ")
    assert f"`{tmp_path / name}` " in done.stderr
    assert message in done.stderr
    assert not (tmp_path / "out").exists()


def test_any_number_of_threads_writes_the_same_bytes(source: Path, tmp_path: Path) -> None:
    for workers in (1, 5):
        score_completions(
            Options(
                source=str(source), out=tmp_path / str(workers), gate=["tool_calls"], grade=["syntax"], workers=workers
            )
        )
    files = sorted(path for path in (tmp_path / "1").rglob("*") if path.is_file())
    others = [tmp_path / "5" / path.relative_to(tmp_path / "1") for path in files]
    assert len(files) == 2
    assert [path.read_bytes() for path in files] == [path.read_bytes() for path in others]

"""Test the filter end to end through the command line."""

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import load_dataset

from pimono_sdpo.errors import EmptySelection, OutputError
from pimono_sdpo.filtering import FilterOptions, run_filter
from pimono_sdpo.runs import folders
from pimono_sdpo.runs.folders import only_run
from pimono_sdpo.samples import SAMPLE_SESSIONS
from pimono_sdpo.schema import SDPO_ROW
from pimono_sdpo.traces import sources
from tests.exports import is_intact, write_export, write_samples
from tests.shards import all_bytes, cli, command, killed
from tests.traces import HEADER, assistant, bash, call, trace, user

EXPECTED = json.loads((SAMPLE_SESSIONS.parent / "expected.json").read_text())
SESSIONS = sorted(Path(str(SAMPLE_SESSIONS)).glob("*.jsonl"))

ALL = FilterOptions(min_worth=0.0)
FAILED = [
    *bash("npm test", "Tests  1 failed\n\nCommand exited with code 1", error=True),
    *bash("npm ci", "added 12 packages"),
    *bash("npm test", "Tests  1 passed"),
]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("samples") / "traces"
    write_samples(folder)
    return folder


@pytest.fixture(scope="module")
def rows(traces: Path) -> Path:
    out = traces.parent / "rows"
    run_filter(str(traces), out, ALL)
    return out


def table(folder: Path, kind: str = "data") -> pa.Table:
    files = sorted((folder / kind).glob("*.parquet"))
    return pa.concat_tables([pq.read_table(file) for file in files])


def stem(source: str) -> str:
    return source.rsplit("/", 1)[-1].removesuffix(".jsonl")


def test_the_samples_give_the_expected_rows(rows: Path) -> None:
    found = {
        stem(row["source"]): {"kept": True, "drop_reason": None, "categories": sorted(row["categories"])}
        for row in table(rows).to_pylist()
    }
    for row in table(rows, "rejects").to_pylist():
        if row["episode"]:
            # An episode that begins with a correction and has no failures.
            assert row["drop_reason"] == "no_evidence"
            continue
        found[stem(row["source"])] = {"kept": False, "drop_reason": row["drop_reason"], "categories": []}
    wanted = {
        stem(name): {**truth, "categories": sorted(truth["categories"]) if truth["kept"] else []}
        for name, truth in EXPECTED.items()
    }
    assert found == wanted


def test_load_dataset_reads_the_folder(rows: Path) -> None:
    report = json.loads((rows / "report.json").read_text())
    kept = load_dataset(str(rows), split="train")
    rejected = load_dataset(str(rows), "rejects", split="train")
    assert kept.features == SDPO_ROW
    assert (kept.num_rows, rejected.num_rows) == (report["kept"], report["rejected"])
    assert all(row["prompt"][-1]["role"] == "user" for row in kept)
    assert all(row["score"] == pytest.approx(sum(term["value"] for term in row["score_terms"])) for row in kept)


def test_the_report_adds_up(rows: Path) -> None:
    report = json.loads((rows / "report.json").read_text())
    assert report["sessions"] == len(SESSIONS)
    assert report["stages"][0]["rows_out"] == report["kept"] + report["rejected"]
    for before, after in zip(report["stages"], report["stages"][1:], strict=False):
        assert before["rows_out"] == after["rows_in"]
    # The first stage makes a row of each request.
    for stage in report["stages"][1:]:
        assert stage["rows_in"] - stage["rows_out"] == sum(stage["dropped"].values())
    assert sum(report["drop_reasons"].values()) == report["rejected"]
    assert sum(b["rows"] for b in report["score"]["histogram"]) == report["kept"]
    assert report["score"]["max"] == 19.5
    assert report["lines"]["repaired"] >= 2
    assert report["lines"]["skipped"] >= 1
    assert report["secrets_redacted"]
    assert report["first_sample"]["session_id"] == table(rows).column("session_id")[0].as_py()


def test_no_secret_and_no_machine_path_survives(rows: Path) -> None:
    everything = b"".join(all_bytes(rows).values()).decode("utf-8", errors="ignore")
    texts = json.dumps(table(rows).to_pylist()) + (rows / "README.md").read_text() + everything
    for needle in ("ghp_", "sk-ant-", "AKIA", "/Users/mira", "/home/jonas"):
        assert needle not in texts


def test_the_layouts_give_identical_rows(tmp_path: Path) -> None:
    valid = [path for path in SESSIONS if is_intact(path)]
    tables = []
    for layout in ("traces_list", "trace_list", "trace_text"):
        write_export(tmp_path / layout, layout, valid)
        run_filter(str(tmp_path / layout), tmp_path / f"{layout}_rows", ALL)
        tables.append(table(tmp_path / f"{layout}_rows"))
    raw = tmp_path / "raw"
    raw.mkdir()
    for path in valid:
        (raw / path.name).write_bytes(path.read_bytes())
    run_filter(str(raw), tmp_path / "raw_rows", ALL)
    first = tables[0].sort_by("source")
    assert first.num_rows > 8
    for other in (*tables[1:], table(tmp_path / "raw_rows")):
        assert other.sort_by("source").equals(first)


def test_the_same_input_gives_the_same_bytes_even_when_resumed(traces: Path, rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows"
    first_done = tmp_path / ".rows.partial" / "parts" / "00000.parquet"
    words = ("filter", str(traces), "--out", str(out), "--min-worth", "0")
    process = subprocess.Popen(command(*words), stdout=subprocess.DEVNULL)
    with killed(process, first_done.exists):
        made = first_done.stat().st_mtime_ns
    assert made
    assert not out.exists()
    again = cli(*words)
    assert (again.returncode, " rows\n" in again.stdout) == (0, True)
    assert all_bytes(out) == all_bytes(rows)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows"]


def test_max_samples_keeps_the_best_and_the_seed_decides_among_equals(
    traces: Path, rows: Path, tmp_path: Path
) -> None:
    scores = sorted(table(rows).column("score").to_pylist(), reverse=True)
    # Cut between rows of equal score, so that the seed decides.
    cut = next(n for n in range(2, len(scores)) if scores[n - 1] == scores[n])
    picked = []
    for seed in range(8):
        report = run_filter(str(traces), tmp_path / "some", replace(ALL, max_samples=cut, seed=seed, rank_by="score"))
        some = table(tmp_path / "some")
        assert sorted(some.column("score").to_pylist(), reverse=True) == scores[:cut]
        assert report["drop_reasons"]["over_max_samples"] == len(scores) - cut
        assert table(tmp_path / "some", "rejects").num_rows == report["rejected"]
        picked.append(sorted(some.column("session_id").to_pylist()))
    assert run_filter(str(traces), tmp_path / "some", replace(ALL, max_samples=cut, min_score=0.5))["kept"] == cut
    assert table(tmp_path / "some").column("score").to_pylist() == scores[:cut]
    assert len({tuple(one) for one in picked}) > 1


def test_rows_are_written_best_first_and_max_samples_takes_the_best(traces: Path, tmp_path: Path) -> None:
    found = {}
    for name, options in (
        ("all", ALL),
        ("score", replace(ALL, rank_by="score")),
        ("some", replace(ALL, max_samples=3)),
    ):
        run_filter(str(traces), tmp_path / name, options, workers=2)
        rows = table(tmp_path / name)
        found[name] = [
            *zip(*(rows[column].to_pylist() for column in ("worth", "score", "session_id", "episode")), strict=True)
        ]
    assert [row[:2] for row in found["all"]] == sorted((row[:2] for row in found["all"]), reverse=True)
    assert len({row[0] for row in found["all"]}) > 2
    assert found["some"] == found["all"][:3]
    assert [row[1] for row in found["score"]] == sorted((row[1] for row in found["all"]), reverse=True)


def test_min_score_is_a_reason_to_drop(traces: Path, tmp_path: Path) -> None:
    report = run_filter(str(traces), tmp_path / "rows", FilterOptions(min_score=13.3))
    assert report["score"]["min"] >= 13.3
    assert report["drop_reasons"]["below_min_score"] > 0


def test_an_episode_is_a_request_and_the_work_on_it(tmp_path: Path) -> None:
    failing = "Tests  1 failed\n\nCommand exited with code 1"
    (tmp_path / "a.jsonl").write_text(
        trace(
            HEADER,
            user("Fix the parser, it drops the last line"),
            *bash("npm test", failing, error=True),
            user("no, that is the wrong file, look at src/lexer.ts"),
            call("read", path="src/lexer.ts"),
            assistant("The lexer drops it; I changed src/lexer.ts."),
            user("Now add a command that prints the syntax tree"),
            *bash("npx tsc", "a.ts(1,2): error TS2322: no\n\nCommand exited with code 2", True),
            *bash("sed -i s/no/yes/ a.ts", "", call_id="c2"),
            *bash("npx tsc", "", call_id="c3"),
        )
    )
    whole = FilterOptions(unit="session", reference_terms=True)
    one = run_filter(str(tmp_path / "a.jsonl"), tmp_path / "session", whole)
    run_filter(str(tmp_path / "a.jsonl"), tmp_path / "episode", FilterOptions(min_worth=0))
    (both,) = table(tmp_path / "session").to_pylist()
    assert both["prompt"][-1]["content"].startswith("Fix the parser")
    assert set(both["categories"]) < set(both["reward_terms"])
    assert "TS2322" not in both["privileged_context"]
    first, second = table(tmp_path / "episode").to_pylist()
    assert one["kept"] == 1
    assert first["prompt"][0]["content"].startswith("Fix the parser")
    assert first["categories"] == ["command_error", "test_or_assertion", "user_feedback"]
    assert second["prompt"][-1]["content"].startswith("Now add a command")
    # A short request comes with the turns before it.
    assert [turn["role"] for turn in second["prompt"]] == ["user", "assistant", "user"]
    assert second["categories"] == ["build_lint_compile", "command_error"]
    # The correction between them also begins an episode, without failures.
    assert (first["episode"], second["episode"]) == (0, 2)


def test_corrections_and_short_messages_begin_requests(tmp_path: Path) -> None:
    red = ("npm test", "Tests  1 failed\n\nCommand exited with code 1")
    asked = "The page of the cart adds up wrong, please correct it"
    (tmp_path / "a.jsonl").write_text(
        trace(
            HEADER,
            user(asked),
            call("edit", path="cart.ts", edits=[{"oldText": "a", "newText": "b"}]),
            assistant("Done, the cart adds up. Shall I commit it?"),
            user("yes, both files"),
            *bash(*red, error=True),
            assistant("Committed and pushed to the branch."),
            user("commit and push again"),
            assistant("Pushed."),
            user("No, the total is still wrong, it leaves out the taxes"),
            assistant("You're right, I left them out."),
            *bash(*red, error=True, call_id="c2"),
            *bash("npm ci", "", call_id="c6"),
            *bash("npm test", "Tests  1 passed", call_id="c7"),
            assistant("The taxes are in it now."),
            user("run the linter"),
            *bash("npx tsc", "a.ts(1,2): error TS2322: no\n\nCommand exited with code 2", True, call_id="c3"),
            *bash("sed -i s/no/yes/ a.ts", "", call_id="c4"),
            *bash("npx tsc", "", call_id="c5"),
        )
    )
    run_filter(str(tmp_path / "a.jsonl"), tmp_path / "out", FilterOptions(min_worth=0))
    rows = {row["prompt"][-1]["content"]: row for row in table(tmp_path / "out").to_pylist()}
    # An answer does not begin an episode; the correction is about the work, not about the push after it.
    first, again, terse = rows.values()
    requests = [*rows]
    assert requests[0] == asked
    assert "leaves out the taxes" in first["privileged_context"]
    assert requests[1].startswith("No, the total")
    assert again["categories"] == ["command_error", "test_or_assertion"]
    assert requests[2] == "run the linter"
    assert terse["prompt"][-2]["content"].endswith("The taxes are in it now.")


def test_bad_input_prints_one_sentence_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "quiet.jsonl").write_text(trace(HEADER, user("Explain what the parser does")))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("do not touch")
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "other.parquet")
    before = all_bytes(tmp_path)
    cases = {
        ("missing", "out"): "does not exist",
        ("other.parquet", "out"): "has the columns text",
        ("quiet.jsonl", "out"): "gives no rows (1 no_evidence)",
        ("quiet.jsonl", "mine"): "holds files that no earlier run of this command wrote",
        ("mine", "mine/rows"): "lie inside each other",
    }
    for (source, out), sentence in cases.items():
        done = cli("filter", str(tmp_path / source), "--out", str(tmp_path / out))
        (line,) = [text for text in done.stderr.splitlines() if text.startswith("pimono-sdpo:")]
        assert sentence in line
        assert "Traceback" not in done.stderr
        assert done.returncode == 2
        assert all_bytes(tmp_path) == before


def test_a_second_run_into_the_same_folder_is_refused(traces: Path, tmp_path: Path) -> None:
    with only_run(tmp_path / "rows"):
        done = cli("filter", str(traces), "--out", str(tmp_path / "rows"))
    assert done.returncode == 2
    assert "Another run is writing" in done.stderr
    assert run_filter(str(traces), tmp_path / "rows")["kept"] > 0


def test_an_empty_selection_names_the_reasons(traces: Path, tmp_path: Path) -> None:
    with pytest.raises(EmptySelection, match=r"`traces` gives no rows \(.*below_min_score.*lower --min-score"):
        run_filter(str(traces), tmp_path / "rows", FilterOptions(min_score=99.0))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("given", "words"), [({"judge_provider": "together"}, "is where --judge MODEL is asked")])
def test_an_option_without_the_one_that_it_needs_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(OutputError, match=words):
        FilterOptions(**given)


def test_an_unknown_licence_is_refused_before_any_work(traces: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"licence `mine`.*such as mit"):
        run_filter(str(traces), tmp_path / "rows", FilterOptions(licence="mine"))
    assert not list(tmp_path.iterdir())
    run_filter(str(traces), tmp_path / "rows", FilterOptions(licence="cc-by-4.0"))
    assert "\nlicense: cc-by-4.0\n" in (tmp_path / "rows" / "README.md").read_text()


def test_an_output_is_replaced_only_if_a_run_wrote_it(traces: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows"
    for mine in (out, tmp_path / ".rows.old", tmp_path / ".rows.partial"):
        mine.mkdir()
        (mine / "report.json").write_text('{"title": "not of a filter run"}')
        with pytest.raises(OutputError, match="holds files that no earlier run of this command wrote"):
            run_filter(str(traces), out)
        assert all_bytes(mine) == {"report.json": b'{"title": "not of a filter run"}'}
        shutil.rmtree(mine)
    run_filter(str(traces), out)
    for name in ("data/mine.parquet", "rejects/notes.md", "mine.md"):
        (out / name).write_text("mine")
        before = all_bytes(tmp_path)
        with pytest.raises(OutputError, match=f"such as `{name}`; move them, or use another"):
            run_filter(str(traces), out)
        assert all_bytes(tmp_path) == before
        (out / name).unlink()
    for source, folder in ((out, out), (out / "data", out), (out, out / "data"), (out, tmp_path)):
        run_filter(str(traces), out)
        before = all_bytes(tmp_path)
        with pytest.raises(OutputError, match="lie inside each other"):
            run_filter(str(source), folder)
        assert all_bytes(tmp_path) == before


def test_an_output_moved_aside_by_a_killed_run_is_restored(traces: Path, rows: Path, tmp_path: Path) -> None:
    shutil.copytree(rows, tmp_path / ".rows.old")
    with pytest.raises(EmptySelection):
        run_filter(str(traces), tmp_path / "rows", FilterOptions(min_score=99.0))
    assert all_bytes(tmp_path / "rows") == all_bytes(rows)
    shutil.copytree(rows, tmp_path / ".rows.old")
    run_filter(str(traces), tmp_path / "rows")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows"]


def test_a_kill_during_the_cleanup_does_not_block_the_next_run(traces: Path, rows: Path, tmp_path: Path) -> None:
    """A folder is recognised as ours until it is removed completely."""
    for name, mark in ((".rows.old", "report.json"), (".rows.partial", "lock")):
        shutil.copytree(rows, tmp_path / "rows", dirs_exist_ok=True)
        (tmp_path / name / "rows").mkdir(parents=True)
        (tmp_path / name / mark).write_text('{"pimono_sdpo": "x"}')
        folders.remove(tmp_path / name, mark)
        assert not (tmp_path / name).exists()
    shutil.copytree(rows, tmp_path / ".rows.old")
    (tmp_path / ".rows.old" / "README.md").unlink()
    shutil.rmtree(tmp_path / ".rows.old" / "data")
    run_filter(str(traces), tmp_path / "rows", ALL)
    assert all_bytes(tmp_path / "rows") == all_bytes(rows)


def test_an_output_that_cannot_be_written_is_reported(traces: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for words in (
        ("filter", str(traces), "--out", str(tmp_path / "file")),
        ("filter", str(traces), "--out", str(tmp_path / "file" / "rows")),
        ("filter", str(traces), "--out", "/"),
        ("demo", "sessions", "--out", str(tmp_path / "file")),
        ("demo", "sessions", "--out", str(tmp_path)),
        ("demo", "model", "--out", str(tmp_path / "file" / "model")),
    ):
        done = cli(*words)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert "; use " in done.stderr


def test_an_unusual_row_does_not_end_the_run(tmp_path: Path) -> None:
    good = trace(HEADER, user("Fix the parser, it drops the last line"), *FAILED)
    invalid = pa.Array.from_buffers(
        pa.string(), 3, pa.array([b"a\xff.jsonl", b"b.jsonl", b"c.jsonl"], pa.binary()).buffers()
    )
    table_in = pa.table(
        {
            "session_id": pa.array([1, 2, None], pa.int64()),
            "traces": pa.array([None, None, [good]], pa.list_(pa.string())),
            "trace": pa.array([json.dumps(good), json.dumps(good + "\ud800"), None]),
            "file_name": invalid,
        }
    )
    pq.write_table(table_in, tmp_path / "odd.parquet")
    report = run_filter(str(tmp_path / "odd.parquet"), tmp_path / "rows", FilterOptions(dedupe=False, min_worth=0))
    kept = table(tmp_path / "rows")
    assert report["kept"] == 3
    assert sorted(kept.column("source").to_pylist()) == ["a\ufffd.jsonl", "b.jsonl", "c.jsonl"]
    assert sorted(kept.column("session_id").to_pylist()) == ["1", "2", "s-1"]


def test_names_are_redacted_in_the_report_and_the_card(tmp_path: Path) -> None:
    secret = "hf_" + "aB3" * 12
    folder = tmp_path / os.fsdecode(f"runs-{secret}".encode() + b"\xfe")
    folder.mkdir()
    (folder / f"ann@corp.dev-{secret}.jsonl").write_text(
        trace(HEADER, user("Fix the parser, it drops the last line"), *FAILED)
    )
    (folder / os.fsdecode(b"b\xff.jsonl")).write_text(trace(HEADER))
    run_filter(str(folder), tmp_path / "rows", FilterOptions(min_worth=0))
    everything = b"".join(all_bytes(tmp_path / "rows").values())
    assert secret.encode() not in everything
    assert b"ann@corp" not in everything
    assert b"REDACTED:huggingface_token" in everything


def test_a_warning_names_a_large_row_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_export(tmp_path / "export", "trace_text", SESSIONS[:3])
    largest = max(
        pq.ParquetFile(file).metadata.row_group(0).total_byte_size for file in (tmp_path / "export").rglob("*.parquet")
    )
    monkeypatch.setattr(sources, "GROUP_BYTES", largest)
    sources.open_source(str(tmp_path / "export"))
    assert not caplog.messages
    monkeypatch.setattr(sources, "GROUP_BYTES", largest - 1)
    sources.open_source(str(tmp_path / "export"))
    assert any("write it with smaller row groups" in one for one in caplog.messages)

import base64
import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from cards.view import render_page
from cards.view.rows import COLUMNS, describe_labels, lay_out_blocks, mark_text, read_labels
from pimono_sdpo.cli import view as view_command
from pimono_sdpo.cli.view import find_folder, render_review, render_view
from pimono_sdpo.errors import OutputError, SourceError
from pimono_sdpo.filtering import FilterOptions, run_filter
from pimono_sdpo.samples import SAMPLE_SESSIONS
from tests.card_data import run
from tests.loopback_hub.client import run_client
from tests.loopback_hub.server import LoopbackHub
from tests.shards import cli
from tests.traces import HEADER, bash, trace, user

TOKEN = "hf_" + "abcdefghijklmnopqrstuvwxyz012345"
FAILURE = "src/a.ts(4,7): error TS2322: no\n\nCommand exited with code 2"


def view_of(page: str) -> dict[str, Any]:
    found = re.search(r'id="data">([^<]*)</script>', page)
    assert found is not None
    view: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(found[1])))
    return view


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """One session that fails twice and two without evidence."""
    folder = tmp_path / "traces"
    folder.mkdir()
    ask = "Please mend the type error in the parser of this project"
    again = "No, that is wrong: the error is still there, mend it"
    failing = trace(
        HEADER,
        user(ask),
        *bash(f"export TOKEN={TOKEN} && npm test", FAILURE, error=True),
        user(again),
        *bash("npm test", "all good", call_id="c2"),
    )
    (folder / "a.jsonl").write_text(failing)
    for name in "bc":
        (folder / f"{name}.jsonl").write_text(trace({**HEADER, "id": name}, user(f"{ask} {name}")))
    return folder


@pytest.fixture
def rows(tmp_path: Path, traces: Path) -> Path:
    run_filter(str(traces), tmp_path / "rows", FilterOptions(min_score=1.0))
    return tmp_path / "rows"


def test_the_page_holds_funnel_charts_and_every_row(rows: Path) -> None:
    view = view_of(render_view(rows, [], 10))
    (funnel,), charts = view["groups"]
    # The correction opens a request of its own, after which nothing failed.
    assert [bar["value"] for bar in funnel["bars"]] == [3, 4, 1]
    assert funnel["bars"][2]["note"] == "after dropping no_evidence 3"
    assert [chart["kind"] for chart in charts] == ["histogram", "bars", "bars"]
    assert [row["outcome"] for row in view["rows"]] == ["selected", *["no_evidence"] * 3]
    row = view["rows"][0]
    assert row["prompt"].startswith("Please mend")
    assert sum(value for _, value in row["terms"]) == row["score"]
    assert ["error TS2322", "build_lint_compile"] in row["blocks"][0]["parts"]


def test_the_trace_stands_around_each_diagnostic_without_its_secrets(rows: Path) -> None:
    page = render_view(rows, [], 10)
    row = view_of(page)["rows"][0]
    diagnostic, correction = row["blocks"]
    assert [event["here"] for event in diagnostic["events"]].count(True) == 1
    said = "\n".join(event["text"] for event in diagnostic["events"])
    assert "npm test" in said
    assert "[REDACTED:huggingface_token]" in said
    assert any("all good" in event["text"] for event in correction["events"])
    assert TOKEN not in json.dumps(view_of(page))


def test_without_its_traces_a_row_shows_what_it_has(rows: Path, traces: Path) -> None:
    traces.rename(traces.with_name("elsewhere"))
    view = view_of(render_view(rows, [], 10))
    assert "--source" in view["list"]["shown"]
    assert view["rows"][0]["blocks"][0]["events"] == []
    assert view["rows"][1]["prompt"] == ""
    given = view_of(render_view(rows, [str(traces.with_name("elsewhere"))], 10))
    assert given["rows"][0]["blocks"][0]["events"]


def test_other_traces_of_the_same_name_are_not_taken(rows: Path, traces: Path) -> None:
    (traces / "a.jsonl").write_text(trace(HEADER, user("another session altogether, of that name")))
    assert "--source" in view_of(render_view(rows, [], 10))["list"]["shown"]


def test_more_rows_than_asked_for_are_told(tmp_path: Path) -> None:
    run_filter(str(SAMPLE_SESSIONS), tmp_path / "rows", FilterOptions(min_score=5.0, min_worth=0))
    whole = view_of(render_view(tmp_path / "rows", [], 500))
    some = view_of(render_view(tmp_path / "rows", [], 2))
    kept = [row for row in whole["rows"] if row["kept"]]
    scores = sorted((row["score"] for row in kept), reverse=True)
    assert [row["score"] for row in some["rows"][:2]] == scores[:2]
    assert f"the best 2 of {len(kept)} selected and the best 2 of" in some["list"]["shown"]
    assert len(some["rows"]) == 4
    histogram = whole["groups"][1][0]
    assert histogram["cut"] == 5.0
    rejected = [row["score"] for row in whole["rows"] if row["outcome"] == "below_min_score"]
    assert sum(bin_["rejected"] for bin_ in histogram["bins"]) == len(rejected) > 0
    assert max(rejected) < 5.0


def test_episodes_are_looked_up_one_by_one(tmp_path: Path) -> None:
    run_filter(str(SAMPLE_SESSIONS), tmp_path / "rows", FilterOptions(unit="episode", history_chars=500))
    page = render_view(tmp_path / "rows", [str(SAMPLE_SESSIONS)], 500)
    selected = [row for row in view_of(page)["rows"] if row["kept"]]
    assert selected
    assert all(any(event["here"] for event in row["blocks"][0]["events"]) for row in selected)


def test_nothing_a_trace_says_is_markup(rows: Path) -> None:
    page = render_view(rows, [], 10)
    outside = re.sub(r'id="data">[A-Za-z0-9+/=]*<', "", page)
    assert "type error in the parser" not in outside
    title = {**run_view_of_nothing(), "title": "</title><script>alert(1)</script>"}
    assert "<script>alert(1)" not in render_page(title)


def run_view_of_nothing() -> dict[str, Any]:
    empty: dict[str, Any] = {key: [] for key in ("groups", "tables", "categories", "rows")}
    return {"title": "", "subtitle": "", "list": {}, **empty}


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ({}, "is not what `filter` or a training writes"),
        ({"report.json": '{"stage": "steps"}', "data/x": ""}, "is of `steps`"),
        ({"report.json": "{", "data/x": ""}, "is not what `filter`"),
        ({"run.json": "{}"}, "is not what `filter`"),
    ],
)
def test_a_folder_of_another_kind_costs_one_sentence(tmp_path: Path, written: dict[str, str], told: str) -> None:
    for name, text in written.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    with pytest.raises(SourceError, match=told):
        render_view(tmp_path, [], 10)


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (lambda rows: rows.drop("prompt"), "no value `prompt`"),
        (lambda rows: rows.rename({"score": "points"}), "no value `score`|unable to find column"),
        (lambda rows: rows.with_columns(pl.lit("x").alias("counts")), "expected `object`, got `str` in `counts`"),
        (lambda rows: rows.with_columns(pl.lit(None, pl.String).alias("source")), "got `null` in `source`"),
        (lambda rows: rows.clear(), "holds no parquet files with rows"),
    ],
)
def test_rows_edited_by_hand_are_refused_in_one_sentence(
    rows: Path, edit: Callable[[pl.DataFrame], pl.DataFrame], told: str
) -> None:
    file = next((rows / "data").iterdir())
    written = pl.read_parquet(file)
    # As of a harness whose tools have no schemas.
    written.with_columns(pl.lit(None, pl.String).alias("verifier_spec")).write_parquet(file)
    assert view_of(render_view(rows, [], 10))["rows"]
    edit(written).write_parquet(file)
    with pytest.raises(SourceError, match=told):
        render_view(rows, [], 10)


def test_a_review_is_a_seeded_sample_that_does_not_show_what_was_kept(tmp_path: Path) -> None:
    run_filter(str(SAMPLE_SESSIONS), tmp_path / "rows", FilterOptions(min_score=5.0))
    traces = [str(SAMPLE_SESSIONS)]
    pages = [render_review(tmp_path / "rows", "rows", traces, 3, seed) for seed in (1, 1, 2)]
    assert pages[0] == pages[1]
    views = [view_of(page) for page in pages]
    keys = [[row["key"] for row in view["rows"]] for view in views]
    assert sorted(keys[0]) != sorted(keys[2])
    for view in views:
        assert [row["kept"] for row in view["rows"]].count(True) == 3
        assert len(view["rows"]) == 6
        # What the filter saw no evidence in can be judged, too.
        talked = [row for row in view["rows"] if row["outcome"] not in {"no_prompt", "no_messages"}]
        assert all(row["prompt"] and len(row["events"]) > 1 for row in talked)
        assert {name for row in view["rows"] for name, _ in row["facts"]} <= {
            *("file", "session", "user messages", "tool calls")
        }
        assert not any(row["terms"] for row in view["rows"])
    shown = [[row["kept"] for row in view["rows"]] for view in views]
    assert any(sorted(kept, reverse=True) != kept for kept in shown)


def test_a_review_without_traces_holds_only_what_was_kept(
    rows: Path, traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traces.rename(traces.with_name("elsewhere"))
    view = view_of(render_review(rows, "rows", [], 10, 0))
    assert [row["kept"] for row in view["rows"]] == [True]
    assert "rejected rows are left out" in capsys.readouterr().err


def test_labels_are_counted_with_intervals(tmp_path: Path) -> None:
    answers = [*("y" * 18), *("n" * 22), ""]
    lines = [f'a.jsonl,"s, {i}",0,yes,selected,{a},' for i, a in enumerate(answers)]
    lines += ["b,s,0,no,no_evidence,n,", "b,s,1,no,no_evidence,Y,real", "b,s,2,no,short,n,"]
    path = tmp_path / "rows-labels.csv"
    path.write_text("\r\n".join([",".join(COLUMNS), *lines, ""]))
    assert list(describe_labels(read_labels(path))) == [
        "selected rows: 18 of 40 worth training on, 45.0% (95 % interval 30.7% to 60.2%)",
        "rejected rows: 1 of 3 worth training on, 33.3% (95 % interval 6.1% to 79.2%)",
        "  no_evidence: 1 of 2 worth training on, 50.0% (95 % interval 9.5% to 90.5%)",
        "  short: 0 of 1 worth training on, 0.0% (95 % interval 0.0% to 79.3%)",
        "not answered: 1 of 44",
    ]
    assert next(iter(describe_labels([]))) == "selected rows: none answered"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, r"Cannot read `.*labels\.csv` \(.*No such file"),
        ("", "has no column `source`"),
        ("source,session_id\n", "has no column `episode`"),
        (",".join(COLUMNS) + "\na,b,0,yes,selected,maybe,\n", "Row 1 of .* answer `maybe`"),
        (",".join(COLUMNS) + "\na,b\n", "Row 1 of"),
        ("\udcff", "Cannot read"),
    ],
)
def test_labels_of_another_form_are_refused(tmp_path: Path, content: str | None, told: str) -> None:
    path = tmp_path / "labels.csv"
    if content is not None:
        path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(SourceError, match=told):
        read_labels(path)


def test_a_training_shows_before_and_after_its_curves_and_what_it_sampled(tmp_path: Path) -> None:
    log = run()
    for entry in log["log_history"][-2:]:
        entry["self_distillation/reward_mean"] = 0.8
    (tmp_path / "run.json").write_text(json.dumps(log))
    view = view_of(render_view(tmp_path, [], 10))
    (compared,), (rewards, losses) = view["groups"]
    assert [chart["title"] for chart in view["folded"]] == ["loss"]
    assert compared["changes"][0] == {"name": "Mean reward", "before": {"mean": 0.2}, "after": {"mean": 0.8}}
    assert rewards["points"][0] == [1, 0.2]
    assert rewards["threshold"] == 0.35
    assert losses["title"] == "Divergence from the teacher (nats per token)"
    failed, succeeded = view["rows"]
    assert [block["title"] for block in failed["blocks"]] == ["Answer", "Feedback"]
    assert (failed["where"], failed["kept"]) == (1, False)
    assert (succeeded["where"], succeeded["kept"]) == (24, True)
    score = {"mean": 0.25, "low": 0.125, "high": 0.5}
    part = {"before": score, "after": score, "difference": score}
    log["evaluation"] = {"completions": 12, "reward": part, "pass_rate": part}
    (tmp_path / "run.json").write_text(json.dumps(log))
    held_out = view_of(render_view(tmp_path, [], 10))["groups"][0][0]["changes"]
    assert [(one["name"], one["before"]) for one in held_out] == [("mean reward", score), ("pass rate", score)]


def test_sessions_have_short_names_that_differ_and_rows_an_address(tmp_path: Path, traces: Path) -> None:
    folder = traces / "-home-ann-shop"
    folder.mkdir()
    for path in traces.glob("*.jsonl"):
        path.rename(folder / f"0190f3a2-7e1c-7000-8000-00000000000{path.name}")
    run_filter(str(traces), tmp_path / "rows", FilterOptions(min_score=1.0))
    listed = view_of(render_view(tmp_path / "rows", [], 10))["rows"]
    names = ("a", "a, request 2", "b", "c")
    assert [row["where"] for row in listed] == [f"0190f3a2…0000000{name}" for name in names]
    assert len({row["id"] for row in listed}) == 4
    again = view_of(render_view(tmp_path / "rows", [], 1))["rows"]
    assert again[0]["id"] == listed[0]["id"]


def test_text_is_marked_where_the_rules_found_it() -> None:
    text = "x" * 10 + "\n" + FAILURE
    parts = mark_text(text, ["build_lint_compile", "command_error"])
    assert "".join(part[0] or "" for part in parts) == text
    assert [category for _, category in parts if category] == ["build_lint_compile", "command_error"]
    hostile = "Later user correction 1:\nsorry\n\nTool/environment diagnostic 9 (x):\nboom"
    assert [block["title"] for block in lay_out_blocks(hostile, ["sorry"])] == [
        "Later user correction 1",
        "Tool/environment diagnostic 9",
    ]
    assert lay_out_blocks("free text", [])[0]["title"] == "Context"
    assert lay_out_blocks("", []) == []


def test_the_command_writes_a_file_or_refuses_in_one_sentence(rows: Path, tmp_path: Path) -> None:
    done = cli("view", "rows", "--no-open", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "rows.html").read_text() == render_view(rows, [], 500)
    refused = cli("view", "rows", "--no-open", "--out", "no/such/folder.html", folder=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1


def test_the_command_writes_a_review_and_counts_labels(rows: Path, tmp_path: Path) -> None:
    done = cli("view", "rows", "--review", "--seed", "3", "--no-open", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "rows-review.html").read_text()
    assert page == render_review(rows, "rows", [], 50, 3)
    (tmp_path / "l.csv").write_text(",".join(COLUMNS) + "\na,b,0,yes,selected,y,\n")
    counted = cli("view", "--labels", "l.csv", folder=tmp_path)
    assert "selected rows: 1 of 1 worth training on" in counted.stdout
    refused = cli("view", folder=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize("source", ["nowhere", "", "no where/at all"])
def test_what_is_no_folder_and_no_name_is_refused(source: str) -> None:
    with pytest.raises(SourceError, match="is neither a folder nor"):
        find_folder(source)


def test_a_pushed_dataset_is_viewed_by_its_name(rows: Path, tmp_path: Path, loopback_hub: LoopbackHub) -> None:
    files = {p.relative_to(rows).as_posix(): p.read_bytes() for p in rows.rglob("*.*")}
    loopback_hub.seed("me/rows", "dataset", files)
    script = (
        "import json, sys; from pimono_sdpo.cli import main\n"
        "sys.argv = ['pimono-sdpo', 'view', 'me/rows', '--no-open']\n"
        "try: main()\n"
        "except SystemExit as end: print(json.dumps(end.code))"
    )
    assert run_client(loopback_hub, tmp_path, script) == 0
    view = view_of((tmp_path / "rows.html").read_text())
    assert view["rows"][0]["outcome"] == "selected"


def test_a_page_that_cannot_be_written_leaves_nothing(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken.html").mkdir()
    with pytest.raises(OutputError, match=r"Cannot write `taken.html` .*give the path of a file with --out"):
        view_command.run(view_command.ViewOptions(source=str(rows), out=Path("taken.html"), open=False))
    (tmp_path / "notes.md").write_text("mine")
    with pytest.raises(OutputError, match=r"`notes.md` is not the name of a page"):
        view_command.run(view_command.ViewOptions(source=str(rows), out=Path("notes.md"), open=False))
    assert (tmp_path / "notes.md").read_text() == "mine"
    (tmp_path / "mine.html").write_text("<p>mine</p>")
    with pytest.raises(OutputError, match=r"`mine.html` is another page"):
        view_command.run(view_command.ViewOptions(source=str(rows), out=Path("mine.html"), open=False))
    for _ in range(2):
        view_command.run(view_command.ViewOptions(source=str(rows), out=Path("page.html"), open=False))
    with pytest.raises(OutputError, match=r"--rows 9+ is too large"):
        view_command.run(view_command.ViewOptions(source=str(rows), rows=10**20 - 1))
    assert not list(tmp_path.glob("*.tmp"))

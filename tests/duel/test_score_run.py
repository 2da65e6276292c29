"""From stored judgments to a verdict, buckets, report and card."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import load_dataset

from cards.lint import lint_card
from pimono_sdpo.duel.result import score_duel
from pimono_sdpo.duel.stages import JOURNAL, Duel
from pimono_sdpo.errors import OutputError, SourceError
from pimono_sdpo.llm.calls import Journal, Reply, Request
from pimono_sdpo.llm.settings import load_settings
from pimono_sdpo.schema import ANSWER
from tests.duel.stored_duel import JUDGES, answer, settings, take_all_looks, write_duel, write_panel


def panel(turn: int, judge: str, order: int) -> tuple[int, int] | None:
    """Most turns are won, some by two judges of three, some lost, one unread."""
    if turn == 3 and judge != JUDGES[0]:
        return None
    if turn % 4 == 1 and judge == JUDGES[2]:
        return 2, 5
    return (2, 7) if turn % 10 == 9 else (8, 3)


def sure(turn: int, judge: str, order: int) -> tuple[int, int]:
    """The challenger wins nine turns of ten."""
    return (2, 7) if turn % 10 == 9 else (8, 3)


@pytest.fixture
def judged(tmp_path: Path) -> Path:
    write_duel(tmp_path / "duel", 60, 40, panel)
    return tmp_path / "duel"


def test_turns_go_to_buckets_with_score_metrics_and_reasons(judged: Path) -> None:
    report = score_duel(Duel(judged, settings()))
    assert report["panel"]["buckets"] == {"final": 32, "refined": 9, "defeat": 18, "parse_fail": 1}
    # Every fifth answer leaks, and wins nothing.
    assert report["panel"]["leaked"] == 12
    rows = load_dataset(str(judged / "result"), "refined", split="train")
    assert rows["score"][:] == pytest.approx([200 / 3] * 9)
    assert rows[0]["metrics"]["grounding"] == pytest.approx(200 / 3)
    assert {entry["judge"]: entry["score"] for entry in rows[0]["per_judge"]}[JUDGES[2]] == 0
    assert "lab/odd (order 1): 2 to 5" in rows[0]["reason"]
    # The action of the answer that was judged, not of the recorded agent.
    assert set(rows["action_style"]) == {"edit"}
    names = {"final", "refined", "defeat"}
    kept = [load_dataset(str(judged / "result"), name, split="train") for name in names]
    assert sum(map(len, kept)) == 59
    assert "turns-00000_4" not in {turn for rows in kept for turn in rows["turn_id"]}


def test_the_report_says_what_there_is(judged: Path) -> None:
    report = score_duel(Duel(judged, settings()), original=True)
    verdict = report["verdict"]
    assert verdict["conclusion"] == "accepted"
    assert (verdict["unit"], verdict["looks"]) == ("task", 5)
    assert report["dropped"] == {"king_format": 1}
    assert report["leaks"]["share"] == pytest.approx(12 / 59)
    assert report["original"]["accepted"]
    text = (judged / "result" / "report.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("| turns-")]
    # Every turn of the panel, and those of the gate that could be read.
    assert len(lines) == 60 + 59
    assert lines[3].startswith("| turns-00000_4 | - | task-3 | edit | - |")
    assert f"**accepted at look {verdict['look']} of 5: score" in text
    assert report["registered"][:16] in text
    assert "By the original rules" in text
    assert "| lab/odd |" in text
    assert json.loads((judged / "result" / "report.json").read_text()) == report
    assert not lint_card((judged / "result" / "README.md").read_text())
    assert (judged / "result" / "report.svg").read_text().startswith("<svg ")


def test_the_same_judgments_give_the_same_bytes(judged: Path) -> None:
    score_duel(Duel(judged, settings()))
    first = {path.name: path.read_bytes() for path in (judged / "result").rglob("*.*")}
    score_duel(Duel(judged, settings()))
    assert {path.name: path.read_bytes() for path in (judged / "result").rglob("*.*")} == first


def test_rules_that_were_not_registered_are_exploratory(judged: Path) -> None:
    report = score_duel(Duel(judged, settings(win_margin=99)))
    assert report["verdict"]["conclusion"] == "accepted"
    assert report["exploratory"]["conclusion"] == "not accepted"
    assert report["exploratory"]["rules"]["win_margin"] == 99
    text = (judged / "result" / "report.md").read_text()
    assert "**accepted" in text
    assert "(win_margin 99.0): not accepted" in text
    assert score_duel(Duel(judged, settings()))["exploratory"] is None


def test_exploratory_rules_may_take_another_unit(tmp_path: Path) -> None:
    write_duel(tmp_path, 60, 60, sure, repos=40)
    report = score_duel(Duel(tmp_path, settings(cluster="task")))
    assert (report["verdict"]["unit"], report["exploratory"]["unit"]) == ("repo", "task")
    assert report["verdict"]["clusters"] < report["exploratory"]["clusters"]


def test_registered_rules_cannot_be_changed_later(judged: Path) -> None:
    rules = judged / "rules.json"
    before = rules.read_text()
    rules.write_text(before.replace('"min_clusters": 30', '"min_clusters": 3'))
    with pytest.raises(OutputError, match="was changed after the first look"):
        score_duel(Duel(judged, settings()))
    rules.write_text("{")
    with pytest.raises(SourceError, match=r"rules.json` cannot be read"):
        score_duel(Duel(judged, settings()))
    rules.unlink()
    with pytest.raises(OutputError, match="is missing, but there are judgments"):
        score_duel(Duel(judged, settings()))


def test_the_original_rules_need_every_judgment(judged: Path) -> None:
    path = judged / "judgments" / "judgments-00000.parquet"
    table = pq.read_table(path)
    pq.write_table(table.slice(0, len(table) - 1), path)
    with pytest.raises(SourceError, match="run all stages with --rules original"):
        score_duel(Duel(judged, settings()), original=True)
    judges = score_duel(Duel(judged, settings()))["panel"]["judges"]
    assert [judge["score"] for judge in judges] == [None] * 3
    assert [judge["parsed"] for judge in judges] == [1.0, 118 / 120, 117 / 119]


def test_leaked_answers_never_count_as_wins(tmp_path: Path) -> None:
    given = write_duel(tmp_path, 60, 60, sure)
    rows = pq.read_table(tmp_path / "answers" / "answers-00000.parquet").to_pylist()
    rows = [row | {"leaked_terms": ["hidden_name"]} for row in rows]
    table = pa.Table.from_pylist(rows, ANSWER.arrow_schema)
    pq.write_table(table, tmp_path / "answers" / "answers-00000.parquet")
    (tmp_path / "looks.json").unlink()
    take_all_looks(Duel(tmp_path, given))
    report = score_duel(Duel(tmp_path, given))
    assert report["verdict"]["conclusion"] == "not accepted"
    assert report["verdict"]["score"] <= 50
    assert report["leaks"] == {"share": 1.0, "score_without": None}
    buckets = {"final": 0, "refined": 0, "defeat": 60, "parse_fail": 0}
    assert (report["panel"]["buckets"], report["panel"]["leaked"]) == (buckets, 60)
    rows = load_dataset(str(tmp_path / "result"), "defeat", split="train")
    assert sorted(set(rows["score"])) == [0, 50]
    # What the judges said stays.
    assert max(metrics["progress"] for metrics in rows["metrics"]) == 100
    text = (tmp_path / "result" / "report.md").read_text()
    assert "60 of these turns have terms of the hidden pull request" in text


def test_the_aa_test_shows_how_much_of_the_best_bucket_chance_explains(judged: Path) -> None:
    def alike(turn: int, judge: str, order: int) -> tuple[int, int]:
        return (6, 4) if turn % 4 == 0 else (4, 6)

    assert score_duel(Duel(judged, settings()))["aa_test"] is None
    write_panel(judged, "aa-judgments", 60, 40, alike)
    aa_answers = judged / "aa-answers" / "aa-answers-00000.parquet"
    aa_answers.parent.mkdir()
    aa_answers.write_bytes((judged / "answers" / "answers-00000.parquet").read_bytes())
    report = score_duel(Duel(judged, settings()))
    assert report["aa_test"]["false_final"] == 0.25
    assert report["aa_test"]["by_chance"] == pytest.approx(0.25 / (32 / 59))
    text = (judged / "result" / "report.md").read_text()
    assert "25 % of the turns land in `final`" in text
    assert "up to 46 % of the real `final`" in text


def test_nothing_to_score_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no judgments against the king"):
        score_duel(Duel(tmp_path, settings()))
    write_duel(tmp_path, 3, 3, panel)
    other = load_settings(duel={"model": "lab/gen", "opponent": "reference"})
    with pytest.raises(SourceError, match="no judgments against the reference"):
        score_duel(Duel(tmp_path, other))


def test_judges_that_could_never_be_read_are_reported(tmp_path: Path) -> None:
    report = score_duel(Duel(tmp_path, write_duel(tmp_path, 30, 30, lambda turn, judge, order: None)))
    assert report["panel"]["buckets"] == {"final": 0, "refined": 0, "defeat": 0, "parse_fail": 30}
    assert report["verdict"]["score"] is None
    assert report["verdict"]["conclusion"] == "no verdict"
    card = (tmp_path / "result" / "README.md").read_text()
    assert "nothing to load" in card
    assert not lint_card(card)
    assert "| 0 of 31 |" in (tmp_path / "result" / "report.md").read_text()


def test_the_cost_is_that_of_the_journal(judged: Path) -> None:
    assert score_duel(Duel(judged, settings()))["cost"] is None
    journal = Journal(judged / JOURNAL)
    for number in range(3):
        request = Request("lab/gen", [{"role": "user", "content": str(number)}])
        journal.put(request, Reply("x", prompt_tokens=1000, completion_tokens=500), "here")
    assert score_duel(Duel(judged, settings()))["cost"] == pytest.approx(3 * 0.002)
    assert "| 0.01 USD |" in (judged / "result" / "report.md").read_text()
    unpriced = Request("lab/other", [{"role": "user", "content": "?"}])
    journal.put(unpriced, Reply("x", prompt_tokens=1), "here")
    assert score_duel(Duel(judged, settings()))["cost"] is None
    assert "USD" not in (judged / "result" / "report.md").read_text()


def test_texts_of_models_cannot_break_the_report(tmp_path: Path) -> None:
    given = write_duel(tmp_path, 2, 2, panel)
    rows = [answer(0, 2, instance_id="`x`|y\n# c"), answer(1, 2), answer(2, 3, drop_reason="e")]
    table = pa.Table.from_pylist(rows, ANSWER.arrow_schema)
    pq.write_table(table, tmp_path / "answers" / "answers-00000.parquet")
    score_duel(Duel(tmp_path, given))
    lines = (tmp_path / "result" / "report.md").read_text().splitlines()
    for line in (line for line in lines if line.startswith("| turns-00000_1 ")):
        assert r"'x'\|y # c" in line

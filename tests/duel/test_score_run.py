"""From stored judgments to buckets, report and card."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import load_dataset

from cards.lint import lint_card
from pimono_sdpo.duel.gate import AlbedoRules, Rules
from pimono_sdpo.duel.result import score_duel
from pimono_sdpo.errors import SourceError
from pimono_sdpo.schema import ANSWER, JUDGMENT
from tests.duel.made import JUDGES, answer, write_duel

RULES = Rules(draws=199)


def panel(turn: int, judge: str, order: int) -> tuple[int, int] | None:
    """Most turns are won, some by two judges of three, some lost, one unread."""
    if turn == 3 and judge != JUDGES[0]:
        return None
    if turn % 4 == 1 and judge == JUDGES[2]:
        return 2, 5
    return (2, 7) if turn % 10 == 9 else (8, 3)


@pytest.fixture
def judged(tmp_path: Path) -> Path:
    write_duel(tmp_path / "duel", 60, 40, panel)
    return tmp_path / "duel"


def test_turns_go_to_buckets_with_score_metrics_and_reasons(judged: Path) -> None:
    report = score_duel(judged, RULES)
    assert report["buckets"] == {"final": 41, "refined": 12, "defeat": 6, "parse_fail": 1}
    rows = load_dataset(str(judged / "result"), "refined", split="train")
    assert rows["score"][:] == pytest.approx([200 / 3] * 12)
    assert rows[0]["metrics"]["grounding"] == pytest.approx(200 / 3)
    assert {entry["judge"]: entry["score"] for entry in rows[0]["per_judge"]}[JUDGES[2]] == 0
    assert "lab/odd (order 1): 2 to 5" in rows[0]["reason"]
    names = {"final", "refined", "defeat"}
    kept = [load_dataset(str(judged / "result"), name, split="train") for name in names]
    assert sum(map(len, kept)) == 59
    assert "run_4" not in {turn for rows in kept for turn in rows["turn_id"]}


def test_the_report_says_what_there_is(judged: Path) -> None:
    report = score_duel(judged, RULES, AlbedoRules(bootstrap_resamples=100))
    assert report["verdict"]["accepted"]
    assert report["dropped"] == {"king_format": 1}
    assert report["cost"] == pytest.approx((61 + 360) * 0.001)
    assert report["leaks"]["share"] == pytest.approx(12 / 60)
    assert report["original"]["accepted"]
    text = (judged / "result" / "report.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("| run_")]
    assert len(lines) == 60
    assert lines[3].startswith("| run_4 | - | task-3 | inspect | - |")
    assert "**Accepted**" in text
    assert "By the original rules" in text
    assert "| lab/odd |" in text
    assert json.loads((judged / "result" / "report.json").read_text()) == report
    assert not lint_card((judged / "result" / "README.md").read_text())
    assert (judged / "result" / "report.svg").read_text().startswith("<svg ")


def test_the_same_judgments_give_the_same_bytes(judged: Path) -> None:
    score_duel(judged, RULES)
    first = {path.name: path.read_bytes() for path in (judged / "result").rglob("*.*")}
    score_duel(judged, RULES)
    assert {path.name: path.read_bytes() for path in (judged / "result").rglob("*.*")} == first


def test_other_rules_judge_the_same_votes_again(judged: Path) -> None:
    accepted = score_duel(judged, RULES)
    strict = score_duel(judged, Rules(draws=199, win_margin=45))
    assert accepted["verdict"]["accepted"]
    assert not strict["verdict"]["accepted"]
    assert strict["verdict"]["score"] == accepted["verdict"]["score"]


def test_equals_tell_how_much_of_the_best_bucket_is_chance(judged: Path) -> None:
    def alike(turn: int, judge: str, order: int) -> tuple[int, int]:
        return (6, 4) if turn % 4 == 0 else (4, 6)

    assert score_duel(judged, RULES)["aa_test"] is None
    write_duel(judged, 60, 40, alike, "aa-judgments")
    report = score_duel(judged, RULES)
    assert report["aa_test"]["false_final"] == 0.25
    assert "25 % of their turns" in (judged / "result" / "report.md").read_text()


def test_nothing_to_score_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no turns that both players answered"):
        score_duel(tmp_path, RULES)
    write_duel(tmp_path, 3, 3, panel)
    with pytest.raises(SourceError, match="no judgments against the reference"):
        score_duel(tmp_path, RULES, opponent="reference")


def test_a_panel_that_could_never_be_read_is_told(tmp_path: Path) -> None:
    write_duel(tmp_path, 3, 3, lambda turn, judge, order: None)
    report = score_duel(tmp_path, RULES)
    assert report["buckets"] == {"final": 0, "refined": 0, "defeat": 0, "parse_fail": 3}
    assert report["verdict"]["score"] is None
    assert not report["verdict"]["accepted"]
    card = (tmp_path / "result" / "README.md").read_text()
    assert "No turn could be judged" in card
    assert not lint_card(card)
    assert "0 of 4" in (tmp_path / "result" / "report.md").read_text()


def test_a_cost_that_is_not_known_is_not_told(judged: Path) -> None:
    path = judged / "judgments" / "judgments-00000.parquet"
    rows = pq.read_table(path).to_pylist()
    rows[0]["usage"]["cost"] = None
    pq.write_table(pa.Table.from_pylist(rows, JUDGMENT.arrow_schema), path)
    assert score_duel(judged, RULES)["cost"] is None
    assert "USD" not in (judged / "result" / "report.md").read_text()


def test_texts_of_models_cannot_break_the_report(tmp_path: Path) -> None:
    write_duel(tmp_path, 2, 2, panel)
    rows = [answer(0, 2, action_style="a|b\n# c", instance_id="`x`|y"), answer(1, 2)]
    table = pa.Table.from_pylist(rows, ANSWER.arrow_schema)
    pq.write_table(table, tmp_path / "answers" / "answers-00000.parquet")
    score_duel(tmp_path, RULES)
    (line,) = [
        line
        for line in (tmp_path / "result" / "report.md").read_text().splitlines()
        if line.startswith("| run_1 ")
    ]
    assert r"a\|b # c" in line
    assert r"'x'\|y" in line


def test_judgments_of_two_panels_are_not_mixed(judged: Path) -> None:
    first = judged / "judgments" / "judgments-00000.parquet"
    rows = pq.read_table(first).to_pylist()
    others = [row | {"judge": "lab/new"} for row in rows if row["judge"] == JUDGES[0]]
    second = pa.Table.from_pylist(others, JUDGMENT.arrow_schema)
    answers = judged / "answers"
    (answers / "answers-00001.parquet").write_bytes(
        (answers / "answers-00000.parquet").read_bytes()
    )
    pq.write_table(second, first.with_name("judgments-00001.parquet"))
    with pytest.raises(SourceError, match="judgments of several panels"):
        score_duel(judged, RULES)

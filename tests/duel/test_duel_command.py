"""The command as a user runs it, against the scripted server."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from datasets import load_dataset
from typer.testing import CliRunner

from pimono_sdpo.cli import app
from pimono_sdpo.duel.result import write_training_rows
from pimono_sdpo.errors import EmptySelection, InferenceError, OutputError, SourceError
from pimono_sdpo.schema import PAIR, STEP
from tests.chat_server import ChatServer, busy
from tests.duel.players import Json, is_judge, play, shown, verdict
from tests.duel.trajectories import write_pull_requests, write_trajectories

RUN = CliRunner()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chat_server: ChatServer) -> Path:
    """Trajectories, records and settings for the scripted server."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LLM_API_KEY", raising=False)
    asking = f'provider = "{chat_server.url}"\nconcurrency = 4\n'
    Path("chain.toml").write_text(
        f'[duel]\n{asking}model = "k"\nattempts = 2\nturns = 12\nseed = 1\n'
        f'[judge]\n{asking}models = ["judge-1", "judge-2"]\nattempts = 2\n'
        "[gate]\nmin_clusters = 3\n"
    )
    chat_server.policy = play
    write_trajectories(tmp_path / "data")
    write_pull_requests(tmp_path / "prs.parquet")
    return tmp_path


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*.*")}


def run_command(*arguments: str) -> str:
    result = RUN.invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_from_trajectories_to_rows(folder: Path, chat_server: ChatServer) -> None:
    output = run_command("duel", "data", "--records", "prs.parquet", "--aa-test", "4", "--rules", "original")
    assert "12 turns of " in output
    assert "undecided after look 1 of 5: " in output
    assert "score 100.0 from 2 turns" in output
    assert "answers: 12 rows" in output
    assert "panel: 48 rows" in output
    assert "buckets: final 12, refined 0, defeat 0, parse_fail 0" in output
    assert "final between equals: 0" in output
    assert "by the original rules: accepted" in output
    assert "\naccepted at look " in output
    report = json.loads((folder / "duel/result/report.json").read_text())
    assert report["aa_test"]["buckets"] == {"final": 0, "refined": 0, "defeat": 4, "parse_fail": 0}

    # Scored again by other rules: nobody is asked.
    hits = len(chat_server.hits)
    Path("chain.toml").write_text(Path("chain.toml").read_text().replace("= 3\n", "= 300\n"))
    output = run_command("duel", "--stage", "score")
    assert output.startswith("accepted at look ")
    assert "by other rules, exploratory: " in output
    assert "more repositories are needed" in output
    assert len(chat_server.hits) == hits

    for kind in ("sft", "dpo", "sdpo"):
        run_command("duel", "--to", kind, "--rows", kind)
    steps = load_dataset("sft", "steps", split="train")
    assert set(steps.column_names) == set(STEP)
    assert "carefully" in steps[0]["completion"][0]["content"]
    pairs = load_dataset("dpo", "pairs", split="train")
    assert set(pairs.column_names) == set(PAIR)
    assert "carefully" in pairs[0]["chosen"][0]["content"]
    assert "quickly" in pairs[0]["rejected"][0]["content"]
    assert pairs[0]["score_chosen"] == [100.0]
    rows = load_dataset("sdpo", "sdpo", split="train")
    assert "flush_pending_rows" in rows[0]["privileged_context"]
    assert "flush_pending_rows" in rows[0]["reward_terms"]
    assert "flush_pending_rows" not in str(rows["prompt"])
    assert rows[0]["prompt"][-1]["role"] == "user"


def test_an_estimate_prices_all_stages_and_stops(folder: Path, chat_server: ChatServer) -> None:
    with Path("chain.toml").open("a") as config:
        config.writelines(f"[prices.{name}]\ninput = 1\noutput = 2\n" for name in ("k", "judge-1", "judge-2"))
    output = run_command("duel", "data", "--records", "prs.parquet", "--estimate")
    assert "answers for the gate, at most 10 turns:\nestimate for 10 rows, from 8" in output
    assert "judges of the gate, counted as turns of the panel:\nestimate for " in output
    assert "k: 20 calls" in output
    assert "with --export or on acceptance, answers to all 12 turns:\nestimate for 2 rows" in output
    assert "estimate for 12 rows, from 8 that were run" in output
    assert output.splitlines()[-1].startswith("all stages: $")
    assert not (folder / "duel/answers").exists()
    # What the estimate asked is in the journal and not asked again.
    n_calls = len(chat_server.hits)
    run_command("duel", "--stage", "answers", "--export")
    assert n_calls == 16 + 8 * 4
    assert len(chat_server.hits) == n_calls + 2 * 4


def test_an_estimate_asks_no_judge_before_the_rules_are_registered(folder: Path, chat_server: ChatServer) -> None:
    registered = []

    def watch(body: Json) -> str | Json:
        if is_judge(body):
            registered.append(Path("duel/rules.json").is_file())
        return play(body)

    chat_server.policy = watch
    command = ("duel", "data", "--records", "prs.parquet", "--estimate")
    run_command(*command)
    assert registered == [True] * 32
    before = files_of(folder / "duel/turns")
    for other in (("--turns", "6"), ("--judge", "judge-9")):
        with pytest.raises(OutputError, match="use another folder"):
            run_command(*command, *other)
    assert files_of(folder / "duel/turns") == before


def test_an_estimate_without_any_answer_says_why(folder: Path, chat_server: ChatServer) -> None:
    chat_server.choose_fault = lambda body, before: busy(503)
    with pytest.raises(InferenceError, match="503"):
        run_command("duel", "data", "--records", "prs.parquet", "--estimate")


def test_a_missing_price_of_a_judge_is_reported_before_the_first_call(folder: Path, chat_server: ChatServer) -> None:
    with Path("chain.toml").open("a") as config:
        config.write("[prices.k]\ninput = 1\noutput = 1\n")
    with pytest.raises(InferenceError, match="needs the price of `judge-1`"):
        run_command("duel", "data", "--records", "prs.parquet", "--max-cost", "5")
    assert not chat_server.hits


def test_the_recorded_agent_is_another_opponent_with_judgments_of_its_own(
    folder: Path, chat_server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_command("duel", "data", "--records", "prs.parquet", "--export")
    kept = {path: path.read_bytes() for path in Path("duel/judgments").glob("*.parquet")}
    monkeypatch.setenv("DUEL_MODE", "1")
    run_command("duel", "--export")
    report = json.loads(Path("duel/result/report.json").read_text())
    assert report["opponent"] == "reference"
    monkeypatch.setenv("DUEL_MODE", "2")
    hits = len(chat_server.hits)
    run_command("duel", "--stage", "score")
    report = json.loads(Path("duel/result/report.json").read_text())
    assert report["opponent"] == "king"
    assert {path: path.read_bytes() for path in kept} == kept
    assert len(chat_server.hits) == hits
    monkeypatch.setenv("DUEL_MODE", "3")
    with pytest.raises(InferenceError, match="DUEL_MODE is `3`; use 1"):
        run_command("duel", "--stage", "score")


def test_thresholds_of_the_original_are_read_from_its_section(folder: Path, chat_server: ChatServer) -> None:
    config = Path("chain.toml")
    config.write_text(config.read_text().replace("turns = 12", "turns = 12\nwin_margin = 100.0"))
    run_command("duel", "data", "--records", "prs.parquet", "--rules", "original")
    report = json.loads(Path("duel/result/report.json").read_text())
    assert report["original"]["rules"]["win_margin"] == 100
    assert report["original"]["challenger_score"] - report["original"]["king_score"] == 100
    assert report["rules"]["win_margin"] == 2


def test_a_pair_never_prefers_an_answer_that_lost(folder: Path, chat_server: ChatServer) -> None:
    def lost(body: Json) -> str | Json:
        if not is_judge(body):
            return play(body)
        good = {name: 3 if "carefully" in text else 8 for name, text in shown(body).items()}
        return verdict(good["A"], good["B"])

    chat_server.policy = lost
    run_command("duel", "data", "--records", "prs.parquet", "--export")
    with pytest.raises(EmptySelection, match="12 not_better"):
        write_training_rows(folder / "duel", "dpo", folder / "rows", ("defeat",))


def test_leaking_answers_are_only_in_sdpo_rows(folder: Path, chat_server: ChatServer) -> None:
    run_command("duel", "data", "--records", "prs.parquet")
    path = folder / "duel/result/data/final-00000-of-00001.parquet"
    table = pq.read_table(path)
    rows = table.to_pylist()
    for row in rows[:5]:
        row["leaked_terms"] = ["flush_pending_rows"]
    rows[5]["challenger"] = rows[5]["king"]
    pq.write_table(type(table).from_pylist(rows, table.schema), path)
    report = write_training_rows(folder / "duel", "dpo", folder / "dpo")
    assert report["rows"] == 6
    assert report["drop_reasons"] == {"identical": 1, "leaked": 5}
    assert write_training_rows(folder / "duel", "sft", folder / "sft")["rows"] == 7
    assert write_training_rows(folder / "duel", "sdpo", folder / "sdpo")["rows"] == 12


def test_a_challenger_that_is_not_accepted_is_not_judged_by_the_panel(folder: Path, chat_server: ChatServer) -> None:
    chat_server.policy = lambda body: verdict(5, 5) if is_judge(body) else play(body)
    output = run_command("duel", "data", "--records", "prs.parquet")
    assert "not accepted at look" in output
    assert "the challenger leads by 0.0 points, fewer than 2" in output
    assert "panel" not in output
    assert not Path("duel/judgments").exists()
    assert "buckets: final 0, refined 0, defeat 12, parse_fail 0" in run_command("duel", "--export")
    with pytest.raises(EmptySelection, match="take another bucket"):
        write_training_rows(folder / "duel", "sft", folder / "rows")
    assert write_training_rows(folder / "duel", "sft", folder / "rows", ("defeat",))["rows"] == 12


def test_bad_input_is_one_sentence(folder: Path) -> None:
    with pytest.raises(SourceError, match="run the stage `turns` first, with trajectories and --records"):
        RUN.invoke(app, ["duel", "--stage", "answers"], catch_exceptions=False)
    with pytest.raises(SourceError, match="name trajectories"):
        RUN.invoke(app, ["duel", "--stage", "turns"], catch_exceptions=False)
    with pytest.raises(SourceError, match="give --records"):
        RUN.invoke(app, ["duel", "data"], catch_exceptions=False)
    with pytest.raises(SourceError, match="has no scored duel"):
        write_training_rows(folder / "duel", "sft", folder / "rows")
    Path("chain.toml").write_text("[gate]\nalpha = 2\n")
    with pytest.raises(InferenceError, match=r"`gate.alpha` of the settings is unknown or has a wrong value"):
        RUN.invoke(app, ["duel", "--stage", "score"], catch_exceptions=False)

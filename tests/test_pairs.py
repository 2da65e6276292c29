"""Runs become preference pairs, or a reject with the reason."""

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import load_dataset
from typer.testing import CliRunner

from pimono_sdpo.agent.task_tests import TaskTests
from pimono_sdpo.cli import app
from pimono_sdpo.cli.pairs import PairOptions, write_pairs
from pimono_sdpo.dataset_writer import copy_lines
from pimono_sdpo.errors import EmptySelection, OutputError, SourceError
from pimono_sdpo.suites.suite import load_suite
from pimono_sdpo.training.tiny_model import write_tiny_model
from processors.rollouts import together
from processors.rollouts.noise import measure_patch
from processors.rollouts.pairs import TARGETS, Case, PairRules, Target, pair_runs, pair_steps, score_run
from tests.rollout_data import BUGGY, FIXED, OTHER, final, patch_of, prose, read, rollout, write, write_folder
from tests.test_step_rows import bytes_of

Json = dict[str, Any]
PASSES = [read(), write(FIXED, True), final("the sign was wrong")]
FAILS = [read(), write(OTHER, False), final("done")]
SLOW = [read(), read("b.py"), write(FIXED, True), final("the sign was wrong")]
TASK: Json = {"metadata": {}, "hide": ["answers"], "split": None}
FILES = {"add.py": BUGGY}


def case(*actions: list[Json], files: dict[str, str] = FILES, **more: Any) -> Case:
    rows = [rollout("t", 42 + n, done, **more) for n, done in enumerate(actions)]
    return Case("t", rows, "train", TASK, files)


def reasons(result: Any) -> list[str]:
    return [row["drop_reason"] for row in result.rejects]


def content(turns: list[Json]) -> Json:
    decoded: Json = json.loads(turns[0]["content"])
    return decoded


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ({"tests_ok": True, "n_steps": 9}, {"tests_ok": False, "n_steps": 1}),
        ({"n_steps": 2}, {"n_steps": 3}),
        ({"n_tool_calls": 1}, {"n_tool_calls": 2}),
        ({"files_touched": []}, {"files_touched": ["a"]}),
    ],
)
def test_runs_are_compared_place_by_place(better: Json, worse: Json) -> None:
    assert score_run({**rollout(), **better}) > score_run({**rollout(), **worse})


def test_the_best_run_is_paired_with_the_worst() -> None:
    result = pair_runs(case(FAILS, PASSES, SLOW), PairRules(target="patch"))
    (pair,) = result.rows
    assert (pair["run_chosen"], pair["run_rejected"]) == ("t-43", "t-42")
    assert pair["score_chosen"] == [1.0, -3.0, -2.0, -1.0]
    assert content(pair["chosen"]) == {
        "type": "patch",
        "summary": "the sign was wrong",
        "patch_format": "unified_diff",
        "patch": patch_of(BUGGY, FIXED),
    }
    assert BUGGY in pair["prompt"][1]["content"]


def test_patches_need_the_files_they_change() -> None:
    assert reasons(pair_runs(case(FAILS, PASSES, files={}), PairRules(target="patch"))) == ["ineligible"]


@pytest.mark.parametrize(
    ("actions", "reason"),
    [
        ((FAILS, FAILS), "both_fail"),
        ((PASSES, PASSES), "no_contrast"),
        ((PASSES, SLOW), "no_contrast"),
        ((PASSES, [read()]), "ineligible"),
        ((PASSES,), "ineligible"),
    ],
)
def test_runs_without_a_pair(actions: tuple[list[Json], ...], reason: str) -> None:
    result = pair_runs(case(*actions), PairRules(target="patch"))
    assert (result.rows, reasons(result)) == ([], [reason])


def test_an_infrastructure_failure_does_not_count_as_lost() -> None:
    broken = case(PASSES, FAILS)
    broken.rows[1] |= {"error": "503", "tests_ok": None}
    assert reasons(pair_runs(broken, PairRules(target="summary"))) == ["infra_error"]
    assert reasons(pair_steps(broken, PairRules())) == ["infra_error"]


def test_two_passing_runs_are_a_pair_when_asked_for() -> None:
    rules = PairRules(target="full", allow_efficiency_pairs=True)
    (pair,) = pair_runs(case(SLOW, PASSES), rules).rows
    assert pair["run_chosen"] == "t-43"


def with_patch(after: str, actions: list[Json], **more: Any) -> Case:
    """Two passing runs, the first with this patch, and one that fails."""
    rollouts = case(actions, SLOW, FAILS)
    rollouts.rows[0] |= {"patch": patch_of(BUGGY, after), **more}
    return rollouts


def test_a_run_with_churn_is_not_chosen() -> None:
    rollouts = with_patch(FIXED + "".join(f"x{n} = {n}\n" for n in range(9)), PASSES)
    result = pair_runs(rollouts, PairRules(target="patch"))
    assert reasons(result) == ["non_minimal"]
    assert result.rows[0]["run_chosen"] == "t-43"
    spaces = with_patch(FIXED, PASSES)
    spaces.rows[0]["patch"] += patch_of("a = 1\n", "a  =  1\n", "b.py")
    assert reasons(pair_runs(spaces, PairRules(target="patch"))) == ["non_minimal"]


def test_spaces_alone_can_be_the_fix() -> None:
    rollouts = case(PASSES, FAILS)
    early = "for x in xs:\n    use(x)\n    return\n"
    rollouts.rows[0]["patch"] = patch_of(early, early.replace("    return", "return"))
    (pair,) = pair_runs(rollouts, PairRules(target="patch")).rows
    assert pair["run_chosen"] == "t-42"


def test_a_file_that_few_passing_runs_change_is_wrong() -> None:
    rollouts = with_patch(FIXED, PASSES, files_touched=["add.py", "b.py"])
    assert reasons(pair_runs(rollouts, PairRules(target="patch"))) == ["wrong_file"]
    named = with_patch(FIXED, PASSES)
    named.task = {**TASK, "metadata": {"files": ["sub.py"]}}
    result = pair_runs(named, PairRules(target="patch"))
    assert (result.rows, set(reasons(result))) == ([], {"wrong_file"})


def test_a_run_that_read_hidden_files_is_not_chosen() -> None:
    peeks = [read("answers/add.py"), *PASSES[1:]]
    result = pair_runs(case(peeks, FAILS), PairRules(target="patch"))
    assert (result.rows, reasons(result)) == ([], ["leaked"])
    assert reasons(pair_steps(case(peeks, FAILS), PairRules())) == ["leaked"]


def test_the_decision_must_be_in_what_is_kept() -> None:
    late = [read(), write(FIXED, True), *[read(f"{n}.py") for n in range(3)]]
    rules = PairRules(target="truncated", last_k=2)
    assert reasons(pair_runs(case(late, FAILS), rules)) == ["key_decision_truncated"]
    (pair,) = pair_runs(case(late, FAILS), PairRules(target="truncated", last_k=4)).rows
    assert [turn["role"] for turn in pair["chosen"]][::2] == ["assistant"] * 4


@pytest.mark.parametrize("name", [name for name in TARGETS if name != "step"])
def test_labels_are_in_a_target_only_when_asked_for(name: Any) -> None:
    (pair,) = pair_runs(case(PASSES, FAILS), PairRules(target=name)).rows
    (with_outcome,) = pair_runs(case(PASSES, FAILS), PairRules(target=name, with_outcome=True)).rows
    plain, labelled = (json.dumps([p["chosen"], p["rejected"]]) for p in (pair, with_outcome))
    labels = ("TESTS PASS", "tests_ok", "test_result", "2 passed")
    assert not any(label in plain for label in labels)
    assert any(label in labelled for label in labels)


def test_the_same_words_are_no_pair() -> None:
    same = [*FAILS[:2], final("the sign was wrong")]
    result = pair_runs(case(PASSES, same), PairRules(target="summary"))
    assert (result.rows, reasons(result)) == ([], ["identical_outcome"])
    assert reasons(pair_runs(case(PASSES, same), PairRules(target="patch"))) == []
    alike = case(PASSES, FAILS)
    alike.rows[1]["patch"] = alike.rows[0]["patch"]
    assert reasons(pair_runs(alike, PairRules(target="patch"))) == ["identical_patch"]


def test_runs_part_at_their_first_different_action() -> None:
    result = pair_steps(case(PASSES, FAILS, PASSES), PairRules())
    (pair,) = result.rows
    assert content(pair["chosen"])["args"]["content"] == FIXED
    assert content(pair["rejected"])["args"]["content"] == OTHER
    assert len(pair["prompt"]) == 4
    assert (pair["score_chosen"][0], pair["score_rejected"][0]) == (1.0, 0.0)
    assert reasons(result) == []


def test_the_gap_is_measured_over_all_runs_that_came_there() -> None:
    wandering = [read("b.py"), *FAILS]
    lucky = [read("b.py"), write(FIXED, True)]
    rollouts = case(PASSES, PASSES, PASSES, FAILS, wandering, lucky)
    result = pair_steps(rollouts, PairRules())
    assert [row["detail"] for row in result.rejects] == ["0.25 more of the runs pass, 0.5 are asked for"]
    assert [len(pair["prompt"]) for pair in result.rows] == [4, 4]
    assert len(pair_steps(rollouts, PairRules(min_gap=0.25)).rows) == 3


def test_one_pass_of_one_run_does_not_beat_seven_of_nine() -> None:
    sure, lucky, malformed = PASSES, [read("b.py"), *PASSES[1:]], [prose(), *FAILS]
    fails_later = [PASSES[0], *FAILS[1:]]
    result = pair_steps(case(*[sure] * 7, *[fails_later] * 2, lucky, malformed), PairRules(flaky_reruns=0))
    (first,) = [pair for pair in result.rows if len(pair["prompt"]) == 2]
    assert content(first["chosen"])["args"] == {"rel_path": "add.py"}
    assert first["score_chosen"][0] == 7 / 9


def test_prose_loses_against_a_call() -> None:
    talks = [prose(), *PASSES]
    (pair,) = pair_steps(case(talks, PASSES), PairRules()).rows
    assert content(pair["chosen"])["name"] == "read_file"
    assert pair["rejected"][0]["content"] == "I would read the file first."
    failing = pair_steps(case([prose(), *FAILS], FAILS), PairRules())
    assert (failing.rows, set(reasons(failing))) == ([], {"both_fail"})


def test_equal_runs_give_no_step_pair() -> None:
    result = pair_steps(case(PASSES, PASSES), PairRules())
    assert (result.rows, reasons(result)) == ([], ["no_contrast"])
    slower = pair_steps(case(PASSES, SLOW), PairRules(allow_efficiency_pairs=True))
    assert [pair["run_chosen"] for pair in slower.rows] == ["t-42"]


def rows() -> list[Json]:
    rollouts = []
    for name in ("fix_a", "fix_b"):
        rollouts += [rollout(name, 42, FAILS), rollout(name, 43, PASSES), rollout(name, 44, SLOW)]
    rollouts += [rollout("fix_c", seed, PASSES) for seed in (42, 43)]
    return [*rollouts, *[rollout("fix_d", seed, FAILS) for seed in (42, 43)]]


@pytest.mark.parametrize("name", TARGETS)
def test_a_folder_of_rollouts_becomes_pairs(name: Target, tmp_path: Path) -> None:
    source = write_folder(tmp_path / "rollouts", rows())
    report = write_pairs(PairOptions(source=[str(source)], out=tmp_path / "pairs", target=name, format="together"))
    assert report["counts"]["tasks"] == 4
    assert report["counts"]["tasks_with_pairs"] == 2
    assert report["counts"]["no_contrast_tasks"] == 2
    assert report["counts"]["retested"] >= 2
    cache = str(tmp_path / "cache")
    pairs = load_dataset(str(tmp_path / "pairs"), split="train", cache_dir=cache)
    assert len(pairs) == report["rows"] == 2
    assert set(pairs["target"]) == {name}
    dropped = load_dataset(str(tmp_path / "pairs"), "pairs_rejects", split="train", cache_dir=cache)
    assert len(dropped) == report["rejected"]
    assert bool(report["warnings"]) == (name in {"full", "truncated"})
    assert report["together"]["train"] == {"written": 2}
    lines = (tmp_path / "pairs/together/train.jsonl").read_text().splitlines()
    assert [together.check_dpo(json.loads(line)) for line in lines] == [None, None]
    known = json.loads((tmp_path / "pairs/together/train_meta.jsonl").read_text().split("\n")[0])
    assert {"run_chosen", "score_chosen", "seed_chosen", "model", "suite"} <= set(known)
    write_pairs(PairOptions(source=[str(source)], out=tmp_path / "again", target=name, format="together"))
    assert bytes_of(tmp_path / "pairs") == bytes_of(tmp_path / "again")


def test_patches_are_applied_and_tested_again(tmp_path: Path) -> None:
    lies = rollout("fix_a", 42, PASSES, patch=patch_of(BUGGY, "def add(a, b):\n    return b\n"))
    elsewhere = rollout("fix_b", 42, PASSES, patch=patch_of("x = 1\n", "x = 2\n"))
    unlucky = rollout("fix_c", 43, FAILS, patch=patch_of(BUGGY, "def add(a, b):\n    return b + a\n"))
    runs = [lies, elsewhere, rollout("fix_c", 42, PASSES), unlucky]
    runs += [rollout(name, 43, FAILS) for name in ("fix_a", "fix_b")]
    source = write_folder(tmp_path / "rollouts", runs)
    report = write_pairs(PairOptions(source=[str(source)], out=tmp_path / "pairs", target="patch"))
    assert report["drop_reasons"] == {"flaky": 3}
    assert report["rows"] == 0
    assert (
        write_pairs(PairOptions(source=[str(source)], out=tmp_path / "pairs", target="patch", flaky_reruns=0))["rows"]
        == 3
    )
    tester = TaskTests()
    task = load_suite(source).tasks[0]
    assert tester.retest(task, patch_of(BUGGY, FIXED))[0] is True
    assert tester.retest(task, patch_of(BUGGY, OTHER))[0] is False
    assert "does not apply" in tester.retest(task, elsewhere["patch"])[1]


def test_what_cannot_be_tested_again_is_counted(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "rollouts", rows())
    (tmp_path / "repo" / "add.py").unlink()
    (tmp_path / "repo").rmdir()
    report = write_pairs(PairOptions(source=[str(source)], out=tmp_path / "pairs"))
    assert report["counts"]["not_retested"] == 2
    assert report["rows"] == 2


def test_pairs_of_held_out_tasks_are_not_training_rows(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "rollouts", rows(), split="test")
    given = PairOptions(source=[str(source)], out=tmp_path / "pairs", flaky_reruns=0, format="together")
    report = write_pairs(given)
    assert report["splits"] == {"test": 2}
    with pytest.raises(EmptySelection, match="of 2 pairs, 2 are of tasks held out for testing"):
        copy_lines(tmp_path / "pairs", tmp_path / "dpo.jsonl", report)
    assert not (tmp_path / "dpo.jsonl").exists()


def test_sides_that_a_trainer_would_cut_are_no_pairs(tmp_path: Path) -> None:
    model = str(write_tiny_model(tmp_path / "tiny"))
    long = "x" * 3000
    one, two = ([read(), write(f"{long}\n{end}", ok)] for end, ok in ((FIXED, True), (OTHER, False)))
    runs = [rollout("fix_a", 42, one), rollout("fix_a", 43, two)]
    runs += [rollout("fix_b", 42, PASSES), rollout("fix_b", 43, FAILS)]
    source = write_folder(tmp_path / "rollouts", runs)
    given: Json = {"flaky_reruns": 0, "tokenizer": model, "max_length": 600, "format": "together"}
    report = write_pairs(PairOptions(source=[str(source)], out=tmp_path / "pairs", **given))
    assert report["drop_reasons"] == {"identical_after_truncation": 1}
    assert report["together"]["train"]["written"] == 1
    cache = str(tmp_path / "cache")
    (kept,) = load_dataset(str(tmp_path / "pairs"), split="train", cache_dir=cache)
    given["max_length"] = kept["n_tokens"] - 1
    report = write_pairs(PairOptions(source=[str(source)], out=tmp_path / "pairs", **given))
    assert (report["rows"], report["drop_reasons"]) == (0, {"identical_after_truncation": 1, "too_long": 1})
    assert report["together"] == {}


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"contains neither \.parquet nor \.jsonl files"):
        write_pairs(PairOptions(source=[str(tmp_path)], out=tmp_path.parent / "pairs-of-nothing"))
    source = write_folder(tmp_path / "rollouts", [rollout("a", 1), rollout("a", 2)])
    command = ["pairs", str(source), "--out", str(tmp_path / "pairs")]
    wrong = CliRunner().invoke(app, [*command, "--target", "best"])
    assert (wrong.exit_code, "'best' is not one of" in wrong.output) == (2, True)
    with pytest.raises(EmptySelection, match="1 no_contrast"):
        CliRunner().invoke(app, command, catch_exceptions=False)
    unjudged = [rollout("a", 1, tests_ok=None), rollout("a", 2, tests_ok=None)]
    imported = write_folder(tmp_path / "imported" / "rollouts", unjudged)
    for target in ("step", "full"):
        more = ["pairs", str(imported), "--out", str(tmp_path / target), "--target", target]
        with pytest.raises(EmptySelection, match=r"\(1 no_verdict\); use rollouts whose tests"):
            CliRunner().invoke(app, more, catch_exceptions=False)
    done = CliRunner().invoke(app, ["pairs", str(source), "--out", str(tmp_path / "rollouts")])
    assert isinstance(done.exception, OutputError)
    (source / "suite.json").write_text("{")
    with pytest.raises(SourceError, match="is not a task suite"):
        write_pairs(PairOptions(source=[str(source)], out=tmp_path / "pairs"))


def test_an_empty_line_beside_the_fix_is_not_churn() -> None:
    fix = "--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,3 @@\n+\n a\n b\n@@ -9 +10 @@\n-n ^= 1\n+n &= 1\n"
    assert measure_patch(fix) == (3, 2, 0)
    assert measure_patch(fix.replace("+\n", "-a\n+  a\n", 1))[2] == 1


def test_an_action_whose_own_tests_failed_is_never_chosen() -> None:
    spoiled = write(OTHER, False)
    better = [read(), spoiled, write(FIXED, True), final()]
    worse = [read(), prose(), final()]
    case = Case("fix_add", [rollout(actions=better), rollout(seed=43, actions=worse)], "train")
    result = pair_steps(case, PairRules(flaky_reruns=0))
    assert result.rows == []
    assert [row["drop_reason"] for row in result.rejects] == ["ineligible"]


@pytest.mark.parametrize(("path", "reason"), [("tests/test_add.py", "overwrites_tests"), ("", "no_change")])
def test_efficiency_prefers_no_run_that_shirks(path: str, reason: str) -> None:
    touched = [path] if path else []
    shirks = rollout(actions=[final()], tests_ok=None, files_touched=touched)
    actions = [read(), write(FIXED, True), final("the sign was wrong")]
    works = rollout(seed=43, actions=actions, tests_ok=None)
    rules = PairRules(allow_efficiency_pairs=True, flaky_reruns=0, target="summary")
    result = pair_runs(Case("fix_add", [shirks, works], "train"), rules)
    assert result.rejects[0]["drop_reason"] == reason
    assert all(row["run_chosen"] == works["run_id"] for row in result.rows)
    result = pair_steps(Case("fix_add", [shirks, works], "train"), rules)
    assert all(row["run_chosen"] == works["run_id"] for row in result.rows)


def test_a_write_that_was_taken_back_later_is_never_chosen() -> None:
    churn = FIXED + "".join(f"x{n} = {n}\n" for n in range(30))
    tidied = [read(), write(churn, True), write(FIXED, True), final()]
    clean = [read("other.py"), write(FIXED, True), final()]
    failed = [read(), write(OTHER, False), final("done")]
    result = pair_steps(case(tidied, clean, failed), PairRules())
    assert "non_minimal" in reasons(result)
    assert not [row for row in result.rows if "x29" in row["chosen"][0]["content"]]


def test_pairs_are_not_written_into_the_repo_of_a_task(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "rollouts", rows())
    inside = tmp_path / "repo" / "pairs"
    with pytest.raises(OutputError, match="lie inside each other"):
        write_pairs(PairOptions(source=[str(source)], out=inside))
    assert not inside.exists()

"""A suite is split by task; tasks of the test side are not trained on."""

import hashlib
import json
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from pimono_sdpo.__main__ import start
from pimono_sdpo.cli import app
from pimono_sdpo.errors import PimonoError
from pimono_sdpo.suites import suite
from pimono_sdpo.suites.split import Leakage, Method, check_leakage, divide, read_task_ids
from pimono_sdpo.suites.suite import Suite, TaskRow


def task(name: str, **more: Any) -> TaskRow:
    row: TaskRow = {
        "task_id": name, "suite": "s", "repo": "/r", "goal": "g", "test_cmd": "make check",
        "hide": [], "metadata": {}, "verifier_spec": None, "split": None,
    }  # fmt: skip
    return {**row, **more}  # type: ignore[typeddict-item]


def ids(tasks: list[TaskRow]) -> list[str]:
    return [one["task_id"] for one in tasks]


TASKS = [task(f"fix_{n}") for n in range(40)]


def test_the_threshold_is_the_original_rule() -> None:
    divided = divide(TASKS, 0.7)
    expected = [
        one["task_id"] for one in TASKS if int(hashlib.md5(one["task_id"].encode()).hexdigest(), 16) % 100 < 70
    ]
    assert ids(divided.train) == expected
    assert ids(divided.test) == [name for name in ids(TASKS) if name not in expected]
    more = divide([*TASKS, task("new")], 0.7)
    assert set(ids(divided.test)) <= set(ids(more.test))


def test_rank_has_exact_sizes_by_the_order_of_md5() -> None:
    divided = divide(TASKS, 0.7, "rank")
    digests = sorted(ids(TASKS), key=lambda name: hashlib.md5(name.encode()).hexdigest())
    assert set(ids(divided.train)) == set(digests[:28])
    assert ids(divided.train) == [name for name in ids(TASKS) if name in digests[:28]]
    assert [len(divide(TASKS, share, "rank").train) for share in (0.5, 0.8)] == [20, 32]


def test_shuffle_depends_on_its_seed_alone() -> None:
    first, again, other = (divide(TASKS, 0.8, "shuffle", seed=seed) for seed in (1, 1, 2))
    assert ids(first.train) == ids(again.train) != ids(other.train)
    assert ids(divide(TASKS[::-1], 0.8, "shuffle", seed=1).train) == ids(first.train)[::-1]
    assert len(first.train) == len(other.train) == 32


@given(st.lists(st.integers(0, 8), min_size=12, max_size=60), st.sampled_from(get_args(Method)), st.floats(0.2, 0.8))
def test_groups_are_never_divided_and_no_task_is_lost(groups: list[int], method: Any, train: float) -> None:
    tasks = [task(f"t{n}", metadata={"group": group}) for n, group in enumerate(groups)]
    try:
        divided = divide(tasks, train, method, "group")
    except PimonoError:
        return
    sides = [{one["metadata"]["group"] for one in side} for side in (divided.train, divided.test)]
    assert not sides[0] & sides[1]
    assert sorted(ids(divided.train) + ids(divided.test)) == sorted(ids(tasks))
    if method != "threshold":
        assert len(divided.train) <= round(train * len(tasks))


def test_small_groups_fill_what_large_ones_leave() -> None:
    tasks = [task(f"t{n}", metadata={"family": "x"} if n < 5 else {}) for n in range(20)]
    for seed in range(5):
        assert len(divide(tasks, 0.5, "shuffle", "family", seed).train) == 10


def test_repos_can_be_groups() -> None:
    tasks = [task(f"t{n}", repo=f"/r{n % 3}") for n in range(12)]
    divided = divide(tasks, 0.67, "rank", "repo")
    assert {len(divided.train), len(divided.test)} == {8, 4}


def test_what_has_no_tests_is_never_tested() -> None:
    untested = [task(f"u{n}", test_cmd=None) for n in range(9)]
    divided = divide([*TASKS, *untested], 0.7, "rank")
    assert set(ids(untested)) <= set(ids(divided.train))
    assert (len(divided.train), len(divided.test)) == (28 + 9, 12)
    held = divided.test[0]["task_id"]
    same = [task(one["task_id"], metadata={"g": one["task_id"]}) for one in TASKS]
    more = divide([*same, task("u", test_cmd=None, metadata={"g": held})], 0.7, "rank", "g")
    assert ids(more.left_out) == ["u"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((TASKS, 1.0), "between 0 and 1"),
        ((TASKS, float("nan")), "between 0 and 1"),
        ((TASKS, 0.001, "rank"), "`rank` at 0.001 leaves no task for the train suite"),
        ((TASKS[:1], 0.5), "Cannot split: only"),
        ((TASKS, 0.5, "rank", "family"), "No task has `family`"),
    ],
)
def test_a_suite_that_cannot_be_split_is_refused(arguments: Any, said: str) -> None:
    with pytest.raises(PimonoError, match=said):
        divide(*arguments)


def written(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    rows = [{**one, "repo": str(tmp_path / "code")} for one in TASKS]
    return suite.write_suite(suite.Suite("all", tuple(rows), tmp_path / "all" / "suite.json"))  # type: ignore[arg-type]


def test_split_writes_two_suites_and_checks_rows(tmp_path: Path) -> None:
    given = str(written(tmp_path))
    arguments = ["suite", "split", given, "--out", str(tmp_path / "out"), "--method", "rank"]
    shown = CliRunner().invoke(app, arguments)
    assert shown.output.startswith("28 tasks for training, 12 for testing are in "), shown.output
    train, test = (suite.load_suite(tmp_path / "out" / f"{side}.json") for side in ("train", "test"))
    assert (train.name, test.name, train.split, test.split) == ("all-train", "all-test", "train", "test")
    assert {one["split"] for one in train.tasks} == {"train"}
    assert {one["repo"] for one in test.tasks} == {str(tmp_path / "code")}
    before = test.path.read_bytes()
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert test.path.read_bytes() == before
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"task_id": one["task_id"]}) + "\n" for one in train.tasks))
    fine = CliRunner().invoke(app, ["suite", "check", str(test.path), str(rows)])
    assert fine.output == "none of 28 training rows is of a task of `all-test`\n"
    with rows.open("a") as more:
        more.write(json.dumps({"task_id": test.tasks[0]["task_id"]}) + "\n")
    bad = CliRunner().invoke(app, ["suite", "check", str(test.path), str(rows)])
    assert isinstance(bad.exception, Leakage)
    rows.write_text(json.dumps({"task_id": "x", "split": "test"}))
    none = CliRunner().invoke(app, ["suite", "check", str(test.path), str(rows)])
    assert "holds no training rows, so nothing was checked" in str(none.exception)


def test_split_refuses_what_it_would_destroy(tmp_path: Path, capsys: Any) -> None:
    given = written(tmp_path)
    moved = given.rename(given.with_name("train.json"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "test.json").write_text('{"mine": 1}')
    for out, said in ((moved.parent, "is the suite to be split"), (tmp_path / "out", "is not a suite")):
        shown = CliRunner().invoke(app, ["suite", "split", str(moved), "--out", str(out), "--method", "rank"])
        assert said in str(shown.exception)
    assert not (tmp_path / "out" / "train.json").exists()
    with pytest.raises(SystemExit) as end:
        start(lambda: app(["suite", "split", str(moved)], standalone_mode=True), "pimono-sdpo")
    assert end.value.code == 2
    assert "--out" in capsys.readouterr().err
    assert CliRunner().invoke(app, ["suite", "split", str(moved), "--out", "x", "--method", "odd"]).exit_code == 2


TEST = Suite("held", (task("a"), task("b")), Path("test.json"))


def test_leakage_names_the_tasks() -> None:
    fine = [{"task_id": "c"}, {"task_id": "a", "split": "test"}, {"task_id": "c", "split": "train"}]
    assert check_leakage(fine, TEST) == 2
    table = pa.Table.from_pylist(fine, pa.schema([("task_id", pa.string()), ("split", pa.string())]))
    assert check_leakage(Dataset(table), TEST) == 2
    with pytest.raises(Leakage, match=r"3 of 4 training rows .* `held`: `a` \(2\), `b` \(1\); drop"):
        check_leakage([{"task_id": name} for name in "abca"], TEST)
    with pytest.raises(PimonoError, match="Row 1 has no `task_id`"):
        check_leakage(Dataset.from_list([{"prompt": "x"}]), TEST)


def test_rows_are_read_as_they_are_stored(tmp_path: Path) -> None:
    rows = [{"task_id": "a", "split": "test", "prompt": [1]}, {"task_id": "c", "split": "train", "prompt": [2]}]
    expected = [{"task_id": "a", "split": "test"}, {"task_id": "c", "split": "train"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    assert list(read_task_ids(tmp_path / "rows.parquet")) == expected
    Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
    assert list(read_task_ids(tmp_path / "saved")) == expected
    (tmp_path / "more.jsonl").write_text('{"other": 1}\n')
    assert list(read_task_ids(tmp_path)) == expected * 2
    # Of a command's output among others, neither rejects nor traces are rows.
    for name in ("data", "rejects", "traces"):
        path = tmp_path / "pairs" / name / "train.jsonl"
        path.parent.mkdir(parents=True)
        path.write_text('{"task_id": "e"}\n')
    assert list(read_task_ids(tmp_path / "pairs")) == [{"task_id": "e"}]
    for content, said in (('{"other": 1}', "no `task_id`"), ("{", "cannot be read"), ("", "no rows")):
        (tmp_path / "one.jsonl").write_text(content)
        with pytest.raises(PimonoError, match=said):
            check_leakage(read_task_ids(tmp_path / "one.jsonl"), TEST)
    (tmp_path / "of_filter" / "data").mkdir(parents=True)
    pq.write_table(pa.table({"prompt": ["x"]}), tmp_path / "of_filter/data/train.parquet")
    with pytest.raises(PimonoError, match="give rows that `steps` or `pairs` made from rollouts"):
        check_leakage(read_task_ids(tmp_path / "of_filter"), TEST)
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    with pytest.raises(PimonoError, match="cannot be read"):
        list(read_task_ids(tmp_path / "bad.parquet"))

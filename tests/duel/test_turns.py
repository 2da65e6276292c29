"""Turns are drawn by seed and from few row groups, with their pull requests."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pimono_sdpo.errors import EmptySelection, SourceError
from pimono_sdpo.schema import DUEL_TURN, PULL_REQUEST
from pimono_sdpo.traces.sources import find_parquet_files
from processors.duel.answers import check_format, classify_action
from processors.duel.turns import (
    TurnOptions,
    draw_runs,
    draw_turns,
    list_ids,
    order_runs,
    read_excluded_ids,
    read_messages,
    read_records,
    scan_pull_requests,
)
from tests.duel.trajectories import pull_request, step, trajectory, write_pull_requests, write_trajectories
from tests.loopback_hub import LoopbackHub, run_client

FEW = TurnOptions(turns=25, seed=1)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(folder.glob("*.parquet")) for row in read(path)]


def read(path: Path) -> list[dict[str, Any]]:
    return list(pq.read_table(path).to_pylist())


def files_of(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*.*")}


def test_turns_have_their_history_their_reference_and_their_pull_request(tmp_path: Path) -> None:
    source = write_trajectories(tmp_path / "data")
    records = write_pull_requests(tmp_path / "prs.parquet")
    report = draw_turns(str(source), str(records), FEW, tmp_path / "out")
    turns = rows_of(tmp_path / "out" / "turns")
    assert len(turns) == 25
    assert pq.read_schema(tmp_path / "out/turns/turns-00000.parquet") == DUEL_TURN.arrow_schema
    assert [turn["turn_id"] for turn in turns][:2] == ["turns-00000_1", "turns-00000_2"]
    assert len({turn["instance_id"] for turn in turns}) == report["instances"] > 5
    assert len({turn["turn"] for turn in turns}) > 2
    for turn in turns:
        assert [m["role"] for m in turn["messages"][:2]] == ["system", "user"]
        assert turn["messages"][-1]["role"] == "user"
        assert turn["turn"] == len(turn["messages"]) // 2
        assert f"step {turn['turn'] - 1}" in turn["assistant"]
        assert turn["action_style"] == "search"
    hidden = {row["instance_id"]: row for row in rows_of(tmp_path / "out" / "prs")}
    assert set(hidden) == {turn["instance_id"] for turn in turns}
    assert pq.read_schema(tmp_path / "out/prs/prs-00000.parquet") == PULL_REQUEST.arrow_schema
    one = next(iter(hidden.values()))
    assert one["files"] == ["src/flush_guard.py"]
    assert one["description"] == "Flush what is pending\n\nCalls flush_pending_rows at the end."
    assert one["pr_chars"] == sum(
        len(one[name]) for name in ("problem_statement", "patch", "base_commit", "description")
    )


def test_the_same_seed_gives_the_same_bytes_and_another_other_turns(tmp_path: Path) -> None:
    source = str(write_trajectories(tmp_path / "data"))
    records = str(write_pull_requests(tmp_path / "prs.parquet"))
    for name, options in (("a", FEW), ("b", FEW), ("c", replace(FEW, seed=2))):
        draw_turns(source, records, options, tmp_path / name)
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")
    assert rows_of(tmp_path / "a" / "turns") != rows_of(tmp_path / "c" / "turns")


def draw(source: Path, start: int, count: int, seed: int = 5) -> list[dict[str, Any]]:
    """Some of the draws from all runs; each gives a turn."""
    files = find_parquet_files(str(source))
    known = {f"proj{number}-{number}" for number in range(10)}
    runs = order_runs(files, known, frozenset(), Counter(), seed)
    drawn = draw_runs(files, runs.slice(start, count), seed)
    return [turn for turn in drawn if isinstance(turn, dict)]


def test_one_turn_of_every_task_comes_first_and_in_the_end_every_row(tmp_path: Path) -> None:
    source = write_trajectories(tmp_path / "data")
    turns = draw(source, 0, 500)
    drawn = [turn["instance_id"] for turn in turns]
    assert len(drawn) == 120
    for start in range(0, 120, 10):
        assert len(set(drawn[start : start + 10])) == 10
    assert draw(source, 0, 7) + draw(source, 7, 500) == turns
    assert draw(source, 120, 5) == []


def test_tasks_are_drawn_uniformly_whatever_their_runs_and_their_place(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    # One task has 41 of 50 runs, and the runs of a task lie together.
    names = ["proj0-0"] * 41 + [f"proj{number}-{number}" for number in range(1, 10)]
    rows = [trajectory(name, 2, sample) for sample, name in enumerate(names)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "data" / "t.parquet", row_group_size=10)
    drawn: Counter[str] = Counter()
    for seed in range(400):
        (first,) = draw(tmp_path / "data", 0, 1, seed)
        drawn[first["instance_id"]] += 1
    # 40 of each are expected if tasks are equal; six standard deviations are 36.
    assert len(drawn) == 10
    assert all(4 < count < 76 for count in drawn.values()), drawn


@pytest.mark.parametrize(
    ("repo", "instance", "name"),
    [
        ("acme/tool", "t1", "acme/tool"),
        (7, "t1", "7"),
        (None, "django__django-11099", "django/django"),
        (None, "t1", ""),
        ("", "4f1c-88", ""),
    ],
)
def test_a_repository_is_named_or_unknown(tmp_path: Path, repo: object, instance: str, name: str) -> None:
    (tmp_path / "data").mkdir()
    row = {**trajectory(instance), "repo": repo}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "data" / "t.parquet")
    pq.write_table(pa.Table.from_pylist([pull_request(instance)]), tmp_path / "prs.parquet")
    draw_turns(str(tmp_path / "data"), str(tmp_path / "prs.parquet"), FEW, tmp_path / "out")
    assert {turn["repo"] for turn in rows_of(tmp_path / "out" / "turns")} == {name}


def test_shards_hold_at_most_200_turns(tmp_path: Path) -> None:
    source = write_trajectories(tmp_path / "data", files=2, groups=2, rows=110)
    records = write_pull_requests(tmp_path / "prs.parquet")
    draw_turns(str(source), str(records), TurnOptions(turns=250), tmp_path / "out")
    counts = [len(read(path)) for path in sorted((tmp_path / "out" / "turns").glob("*"))]
    assert counts == [200, 50]


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    rows = [
        trajectory("proj1-1"),
        trajectory("proj2-2"),
        trajectory("proj3-3"),
        trajectory("proj1-1", 1),
        trajectory("proj1-1", 1),
        {**trajectory("proj0-0"), "messages": []},
        {**trajectory("proj0-0"), "messages": [{"role": "user", "content": "x" * 130_000}] * 2},
        {**trajectory(""), "repo": None},
    ]
    rows[6]["messages"].append({"role": "assistant", "content": "late"})
    (tmp_path / "data").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "data" / "t.parquet")
    records = write_pull_requests(tmp_path / "prs.parquet", range(3))
    notes = tmp_path / "exclude.txt"
    notes.write_text("# huge ones\nproj2-2  # 40,000 lines\n\n")
    options = TurnOptions(turns=99, exclude=read_excluded_ids(notes))
    report = draw_turns(str(tmp_path / "data"), str(records), options, tmp_path / "out")
    assert report["turns"] == 2
    assert report["dropped"] == {
        "duplicate": 1,
        "excluded": 1,
        "no_instance_id": 1,
        "no_pull_request": 1,
        "no_turn": 1,
        "too_long": 1,
    }
    other = write_pull_requests(tmp_path / "other.parquet", range(20, 21))
    with pytest.raises(EmptySelection, match="no_pull_request"):
        draw_turns(str(tmp_path / "data"), str(other), options, tmp_path / "out")


HUB = """
import json, pathlib
from processors.duel.turns import TurnOptions, draw_turns
report = draw_turns("lab/swe", "lab/prs", TurnOptions(turns=25, seed=1), pathlib.Path("out"))
print(json.dumps(report))
"""


def test_a_hub_dataset_gives_the_turns_of_its_files(loopback_hub: LoopbackHub, tmp_path: Path) -> None:
    source = write_trajectories(tmp_path / "data")
    records = write_pull_requests(tmp_path / "prs" / "0000.parquet")
    shards = {path.name: path.read_bytes() for path in source.iterdir()}
    loopback_hub.seed("lab/swe", "dataset", {"README.md": b"# Runs\n"})
    commit = loopback_hub.seed("lab/swe", "dataset", shards, revision="refs/convert/parquet")
    # No export: the repository's own files.
    loopback_hub.seed("lab/prs", "dataset", {"data/0000.parquet": records.read_bytes()})
    report = run_client(loopback_hub, tmp_path, HUB)
    assert (report["source"], report["revision"]) == ("lab/swe", commit)
    draw_turns(str(source), str(records), FEW, tmp_path / "local")
    (found,) = (path for path in tmp_path.rglob("turns-00000.parquet") if "local" not in str(path))
    assert found.read_bytes() == (tmp_path / "local/turns/turns-00000.parquet").read_bytes()


def test_an_invalid_source_is_reported_in_one_sentence(tmp_path: Path) -> None:
    other = tmp_path / "other.parquet"
    pq.write_table(pa.Table.from_pylist([{"id": 1}]), other)
    source = str(write_trajectories(tmp_path / "data"))
    known = str(write_pull_requests(tmp_path / "prs.parquet"))
    broken = tmp_path / "broken.parquet"
    broken.write_text("no parquet")
    for given, records, message in (
        (source, str(broken), "broken.parquet` cannot be read"),
        (source, source, "no column that describes a change"),
        (str(other), known, "column"),
        (source, str(other), "text column `instance_id`"),
        (source, "/nowhere", "does not exist"),
        (str(tmp_path / "none"), known, "does not exist"),
    ):
        with pytest.raises(SourceError, match=message) as problem:
            draw_turns(given, records, TurnOptions(), tmp_path / "out")
        assert "\n" not in str(problem.value)
    assert not (tmp_path / "out").exists()


def test_records_under_other_names_are_read(tmp_path: Path) -> None:
    record = pull_request("a-1")
    row = {"instance_id": "a-1", "issue": {"title": "T"}, "diff": record["patch"], "pr_title": "P"}
    pq.write_table(pa.Table.from_pylist([row, row]), tmp_path / "prs.parquet")
    scans = scan_pull_requests(str(tmp_path / "prs.parquet"))
    assert list_ids(scans) == {"a-1"}
    (found,) = read_records(scans, {"a-1", "b-2"})
    assert found["problem_statement"] == '{"title": "T"}'
    assert (found["files"], found["description"]) == (["src/flush_guard.py"], "P")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (step("look", "ls"), None),
        ("Let me look.\n```sh\nls\n```", None),
        ("Edit.\n````bash\ncat > a.md <<'EOF'\n```\nx\n```\nEOF\n````", None),
        ("See `x`.\n```python\nprint(1)\n```\nSo:\n```bash\nls\n```\nDone.", None),
        ("", "empty"),
        (" \n", "empty"),
        ("I am done.", "no_action"),
        ("```python\nprint(1)\n```", "no_action"),
        (step("a", "ls") + "\n" + step("b", "pwd"), "several_actions"),
        ("THOUGHT: x\n```bash\nls", "unclosed_block"),
        ("THOUGHT: x\n```bash\n\n```", "empty_action"),
        ("```bash\nls\n```", "no_thought"),
        ("THOUGHT:\n```bash\nls\n```", "no_thought"),
        (step("x", "ls") + "<|tool_calls_section_begin|>", "special_tokens"),
        ("<tool_call>{}</tool_call>", "special_tokens"),
        ("<\uff5ctool\u2581calls\u2581begin\uff5c>" + step("x", "ls"), "special_tokens"),
    ],
)
def test_the_form_of_an_answer(text: str, fault: str | None) -> None:
    assert check_format(text) == fault


@pytest.mark.parametrize(
    ("command", "style"),
    [
        ("grep -rn x src | head", "search"),
        ("sed -n '1,20p' a.py", "read"),
        ("sed -i 's/a/b/' a.py", "edit"),
        ("cat > a.py <<'EOF'\nx = 1\nEOF", "edit"),
        ("cd repo && python -m pytest -q 2>&1 | tail", "test"),
        ("npm run build", "run"),
        ("npm test", "test"),
        ("python -c 'print(1)'", "run"),
        ("git diff", "git"),
        ("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git add -A", "submit"),
        ("echo hi", "other"),
    ],
)
def test_the_style_of_an_action(command: str, style: str) -> None:
    assert classify_action(step("x", command)) == style


@pytest.mark.parametrize(
    ("recorded", "roles"),
    [
        (None, []),
        ("no json", []),
        ("[" * 100_000, []),
        ('[{"role": "user", "content": "hi"}]', ["user"]),
        ([{"role": "user"}, 3, {"role": "other", "content": "x"}], []),
        ([{"role": "tool", "content": "x"}, {"role": "user", "content": "y"}], ["user"]),
        ([{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"x": 1}]}], ["assistant"]),
    ],
)
def test_recorded_messages_of_any_shape(recorded: object, roles: list[str]) -> None:
    assert [message["role"] for message in read_messages(recorded)] == roles

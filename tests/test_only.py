"""Several machines make the parts of one source with --only; a last plain run only finishes."""

import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict

from pimono_sdpo.errors import EmptySelection, OutputError
from pimono_sdpo.filtering import FilterOptions, make_parts, run_filter
from pimono_sdpo.runs.engine import read_made
from pimono_sdpo.runs.folders import only_run
from tests import shards
from tests.shards import all_bytes, cli, made, sentence

SHARDS = 5


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shards.write_shards(tmp_path_factory.mktemp("source") / "traces", SHARDS)


def moved(source: Path, machine: Path) -> Path:
    """The same source in another folder and with other times, as on another machine."""
    shutil.copytree(source, machine / "traces", copy_function=shutil.copy)
    for path in (machine / "traces").rglob("*"):
        os.utime(path, (1, 1))
    return machine / "traces"


def check(source: Path, folder: Path, count: int, **options: Any) -> None:
    """Make the parts on `count` machines, finish on the last one, and compare with a single run."""
    chosen, out = FilterOptions(**options), folder / "rows"
    run_filter(str(source), folder / "single", chosen)
    machines = [moved(source, folder / f"machine{number}") for number in range(count)]
    for number, machine in enumerate(machines, 1):
        make_parts(str(machine), out, chosen, (number, count))
        assert not out.exists()
    before = made(folder / ".rows.partial")
    make_parts(str(machines[-1]), out, chosen, (1, 1))
    assert made(folder / ".rows.partial") == before, "finished parts were made again"
    run_filter(str(machines[-1]), out, chosen)
    assert all_bytes(out) == all_bytes(folder / "single")
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize("count", [2, 8])
def test_parts_of_several_machines_give_the_bytes_of_one_run(source: Path, tmp_path: Path, count: int) -> None:
    check(source, tmp_path, count, max_samples=9, seed=3, licence="mit")


def test_raw_sessions_and_splits_of_a_saved_dataset(tmp_path: Path) -> None:
    raw = shards.write_raw_shards(tmp_path / "raw" / "traces", 3)
    check(raw, tmp_path / "raw", 2, test_fraction=0.4, history_chars=200, min_worth=0)
    files = sorted(shards.write_shards(tmp_path / "shards", 3).iterdir())
    splits = {f"part_{path.stem}": Dataset.from_parquet(str(path)) for path in files}
    DatasetDict(splits).save_to_disk(str(tmp_path / "saved" / "traces"))
    check(tmp_path / "saved" / "traces", tmp_path / "saved", 2)


def test_a_shard_without_rows_or_sessions(tmp_path: Path) -> None:
    traces = shards.write_shards(tmp_path / "traces", 4)
    table = pq.read_table(traces / "0001.parquet")
    pq.write_table(table.slice(0, 0), traces / "0001.parquet")
    check(traces, tmp_path, 4, min_score=6.0)
    make_parts(str(traces), tmp_path / "none", FilterOptions(min_score=90.0), (1, 2))
    with pytest.raises(EmptySelection, match=r"`traces` gives no rows \(.*below_min_score"):
        run_filter(str(traces), tmp_path / "none", FilterOptions(min_score=90.0))
    assert not list(tmp_path.glob("*none*"))


def test_the_command_line(source: Path, tmp_path: Path) -> None:
    line = ("filter", source, "--out", tmp_path / "rows")
    for part in ("1/2", "2/2"):
        done = cli(*line, "--only", part)
        assert (done.returncode, done.stderr) == (0, "")
        assert f"parts {part} are made; after the others, the command without --only writes the rows" in done.stdout
        assert " requests\n" in done.stdout
    assert cli(*line).returncode == 0
    for part in ("0/2", "3/2", "1", "x/2", "1/0"):
        assert f"--only `{part}` is not I/N, such as 2/3" in sentence(cli(*line, "--only", part))
    assert "give --push to the last command" in sentence(cli(*line, "--only", "1/2", "--push", "me/rows"))


def test_machines_work_in_one_folder_at_once_but_not_with_a_plain_run(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows"
    with only_run(out, shared=True):
        make_parts(str(source), out, FilterOptions(), (1, 2))
        with pytest.raises(OutputError, match="Another run is writing"):
            run_filter(str(source), out)
    with only_run(out), pytest.raises(OutputError, match="Another run is writing"):
        make_parts(str(source), out, FilterOptions(), (2, 2))
    run_filter(str(source), out)


def test_a_changed_file_is_never_taken_for_the_old_one(tmp_path: Path) -> None:
    """An edit in place changes neither the size nor, here, the time."""
    traces = shards.write_raw_shards(tmp_path / "traces", 2)
    changed, options = traces / "00070.jsonl", FilterOptions(min_worth=0)
    make_parts(str(traces), tmp_path / "rows", options, (1, 1))
    before, stat, text = made(tmp_path / ".rows.partial"), changed.stat(), changed.read_text()
    changed.write_text(text.replace("module 70", "module 71", 1))
    os.utime(changed, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (changed.stat().st_size, changed.stat().st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)
    make_parts(str(traces), tmp_path / "rows", options, (1, 1))
    after = made(tmp_path / ".rows.partial")
    assert {name for name in before if after[name] != before[name]} == {"00001.parquet"}
    run_filter(str(traces), tmp_path / "rows", options)
    run_filter(str(traces), tmp_path / "single", options)
    assert all_bytes(tmp_path / "rows") == all_bytes(tmp_path / "single")


def test_a_part_that_is_truncated_at_any_byte_is_made_again(source: Path, tmp_path: Path) -> None:
    out, parts = tmp_path / "rows", tmp_path / ".rows.partial" / "parts"
    make_parts(str(source), out, FilterOptions(), (1, 1))
    whole = {path: path.read_bytes() for path in sorted(parts.iterdir())}
    first, content = next(iter(whole.items()))
    for size in range(len(content)):
        os.truncate(first, size) if size % 1000 else first.write_bytes(content[:size])
        assert read_made(first) is None, f"cut to {size} of {len(content)} bytes"
        first.write_bytes(content)
    for number, (path, content) in enumerate(whole.items()):
        path.write_bytes(content[: (0, 5, len(content) // 2, len(content) - 8, len(content) - 1)[number]])
    run_filter(str(source), out)
    run_filter(str(source), tmp_path / "single")
    assert all_bytes(out) == all_bytes(tmp_path / "single")


@pytest.mark.parametrize("column", ["privileged_context", "messages.list.element"])
def test_a_part_with_a_damaged_page_is_named_once_and_made_again(source: Path, tmp_path: Path, column: str) -> None:
    out = tmp_path / "rows"
    make_parts(str(source), out, FilterOptions(), (1, 1))
    damaged = tmp_path / ".rows.partial" / "parts" / "00002.parquet"
    content = bytearray(damaged.read_bytes())
    group = pq.read_metadata(damaged).row_group(0)
    (chunk,) = [one for one in map(group.column, range(group.num_columns)) if one.path_in_schema == column]
    end = chunk.data_page_offset + chunk.total_compressed_size
    content[end - 9 : end] = b"\xff" * 9
    damaged.write_bytes(content)
    assert read_made(damaged) is not None
    arguments = ("filter", source, "--out", out)
    assert "run the same command again, which makes this part again" in sentence(cli(*arguments))
    assert not out.exists()
    assert cli(*arguments).returncode == 0
    run_filter(str(source), tmp_path / "single")
    assert all_bytes(out) == all_bytes(tmp_path / "single")

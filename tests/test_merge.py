"""Test that merged parts of a source equal a single run."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict
from typer.testing import CliRunner, Result

from pimono_sdpo.cli import app
from pimono_sdpo.errors import EmptySelection, OutputError, SourceError
from pimono_sdpo.filtering import FilterOptions, merge_parts, run_filter, run_part
from pimono_sdpo.runs.folders import only_run
from tests import shards
from tests.shards import all_bytes, cli

SHARDS = 5
CHOSEN = FilterOptions(max_samples=9, seed=3, licence="mit")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shards.write_shards(tmp_path_factory.mktemp("source") / "traces", SHARDS)


@pytest.fixture(scope="module")
def rows(source: Path) -> Path:
    run_filter(str(source), source.parent / "rows", CHOSEN)
    return source.parent / "rows"


def moved(source: Path, machine: Path) -> Path:
    """The same source in another folder and with other times, as on another machine."""
    shutil.copytree(source, machine / "traces", copy_function=shutil.copy)
    for path in (machine / "traces").rglob("*"):
        os.utime(path, (1, 1))
    return machine / "traces"


def parts_of(source: Path, folder: Path, count: int, **options: Any) -> list[Path]:
    for part in range(1, count + 1):
        run_part(str(source), folder / f"p{part}", (part, count), FilterOptions(**options))
    return [folder / f"p{part}" for part in range(1, count + 1)]


@pytest.fixture(scope="module")
def three(source: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return parts_of(source, tmp_path_factory.mktemp("three"), 3)


def test_parts_of_two_machines_merge_to_the_bytes_of_one_run(source: Path, rows: Path, tmp_path: Path) -> None:
    other = moved(source, tmp_path / "machine")
    options = ("--max-samples", 9, "--seed", 3, "--license", "MIT")
    for part, traces in ((1, source), (2, other)):
        done = cli("filter", traces, "--out", tmp_path / f"p{part}", "--shard", f"{part}/2")
        assert done.returncode == 0, done.stderr
        assert f"part {part} of 2" in done.stdout
    done = cli("filter", "--merge", tmp_path / "p2", tmp_path / "p1", "--out", tmp_path / "rows", *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert "rows kept" in done.stdout
    assert all_bytes(tmp_path / "rows") == all_bytes(rows)
    assert not list(tmp_path.glob(".*"))
    # A part has the same bytes on every machine, and contains no machine path.
    run_part(str(source), tmp_path / "again", (2, 2))
    assert all_bytes(tmp_path / "again") == all_bytes(tmp_path / "p2")
    content = b"".join(path.read_bytes() for path in (tmp_path / "p2").rglob("*.json"))
    assert str(tmp_path).encode() not in content
    assert os.fsencode(source.parent) not in content


@pytest.mark.parametrize("count", [1, 8])
def test_any_number_of_parts_merges(source: Path, rows: Path, tmp_path: Path, count: int) -> None:
    parts = parts_of(source, tmp_path, count)
    empty = [json.loads((part / "part.json").read_text())["sessions"] == 0 for part in parts]
    assert empty == [part >= SHARDS for part in range(count)]
    # A part without shards may lack its empty folders, or be missing.
    for path in sorted(parts[-1].iterdir()):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
    for given in (parts, parts[:SHARDS]):
        merge_parts(given, tmp_path / "rows", CHOSEN)
        assert all_bytes(tmp_path / "rows") == all_bytes(rows)


def test_a_shard_without_rows_or_sessions_is_a_shard(tmp_path: Path) -> None:
    traces = shards.write_shards(tmp_path / "traces", 4)
    table = pq.read_table(traces / "0001.parquet")
    pq.write_table(table.slice(0, 0), traces / "0001.parquet")
    run_filter(str(traces), tmp_path / "rows", FilterOptions(min_score=6.0))
    parts = parts_of(traces, tmp_path, 4, min_score=6.0)
    assert 0 in [json.loads((part / "part.json").read_text())["rows"] for part in parts]
    merge_parts(parts, tmp_path / "merged")
    assert all_bytes(tmp_path / "merged") == all_bytes(tmp_path / "rows")
    with pytest.raises(EmptySelection, match=r"`traces` gives no rows \(.*below_min_score"):
        merge_parts(parts_of(traces, tmp_path / "high", 2, min_score=90.0), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_parts_keep_raw_sessions_and_options(tmp_path: Path) -> None:
    traces = shards.write_raw_shards(tmp_path / "traces", 3)
    options: dict[str, Any] = {"unit": "episode", "test_fraction": 0.4, "history_chars": 200}
    options["min_worth"] = 0
    run_filter(str(traces), tmp_path / "rows", FilterOptions(**options))
    other = moved(traces, tmp_path / "machine")
    parts = [*parts_of(traces, tmp_path / "a", 2, **options)[:1]]
    parts += parts_of(other, tmp_path / "b", 2, **options)[1:]
    merge_parts(parts, tmp_path / "merged")
    assert all_bytes(tmp_path / "merged") == all_bytes(tmp_path / "rows")


def test_splits_of_a_saved_dataset_are_shards(tmp_path: Path) -> None:
    raw = shards.write_shards(tmp_path / "raw", 3)
    splits = {path.stem: Dataset.from_parquet(str(path)) for path in sorted(raw.iterdir())}
    splits = {f"part_{name}": split for name, split in splits.items()}
    DatasetDict(splits).save_to_disk(str(tmp_path / "traces"))
    other = moved(tmp_path / "traces", tmp_path / "machine")
    run_filter(str(other), tmp_path / "rows")
    parts = parts_of(tmp_path / "traces", tmp_path / "a", 2)[:1]
    parts += parts_of(other, tmp_path / "b", 2)[1:]
    merge_parts(parts, tmp_path / "merged")
    assert all_bytes(tmp_path / "merged") == all_bytes(tmp_path / "rows")


def test_missing_duplicate_and_foreign_parts_are_named(source: Path, three: list[Path], tmp_path: Path) -> None:
    def refused(parts: list[Path], match: str) -> None:
        with pytest.raises(SourceError, match=match):
            merge_parts(parts, tmp_path / "rows")
        assert not (tmp_path / "rows").exists()

    one, two, last = three
    refused([two], r"parts of `traces` are incomplete \(2 of 3 missing\); make .* --shard 1/3, --shard 3/3,")
    refused([one, two, last, two], r"Part 2 is in `.*p2` and in `.*p2`; give one")
    refused([one, tmp_path / "nothing"], r"nothing` is not a part of a divided run; give")
    run_part(str(source), tmp_path / "half", (2, 2))
    refused([one, tmp_path / "half"], r"different runs \(parts\); make all parts")
    run_part(str(source), tmp_path / "scored", (2, 3), FilterOptions(min_score=2.0))
    refused([one, tmp_path / "scored", last], r"different runs \(options, code\)")
    fewer = moved(source, tmp_path / "fewer")
    (fewer / "0004.parquet").unlink()
    run_part(str(fewer), tmp_path / "of fewer", (2, 3))
    refused([one, tmp_path / "of fewer", last], r"different runs \(source\)")
    changed = moved(source, tmp_path / "changed")
    shutil.copy(changed / "0001.parquet", changed / "0000.parquet")
    run_part(str(changed), tmp_path / "of changed", (2, 3))
    refused([one, tmp_path / "of changed", last], r"different runs \(source\)")
    says = json.loads((two / "part.json").read_text())
    says["code"] = "other"
    shutil.copytree(two, tmp_path / "other code")
    (tmp_path / "other code" / "part.json").write_text(json.dumps(says))
    refused([one, tmp_path / "other code", last], r"different runs \(code\)")


def test_a_damaged_part_is_named(three: list[Path], tmp_path: Path) -> None:
    for spoil in ("rows/00001.parquet", "prints/00004.parquet"):
        for how in ("lost", "cut"):
            copy = tmp_path / how / spoil.replace("/", "-")
            shutil.copytree(three[1], copy)
            content = (copy / spoil).read_bytes()
            (copy / spoil).unlink()
            if how == "cut":
                (copy / spoil).write_bytes(content[: len(content) // 2])
            with pytest.raises(SourceError, match=r"does not hold shard 0000[14] whole; copy"):
                merge_parts([three[0], copy, three[2]], tmp_path / "rows")


def test_options_of_a_merge_are_refused_for_a_part(source: Path, tmp_path: Path) -> None:
    def refused(*options: str) -> Result:
        line = ["filter", str(source), "--out", str(tmp_path / "p"), *options]
        return CliRunner().invoke(app, line)

    for option in ("--max-samples 3", "--seed 1", "--no-dedupe", "--license mit"):
        done = refused("--shard", "1/2", *option.split())
        assert "use it with --merge instead" in str(done.exception)
    for part in ("0/2", "3/2", "1", "x/2", "1/0"):
        done = refused("--shard", part)
        assert (done.exit_code, "is not a shard" in done.output) == (2, True)
    assert not list(tmp_path.iterdir())


def test_each_command_refuses_the_folder_of_another(
    source: Path, rows: Path, three: list[Path], tmp_path: Path
) -> None:
    part = tmp_path / "part"
    shutil.copytree(three[0], part)
    shutil.copytree(rows, tmp_path / "rows")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("do not touch")
    before = all_bytes(tmp_path)
    for out, match in ((part, r"holds another command's part\.json"), (tmp_path / "mine", "no earlier run")):
        with pytest.raises(OutputError, match=match):
            merge_parts(three, out)
        with pytest.raises(OutputError, match=match):
            run_filter(str(source), out)
    with pytest.raises(OutputError, match="lie inside each other"):
        merge_parts([*three[1:], part], part / "rows")
    with (
        pytest.raises(OutputError, match="has the output of another command"),
        only_run(tmp_path / "rows", stage="steps"),
    ):
        pass
    with pytest.raises(OutputError, match=r"holds another command's report\.json"):
        run_part(str(source), tmp_path / "rows", (1, 3))
    with pytest.raises(OutputError, match="holds part 1 of 3; use a folder for each part"):
        run_part(str(source), part, (2, 3))
    assert all_bytes(tmp_path) == before
    run_part(str(source), part, (1, 3))
    assert all_bytes(part) == all_bytes(three[0])


def test_file_names_in_a_part_are_redacted(tmp_path: Path) -> None:
    secret = "hf_" + "aB3" * 12
    traces = shards.write_shards(tmp_path / f"runs-{secret}", 2)
    (traces / "0000.parquet").rename(traces / f"{secret}.parquet")
    run_filter(str(traces), tmp_path / "rows")
    parts = parts_of(traces, tmp_path, 2)
    merge_parts(parts, tmp_path / "merged")
    assert all_bytes(tmp_path / "merged") == all_bytes(tmp_path / "rows")
    assert secret.encode() not in b"".join(b"".join(all_bytes(part).values()) for part in parts)

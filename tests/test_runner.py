"""Test runs with many shards: in parallel, with a failing shard, on a full disk, after a kill."""

import os
import pty
import random
import resource
import shutil
import signal
import string
import subprocess
import termios
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pimono_sdpo.filtering import FilterOptions, make_parts, run_filter
from pimono_sdpo.runs.engine import make_part, run_shards
from pimono_sdpo.runs.processes import run_in_processes
from pimono_sdpo.runs.sessions import session_parts
from pimono_sdpo.stage import Row
from pimono_sdpo.traces.sources import open_source
from processors import pipeline
from tests import shards
from tests.shards import all_bytes, begun, cli, command, made, sentence, until


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shards.write_shards(tmp_path_factory.mktemp("source") / "traces")


@pytest.fixture(scope="module")
def rows(source: Path) -> Path:
    out = source.parent / "rows"
    run_filter(str(source), out)
    return out


@pytest.fixture(scope="module")
def long_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shards.write_busy_shards(tmp_path_factory.mktemp("long") / "traces", 4, 80)


@pytest.fixture(scope="module")
def long_rows(long_source: Path) -> Path:
    out = long_source.parent / "rows"
    run_filter(str(long_source), out)
    return out


@pytest.mark.parametrize("workers", [2, 3])
def test_the_rows_do_not_depend_on_the_workers(source: Path, rows: Path, tmp_path: Path, workers: int) -> None:
    run_filter(str(source), tmp_path / "rows", workers=workers)
    assert all_bytes(tmp_path / "rows") == all_bytes(rows)


def test_an_unreadable_shard_does_not_affect_the_others(source: Path, rows: Path, tmp_path: Path) -> None:
    broken, good = tmp_path / "traces" / "0002.parquet", source / "0002.parquet"
    shutil.copytree(source, tmp_path / "traces")
    _spoil_pages(broken)
    arguments = ("filter", broken.parent, "--out", tmp_path / "rows", "--workers", 2)
    message = sentence(cli(*arguments))
    assert "1 of 5 shards failed (`0002.parquet` cannot be read" in message
    assert "finished ones are kept in `.rows.partial`" in message
    work = tmp_path / ".rows.partial"
    before = made(work)
    assert sorted(before) == ["00000.parquet", "00001.parquet", "00003.parquet", "00004.parquet"]
    assert not (tmp_path / "rows").exists()
    assert not begun(work)
    shutil.copy2(good, broken)
    make_parts(str(broken.parent), tmp_path / "rows", FilterOptions(), (1, 1))
    assert {name: made(work)[name] for name in before} == before
    run_filter(str(broken.parent), tmp_path / "rows")
    assert all_bytes(tmp_path / "rows") == all_bytes(rows)
    assert not work.exists()


@pytest.mark.slow
def test_a_killed_worker_is_reported_and_a_rerun_finishes(long_source: Path, long_rows: Path, tmp_path: Path) -> None:
    arguments = ("filter", long_source, "--out", tmp_path / "rows", "--workers", 2)
    process = subprocess.Popen(command(*arguments), stderr=subprocess.PIPE, text=True)
    until(lambda: begun(tmp_path / ".rows.partial") or process.poll() is not None)
    os.kill(_workers(process.pid)[0], signal.SIGKILL)
    _, stderr = process.communicate()
    assert (process.returncode, stderr.count("\n")) == (2, 1), stderr
    assert "shards failed (a worker was killed, most likely for lack of memory; try fewer" in stderr
    run_filter(str(long_source), tmp_path / "rows")
    assert all_bytes(tmp_path / "rows") == all_bytes(long_rows)


@pytest.mark.slow
def test_workers_end_with_a_killed_run_and_a_rerun_finishes(
    long_source: Path, long_rows: Path, tmp_path: Path
) -> None:
    arguments = ("filter", long_source, "--out", tmp_path / "rows", "--workers", 2)
    work = tmp_path / ".rows.partial"
    process = subprocess.Popen(command(*arguments), stderr=subprocess.DEVNULL)
    workers: list[int] = []

    def one_is_done() -> bool:
        workers[:] = _workers(process.pid)
        return bool(made(work))

    with shards.killed(process, one_is_done):
        assert len(workers) > 1
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    run_filter(str(long_source), tmp_path / "rows")
    assert all_bytes(tmp_path / "rows") == all_bytes(long_rows)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["workers begin", "shards are written"])
def test_ctrl_c_prints_one_sentence_and_a_rerun_finishes(
    long_source: Path, long_rows: Path, tmp_path: Path, moment: str
) -> None:
    arguments = ("filter", long_source, "--out", tmp_path / "rows", "--workers", 2)
    process = subprocess.Popen(command(*arguments), stderr=subprocess.PIPE, text=True, start_new_session=True)

    def is_there() -> bool:
        return bool(_workers(process.pid) and (moment == "workers begin" or begun(tmp_path / ".rows.partial")))

    until(lambda: is_there() or process.poll() is not None)
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate()
    assert process.returncode == 130
    assert stderr == "pimono-sdpo: interrupted; run the same command again to resume.\n"
    assert cli(*arguments).returncode == 0
    assert all_bytes(tmp_path / "rows") == all_bytes(long_rows)


@pytest.fixture(scope="module")
def wordy_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sessions with long requests of random words, so that a published file is larger than any part."""
    folder, chance = tmp_path_factory.mktemp("wordy") / "traces", random.Random(0)
    sessions = sorted(shards.write_raw_shards(folder, 4).iterdir())
    # The last shard is smaller.
    for path in sessions[:40]:
        path.unlink()
    for path in sessions[40:]:
        words = " ".join("".join(chance.choices(string.ascii_lowercase, k=6)) for _ in range(400))
        path.write_text(path.read_text().replace("which drops", f"{words} which drops"))
    return folder


@pytest.mark.parametrize(("limit", "workers"), [(8_000, 2), (150_000, 1), (270_000, 1)])
def test_a_full_disk_is_reported_and_leaves_no_partial_file(
    wordy_source: Path, tmp_path: Path, limit: int, workers: int
) -> None:
    """Limit the size of files so that no part fits, some do, or all do but not the rows of all."""
    arguments = ("filter", wordy_source, "--out", tmp_path / "rows", "--workers", workers, "--min-worth", 0)
    done = subprocess.run(
        command(*arguments),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        capture_output=True,
        text=True,
        check=False,
    )
    message = sentence(done)
    assert "could not be written: " in message
    assert "make room" in message
    assert not (tmp_path / "rows").exists()
    work = tmp_path / ".rows.partial"
    for path in work.glob("parts/*.parquet"):
        pq.read_table(path)
    assert not begun(work)
    assert len([*work.glob("parts/*.parquet")]) == {8_000: 0, 150_000: 1, 270_000: 4}[limit]
    for name in ("rows", "undisturbed"):
        run_filter(str(wordy_source), tmp_path / name, FilterOptions(min_worth=0))
    assert all_bytes(tmp_path / "rows") == all_bytes(tmp_path / "undisturbed")


def _bug(row: Row) -> dict[str, object]:
    raise ZeroDivisionError(f"a bug at {row['session_id'][:1]}")


def test_a_bug_in_a_worker_keeps_its_traceback(source: Path, tmp_path: Path) -> None:
    opened = open_source(str(source)).shards
    stages = tuple(pipeline())
    bad = (stages[0], replace(stages[1], fn=_bug), *stages[2:])  # type: ignore[arg-type]
    two = partial(run_in_processes, workers=2)
    with pytest.raises(ZeroDivisionError) as caught:
        run_shards(session_parts(opened, bad, {}), tmp_path, engine=two)
    assert "in _bug" in str(caught.value.__cause__)
    assert not list(tmp_path.iterdir())


def test_the_progress_bar_counts_shards(source: Path, tmp_path: Path) -> None:
    shown = _on_a_terminal(command("filter", source, "--out", tmp_path / "rows", "--workers", "2"))
    sessions = len(shards.SESSIONS)
    assert all(f"shards={n}/5" in shown for n in (1, 5))
    assert f"{sessions}/{sessions}" in shown
    assert "session/s" in shown or "s/session" in shown
    done = cli("filter", source, "--out", tmp_path / "rows")
    assert (done.returncode, done.stderr) == (0, "")


def _spoil_pages(file: Path) -> None:
    """Overwrite the data of a parquet file before its footer."""
    content = bytearray(file.read_bytes())
    content[8 : len(content) // 3] = b"\xff" * (len(content) // 3 - 8)
    file.write_bytes(content)
    assert pq.read_metadata(file).num_rows


def _children(pid: int) -> list[int]:
    try:
        return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    except FileNotFoundError:
        return []


def _workers(pid: int) -> list[int]:
    """Return the forked processes of a run, which have the same command line."""
    return [worker for worker in _children(pid) if _command(worker) == _command(pid)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _on_a_terminal(line: list[str]) -> str:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 120))
    process = subprocess.Popen(line, stderr=theirs, stdout=subprocess.DEVNULL)
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 4096):
            shown += part
    except OSError:
        # How Linux reports that the other end is closed.
        pass
    assert process.wait() == 0
    os.close(ours)
    return shown.decode()


def test_a_removed_folder_is_reported_and_not_created_again(source: Path, tmp_path: Path) -> None:
    (part, *_) = session_parts(open_source(str(source)).shards, pipeline(), {})
    outcome = make_part(part, tmp_path / "gone")
    assert isinstance(outcome, str)
    assert "was removed; run the command again" in outcome
    assert not (tmp_path / "gone").exists()

"""Sources of several shards, and runs of the front door over them."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pimono_sdpo.cli import main
from pimono_sdpo.samples import SAMPLE_SESSIONS
from tests.exports import is_intact, write_export
from tests.traces import HEADER, bash, call, result, trace, user

SESSIONS = [path for path in sorted(Path(str(SAMPLE_SESSIONS)).glob("*.jsonl")) if is_intact(path)]


def write_shards(folder: Path, count: int = 5) -> Path:
    """Write the well-formed samples as `count` parquet files of different sizes."""
    for number in range(count):
        written = write_export(folder / "export", "trace_list", SESSIONS[number::count])
        written.replace(folder / f"{number:04}.parquet")
    for path in sorted((folder / "export").rglob("*"), reverse=True):
        path.rmdir()
    (folder / "export").rmdir()
    return folder


def write_busy_shards(folder: Path, count: int, times: int) -> Path:
    """Write shards that take a while: all samples, so many times over."""
    (one,) = write_shards(folder, 1).iterdir()
    samples = pq.read_table(one)
    for number in range(count):
        pq.write_table(pa.concat_tables([samples] * times), folder / f"{number:04}.parquet")
    return folder


def write_raw_shards(folder: Path, count: int) -> Path:
    """Write shards of 64 raw files each."""
    folder.mkdir(parents=True)
    for number in range(count * 64):
        header = {**HEADER, "id": f"s-{number}", "cwd": f"/w/repo{number}"}
        asked = user(f"Fix the parser of module {number}, which drops line {number * 31} of its input")
        failed = bash("npm test", f"{number % 7} failed\n\nCommand exited with code 1", error=True)
        edited = result("edit", "Edited", call_id="c2")
        text = trace(header, asked, *failed, call("edit", "c2", path=f"m{number}.ts"), edited)
        (folder / f"{number:05}.jsonl").write_text(text)
    return folder


def all_bytes(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "pimono_sdpo", *map(str, arguments)]


def cli(*arguments: object, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, which has already imported what the command needs."""
    out, err, argv, environment = io.StringIO(), io.StringIO(), sys.argv, dict(os.environ)
    sys.argv = ["pimono-sdpo", *map(str, arguments)]
    code: object = 0
    try:
        with contextlib.chdir(folder or "."), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.argv = argv
        os.environ.clear()
        os.environ.update(environment)
    assert isinstance(code, int)
    return subprocess.CompletedProcess(command(*arguments), code, out.getvalue(), err.getvalue())


def cli_process(
    *arguments: object, folder: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command as a user does; it costs a second of imports."""
    env = {**os.environ, **environment}
    return subprocess.run(command(*arguments), capture_output=True, text=True, check=False, env=env, cwd=folder)


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of a run that failed as it should."""
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith("pimono-sdpo: ")
    return done.stderr.strip()


@contextlib.contextmanager
def killed(process: subprocess.Popen[bytes], when: Callable[[], object]) -> Iterator[subprocess.Popen[bytes]]:
    """Kill a running process as soon as something is true, then go on."""
    try:
        until(lambda: when() or process.poll() is not None)
        assert process.poll() is None, "it ended too early to be killed"
        process.send_signal(signal.SIGKILL)
        yield process
    finally:
        process.kill()
        process.wait()


def until(true: Callable[[], object]) -> None:
    while not true():
        time.sleep(0.01)


def made(work: Path) -> dict[str, int]:
    """When each part of a run in progress was written."""
    return {path.name: path.stat().st_mtime_ns for path in (work / "parts").glob("*.parquet")}


def begun(work: Path) -> list[Path]:
    """The files of parts that are being written."""
    return [*(work / "parts").glob(".*.tmp")]


def kept(folder: Path) -> int:
    return int(json.loads((folder / "report.json").read_text())["kept"])

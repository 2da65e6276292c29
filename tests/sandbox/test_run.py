"""The results and limits of a run, and when it is refused."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rewards import sandbox
from rewards.sandbox import Limits, SandboxError, Server, cgroup, cgroups, kernel, run
from tests.sandbox.world import until

PYTHON = [sys.executable, "-c"]
SYS_ADMIN = 21


def test_a_problem_of_the_machine_is_the_reason_of_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "find_problem", lambda: "no Landlock")
    for refused in (lambda: run(["true"]), Server):
        with pytest.raises(SandboxError, match=r"does not work on this machine, so nothing was run \(no Landlock\)"):
            refused()


def test_a_program_gets_its_files_and_input_and_returns_collected_files() -> None:
    program = """
import sys, pathlib
text = pathlib.Path("data/in.txt").read_text() + sys.stdin.read()
pathlib.Path("out").mkdir()
pathlib.Path("out/a").write_text(text.upper())
print("said"); print("warned", file=sys.stderr); sys.exit(3)
"""
    files: dict[str, bytes | str] = {"main.py": program, "data/in.txt": b"one "}
    ran = run(
        [sys.executable, "main.py"], files=files, stdin=b"two",
        collect=["out/a", "missing", "out"],
    )  # fmt: skip
    assert (ran.exit_code, ran.signal, ran.stopped) == (3, None, "")
    assert (ran.stdout, ran.stderr) == (b"said\n", b"warned\n")
    assert ran.files == {"out/a": b"ONE TWO"}
    assert ran.cpu_seconds > 0
    assert ran.wall_seconds > 0


def test_ordinary_programs_work() -> None:
    program = """
import asyncio, os, pathlib, shutil, subprocess, sys, tempfile, threading
pathlib.Path("a").write_text("x"); shutil.copy2("a", "b"); pathlib.Path("b").rename("c")
pathlib.Path("c").chmod(0o755); shutil.copytree(".", "../tmp/copy")
with tempfile.NamedTemporaryFile() as f: f.write(b"x")
ready = threading.Barrier(31)
for _ in range(30): threading.Thread(target=ready.wait).start()
ready.wait(); print("threads")
with open("space", "wb") as f: os.posix_fallocate(f.fileno(), 0, 1 << 20)
print(asyncio.run(asyncio.sleep(0, "loop")), flush=True)
subprocess.run([sys.executable, "-c", "print('child')"], check=True)
subprocess.run("echo shell | cat > /dev/null && echo pipe", shell=True, check=True)
import pytest
"""
    ran = run([*PYTHON, program])
    assert ran.exit_code == 0, ran.stderr.decode()
    assert ran.stdout.split() == [b"threads", b"loop", b"child", b"pipe"]


def test_pytest_runs_inside() -> None:
    test = "def test_one(tmp_path):\n    (tmp_path / 'a').write_text('x')\n"
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--confcutdir=.", "test_a.py"]
    ran = run(command, files={"test_a.py": test})
    assert (ran.exit_code, b"1 passed" in ran.stdout) == (0, True), ran


def test_the_environment_is_clean_except_for_env(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    ran = run([*PYTHON, "import os; print(dict(os.environ))"], env={"MINE": "1"})
    assert b"hunter2" not in ran.stdout
    assert b"'MINE': '1'" in ran.stdout


def test_output_is_cut_with_a_note() -> None:
    ran = run([*PYTHON, "print('x' * 99)"], limits=Limits(output=10))
    assert ran.stdout == b"x" * 10 + b"\n[... 90 bytes cut]\n"


def test_a_signal_differs_from_an_exit_code() -> None:
    ran = run([*PYTHON, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"])
    assert (ran.exit_code, ran.signal) == (None, signal.SIGSEGV)


def test_cpu_wall_and_memory_limits_are_distinguished() -> None:
    assert run([*PYTHON, "while True: pass"], limits=Limits(cpu_seconds=1)).stopped == "cpu"
    sleep = "import time; time.sleep(99)"
    assert run([*PYTHON, sleep], limits=Limits(wall_seconds=1)).stopped == "wall"
    limits = Limits(memory=100 << 20)
    two = "import os, time\nos.fork()\nkept = b'x' * (70 << 20)\ntime.sleep(99)"
    assert run([*PYTHON, two], limits=limits).stopped == "memory"


@pytest.fixture
def crowded_cpu() -> Iterator[None]:
    """Pin this thread, and what it starts, to one CPU that five others keep busy."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(5)]
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        for one in busy:
            one.kill()
            one.wait()


@pytest.mark.usefixtures("crowded_cpu")
def test_waiting_for_a_cpu_does_not_count() -> None:
    limits = Limits(cpu_seconds=1, wall_seconds=2)
    assert run([*PYTHON, "while True: pass"], limits=limits).stopped == "cpu"
    assert run([*PYTHON, "import time; time.sleep(99)"], limits=limits).stopped == "wall"


def test_an_allocation_over_the_limit_is_refused() -> None:
    ran = run([*PYTHON, "b'x' * (1 << 30)"])
    assert (ran.exit_code, ran.stopped) == (1, "")
    assert b"MemoryError" in ran.stderr


def test_a_missing_command_exits_with_127() -> None:
    ran = run(["no-such-command"])
    assert (ran.exit_code, ran.stderr) == (127, b"no-such-command: No such file or directory\n")


@pytest.mark.parametrize("name", ["../a", "/etc/a", "a/../../b", ""])
def test_files_outside_the_work_folder_are_refused(name: str) -> None:
    with pytest.raises(SandboxError, match="relative to that folder"):
        run(["true"], files={name: "x"})
    with pytest.raises(SandboxError, match="relative to that folder"):
        run(["true"], collect=[name])


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sandbox, "TMPFS", str(tmp_path))  # no tmpfs over the temporary folder
    deep = "import os\nfor n in range(1500): os.mkdir('d'); os.chdir('d')\nos.chmod('.', 0)"
    run([*PYTHON, deep], limits=Limits(files=10**6))
    assert list(tmp_path.iterdir()) == []


def test_files_beyond_the_limits_stop_the_run() -> None:
    folders: dict[str, bytes | str] = {f"{number}/a": "" for number in range(6)}
    for files, limits, stopped in (
        (folders, Limits(files=11), "files"),
        (folders, Limits(files=20), ""),
        ({"a": b"12345"}, Limits(disk=4), "disk"),
    ):
        ran = run([*PYTHON, "pass"], files=files, limits=limits)
        assert (ran.stopped, ran.signal) == (stopped, signal.SIGKILL if stopped else None)


def test_the_kernel_limits_the_disk_if_possible() -> None:
    if not (os.geteuid() == 0 and kernel.has_capabilities(SYS_ADMIN)):
        pytest.skip("needs the right to mount")
    size = "import os; found = os.statvfs('.'); print(found.f_blocks * found.f_frsize)"
    ran = run([*PYTHON, size], limits=Limits(disk=16 << 20))
    assert int(ran.stdout) == 20 << 20


# Without this capability a run has no tmpfs of its own.
PLAIN_FOLDER = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("prefix", [[], PLAIN_FOLDER], ids=["tmpfs", "plain"])
def test_a_killed_caller_ends_its_processes_and_removes_its_folder(
    tmp_path: Path, how: int, prefix: list[str]
) -> None:
    if prefix and (os.geteuid() != 0 or not shutil.which(prefix[0])):
        pytest.skip("needs root and setpriv")
    path, folders = f"{tmp_path}/caller.py", tmp_path / "folders"
    folders.mkdir()
    program = "import os\nif os.fork() == 0: os.setsid()\nimport time; time.sleep(300)"
    Path(path).write_text(
        "import sys\nfrom rewards.sandbox import Limits, run\n"
        f"run([sys.executable, '-c', {program!r}], limits=Limits(wall_seconds=300), "
        f"env={{'BEACON': '{tmp_path}'}})"
    )
    root = Path(__file__).parent.parent.parent
    env = {**os.environ, "PYTHONPATH": str(root), "TMPDIR": str(folders)}
    before = set(Path("/dev/shm").iterdir())
    caller = subprocess.Popen([*prefix, sys.executable, path], env=env)
    until(lambda: len(_with(str(tmp_path))) >= 2 or caller.poll() is not None)
    assert list(folders.iterdir()) or not prefix
    caller.send_signal(how)
    caller.wait()
    until(lambda: not _with(str(tmp_path)) and not list(folders.iterdir()))
    leftovers = {path.name for path in set(Path("/dev/shm").iterdir()) - before}
    assert not any(name.startswith("sandbox-") for name in leftovers)


def _with(beacon: str) -> list[str]:
    """Processes whose environment has the beacon."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"BEACON={beacon}".encode() in environ.read_bytes():
                found.append(environ.parent.name)
        except OSError:
            continue  # ended, or another user's
    return found


@pytest.mark.skipif(not cgroups(), reason="no control group can be made here")
def test_a_control_group_limits_memory_and_counts_kills(tmp_path: Path) -> None:
    hog = subprocess.Popen([*PYTHON, "input(); kept = b'x' * (200 << 20)"], stdin=subprocess.PIPE)
    group = cgroup.Group(f"{cgroups()}/{tmp_path.name}", hog.pid)
    group.limit_memory(64 << 20)
    assert group.count_kills() == 0
    hog.communicate(b"\n")
    assert (hog.returncode, group.count_kills()) == (-9, 1)
    group.remove()
    assert not Path(cgroups(), tmp_path.name).exists()


@pytest.mark.skipif(not cgroups(), reason="no control group can be made here")
def test_a_run_has_its_own_control_group() -> None:
    def groups() -> set[str]:
        return {path.name for path in Path(cgroups()).glob("sandbox-*") if (path / "cgroup.procs").read_text()}

    before = groups()
    with ThreadPoolExecutor(1) as pool:
        ran = pool.submit(run, [*PYTHON, "import time; time.sleep(3)"])
        until(lambda: len(groups() - before) == 1)
        (ours,) = groups() - before
        assert ran.result().exit_code == 0
    assert not Path(cgroups(), ours).exists()

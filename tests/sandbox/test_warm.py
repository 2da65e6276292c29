"""The warm interpreter behaves like a cold one, and stops the same attacks."""

import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rewards.sandbox import Limits, Ran, SandboxError, Server, find_problem, run
from tests.sandbox.attacks import LIMITED, REFUSED
from tests.sandbox.world import attack, find_breaches, make_world, until

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(bool(find_problem()), reason=f"the sandbox does not work here: {find_problem()}")

PROGRAMS = {
    "arguments": "import sys; print(sys.argv, __name__, __file__, sys.stdin.read())",
    "failure": "def f(): 1/0\nf()",
    "syntax": "def f(:",
    "exit": "import sys; sys.exit(7)",
    "exit_text": "import sys; sys.exit('sorry')",
    "exit_nothing": "raise SystemExit",
    "exit_hook": "import atexit; atexit.register(print, 'bye'); print('hi')",
    "thread": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(.2), print('late'))).start()",
    "closed_output": "import sys; print('x', flush=True); sys.stdout.close()",
    "no_newline": "import sys; sys.stdout.write('x'); sys.stderr.write('y')",
    "environment": "import os; print(sorted(os.environ) , os.listdir())",
    "sibling": "import other; print(other.here)",
    "main": "import sys; value = 3; print(sys.modules['__main__'].value)",
    "pickle": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))))",
    "dataclass": "import dataclasses\n@dataclasses.dataclass\nclass A:\n  x: int\nprint(A(1))",
    "child": "import subprocess, sys\nprint(subprocess.check_output([sys.executable, '-c', 'print(1)']))",
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(imports=["json"]) as started:
        yield started


def comparable(ran: Ran) -> tuple[object, ...]:
    texts = [re.sub(rb"sandbox-\w+", b"FOLDER", text) for text in (ran.stdout, ran.stderr)]
    return ran.exit_code, ran.signal, ran.stopped, *texts


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_behaves_like_a_cold_interpreter(name: str, server: Server) -> None:
    files = {"main.py": PROGRAMS[name], "other.py": "here = 1"}
    cold = run([sys.executable, "main.py", "a b"], files=files, stdin=b"in")
    warm = server.run(["main.py", "a b"], files=files, stdin=b"in")
    assert comparable(warm) == comparable(cold)


def test_code_runs_too(server: Server) -> None:
    assert server.run(["-c", "import sys; print(sys.argv)", "a"]).stdout == b"['-c', 'a']\n"


def test_runs_are_isolated(server: Server) -> None:
    server.run(["-c", "import json; json.dumps = None; secret = 'hunter' + '2'"])
    look = "import gc, json\nprint(json.dumps(1), any('hunter' '2' == o for o in gc.get_objects()))"
    assert server.run(["-c", look]).stdout == b"1 False\n"


def test_a_run_leaves_nothing_to_the_next(server: Server) -> None:
    leave = """
import os, time
for name in ("x", "../tmp/y", "../z"): open(name, "w").close()
os.mkdir("d"); os.chmod("d", 0); os.rename("../tmp", "../t"); os.symlink("/etc", "../tmp"); os.chmod("..", 0o300)
if os.fork() == 0:
    os.setsid()
    os.chmod("../t", 0o711)
    while True: time.sleep(1)
"""
    look = "import os; print(*(sorted(os.listdir(f)) for f in ('.', '..', '../tmp')), oct(os.stat('..').st_mode))"
    for _ in range(2):
        server.run(["-c", leave])
        assert server.run(["-c", look]).stdout == b"[] ['tmp', 'work'] [] 0o40700\n"


def test_the_disk_limit_is_per_run(server: Server) -> None:
    size = "import os; found = os.statvfs('.'); print(found.f_blocks * found.f_frsize)"
    first, second = (int(server.run(["-c", size], limits=Limits(disk=mebi << 20)).stdout) for mebi in (16, 32))
    assert first == second or (first, second) == (20 << 20, 40 << 20)


def test_a_fork_of_the_caller_has_its_own_supervisors() -> None:
    program = """
import multiprocessing, sys
from rewards.sandbox import Server

def double(number):
    return SERVER.run(["-c", f"print({number} * 2)"]).stdout

SERVER = Server(["json"])
double(0)
with multiprocessing.get_context("fork").Pool(2) as pool:
    ahead = pool.map_async(double, range(20), chunksize=1)
    mine = [double(number) for number in range(20)]
    print(mine == ahead.get(300) == [b"%d\\n" % (2 * n) for n in range(20)])
SERVER.close()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, cwd=ROOT)
    assert done.stdout == b"True\n", done.stderr


def test_closing_ends_runs_in_progress() -> None:
    with Server(imports=["json"]) as server, ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.run, ["-c", "print(1, flush=True); import time; time.sleep(300)"])
        until(lambda: len(server._busy) == 1)
        server.close()
        with pytest.raises(SandboxError):
            running.result()


def test_several_threads_share_it(server: Server) -> None:
    def double(number: int) -> bytes:
        return server.run(["-c", f"print({number} * 2)"]).stdout

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(double, range(40))) == [b"%d\n" % (2 * n) for n in range(40)]


def test_limits_are_per_run(server: Server) -> None:
    assert server.run(["-c", "while 1: pass"], limits=Limits(cpu_seconds=0.2)).stopped == "cpu"
    assert server.run(["-c", "print(1)"]).stdout == b"1\n"


def test_a_module_that_cannot_be_imported_is_an_error() -> None:
    with pytest.raises(SandboxError, match="could not import no_such_module; install it"):
        Server(imports=["json", "no_such_module", "ctypes"])


@pytest.mark.parametrize("name", [*LIMITED, *REFUSED])
def test_attacks_are_stopped(name: str, server: Server) -> None:
    with make_world() as world:
        ran = attack(name, world, server)
        assert find_breaches(name, world, ran) == [], ran
    assert server.run(["-c", "print(1)"]).stdout == b"1\n"

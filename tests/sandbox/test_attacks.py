"""The sandbox stops every hostile snippet."""

import json
import subprocess
import sys

import pytest

from rewards import sandbox
from rewards.sandbox import Limits, find_problem, run
from tests.sandbox.attacks import LIMITED, REFUSED
from tests.sandbox.world import attack, find_breaches, make_world, source, until

pytestmark = pytest.mark.skipif(bool(find_problem()), reason=f"the sandbox does not work here: {find_problem()}")


@pytest.mark.parametrize("name", [*LIMITED, *REFUSED])
def test_every_attack_is_stopped(name: str) -> None:
    with make_world() as world:
        ran = attack(name, world)
        assert find_breaches(name, world, ran) == [], ran


@pytest.mark.parametrize(
    "name",
    ["shared_memory_given_back", "shared_memory_behind_one_page", "shared_memory_map", "areas_of_memory",
     "memory_of_a_thread_that_outlives_the_first", "gone_files_of_a_thread_that_outlives_the_first",
     "gone_files_in_private_maps", "mapped_file_that_is_gone", "deleted_files", "six_processes_of_350_mb"],
)  # fmt: skip
def test_measurements_stop_attacks_without_limits_of_the_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "cgroups", lambda: "")
    monkeypatch.setattr(sandbox, "TMPFS", "/")  # no tmpfs over what must be readable
    with make_world() as world:
        ran = attack(name, world)
        assert find_breaches(name, world, ran) == [], ran
        assert ran.stopped


@pytest.mark.parametrize(
    "name",
    ["write_outside", "remove_another_folder", "token_file", "tcp_localhost", "udp", "kill",
     "abstract_socket", "path_socket", "datagram_pair_to_path", "chmod_outside", "process_list",
     "environment_of_parent", "leaked_descriptor", "truncate_outside", "touch_outside",
     "memory_file", "limits_of_parent", "dumpable", "daemon"],
)  # fmt: skip
def test_the_same_attack_wins_without_a_sandbox(name: str) -> None:
    with make_world() as world:
        command = [sys.executable, "-c", source(name), world.described()]
        done = subprocess.run(command, capture_output=True, close_fds=False, check=False)
        if name == "daemon":
            mark = world.folder / ".." / json.loads(world.described())["mark"]
            until(mark.exists)
            mark.unlink()
        assert b"BROKE OUT" in done.stdout or world.damage()


def test_a_fork_bomb_ends_without_leftovers() -> None:
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    ran = run([sys.executable, "-c", bomb], limits=Limits(cpu_seconds=0.5, wall_seconds=300))
    assert ran.stopped in ("cpu", "processes", "wall")


def test_a_chain_of_processes_ends() -> None:
    chain = "import os\nwhile True:\n    if os.fork(): os._exit(0)"
    assert run([sys.executable, "-c", chain]).exit_code == 0

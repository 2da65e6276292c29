"""One fault at each request of a push: what is on the Hub is whole, and what the command says of it is true."""

import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from pimono_sdpo.filtering import FilterOptions, run_filter
from tests.exports import write_samples
from tests.loopback_hub import LoopbackHub
from tests.loopback_hub.faults import Fault
from tests.test_push import NAME, as_pushed, front, pushed

# An answer that is an error, or a right one of which so many bytes arrive.
FAULTS: list[tuple[int | None, int | None]] = [(503, None), (429, None), (403, None), (None, 0), (None, 20)]


@dataclass
class Nth(Fault):
    """The fault of one request, counted from 0."""

    number: int = 0

    def fits(self, method: str, path: str) -> bool:
        self.number -= 1
        return self.number == -1


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    write_samples(folder / "traces")
    for name, options in (("rows", FilterOptions()), ("fewer", FilterOptions(max_samples=3))):
        run_filter(str(folder / "traces"), folder / name, options)
    return folder


def push(hub: LoopbackHub, made: Path, name: str) -> subprocess.CompletedProcess[str]:
    return front(hub, made, "push", str(made / name), NAME)


def check(hub: LoopbackHub, made: Path, is_first: bool, fault: Fault | None) -> str:
    """Push with a fault, and return how it ended: pushed or refused.

    The Hub has no dataset, or the one that an earlier push made and its owner wrote on.
    """
    hub.faults.clear()
    hub.store.repos.clear()
    hub.store.lfs.clear()
    before: dict[str, bytes] = {}
    expected, commits = as_pushed(made / "rows"), 2
    files = len(expected)
    if not is_first:
        assert push(hub, made, "fewer").returncode == 0
        card = hub.files(NAME, "dataset")["README.md"]
        hub.seed(NAME, "dataset", {"README.md": card + b"\nMy own words\n", "notes.txt": b"mine"})
        before, commits = pushed(hub), 4
        expected |= {"README.md": expected["README.md"] + b"\nMy own words\n", "notes.txt": b"mine"}
    hub.requests.clear()
    hub.faults += [fault] if fault else []
    done = push(hub, made, "rows")
    assert "Traceback" not in done.stderr, done.stderr
    repo = hub.store.repos.get(("dataset", NAME))
    there = pushed(hub) if repo else {}
    if done.returncode == 0:
        assert repo is not None
        assert (there, len(repo.commits)) == (expected, commits)
        assert f"{files} files" in done.stdout
        return "pushed"
    assert done.returncode == 2
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("pimono-sdpo: "))
    # The answer of a commit may be lost.
    assert there in (before, expected), line
    assert repo is None or not is_first, "no empty dataset is left"
    return "refused"


@pytest.mark.slow
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "again"])
@pytest.mark.parametrize(("status", "cut_after"), FAULTS)
def test_no_fault_loses_doubles_or_misreports_a_push(
    loopback_hub: LoopbackHub, made: Path, status: int | None, cut_after: int | None, is_first: bool
) -> None:
    assert check(loopback_hub, made, is_first, None) == "pushed"
    ended: Counter[str] = Counter()
    for number in range(len(loopback_hub.requests)):
        fault = Nth("", status=status, cut_after=cut_after, headers={"Retry-After": "0"}, number=number)
        ended[check(loopback_hub, made, is_first, fault)] += 1
    if status != 403:
        assert ended["refused"] == 0

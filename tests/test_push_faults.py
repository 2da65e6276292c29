"""One fault at each request of a push: what is on the Hub is whole, and what the command says of it is true."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from pimono_sdpo.filtering import FilterOptions, run_filter
from tests.exports import write_samples
from tests.loopback_hub import LoopbackHub
from tests.loopback_hub.faults import Fault
from tests.test_push import NAME, as_pushed, front, pushed

FAULTS: dict[str, dict[str, int]] = {
    **{str(status): {"status": status} for status in (500, 503, 429, 408, 400, 403, 413, 507)},
    "lost": {"cut_after": 0},
    "half": {"cut_after": 20},
}


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


@contextmanager
def hub_like(loopback_hub: LoopbackHub, made: Path, is_first: bool) -> Iterator[LoopbackHub]:
    """A Hub without the dataset, or with the one that an earlier push made and its owner wrote on."""
    store, requests = loopback_hub.store, loopback_hub.requests
    loopback_hub.faults.clear()
    store.repos.clear()
    store.lfs.clear()
    if not is_first:
        assert push(loopback_hub, made, "fewer").returncode == 0
        card = loopback_hub.files(NAME, "dataset")["README.md"]
        loopback_hub.seed(NAME, "dataset", {"README.md": card + b"\nMy own words\n", "notes.txt": b"mine"})
    requests.clear()
    yield loopback_hub


def push(hub: LoopbackHub, made: Path, name: str):  # type: ignore[no-untyped-def]
    return front(hub, made, "push", str(made / name), NAME)


def check(hub: LoopbackHub, made: Path, is_first: bool, fault: Fault | None) -> str:
    """Push with a fault, and return how it ended: pushed, refused or unsure."""
    with hub_like(hub, made, is_first):
        before = {} if is_first else pushed(hub)
        expected = as_pushed(made / "rows") | ({} if is_first else {"notes.txt": b"mine"})
        if not is_first:
            expected["README.md"] += b"\nMy own words\n"
        commits = 1 if is_first else len(hub.repo(NAME, "dataset").commits)
        hub.faults += [fault] if fault else []
        done = push(hub, made, "rows")
        assert "Traceback" not in done.stderr, done.stderr
        repo = hub.store.repos.get(("dataset", NAME))
        there = pushed(hub) if repo else {}
        if done.returncode == 0:
            assert repo is not None
            assert there == expected
            assert len(repo.commits) == commits + 1, "one commit"
            assert f"pushed {len(as_pushed(made / 'rows'))} files to" in done.stdout
            return "pushed"
        (line,) = (line for line in done.stderr.splitlines() if line.startswith("pimono-sdpo: "))
        assert done.returncode == 2
        if "did not confirm" in line:
            assert there in (before, expected)
            return "unsure"
        assert there == before, line
        assert repo is None or not is_first, "no empty dataset is left"
        return "refused"


@pytest.mark.slow
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "again"])
@pytest.mark.parametrize("name", FAULTS)
def test_no_fault_loses_doubles_or_misreports_a_push(
    loopback_hub: LoopbackHub, made: Path, name: str, is_first: bool
) -> None:
    assert check(loopback_hub, made, is_first, None) == "pushed"
    clean = len(loopback_hub.requests)
    ended = Counter(
        check(loopback_hub, made, is_first, Nth("", number=number, headers={"Retry-After": "0"}, **FAULTS[name]))
        for number in range(clean)
    )
    print(name, is_first, dict(ended))
    assert ended["unsure"] == 0
    if name not in ("400", "403", "413", "507"):
        assert ended["refused"] == 0

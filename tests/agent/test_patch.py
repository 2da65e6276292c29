"""Patches of runs apply with git and give the same files."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimono_sdpo.agent.tools import unified_diff


def applied(folder: Path, before: dict[str, bytes | None], after: dict[str, bytes]) -> None:
    for path, content in before.items():
        if content is not None:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
    patch = unified_diff(before, after)
    command = ["git", "apply", "--whitespace=nowarn", "-"]
    subprocess.run(command, input=patch.encode(), cwd=folder, check=True)
    for path, content in after.items():
        assert (folder / path).read_bytes() == content


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"a\nb\nc\n", b"a\nB\nc\n"),
        (None, b"new\n"),
        (None, b"no end"),
        (b"no end", b"no end either"),
        (b"a\n", b"a"),
        (b"a", b"a\n"),
        (b"a\r\nb\r\n", b"a\r\nc\r\n"),
        ("a\x0cb\u2028c\n".encode(), "a\x0cb\u2028d\n".encode()),
        (b"a\n", b""),
        (b"", b"a\n"),
        (b"x\n" * 50 + b"y\n" + b"x\n" * 50, b"x\n" * 50 + b"z\n" + b"x\n" * 49),
    ],
)
def test_git_applies_it(tmp_path: Path, before: bytes | None, after: bytes) -> None:
    applied(tmp_path, {"src/a.py": before}, {"src/a.py": after})


@pytest.mark.parametrize("path", ["with space.py", 'quo"te.py', "back\\slash.py", "caf\xe9.py"])
def test_odd_names(tmp_path: Path, path: str) -> None:
    applied(tmp_path, {path: b"a\n", "b.py": b"1\n"}, {path: b"b\n", "b.py": b"2\n"})
    applied(tmp_path / "other", {path: None, "b.py": b"1\n"}, {path: b"b\n", "b.py": b"2\n"})


def test_an_empty_new_file(tmp_path: Path) -> None:
    applied(tmp_path, {"a.py": None}, {"a.py": b""})


LINES = st.lists(st.sampled_from(["a\n", "b\n", "\n", "  c\n", "-\n", "+\n", "d"])).map("".join)


@settings(max_examples=25)
@given(LINES, LINES)
def test_any_change(tmp_path_factory: pytest.TempPathFactory, before: str, after: str) -> None:
    if before != after:
        folder = tmp_path_factory.mktemp("any")
        applied(folder, {"a": before.encode()}, {"a": after.encode()})

"""Tools of the agent: their results, and that no call leaves or breaks the workspace."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimono_sdpo.agent.tools import MAX_WRITE, Workspace
from pimono_sdpo.suites.suite import list_files
from rewards.verifiers.tool_calls import AGENT_TOOLS


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    root = tmp_path / "repo"
    (root / "src" / "deep").mkdir(parents=True)
    (root / "src" / "a.py").write_text("def f():\n    return 1\n")
    (root / "src" / "deep" / "b.py").write_text("from src.a import f\n")
    (root / "README").write_text("read me\n")
    (root / "logo.bin").write_bytes(b"\x89PNG\0\0")
    (root / "latin").write_bytes("caf\xe9".encode("latin-1"))
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("secret")
    (tmp_path / "outside").write_text("secret")
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "linked").symlink_to(tmp_path)
    return Workspace(list_files(root), max_chars=1000)


def test_tool_results(space: Workspace) -> None:
    assert space.call("list_files", {"rel_dir": "."}).text == ("README\nlatin\nlogo.bin\nsrc/a.py\nsrc/deep/b.py")
    cut = space.call("list_files", {"rel_dir": "./src//", "max_files": 1}).text
    assert cut == "src/a.py\n[1 more files; name a folder below, or raise max_files]"
    assert space.call("read_file", {"rel_path": "src/a.py"}).text == "def f():\n    return 1\n"
    assert space.call("read_file", {"rel_path": "README", "max_chars": 4}).text == (
        "read\n[cut after 4 characters; the file has 8 bytes]"
    )
    assert space.call("read_file", {"rel_path": "latin"}).text == "caf\ufffd"
    found = space.call("grep", {"pattern": r"\bf\(?", "rel_dir": ".", "thought": "where?"}).text
    assert found == "src/a.py:1: def f():\nsrc/deep/b.py:1: from src.a import f"
    assert space.call("grep", {"pattern": "f", "rel_dir": "src/a.py", "max_hits": 1}).text == (
        "src/a.py:1: def f():\n[stopped after 1 hits; a narrower pattern or folder shows the rest]"
    )
    assert space.call("grep", {"pattern": "nowhere", "rel_dir": "."}).text == "(no hits)"
    assert space.changed() == {}


def test_what_is_written_is_what_changed(space: Workspace) -> None:
    write = {"rel_path": "src/a.py", "content": "x = 1\n"}
    assert space.call("write_file", write).changed
    again = space.call("write_file", write)
    assert again.ok
    assert not again.changed
    assert "nothing changed" in again.text
    assert space.call("write_file", {"rel_path": "./new/c.py", "content": ""}).text == (
        "created new/c.py (0 characters)"
    )
    assert space.changed() == {"new/c.py": b"", "src/a.py": b"x = 1\n"}
    assert space.before["new/c.py"] is None
    back = {"rel_path": "src/a.py", "content": "def f():\n    return 1\n"}
    assert space.call("write_file", back).changed
    assert set(space.changed()) == {"new/c.py"}


REFUSED = [
    ("read_file", {"rel_path": "/etc/passwd"}, "`rel_path` is the absolute path `/etc/passwd`"),
    ("read_file", {"rel_path": "~/x"}, "absolute"),
    ("read_file", {"rel_path": "C:\\x"}, "absolute"),
    ("read_file", {"rel_path": "../outside"}, "leaves the repository"),
    ("read_file", {"rel_path": "src/../../outside"}, "leaves the repository"),
    ("read_file", {"rel_path": "link"}, "does not exist"),
    ("read_file", {"rel_path": "linked/outside"}, "does not exist"),
    ("grep", {"pattern": "secret", "rel_dir": "linked"}, "does not exist"),
    ("list_files", {"rel_dir": "linked"}, "does not exist"),
    ("read_file", {"rel_path": ".git/config"}, "not part"),
    ("write_file", {"rel_path": ".GIT/hooks/x", "content": "x"}, "not part"),
    ("read_file", {"rel_path": "no"}, "does not exist"),
    ("read_file", {"rel_path": "src"}, "list it with list_files"),
    ("list_files", {"rel_dir": "README"}, "read it with read_file"),
    ("read_file", {"rel_path": "logo.bin"}, "binary"),
    ("write_file", {"rel_path": "logo.bin", "content": "x"}, "binary"),
    ("write_file", {"rel_path": "latin", "content": "x"}, "not UTF-8 text"),
    ("write_file", {"rel_path": "src", "content": "x"}, "is a directory"),
    ("write_file", {"rel_path": ".", "content": "x"}, "is a directory"),
    ("write_file", {"rel_path": "README/x", "content": "x"}, "`README` is a file"),
    ("write_file", {"rel_path": "x" * 300, "content": "x"}, "too long"),
    ("write_file", {"rel_path": "x\0y", "content": "x"}, "not allowed in a path"),
    ("write_file", {"rel_path": "\ud800", "content": "x"}, "not allowed in a path"),
    ("write_file", {"rel_path": "big", "content": "x" * (MAX_WRITE + 1)}, "Write less"),
    ("list_files", {}, "rel_dir: must have required property 'rel_dir'"),
    ("read_file", {"rel_path": "a", "max_chars": "9"}, "max_chars: must be integer"),
    ("grep", {"pattern": "(?=x)", "rel_dir": "."}, "no lookaround"),
    ("grep", {"pattern": "(", "rel_dir": "."}, "not a regular expression"),
    ("grep", {"pattern": "x{1000}{1000}", "rel_dir": "."}, "not a regular expression"),
    ("run_tests", {}, "Unknown tool `run_tests`"),
]


@pytest.mark.parametrize(("name", "args", "told"), REFUSED)
def test_an_invalid_call_is_refused_with_advice(space: Workspace, name: str, args: dict[str, Any], told: str) -> None:
    result = space.call(name, args)
    assert not result.ok
    assert told in result.text
    assert "secret" not in result.text
    assert space.changed() == {}


def test_a_write_through_a_link_stays_in_the_workspace(space: Workspace, tmp_path: Path) -> None:
    for path in ("link", "linked/outside"):
        assert space.call("write_file", {"rel_path": path, "content": "x"}).changed
        assert space.call("read_file", {"rel_path": path}).text == "x"
    assert (tmp_path / "outside").read_text() == "secret"


def test_pipes_are_not_opened_and_huge_files_not_searched(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(10**7)
    space = Workspace(list_files(tmp_path), max_chars=1000)
    assert "does not exist" in space.call("read_file", {"rel_path": "pipe"}).text
    assert "binary" in space.call("read_file", {"rel_path": "huge"}).text
    found = space.call("grep", {"pattern": "(x+x+)+y", "rel_dir": "."}).text
    assert found == "(no hits)\n[1 files above 2000000 bytes were not searched]"


def test_a_truncated_file_fits_together_with_its_note(space: Workspace) -> None:
    space.call("write_file", {"rel_path": "long", "content": "x" * 5000})
    result = space.call("read_file", {"rel_path": "long", "max_chars": 4000})
    assert len(result.text) <= space.max_chars
    assert "the file has 5000 bytes" in result.text


def test_a_catastrophic_pattern_ends(space: Workspace) -> None:
    space.call("write_file", {"rel_path": "long", "content": "x" * 200_000})
    assert space.call("grep", {"pattern": "(x+x+)+y", "rel_dir": "long"}).text == "(no hits)"


NAMES = st.sampled_from(sorted(AGENT_TOOLS))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
KEYS = st.sampled_from(["rel_path", "rel_dir", "pattern", "content", "max_chars", "max_hits"])
PATHS = st.lists(st.sampled_from(["..", ".", "/", "src", "a.py", "link", "~", "\\"])).map("/".join)


@given(name=NAMES | st.text(), args=st.dictionaries(KEYS | st.text(), VALUES | PATHS))
def test_nothing_breaks_a_tool_or_leaves_the_workspace(
    tmp_path_factory: pytest.TempPathFactory, name: str, args: dict[str, Any]
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "repo" / "src").mkdir(parents=True)
    (folder / "secret").write_text("hidden")
    (folder / "repo" / "link").symlink_to(folder / "secret")
    space = Workspace(list_files(folder / "repo"), max_chars=100)
    result = space.call(name, args)
    result.text.encode()
    assert "hidden" not in result.text
    assert (folder / "secret").read_text() == "hidden"
    assert sorted(path.name for path in folder.iterdir()) == ["repo", "secret"]

"""Agents see only the files of a repo that are not hidden."""

import os
from pathlib import Path

import pytest

from pimono_sdpo.errors import SourceError
from pimono_sdpo.suites import suite
from pimono_sdpo.suites.suite import files_of, list_files
from pimono_sdpo.text import match_globs


def repo_with(root: Path, files: dict[str, str | bytes]) -> Path:
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def test_what_is_hidden_is_not_listed(tmp_path: Path) -> None:
    repo = repo_with(tmp_path / "repo", {
        "a.py": "buggy", "correct_python_programs/a.py": "fixed", "json_testcases/a.json": "[1]",
        "src/Answers/a.py": "fixed", "src/b.py": "b", ".git/config": "fixed", "sub/.git": "fixed",
        "__pycache__/a.cpython-311.pyc": b"\0", "tests/test_a.py": "t", "a.py.orig": "fixed",
    })  # fmt: skip
    hide = ["correct_python_programs", "/json_testcases/*", "**/answers/*"]
    assert files_of(repo, hide) == {"a.py": "buggy", "src/b.py": "b", "tests/test_a.py": "t"}
    assert list(list_files(repo, [*hide, "tests"])) == ["a.py", "src/b.py"]


def test_no_link_leads_to_what_is_hidden_or_outside(tmp_path: Path) -> None:
    repo = repo_with(tmp_path / "repo", {"a.py": "a", "answers/a.py": "fixed"})
    (tmp_path / "secret").write_text("secret")
    for name, target in {
        "link.py": "a.py", "leak.py": "answers/a.py", "out": "../secret", "all": "answers",
        "loop": "loop", "broken": "nothing", "absolute": str(tmp_path / "secret"),
    }.items():  # fmt: skip
        (repo / name).symlink_to(target)
    (repo / "second.py").symlink_to("link.py")
    os.mkfifo(repo / "pipe")
    assert files_of(repo, ["answers"]) == {"a.py": "a", "link.py": "a", "second.py": "a"}


def test_only_texts_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd: dict[str, str | bytes] = {"a.bin": b"\xff\0", "nul.txt": "a\0b", "long.txt": "x" * 20, "é.py": "# ü\r\n"}
    repo = repo_with(tmp_path / "repo", odd)
    (Path(os.fsdecode(os.fsencode(repo) + b"/\xff.py"))).write_text("no name")
    assert list(list_files(repo)) == ["a.bin", "long.txt", "nul.txt", "é.py"]
    monkeypatch.setattr(suite, "MAX_TEXT", 10)
    assert files_of(repo) == {"é.py": "# ü\r\n"}


def test_a_folder_that_cannot_be_listed_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = repo_with(tmp_path / "repo", {"a": "1", "b": "2"})
    with pytest.raises(SourceError, match="does not exist"):
        list_files(tmp_path / "nothing")
    for limit in ("MAX_FILES", "MAX_BYTES"):
        with monkeypatch.context() as patch:
            patch.setattr(suite, limit, 1)
            with pytest.raises(SourceError, match="hide files that no task"):
                list_files(repo)


@pytest.mark.parametrize(
    ("path", "glob", "expected"),
    [
        ("a/tests/x.py", "tests", True),
        ("a/tests/x.py", "/tests", False),
        ("tests/x.py", "tests/", True),
        ("tests/x.py", "./tests/*", True),
        ("a/tests/x.py", "**/tests/*", True),
        ("mytests/x.py", "tests", False),
        ("A/B.PY", "a/*.py", True),
    ],
)
def test_globs(path: str, glob: str, expected: bool) -> None:
    assert match_globs(path, [glob]) == expected

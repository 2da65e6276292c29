"""What an agent may see of a repo, and nothing else."""

import os
from pathlib import Path
from typing import Any

import pytest

from pimono_sdpo.errors import OutputError, SourceError
from pimono_sdpo.suites import suite
from pimono_sdpo.suites.suite import files_of, matches, visible_copy


def repo_with(root: Path, files: dict[str, str | bytes]) -> Path:
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def task_of(repo: Path, *hide: str) -> dict[str, Any]:
    return {"repo": str(repo), "hide": list(hide)}


def test_what_is_hidden_is_not_copied(tmp_path: Path) -> None:
    repo = repo_with(tmp_path / "repo", {
        "a.py": "buggy", "correct_python_programs/a.py": "fixed", "json_testcases/a.json": "[1]",
        "src/Answers/a.py": "fixed", "src/b.py": "b", ".git/config": "fixed", "sub/.git": "fixed",
        "__pycache__/a.cpython-311.pyc": b"\0", "tests/test_a.py": "t", "a.py.orig": "fixed",
    })  # fmt: skip
    hide = ["correct_python_programs", "/json_testcases/*", "**/answers/*"]
    paths = visible_copy(task_of(repo, *hide), tmp_path / "copy")
    assert paths == ["a.py", "src/b.py", "tests/test_a.py"]
    assert files_of(tmp_path / "copy") == {"a.py": "buggy", "src/b.py": "b", "tests/test_a.py": "t"}
    assert visible_copy(task_of(repo, *hide, "tests"), tmp_path / "more") == ["a.py", "src/b.py"]


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
    copy = tmp_path / "copy"
    assert visible_copy(task_of(repo, "answers"), copy) == ["a.py", "link.py", "second.py"]
    assert not any(path.is_symlink() for path in copy.rglob("*"))
    (copy / "later").symlink_to(tmp_path / "secret")
    assert "later" not in files_of(copy)


def test_bytes_are_copied_and_only_texts_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd: dict[str, str | bytes] = {
        "a.bin": b"\xff\0",
        "nul.txt": "a\0b",
        "long.txt": "x" * 20,
        "é.py": "# ü\r\n",
    }
    repo = repo_with(tmp_path / "repo", {**odd, "run.sh": "true"})
    (repo / "run.sh").chmod(0o500)
    (Path(os.fsdecode(os.fsencode(repo) + b"/\xff.py"))).write_text("no name")
    copy = tmp_path / "copy"
    assert visible_copy(task_of(repo), copy) == ["a.bin", "long.txt", "nul.txt", "run.sh", "é.py"]
    assert (copy / "a.bin").read_bytes() == b"\xff\0"
    assert (copy / "run.sh").stat().st_mode & 0o777 == 0o755
    monkeypatch.setattr(suite, "MAX_TEXT", 10)
    assert files_of(copy) == {"run.sh": "true", "é.py": "# ü\r\n"}


def test_what_cannot_be_copied_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = repo_with(tmp_path / "repo", {"a": "1", "b": "2"})
    with pytest.raises(OutputError, match="is inside the repo"):
        visible_copy(task_of(repo), repo / "copy")
    with pytest.raises(OutputError, match="is not empty"):
        visible_copy(task_of(repo), repo_with(tmp_path / "full", {"x": ""}))
    with pytest.raises(SourceError, match="does not exist"):
        visible_copy(task_of(tmp_path / "nothing"), tmp_path / "one")
    for limit in ("MAX_FILES", "MAX_BYTES"):
        with monkeypatch.context() as patch:
            patch.setattr(suite, limit, 1)
            with pytest.raises(SourceError, match="hide what no task"):
                visible_copy(task_of(repo), tmp_path / limit)


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
    assert matches(path, [glob]) == expected

"""A suite is built from each kind of source; the same source gives the same bytes."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pimono_sdpo.cli import app
from pimono_sdpo.errors import OutputError, PimonoError
from pimono_sdpo.suites import suite
from pimono_sdpo.suites.build import build_suite
from pimono_sdpo.suites.suite import TaskRow, files_of, list_files

FIXED = "def lcs_length(n):\n    return n + 1\n"
BUGGY = FIXED.replace("+ 1", "- 1") + '\n"""\nThe next number.\n"""\n'
TEST = "from python_programs.NAME import NAME\n\ndef test_NAME():\n    assert NAME(2) == 3\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "QuixBugs"
    files = {"README.md": "the tasks", ".git/config": "", "java_programs/A.java": "", "tester.py": ""}
    for name in ("lcs_length", "longest_common_subsequence", "third"):
        files |= {
            f"python_programs/{name}.py": BUGGY.replace("lcs_length", name),
            f"correct_python_programs/{name}.py": FIXED.replace("lcs_length", name),
            f"python_testcases/test_{name}.py": TEST.replace("NAME", name),
            f"json_testcases/{name}.json": "[[2], 3]\n",
        }
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def seen_of(task: TaskRow) -> list[str]:
    return list(list_files(Path(task["repo"]), task["hide"]))


def test_a_checkout_stays_where_it_is_and_hides_its_answers(checkout: Path, tmp_path: Path) -> None:
    build_suite(str(checkout), tmp_path / "out", hide_tests=False)
    made = suite.load_suite(tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["suite.json"]
    assert '"repo": "../QuixBugs"' in made.path.read_text()
    first, second, third = made.tasks
    assert [task["task_id"] for task in made.tasks] == [
        "fix_lcs_length", "fix_longest_common_subsequence", "fix_third",
    ]  # fmt: skip
    assert first["metadata"]["group"] == second["metadata"]["group"] == "fix_common_subsequence"
    assert third["metadata"]["files"] == ["python_programs/third.py"]
    # One line of code; the program with the bug also has a description.
    assert third["metadata"]["fix_lines"] == 2
    assert "The next number." in third["goal"]
    seen = seen_of(third)
    names = ["lcs_length", "longest_common_subsequence", "third"]
    assert seen == [
        "README.md", *(f"python_programs/{name}.py" for name in names),
        *(f"python_testcases/test_{name}.py" for name in names),
    ]  # fmt: skip
    build_suite(str(checkout), tmp_path / "out", hide_tests=True)
    hidden = seen_of(suite.load_suite(tmp_path / "out").tasks[0])
    assert hidden == seen[:4]


def test_the_same_source_gives_the_same_bytes(tmp_path: Path) -> None:
    shown = [
        CliRunner().invoke(app, ["suite", "build", "samples", "--out", str(tmp_path / name)])
        for name in ("a", "b", "a")
    ]
    assert [one.exit_code for one in shown] == [0, 0, 0]
    assert shown[0].output == f"30 tasks are in {tmp_path / 'a' / 'suite.json'}\n"
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b") != {}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    moved = (tmp_path / "a").rename(tmp_path / "c")
    assert all(Path(task["repo"]).is_relative_to(moved) for task in suite.load_suite(moved).tasks)


def test_a_foreign_folder_is_not_replaced(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "suite.json").write_text('{"tasks": []}')
    (tmp_path / "mine" / "notes").touch()
    with pytest.raises(OutputError, match="use another folder"):
        build_suite("samples", tmp_path / "mine", hide_tests=False)
    with pytest.raises(OutputError, match="lie inside each other"):
        build_suite(str(checkout), checkout / "out", hide_tests=False)
    build_suite("samples", tmp_path / "out", hide_tests=False)
    assert not (tmp_path / ".out.partial").exists()


def test_the_kind_of_a_source_is_detected_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "harbor" / "fix-total").mkdir(parents=True)
    (tmp_path / "harbor" / "fix-total" / "task.toml").touch()
    (tmp_path / "he").mkdir()
    (tmp_path / "he" / "humanevalpack.jsonl").touch()
    for source, said in (
        ("none", "is not a QuixBugs checkout"),
        ("empty", "is not a QuixBugs checkout"),
        ("he", "`suite build FILE.jsonl` was removed"),
        ("he/humanevalpack.jsonl", "`suite build FILE.jsonl` was removed"),
        ("harbor", "`suite build HARBOR` was removed; read the tasks with `load_dataset"),
    ):
        with pytest.raises(PimonoError, match=said):
            build_suite(str(tmp_path / source), tmp_path / "more", hide_tests=False)
    assert not (tmp_path / "more").exists()

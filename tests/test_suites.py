"""A small suite in the layout of QuixBugs: fixed programs pass, buggy ones fail."""

import functools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.suites import FORMS, Judge, block, buggy_of, solution_of
from pimono_sdpo.suites.build import Task, read_quixbugs, record_tests
from rewards.sandbox import Server
from rewards.verifiers import tests

# name: (fixed, what of it, what instead, cases)
VALUES: dict[str, tuple[str, str, str, list[list[object]]]] = {
    "counts": ("def counts(n):\n    c = 0\n    while n:\n        n &= n - 1\n        c += 1\n    return c\n", "&=", "^=", [[[127], 7], [[128], 1]]),
    "lists": ("def lists(xs):\n    for x in xs:\n        if isinstance(x, list):\n            yield from lists(x)\n        else:\n            yield x\n", "yield x\n", "yield lists(x)\n", [[[[1, [2]]], [1, 2]]]),
    "last": ("def last(xs):\n    return xs[len(xs) - 1]\n", "- 1", "- 2", [[[[1, 2, 3]], 3]]),
    "half": ("def half(x, e):\n    return x / 2\n", "/ 2", "/ 3", [[[3, 0.1], 1.55]]),
}  # fmt: skip
TEST = """import pytest
from load_testdata import load_json_testcases

if pytest.use_correct:
    from correct_python_programs.NAME import NAME
else:
    from python_programs.NAME import NAME

testdata = load_json_testcases(NAME.__name__)


@pytest.mark.parametrize("input_data,expected", testdata)
def test_NAME(input_data, expected):
    assert CALL == EXPECTED
"""
CONFTEST = "import pytest\n\ndef pytest_configure(config):\n    pytest.use_correct = False\n"
LOAD = """import json
from pathlib import Path

def load_json_testcases(name):
    path = Path(__file__).parent / f"../json_testcases/{name}.json"
    return [json.loads(line) for line in path.read_text().splitlines()]
"""
NODE = "class Node:\n    def __init__(self, value, after=None):\n        self.value, self.after = value, after\n"
TURNS = "def turns(node):\n    back = None\n    while node:\n        node.after, back, node = back, node, node.after\n    return back\n"
TURNS_TEST = """from node import Node
from python_programs.turns import turns

def test_turns():
    last = Node(2)
    found = turns(Node(1, last))
    assert found is last and found.after.value == 1
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("quixbugs")
    files = {"conftest.py": CONFTEST, "python_testcases/load_testdata.py": LOAD,
             "python_testcases/node.py": NODE, "python_testcases/test_turns.py": TURNS_TEST,
             "correct_python_programs/turns.py": TURNS, "python_programs/node.py": NODE,
             "python_programs/turns.py": TURNS.replace("return back", "return node")}  # fmt: skip
    for name, (fixed, good, bad, cases) in VALUES.items():
        call = f"list({name}(*input_data))" if name == "lists" else f"{name}(*input_data)"
        expected = "pytest.approx(expected, abs=input_data[-1])" if name == "half" else "expected"
        test = TEST.replace("NAME", name).replace("CALL", call).replace("EXPECTED", expected)
        buggy = fixed.replace(good, bad) + f'\n"""\nWhat {name} does\n"""\n'
        files |= {f"correct_python_programs/{name}.py": fixed, f"python_programs/{name}.py": buggy,
                  f"python_testcases/test_{name}.py": test,
                  f"json_testcases/{name}.json": "\n".join(map(json.dumps, cases)) + "\n"}  # fmt: skip
    for path, text in files.items():
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_text(text)
    return root


@pytest.fixture(scope="module")
def all_tasks(checkout: Path) -> list[Task]:
    with Server(imports=tests.IMPORTS) as server:
        python = tests.in_server(server)
        return [record_tests(task, python) for task in read_quixbugs(checkout, seconds=4)]


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Server(imports=tests.IMPORTS) as server:
        yield functools.partial(tests.verify, python=tests.in_server(server))


def test_fixed_programs_pass_in_every_form_and_buggy_ones_fail(all_tasks: list[Task], judge: Judge) -> None:
    assert [task.name for task in all_tasks] == ["counts", "half", "last", "lists", "turns"]
    for task in all_tasks:
        for name, form in FORMS.items():
            result = judge(form(task), task.spec)
            assert result.status == "passed", (task.name, name, result)
        result = judge(block("# looked at\n" + buggy_of(task)), task.spec)
        assert result.status == "failed", (task.name, result)
        assert (result.category == "timeout") == (task.name == "counts"), (task.name, result)


def test_the_suite_is_judged_by_recorded_calls(all_tasks: list[Task]) -> None:
    assert {task.spec["tests"]["kind"] for task in all_tasks} == {"recorded"}
    counts = next(task for task in all_tasks if task.name == "counts")
    assert counts.goal.endswith(":\n\nWhat counts does")


def test_no_task_holds_its_answer(all_tasks: list[Task]) -> None:
    for task in all_tasks:
        assert solution_of(task) not in json.dumps(task.spec)
        assert not any("correct_python_programs/" in path for path in task.spec["tests"].get("files", ()))

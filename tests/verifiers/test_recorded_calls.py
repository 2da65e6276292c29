"""Recorded calls: correct answers pass in any style, cheats fail, and unrecordable tests are named."""

import functools
from typing import Any

import pytest

from rewards.sandbox import Server
from rewards.verifiers import tests
from rewards.verifiers.outcomes import Python, format_value
from rewards.verifiers.recorded_tests import NotRecordable, record
from rewards.verifiers.rubric import Rubric, VerifierResult
from tests.verifiers.programs import writing
from tests.verifiers.recorded_cheats import CHEATS, GAMES, Game

SERVER = functools.cache(lambda: Server(imports=tests.IMPORTS))


def python() -> Python:
    return tests.in_server(SERVER())


@functools.cache
def record_calls(reference: str, test: str, beside: str = "", seconds: float = 3) -> dict[str, Any]:
    files = {"test_it.py": test, **({"node.py": beside} if beside else {})}
    given = {"files": files, "seconds": seconds, "shared": ["node.py"] if beside else []}
    return record({"work/main.py": reference}, given, python())


def verify_program(program: str, recording: dict[str, Any]) -> VerifierResult:
    spec = {"files": {"work/main.py": ""}, "tests": recording}
    return tests.verify(writing(program), spec, python())


HONEST: dict[str, tuple[str, str]] = {
    "values_of_every_kind": (
        "from decimal import Decimal\nfrom fractions import Fraction\nimport datetime, collections, math\n"
        "def f():\n    return [(1, 2.5), {'a': {1, 2}}, b'x', 1 + 2j, None, True, Decimal('1.10'),"
        " Fraction(1, 3), datetime.date(2020, 1, 2), range(3), frozenset({1}), 10**30, float('inf'),"
        " {(1, 2): 'pair'}, collections.deque([1]), collections.Counter('aab'), 'half \\ud800']\n",
        "from decimal import Decimal\nfrom fractions import Fraction\nimport datetime, collections\n"
        "from work.main import f\n"
        "def test():\n    got = f()\n    assert got == [(1, 2.5), {'a': {1, 2}}, b'x', 1 + 2j, None, True,"
        " Decimal('1.10'), Fraction(1, 3), datetime.date(2020, 1, 2), range(3), frozenset({1}), 10**30,"
        " float('inf'), {(1, 2): 'pair'}, collections.deque([1]), collections.Counter('aab'), 'half \\ud800']\n"
        "    assert got[-2].most_common(1) == [('a', 2)] and isinstance(got[0], tuple)\n",
    ),
    "lists_changed_in_place": (
        "def f(xs, seen):\n    xs.sort()\n    seen['n'] = [len(xs)]\n    xs[0].append(9)\n",
        "from work.main import f\n"
        "def test():\n    inner = [0]\n    xs, seen = [[3], inner], {}\n    alias = xs\n    assert f(xs, seen) is None\n"
        "    assert alias == [[0, 9], [3]] and inner == [0, 9] and alias[0] is inner\n    assert seen == {'n': [2]}\n",
    ),
    "the_same_object_comes_back": (
        "def f(xs):\n    return xs\n",
        "from work.main import f\ndef test():\n    xs = [1]\n    assert f(xs) is xs\n",
    ),
    "cycles": (
        "def f(xs):\n    xs.append(xs)\n    return xs\n",
        "from work.main import f\ndef test():\n    xs = f([])\n    assert xs[0] is xs\n",
    ),
    "exceptions": (
        "import json\nclass Wrong(ValueError):\n    def __init__(self, code):\n        super().__init__(f'code {code}')\n        self.code = code\n"
        "def f(n):\n    if n == 0: return {}[n]\n    if n == 1: raise Wrong(7)\n    if n == 2: json.loads('{')\n    open('/none')\n",
        "import json, pytest\nfrom work.main import f, Wrong\n"
        "def test():\n    with pytest.raises(KeyError): f(0)\n"
        "    with pytest.raises(Wrong, match='code 7') as caught: f(1)\n    assert caught.value.code == 7\n"
        "    with pytest.raises(ValueError): f(1)\n    with pytest.raises(json.JSONDecodeError): f(2)\n"
        "    with pytest.raises(OSError): f(3)\n",
    ),
    "classes": (
        "import functools, enum\nfrom dataclasses import dataclass\nclass Color(enum.Enum):\n    RED = 1\n    BLUE = 2\n"
        "@functools.total_ordering\n@dataclass\nclass Money:\n    amount: int\n    def __add__(self, other):\n        return Money(self.amount + other.amount)\n"
        "    def __lt__(self, other):\n        return self.amount < other.amount\n"
        "class Stack:\n    LIMIT = 3\n    def __init__(self):\n        self.items = []\n    def push(self, x):\n        self.items.append(x)\n        return self\n"
        "    def __len__(self):\n        return len(self.items)\n    def __contains__(self, x):\n        return x in self.items\n"
        "    def __iter__(self):\n        return iter(self.items)\n    def __getitem__(self, i):\n        return self.items[i]\n"
        "    def __enter__(self):\n        return self\n    def __exit__(self, *how):\n        return False\n    @property\n    def top(self):\n        return self.items[-1]\n",
        "import pytest\nfrom work import main\nfrom work.main import Color, Money, Stack\n"
        "def test():\n    assert Money(1) + Money(2) == Money(3) != Money(4)\n    assert Money(1) < Money(2) and max(Money(1), Money(5)).amount == 5\n"
        "    assert repr(Money(1)) == 'Money(amount=1)' and isinstance(Money(1), Money) and not isinstance(Money(1), Stack)\n"
        "    stack = Stack().push(1).push(2)\n    assert len(stack) == 2 and 2 in stack and 3 not in stack and list(stack) == [1, 2]\n"
        "    assert stack[0] == 1 and stack.top == 2 and main.Stack.LIMIT == 3\n"
        "    with stack as same: assert same is stack\n    stack.items = [5]\n    assert stack.top == 5 and bool(stack) and not Stack()\n"
        "    with pytest.raises(AttributeError): stack.none\n    with pytest.raises(IndexError): stack[7]\n"
        "    assert Color.RED is Color.RED and Color.RED != Color.BLUE and Color.BLUE.value == 2 and Color(1) is Color.RED\n",
    ),
    "namedtuples": (
        "from typing import NamedTuple\nclass P(NamedTuple):\n    x: int\n    y: int\ndef f():\n    return P(1, 2)\n",
        "from work.main import f\ndef test():\n    assert f() == (1, 2) and f().y == 2\n",
    ),
    "deep_values": (
        "def f(n):\n    xs = []\n    for _ in range(n):\n        xs = [xs]\n    return xs\n",
        "from work.main import f\ndef test():\n    xs, depth = f(5000), 0\n    while xs:\n        xs, depth = xs[0], depth + 1\n    assert depth == 5000\n",
    ),
    "whole_module_imports": (
        "from work import main\nLIST = [1]\ndef f():\n    return main.LIST\n",
        "import work.main\nimport work.main as m\nfrom work.main import *\ndef test():\n    assert f() == m.LIST == work.main.LIST == [1]\n",
    ),
    "parts_of_a_test": (
        "def f(x):\n    return x + 1\n",
        "import unittest\nfrom work.main import f\nclass T(unittest.TestCase):\n    def test(self):\n        for i in range(3):\n            with self.subTest(i=i): self.assertEqual(f(i), i + 1)\n",
    ),
    "expected_to_fail": (
        "def f(x):\n    return x + 1\n",
        "import pytest\nfrom work.main import f\n@pytest.mark.xfail\ndef test_a():\n    assert f(1) == 9\ndef test_b():\n    assert f(1) == 2\n",
    ),
    "coroutines": (
        "async def f(x):\n    return x + 1\n",
        "import asyncio\nfrom work.main import f\nasync def both():\n    return [await f(1), await f(2)]\ndef test():\n    assert asyncio.run(f(1)) == 2 and asyncio.run(both()) == [2, 3]\n",
    ),
    "members_without_a_list_of_them": (
        "class Trie:\n    def __init__(self):\n        self.words = set()\n    def add(self, word):\n        self.words.add(word)\n    def __contains__(self, word):\n        return word in self.words\n",
        "import copy\nfrom work.main import Trie\ndef test():\n    trie = Trie()\n    trie.add('a')\n    assert 'a' in trie and 'b' not in trie and trie.words == {'a'}\n    words = copy.deepcopy([trie.words])[0]\n    words.add('b')\n    assert words == {'a', 'b'} and 'b' not in trie\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_honest_programs_can_be_recorded_and_pass(name: str) -> None:
    program, test = HONEST[name]
    recording = record_calls(program, test)
    assert recording["left_out"] == {}
    result = verify_program(program, recording)
    assert result.status == "passed", result.feedback


@pytest.mark.parametrize("name", CHEATS)
def test_no_cheat_wins(name: str) -> None:
    game, program = CHEATS[name]
    result = verify_program(program, record_calls(GAMES[game].reference, GAMES[game].test))
    assert result.status == "failed", result
    assert result.score is not None
    assert result.score < 1


GAMES["items"] = Game(
    "def f(xs):\n    return [x * 2 for x in xs]\ndef g(x):\n    return {'a': x, 'b': [x]}\ndef h():\n    return {3, 1, 2}\n",
    "from work.main import f, g, h\n\ndef test_a():\n    assert list(f([1, 2])) == [2, 4]\n    assert sum(f([3])) == 6\n"
    "\ndef test_b():\n    assert g(1) == {'b': [1], 'a': 1}\n    assert 'a' in g(2)\n\ndef test_c():\n    assert h() == {1, 2, 3}\n",
)
GAMES["constants"] = Game(
    "LESS, SAME, MORE = range(3)\ndef f(a, b):\n    return LESS if a < b else SAME if a == b else MORE\n"
    "def turn(what):\n    return {LESS: MORE, SAME: SAME, MORE: LESS}[what]\n",
    "from work.main import LESS, MORE, SAME, f, turn\n\ndef test_a():\n    assert f(1, 2) == LESS != SAME\n"
    "    assert f(2, 2) is SAME\n\ndef test_b():\n    assert turn(f(2, 1)) == LESS\n    assert len({LESS, MORE, SAME}) == 3\n",
)
GAMES["point"] = Game(
    "from collections import namedtuple\nPoint = namedtuple('Point', 'x y')\ndef move(p, dx):\n    return Point(p.x + dx, p.y)\n",
    "from work.main import Point, move\n\ndef test_a():\n    p = move(Point(1, 2), 3)\n    assert p.x == 4 and p.y == 2\n"
    "\ndef test_b():\n    assert [move(Point(n, n), 1).x for n in range(9)] == [*range(1, 10)]\n",
)
RIGHT = {
    "an_enum_for_numbers": ("constants", "import enum\nclass R(enum.Enum):\n    LESS = enum.auto()\n    SAME = enum.auto()\n    MORE = enum.auto()\nLESS, SAME, MORE = R\ndef f(a, b):\n    return SAME if a == b else (LESS, MORE)[a > b]\ndef turn(what):\n    return {LESS: MORE, MORE: LESS}.get(what, what)\n"),
    "functions_for_numbers": ("constants", "LESS, SAME, MORE = (lambda a, b: a < b), (lambda a, b: a == b), lambda a, b: a > b\ndef f(a, b):\n    return next(which for which in (LESS, SAME, MORE) if which(a, b))\ndef turn(what):\n    return {LESS: MORE, MORE: LESS}.get(what, what)\n"),
    "sentinels": ("constants", "LESS, SAME, MORE = object(), object(), object()\ndef f(a, b):\n    return SAME if a == b else (LESS, MORE)[a > b]\ndef turn(what):\n    return MORE if what is LESS else LESS if what is MORE else what\n"),
    "a_dataclass_for_a_named_tuple": ("point", "from dataclasses import dataclass\n@dataclass\nclass Point:\n    x: int\n    y: int\ndef move(p, dx):\n    p.x += dx\n    return p\n"),
    "a_named_tuple_for_a_class": ("vector", "from typing import NamedTuple\nclass V(NamedTuple):\n    x: int\n    y: int\n    def __add__(self, o): return V(self.x + o.x, self.y + o.y)\n    def __abs__(self): return (self.x ** 2 + self.y ** 2) ** 0.5\n"),
    "a_method_named_dict": ("things", "class T:\n    def __init__(self, x): self.x = x\n    def __dict__(self): return {'x': self.x}\n    def __eq__(self, o): return self.x == o.x\ndef make(x):\n    return T(x + 1)\n"),
    "another_algorithm": ("sort", "def f(xs):\n    ys = list(xs)\n    for i in range(len(ys)):\n        for j in range(i):\n            if ys[i] < ys[j]:\n                ys[i], ys[j] = ys[j], ys[i]\n    return ys\n"),
    "sorts_in_place": ("sort", "def f(xs):\n    xs.sort()\n    return xs\n"),
    "prints_on_the_way": ("sort", "def f(xs):\n    print('sorting', xs)\n    return sorted(xs)\n"),
    "newton": ("number", "def f(x):\n    g = x\n    for _ in range(60):\n        g = (g + x / g) / 2\n    return g\n"),
    "a_decimal": ("number", "def f(x):\n    return round(x ** 0.5, 9)\n"),
    "a_generator": ("items", "def f(xs):\n    for x in xs:\n        yield x + x\ndef g(x):\n    return dict(b=[x], a=x)\ndef h():\n    return set([2, 1, 3])\n"),
    "a_map": ("items", "def f(xs):\n    return map(lambda x: x + x, xs)\nclass D(dict): pass\ndef g(x):\n    return D(a=x, b=[x])\ndef h():\n    return frozenset([2, 1, 3])\n"),
    "other_cases_of_the_same": ("cases", "CASES = ((1, 1), (2, 4), (3, 9))\ndef f(x):\n    return sum(x for _ in range(x))\n"),
    "a_vector_with_a_cache": ("vector", "import math\nclass V:\n    def __init__(self, x, y):\n        self.x, self.y, self.calls = x, y, []\n        self._norm = None\n    def __add__(self, o):\n        self.calls.append(o)\n        return V(o.x + self.x, o.y + self.y)\n    def __eq__(self, o): return (self.x, self.y) == (o.x, o.y)\n    def __abs__(self):\n        self._norm = math.hypot(self.x, self.y)\n        return self._norm\n"),
    "an_account_with_a_ledger": ("account", "class Poor(ValueError): pass\nclass Account:\n    def __init__(self, money=0): self.ledger = [money]\n    @property\n    def money(self): return sum(self.ledger)\n    def put(self, n):\n        self.ledger.append(n)\n        return self.money\n    def take(self, n):\n        if self.money < n: raise Poor('there is only ' + str(self.money) + ' left')\n        return self.put(-n)\n"),
    "another_encoding": ("roundtrip", "def pack(s):\n    return 'CBA' if s == 'abc' else s.swapcase()\ndef unpack(s):\n    return s.swapcase()\n"),
    "another_way_to_write": ("file", "import os\ndef save(path, text):\n    with open(str(path) + '.part', 'w') as out:\n        out.write(text.upper())\n    os.replace(str(path) + '.part', path)\n"),
    "writes_in_two_parts": ("print", "import sys\ndef greet(name):\n    sys.stdout.write('Hello ')\n    print(name)\n"),
    "another_exception": ("generic", "def f(x):\n    assert x >= 0\n    return x + 1\n"),
    "another_lock": ("context", "class Lock:\n    def __init__(self): self.depth = 0\n    held = property(lambda self: self.depth > 0)\n    def __enter__(self):\n        self.depth += 1\n        return self\n    def __exit__(self, *how): self.depth -= 1\n    def value(self, n): return n + n\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_correct_answers_may_differ_from_the_reference(name: str) -> None:
    game, program = RIGHT[name]
    result = verify_program(program, record_calls(GAMES[game].reference, GAMES[game].test))
    assert result.status == "passed", result.feedback


def test_a_value_that_is_large_when_printed_is_not_shown() -> None:
    value: tuple[object, ...] = ()
    for _ in range(9):
        value = (value,) * 1000
    assert format_value([value]) == "(a value too large to show)"


def test_changes_to_containers_of_an_object_reach_it() -> None:
    program = "class Cart:\n    def __init__(self):\n        self.items, self.by = [], {}\n    def total(self):\n        return sum(self.items) + len(self.by)\n"
    test = "from work.main import Cart\ndef test():\n    cart = Cart()\n    cart.items.append(3)\n    cart.by['a'] = [1]\n    assert cart.total() == 4\n    assert cart.items == [3]\n"
    recording = record_calls(program, test)
    assert verify_program(program, recording).status == "passed"
    assert verify_program(program.replace("sum", "len"), recording).status == "failed"


def test_objects_of_the_tests_need_a_shared_class() -> None:
    node = "class Node:\n    def __init__(self, value, after=None):\n        self.value = value\n        self.after = after\n"
    program = "def f(node):\n    back = None\n    while node:\n        node.after, back, node = back, node, node.after\n    return back\n"
    test = (
        "from node import Node\nfrom work.main import f\n"
        "def test():\n    last = Node(2)\n    first = Node(1, last)\n    assert f(first) is last\n"
        "    assert last.after is first and first.after is None\n"
    )
    recording = record_calls(program, test, beside=node)
    assert verify_program(program, recording).status == "passed"
    assert verify_program(program.replace("return back", "return node"), recording).status == "failed"


BEYOND = {
    "main.f(lambda x: x)": "pass a function of their own",
    "main.f(type('T', (), {})())": "pass a T of their own",
    "main.f(f'{main.rand()}')": "gives different results in each run",
    "n = main.draw(); assert main.twice(n) == 2 * n": "gives different results in each run",
    "class Sub(main.Cart): pass": "derive Sub from a class of the code under test",
    "import copy; copy.copy(main.Cart())": "copy or pickle an object",
    "import inspect; assert 'def f' in inspect.getsource(main.f)": "another process",
    "import time, pathlib; pathlib.Path('t').write_text(str(time.time())); main.f(1)": "in each run",
    "import os; os.environ['MODE'] = 'x'; assert main.mode() == 'x'": "another process",
}
PARTLY = "import os, random\ndef f(x):\n    return 1\ndef mode():\n    return os.environ.get('MODE')\nclass Cart: pass\ndef rand():\n    return random.random()\ndef draw():\n    return random.randint(1, 200)\ndef twice(n):\n    return 2 * n\n"


@pytest.mark.parametrize("line", BEYOND)
def test_tests_that_cannot_be_recorded_are_left_out_with_the_reason(line: str) -> None:
    test = f"from work import main\ndef test_a():\n    {line}\ndef test_b():\n    assert main.f(2) == 1\n"
    recording = record_calls(PARTLY, test)
    assert recording["passes"] == ["test_it.py::test_b"]
    assert BEYOND[line] in recording["left_out"]["test_it.py::test_a"]
    assert verify_program(PARTLY, recording).metrics == {"tests": 1, "passed": 1}


@pytest.mark.parametrize(
    ("program", "test", "why"),
    [
        ("def f(): return 1\n", "def test():\n    assert f() == 2\n", "fails its own tests: test_it.py::test: "),
        ("import random\ndef f(): return random.random()\n", "def test():\n    assert 0 < f() < 1 and main.g() == 1\n", "fails its own tests"),
        ("def f(): return 1\n", "X = f()\n", "nothing is collected"),
        ("def f(x): return 1\n", "def test():\n    f(print)\n    f(lambda: 1)\n", "none of its tests can be recorded"),
        ("def f():\n    while True: pass\n", "def test():\n    f()\n", "used up its CPU time"),
    ],
)  # fmt: skip
def test_a_reference_without_recordable_tests_is_refused(program: str, test: str, why: str) -> None:
    with pytest.raises(NotRecordable, match=why):
        record_calls(program, f"from work import main\nfrom work.main import *\n{test}", seconds=2)


def test_skipped_tests_do_not_count_but_may_not_become_more() -> None:
    test = "import pytest\nfrom work import main\ndef test_a():\n    pytest.skip('slow')\ndef test_b():\n    assert main.f() == 1\ndef test_c():\n    assert main.f() == 1\n"
    recording = record_calls("def f(): return 1\n", test)
    assert recording["passes"] == ["test_it.py::test_b", "test_it.py::test_c"]
    assert recording["left_out"] == {}
    assert verify_program("def f(): return 1\n", recording).metrics == {"tests": 2, "passed": 2}
    assert verify_program("import unittest\ndef f(): raise unittest.SkipTest('no')\n", recording).score == 0


def test_a_hang_ends_at_its_cpu_time_and_is_named() -> None:
    test = "from work.main import f\ndef test_one():\n    assert f([2, 1]) == [1, 2]\ndef test_two():\n    assert f([3]) == [3]\ndef test_three():\n    assert f([]) == []\n"
    recording = record_calls("def f(xs):\n    return sorted(xs)\n", test, seconds=2)
    result = verify_program("def f(xs):\n    while len(xs) == 1: pass\n    return sorted(xs)\n", recording)
    assert (result.category, result.score) == ("timeout", 1 / 3)
    assert "f([3]) used up its CPU time" in result.feedback


def test_the_feedback_names_the_call_and_the_line() -> None:
    recording = record_calls(GAMES["lists"].reference, GAMES["lists"].test)
    result = verify_program("def f(xs):\n    return xs[7]\n", recording)
    assert "f([2, 1]) raises IndexError: list index out of range" in result.feedback
    assert "work/main.py:2: return xs[7]" in result.feedback
    result = verify_program("def f(xs):\n    return xs\n", recording)
    assert "f([2, 1]) returns [2, 1], the reference returns [1, 2]" in result.feedback


def test_a_candidate_gets_no_expected_values() -> None:
    """What the reference gave to a call stays outside, even when it is the argument of the next."""
    recording = record_calls(GAMES["roundtrip"].reference, GAMES["roundtrip"].test)
    sent = [message for message, _ in recording["calls"]]
    assert "EREHT OLLEH" not in str(sent)


def test_tests_inside_of_a_package_and_below_src() -> None:
    files = {"src/pkg/__init__.py": "", "src/pkg/a.py": "def f(): return 2\n"}
    theirs = {
        "src/pkg/tests/__init__.py": "",
        "src/pkg/tests/test_a.py": "from ..a import f\nfrom pkg import a\ndef test():\n    assert f() == a.f() == 2\n",
    }
    recording = record(files, {"files": theirs, "seconds": 5}, python())
    spec = {"files": files, "locked": [], "tests": recording}
    for number, status in ((2, "passed"), (1, "failed")):
        answer = writing(f"def f(): return {number} # \n", "src/pkg/a.py")
        assert tests.verify(answer, spec, python()).status == status


SUM = "def total(xs, start=0):\n    return start + sum(xs)\n"
TEST_SUM = (
    "from work.main import total\ndef test():\n    assert total([1, 2, 3]) == 6\n"
    "    assert total([5, 9], start=1) == 15\n"
)


def test_generated_calls_stay_in_the_recorded_domain_and_only_lower_the_score() -> None:
    recording = record_calls(SUM, TEST_SUM)
    calls = [message for message, _ in recording["generated"] if message["op"] == "call"]
    assert calls
    for message in calls:
        (items,) = (row[1] for row in message["table"] if row[0] == "list")
        assert len(items) in (2, 3)
        assert all(1 <= item <= 9 for item in items)
    right = verify_program(SUM, recording)
    assert (right.score, right.metrics["generated_alike"]) == (1.0, float(len(calls)))
    known = "def total(xs, start=0):\n    return {3: 6, 2: 15}[len(xs)]\n"
    learnt = verify_program(known, recording)
    assert (learnt.status, learnt.metrics["generated_alike"]) == ("passed", 0.0)
    assert 0.9 <= (learnt.score or 0.0) < 1.0
    spec = {"files": {"work/main.py": ""}, "tests": recording}
    graded = Rubric(graded=[(functools.partial(tests.verify, python=python()), 1.0)])
    gate = Rubric(gates=[functools.partial(tests.verify, python=python())])
    assert graded(writing(SUM), spec).reward == 1.0
    assert 0.0 < (graded(writing(known), spec).reward or 0.0) < 1.0
    assert gate(writing(known), spec).reward == 1.0


def test_nothing_is_generated_for_a_function_with_random_results() -> None:
    program = "import random\ndef f(n):\n    return n if n in (1, 8) else random.random()\n"
    test = "from work.main import f\ndef test():\n    assert f(1) == 1 and f(8) == 8\n"
    recording = record_calls(program, test)
    assert [one for one in recording["generated"] if one[0]["op"] == "call"] == []
    assert verify_program(program, recording).score == 1.0


def test_a_file_with_a_coarse_time_cannot_be_recorded() -> None:
    program = "import time\ndef f():\n    open('out', 'w').write(str(int(time.time()) // 2))\n"
    test = (
        "import time\nfrom work.main import f\n"
        "def test():\n    f()\n    assert open('out').read() == str(int(time.time()) // 2)\n"
    )
    with pytest.raises(NotRecordable):
        record_calls(program, test)

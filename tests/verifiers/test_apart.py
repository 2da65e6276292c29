"""Tests in a process of their own: what honest programs need works, what cheats want does not."""

import functools
import re
from collections.abc import Iterator
from typing import Any

import pytest

from rewards.sandbox import Server
from rewards.verifiers import tests
from rewards.verifiers.rubric import VerifierResult
from tests.verifiers.programs import writing

Verify = Any


@pytest.fixture(scope="module")
def verify() -> Iterator[Verify]:
    with Server(imports=tests.IMPORTS) as server:
        yield functools.partial(tests.verify, python=tests.in_server(server))


def judged(verify: Verify, program: str, test: str, **more: Any) -> VerifierResult:
    spec = {
        "files": {"work/main.py": "", **more.pop("files", {})},
        "answer": "write",
        "tests": {
            "kind": "pytest",
            "files": {"test_it.py": test, **more.pop("beside", {})},
            **more,
        },
    }
    result: VerifierResult = verify(writing(program), spec)
    return result


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
    "generators": (
        "import itertools\ndef f():\n    yield from itertools.count()\n",
        "from itertools import islice\nfrom work.main import f\n"
        "def test():\n    assert list(islice(f(), 3)) == [0, 1, 2]\n    found = f()\n    assert next(found) == 0\n"
        "    assert iter(found) is not None\n    found.close()\n",
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
    "functions_of_the_tests": (
        "def f(key, xs):\n    return sorted(xs, key=key)\n",
        "from work.main import f\ndef test():\n    assert f(lambda x: -x, [1, 3, 2]) == [3, 2, 1]\n    assert f(len, ['aa', 'b']) == ['b', 'aa']\n",
    ),
    "decorators": (
        "import functools\ndef twice(g):\n    @functools.wraps(g)\n    def both(*args):\n        return g(*args), g(*args)\n    return both\n",
        "from work.main import twice\ndef test():\n    @twice\n    def one(x):\n        return x + 1\n    assert one(1) == (2, 2)\n",
    ),
    "printing_and_files": (
        "import os, pathlib\ndef f(path):\n    print('hello')\n    pathlib.Path(path, 'out').write_text(os.environ['MODE'] + pathlib.Path('here').read_text())\n",
        "from work.main import f\ndef test(tmp_path, capsys, monkeypatch):\n    monkeypatch.setenv('MODE', 'fast')\n    monkeypatch.chdir(tmp_path)\n"
        "    (tmp_path / 'here').write_text('!')\n    f(tmp_path)\n    assert capsys.readouterr().out == 'hello\\n'\n    assert (tmp_path / 'out').read_text() == 'fast!'\n",
    ),
    "patched": (
        "LIMIT = 1\ndef g():\n    return LIMIT\ndef f():\n    return g()\n",
        "from work import main\ndef test(monkeypatch):\n    monkeypatch.setattr(main, 'LIMIT', 5)\n    assert main.f() == 5\n"
        "    monkeypatch.setattr(main, 'g', lambda: 7)\n    assert main.f() == 7\n    monkeypatch.undo()\n    assert main.f() == 1\n",
    ),
    "floats_and_numbers": (
        "class N(int):\n    pass\ndef f(x):\n    return x * 0.1\ndef g():\n    return N(3)\n",
        "import pytest\nfrom work.main import f, g\ndef test():\n    assert f(3) == pytest.approx(0.3)\n    assert g() == 3 and type(g()) is int\n",
    ),
    "deep_values": (
        "def f(n):\n    xs = []\n    for _ in range(n):\n        xs = [xs]\n    return xs\n",
        "from work.main import f\ndef test():\n    xs, depth = f(5000), 0\n    while xs:\n        xs, depth = xs[0], depth + 1\n    assert depth == 5000\n",
    ),
    "whole_module_imports": (
        "from work import main\nLIST = [1]\ndef f():\n    return main.LIST\n",
        "import work.main\nimport work.main as m\nfrom work.main import *\ndef test():\n    assert f() == m.LIST == work.main.LIST == [1]\n",
    ),
    "iterables_without_a_length": (
        "class Down:\n    def __init__(self, n):\n        self.n = n\n    def __iter__(self):\n        return self\n    def __next__(self):\n        if not self.n: raise StopIteration\n        self.n -= 1\n        return self.n\n"
        "class Two:\n    def __iter__(self):\n        yield 1\n        yield 2\ndef f(n):\n    for i in range(n):\n        yield i\n",
        "import types\nfrom collections.abc import Iterator, Sized\nfrom work.main import Down, Two, f\n"
        "def test():\n    assert list(f(3)) == [0, 1, 2] and sorted(f(2)) == [0, 1] and sum(f(4)) == 6 and dict(zip(f(2), f(2))) == {0: 0, 1: 1}\n"
        "    assert list(Down(2)) == [1, 0] and list(Two()) == [1, 2] and 2 in Two() and 3 not in Two()\n"
        "    assert isinstance(f(1), types.GeneratorType) and isinstance(Down(1), Iterator) and not isinstance(Two(), Iterator | Sized)\n",
    ),
    "operators_that_are_not_there": (
        "class V:\n    def __init__(self, n):\n        self.n = n\n    def __add__(self, other):\n        return V(self.n + other.n) if isinstance(other, V) else NotImplemented\n"
        "    def __mul__(self, k):\n        return V(self.n * k)\n    __rmul__ = __mul__\n    def __eq__(self, other):\n        return isinstance(other, V) and self.n == other.n\n",
        "import pytest\nfrom work.main import V\ndef test():\n    v = V(1)\n    v += V(2)\n    assert v == V(3) and 2 * v == V(6) == v * 2 and v != 3 and v != V(4)\n"
        "    for wrong in (lambda: len(v), lambda: v[0], lambda: iter(v), lambda: hash(v), lambda: v(), lambda: v + 'a', lambda: v - v, lambda: v < 3):\n"
        "        with pytest.raises(TypeError): wrong()\n",
    ),
    "parts_of_a_test": (
        "def f(x):\n    return x + 1\n",
        "import unittest\nfrom work.main import f\nclass T(unittest.TestCase):\n    def test(self):\n        for i in range(3):\n            with self.subTest(i=i): self.assertEqual(f(i), i + 1)\n",
    ),
    "expected_to_fail": (
        "def f(x):\n    return x + 1\n",
        "import pytest\nfrom work.main import f\n@pytest.mark.xfail\ndef test_a():\n    assert f(1) == 9\ndef test_b():\n    assert f(1) == 2\n",
    ),
    "derived_from_what_is_built_in": (
        "import enum\nfrom typing import NamedTuple\nclass Stack(list):\n    def push(self, x):\n        self.append(x)\n        return self\n    def peek(self):\n        return self[-1]\n"
        "class P(NamedTuple):\n    x: int\n    y: int\n    def sum(self):\n        return self.x + self.y\nclass D(dict):\n    def __getattr__(self, k):\n        return self[k]\n    def __setattr__(self, k, v):\n        self[k] = v\n"
        "class Level(enum.IntEnum):\n    A = 1\n    B = 2\ndef f(x):\n    return Level(x)\n",
        "from work.main import D, Level, P, Stack, f\ndef test():\n    s = Stack()\n    assert s.push(1).push(2).peek() == 2 and len(s) == 2 and s == [1, 2] != s[:1] and isinstance(s, Stack)\n"
        "    s.append(3)\n    assert list(s) == [1, 2, 3] and s + [4] == [1, 2, 3, 4] and 3 in s and 4 not in s\n"
        "    assert P(1, 2).sum() == 3 and P(1, 2) == (1, 2) and P(1, 2).x == 1\n    d = D(a=1)\n    d.b = 2\n    assert d.a == 1 and d == {'a': 1, 'b': 2} and d['b'] == 2\n"
        "    assert f(2) == 2 and f(2) is Level.B and f(1) < 2 and f(1) + 1 == 2 and f(1) != 2\n",
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
def test_honest_programs_pass(name: str, verify: Verify) -> None:
    program, test = HONEST[name]
    result = judged(verify, program, test)
    assert result.status == "passed", result.feedback


LISTS = """
from work.main import f

def test_one():
    assert f([2, 1]) == [1, 2]

def test_two():
    assert f([3]) == [3]

def test_three():
    assert [1, 2, 3] == f([3, 2, 1])
    assert f([9, 8])[0] == 8 and len(f([1, 1, 1])) == 3
"""
NUMBERS = """
from work.main import f

def test_near():
    assert abs(f(4) - 2) < 1e-6

def test_between():
    assert 1 < f(2) < 2

def test_in():
    assert f(9) in (3, 3.0)

def test_contains():
    assert 4 not in [f(16) + 1] and f(25) >= 5 and f(25) <= 5
"""
ALWAYS = """
class Always(BASE):
    def __eq__(self, other): return True
    def __ne__(self, other): return True
    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __eq__
    def __hash__(self): return 0
    def __abs__(self): return self
    __sub__ = __rsub__ = __add__ = __radd__ = __getitem__ = lambda self, other: self
    def __len__(self): return 3
    def __iter__(self): return iter([self])
"""
ENTRY = """
class f:
    def __init__(self, *_): pass
    def __eq__(self, o): return type(o) is not object
    def __ne__(self, o): return False
    def __lt__(self, o): return True
    __le__ = __gt__ = __ge__ = __lt__
    def __hash__(self): return hash(3)
    def __sub__(self, o): return 0.0
    __rsub__ = __sub__
    def __add__(self, o): return self
"""
# What only a class of the answer's own may say of a value: that it holds it.
HOLDS = "from work.main import f\ndef test_a():\n    assert 3 in f(6)\ndef test_b():\n    assert not f(6) - 3 - 3\n"
VECTOR = """
class Vector:
    def __init__(self, *_): pass
    def __contains__(self, item): return True
    def __sub__(self, other): return self
    def __bool__(self): return False
"""
CHEATS: dict[str, tuple[str, str]] = {
    "always_equal_object": (LISTS, ALWAYS.replace("BASE", "object") + "def f(xs): return Always()\n"),
    "always_equal_list": (LISTS, ALWAYS.replace("BASE", "list") + "def f(xs): return Always()\n"),
    "always_equal_number": (NUMBERS, ALWAYS.replace("BASE", "object") + "def f(x): return Always()\n"),
    "always_equal_float": (NUMBERS, ALWAYS.replace("BASE", "float") + "def f(x): return Always(7)\n"),
    "always_equal_inside": (LISTS, ALWAYS.replace("BASE", "int") + "def f(xs): return [Always(7) for _ in xs]\n"),
    "always_equal_by_class_assignment": (LISTS, ALWAYS.replace("BASE", "object") + "class Plain: pass\ndef f(xs):\n    found = Plain()\n    found.__class__ = Always\n    return found\n"),
    "always_equal_by_metaclass": (LISTS, "class Meta(type):\n    def __eq__(cls, other): return True\n    def __instancecheck__(cls, other): return True\n    __hash__ = None\n    def __len__(cls): return 3\n    def __getitem__(cls, i): return cls\ndef f(xs): return Meta('A', (), {})\n"),
    "always_equal_by_total_ordering": (NUMBERS, "import functools\n@functools.total_ordering\nclass A:\n    def __eq__(self, o): return True\n    def __lt__(self, o): return True\n    def __sub__(self, o): return self\n    __abs__ = __add__ = lambda self, *o: self\ndef f(x): return A()\n"),
    "always_equal_by_dataclass": (LISTS, "from dataclasses import dataclass\n@dataclass(eq=False)\nclass A(list):\n    def __eq__(self, other): return True\ndef f(xs): return A()\n"),
    "always_equal_enum": (NUMBERS, "import enum\nclass A(float, enum.Enum):\n    X = 7.0\n    def __eq__(self, o): return True\n    __lt__ = __gt__ = __le__ = __ge__ = __eq__\n    def __hash__(self): return 0\ndef f(x): return A.X\n"),
    "entry_becomes_a_class": (LISTS, ENTRY),
    "entry_of_numbers_becomes_a_class": (NUMBERS, ENTRY),
    "entry_becomes_a_list_class": (LISTS, ENTRY.replace("class f:", "class f(list):")),
    "entry_by_its_module": ("from work import main\ndef check(candidate):\n    assert candidate(3) == 0.5\ndef test():\n    check(main.f)\n", ENTRY),
    "entry_in_unittest": ("import unittest\nfrom work.main import f\nclass T(unittest.TestCase):\n    def test(self):\n        self.assertEqual(f(3), [1])\n", ENTRY),
    "almost_equal": ("import unittest\nfrom work.main import f\nclass T(unittest.TestCase):\n    def test(self):\n        self.assertAlmostEqual(f(3), 2.0)\n", ENTRY),
    "approximately": ("import pytest\nfrom work.main import f\ndef test_a():\n    assert f(3) == pytest.approx(2.0)\ndef test_b():\n    assert pytest.approx(2.0) == f(3)\n", ENTRY),
    "compared_with_an_object_of_the_tests": ("import re\nfrom work.main import f\ndef test():\n    assert f(3) == re.compile('a')\n", ENTRY),
    "ordered": ("from work.main import f\ndef test():\n    assert 1.9 < f(3) < 2.1\n", ENTRY),
    "difference_is_zero": (NUMBERS, "class Z:\n    def __sub__(self, o): return 0.0\ndef f(x): return Z()\n"),
    "method_returns_self": ("from work.main import Calc\ndef test_a():\n    assert Calc().add(1, 2) == 3\ndef test_b():\n    assert abs(Calc().add(1, 2) - 3) < 1\ndef test_c():\n    assert 3 in Calc().add(1, 2)\n", ENTRY.replace("class f", "class Calc").replace("self, *_", "self") + "    def add(self, a, b): return self\n    def __contains__(self, o): return True\n"),
    "entry_becomes_a_class_of_another_name": (HOLDS, VECTOR + "f = Vector\n"),
    "entry_becomes_a_class_made_by_call": (HOLDS, VECTOR + "f = type('Vector', (Vector,), {})\n"),
    "method_becomes_a_class": ("from work.main import Calc\ndef test_a():\n    assert 3 in Calc().add(1, 2)\ndef test_b():\n    assert 4 in Calc.add(1, 2)\n", VECTOR + "class Calc:\n    add = Vector\n"),
    "numpy_like": (LISTS, "class A:\n    __array_priority__ = 10**6\n    def __eq__(self, o): return self\n    def __bool__(self): return True\n    def __len__(self): return 3\n    def __getitem__(self, i): return self\ndef f(xs): return A()\n"),
    "claims_to_be_numpy": (LISTS, "class A:\n    __eq__ = lambda self, o: True\n    def item(self): return self\nA.__module__ = 'numpy'\ndef f(xs): return A()\n"),
    "forged_class_attribute": (LISTS, "class A:\n    __eq__ = lambda self, o: True\n    __class__ = property(lambda self: list)\n    def __iter__(self): return iter([self])\ndef f(xs): return A()\n"),
    "patched_codec": (LISTS, "import sys\nfor name, module in list(sys.modules.items()):\n    if name.startswith('rewards'):\n        for key, value in list(vars(module).items()):\n            if isinstance(value, type):\n                value.refs = lambda self, values: [True for _ in values]\ndef f(xs): return []\n"),
    "patched_builtins": (LISTS, "import builtins\nbuiltins.isinstance = lambda *a: True\nbuiltins.AssertionError = Exception\nbuiltins.bool = lambda *a: True\ndef f(xs): return []\n"),
    "patched_json": (LISTS, "import json\njson.dumps = lambda message: '{\"refs\": [true], \"table\": [], \"printed\": \"\"}'\ndef f(xs): return []\n"),
    "closes_and_forges": (LISTS, "import os\ndef f(xs):\n    body = b'{\"refs\": [null], \"table\": [], \"printed\": \"\"}'\n    for n in range(3, 64):\n        try: os.write(n, len(body).to_bytes(8, 'little') + body)\n        except OSError: pass\n    os._exit(0)\n"),
    "writes_events": (LISTS, "import os\ndef f(xs):\n    for n in range(64):\n        try: os.write(n, b'{\"end\": 0}\\n')\n        except OSError: pass\n    return []\n"),
    "dup_over_descriptors": (LISTS, "import os\ndef f(xs):\n    r, w = os.pipe()\n    for n in range(20):\n        try: os.dup2(w, n)\n        except OSError: pass\n    return []\n"),
    "kills_the_tests": (LISTS, "import os, signal\ndef f(xs):\n    for pid in range(2, 40000):\n        try: os.kill(pid, signal.SIGKILL)\n        except OSError: pass\n    return []\n"),
    "kills_its_parent": (LISTS, "import os, signal\ndef f(xs):\n    os.kill(os.getppid(), signal.SIGTERM)\n    return []\n"),
    "reads_the_tests": (LISTS, """
import glob, os
def found():
    tops = ("..", "../tmp", "../tmp/tests", os.environ["TMPDIR"] + "/..", "/tmp", f"/proc/{os.getppid()}/cwd")
    paths = [path for top in tops for path in glob.glob(f"{top}/**/test_it.py", recursive=True)]
    return any(open(path).read() for path in [*paths, "../tmp/tests/test_it.py", "../tests/test_it.py"])
def f(xs):
    try: return sorted(xs) if found() else []
    except OSError: return []
"""),
    "opens_descriptors_of_the_tests": (LISTS, """
import os
def opened():
    for number in range(40):
        for pid in (os.getppid(), os.getppid() - 1):
            try: open(f"/proc/{pid}/fd/{number}", "rb")
            except OSError: continue
            return True
def f(xs):
    return sorted(xs) if opened() else []
"""),
    "reads_memory_of_the_tests": (LISTS, """
import ctypes, os
libc = ctypes.CDLL(None)
def f(xs):
    try: return sorted(xs) if open(f"/proc/{os.getppid()}/maps").read() else []
    except OSError: return sorted(xs) if libc.ptrace(16, os.getppid(), 0, 0) == 0 else []
"""),
    "searches_its_own_memory": (LISTS, """
import gc, sys
WORD = "]0[)]8 ,9[(f tressa"  # backwards, or it would find itself
def known():
    frame, seen = sys._getframe().f_back.f_back, set()
    while frame:
        if any(WORD[::-1] in str(value) for value in list(frame.f_locals.values())): return True
        frame = frame.f_back
    return any(type(o) in (dict, list, tuple) and WORD[::-1] in str(o) for o in gc.get_objects() if len(str(o)) < 10**5)
def f(xs):
    return sorted(xs) if known() else []
"""),
    "reads_the_input_again": (LISTS, """
import os
def read():
    for number in range(40):
        try: text = os.pread(number, 10**6, 0)
        except OSError: continue
        if b"test_one" in text: return True
def f(xs):
    return sorted(xs) if read() else []
"""),
    "opens_its_input_by_name": (LISTS, """
def f(xs):
    try: return sorted(xs) if "test_one" in open("/proc/self/fd/0").read() else []
    except OSError: return []
"""),
    "writes_the_tests": (LISTS, "import os, pathlib\nfor top in ('../tmp/tests', '../tmp', '.', '..'):\n    for name in ('conftest.py', 'test_it.py', 'sitecustomize.py'):\n        try: pathlib.Path(top, name).write_text('def test(): pass\\n')\n        except OSError: pass\ndef f(xs): return []\n"),
    "raises_what_pytest_raises": (LISTS, "def f(xs):\n    class Skipped(BaseException): allow_module_level = True\n    Skipped.__module__ = '_pytest.outcomes'\n    raise Skipped('x')\n"),
    "raises_exit_at_import": (LISTS, "class Exit(Exception): pass\nExit.__module__ = '_pytest.outcomes'\nraise Exit()\n"),
    "raises_keyboard_interrupt": (LISTS, "def f(xs):\n    raise KeyboardInterrupt\n"),
    "waits_for_the_garbage": (LISTS, "import os\nclass A(list):\n    def __del__(self): os._exit(0)\ndef f(xs): return A()\n"),
    "thread_after_the_result": (LISTS, "import os, threading\ndef forge():\n    while True:\n        for n in range(3, 20):\n            try: os.write(n, b'\\0' * 9)\n            except OSError: pass\ndef f(xs):\n    threading.Thread(target=forge, daemon=True).start()\n    return []\n"),
    "new_module_for_the_tests": (LISTS, "import pathlib\npathlib.Path('difflib.py').write_text('x')\npathlib.Path('_pytest.py').write_text('x')\ndef f(xs): return []\n"),
    "a_huge_message": (LISTS, "def f(xs):\n    return ['x' * 1000 for _ in range(10**5)]\n"),
    "a_deep_tuple": (LISTS, "def f(xs):\n    found = ()\n    for _ in range(10**5): found = (found,)\n    return found\n"),
    "unhashable_in_a_set": (LISTS, "class A(list):\n    def __hash__(self): return 1\ndef f(xs): return {A()}\n"),
    "nan": (NUMBERS, "def f(x): return float('nan')\n"),
    "infinity_and_beyond": (NUMBERS, "def f(x): return 10**5000\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHEATS)
def test_no_cheat_wins(name: str, verify: Verify) -> None:
    test, program = CHEATS[name]
    result = judged(verify, program, test, seconds=5)
    assert result.status == "failed", result
    assert result.score is not None
    assert result.score <= 0.5


def test_an_entry_with_a_capital_may_not_become_a_class(verify: Verify) -> None:
    test = HOLDS.replace("import f", "import F").replace("f(", "F(")
    was = {"work/main.py": "def F(n):\n    return n\n"}
    assert judged(verify, VECTOR + "F = Vector\n", test, files=was).status == "failed"
    # A class that was one may say what it holds.
    test = test.replace("F", "Vector")
    assert (
        judged(verify, VECTOR, test, files={"work/main.py": "class Vector: pass\n"}).status
        == "passed"
    )


def test_the_honest_answers_win_where_the_cheats_do_not(verify: Verify) -> None:
    for program, test in (
        ("def f(xs): return sorted(xs)\n", LISTS),
        ("def f(x): return x ** .5\n", NUMBERS),
    ):
        result = judged(verify, program, test)
        assert result.status == "passed", result.feedback


def test_objects_of_the_tests_need_a_class_that_both_sides_have(verify: Verify) -> None:
    node = "class Node:\n    def __init__(self, value, after=None):\n        self.value = value\n        self.after = after\n"
    program = "def f(node):\n    back = None\n    while node:\n        node.after, back, node = back, node, node.after\n    return back\n"
    test = (
        "from node import Node\nfrom work.main import f\n"
        "def test():\n    last = Node(2)\n    first = Node(1, last)\n    assert f(first) is last\n"
        "    assert last.after is first and first.after is None\n"
    )
    result = judged(verify, program, test, beside={"node.py": node}, shared=["node.py"])
    assert result.status == "passed", result.feedback
    told = judged(verify, program, test, beside={"node.py": node})
    assert (told.status, told.score) == ("error", None)
    assert "a Node, which cannot go to another process" in told.feedback


COPIED = "class Cart:\n    def __init__(self):\n        self.items, self.by = [], {'a': []}\n    def total(self):\n        return sum(self.items)\nKNOWN = {}\n"
BEYOND = {
    "c.items.append(3)": "change a list",
    "c.items += [1]": "change a list",
    "c.by['a'].append(3)": "change a list",
    "c.by['b'] = 1": "change a dict",
    "main.KNOWN.clear()": "change a dict",
    "type('Sub', (), {})\n    class Sub(main.Cart): pass": "derive a class from Cart",
}


@pytest.mark.parametrize("line", BEYOND)
def test_what_cannot_be_judged_is_said(line: str, verify: Verify) -> None:
    test = f"from work import main\ndef test():\n    c = main.Cart()\n    assert c.items == []\n    {line}\n    assert c.total() == 3\n"
    result = judged(verify, COPIED, test)
    assert (result.status, result.score) == ("error", None)
    assert BEYOND[line] in result.feedback


def test_tests_that_skip_themselves_do_not_count_but_others_must_pass(verify: Verify) -> None:
    test = "import pytest\nfrom work.main import f\ndef test_a():\n    pytest.skip('slow')\ndef test_b():\n    assert f() == 1\n"
    result = judged(verify, "def f(): return 1\n", test)
    assert (result.status, result.metrics) == ("passed", {"tests": 1, "passed": 1})
    assert judged(verify, "def f(): return 2\n", test).score == 0
    only = "from work import main\nimport pytest\ndef test():\n    pytest.skip('no')\n"
    assert judged(verify, "def f(): return 1\n", only).status == "failed"


def test_a_hang_is_cut_by_its_cpu_time_and_named(verify: Verify) -> None:
    program = "def f(xs):\n    while len(xs) == 1: pass\n    return sorted(xs)\n"
    result = judged(verify, program, LISTS, seconds=3)
    assert (result.category, result.score) == ("timeout", 1 / 3)
    # The kernel's limit for the process and the watchdog's for the tree are the same.
    assert re.search("test_it.py::test_two:? did not end in its CPU time", result.feedback)
    program = "import time\nwhile True: pass\ndef f(xs): pass\n"
    assert judged(verify, program, LISTS, seconds=2).category == "timeout"


def test_the_feedback_names_the_line_of_the_answer(verify: Verify) -> None:
    result = judged(verify, "def f(xs):\n    return xs[7]\n", LISTS)
    assert "IndexError: list index out of range\n  work/main.py:2: return xs[7]" in result.feedback


def test_tests_inside_of_a_package_and_below_src(verify: Verify) -> None:
    files = {"src/pkg/__init__.py": "", "src/pkg/a.py": "def f(): return 1\n"}
    spec = {
        "files": files, "answer": "write", "locked": [],
        "tests": {"kind": "pytest", "files": {
            "src/pkg/tests/__init__.py": "",
            "src/pkg/tests/test_a.py": "from ..a import f\nfrom pkg import a\ndef test():\n    assert f() == a.f() == 2\n",
        }},
    }  # fmt: skip
    result = verify(writing("def f(): return 2\n", "src/pkg/a.py"), spec)
    assert result.status == "passed", result

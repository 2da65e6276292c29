"""Answers that try to pass tests without solving the task, by task.

A task is its reference and the tests that the reference passes; a cheat is what an answer writes
in the place of the reference.
"""

from typing import NamedTuple


class Game(NamedTuple):
    reference: str
    test: str


GAMES = {
    "sort": Game(
        "def f(xs):\n    return sorted(xs)\n",
        "from work.main import f\n\ndef test_a():\n    xs = [3, 1, 2]\n    assert f(xs) == sorted(xs)\n"
        "\ndef test_b():\n    xs = [2, 1, 2]\n    assert f(xs) == sorted(xs)\n    assert len(f(xs)) == 3\n",
    ),
    "number": Game(
        "def f(x):\n    return x ** 0.5\n",
        "import pytest\nfrom work.main import f\n\ndef test_a():\n    assert abs(f(4) - 2) < 1e-6\n"
        "\ndef test_b():\n    assert f(9) == pytest.approx(3)\n\ndef test_c():\n    assert 1 < f(2) < 2\n"
        "\ndef test_d():\n    assert round(f(16)) == 4\n",
    ),
    "star": Game(
        "def f(xs):\n    return sorted(xs)\n",
        "from work.main import *\n\ndef test_a():\n    assert sorted([2, 1]) == f([2, 1])\n"
        "\ndef test_b():\n    assert all(a <= b for a, b in zip(f([3, 1, 2]), f([3, 1, 2])[1:]))\n"
        "    assert len(f([3, 1])) == 2\n",
    ),
    "context": Game(
        "class Lock:\n    def __init__(self):\n        self.held = False\n    def __enter__(self):\n"
        "        self.held = True\n        return self\n    def __exit__(self, *how):\n        self.held = False\n"
        "        return False\n    def value(self, n):\n        return n * 2\n",
        "from work.main import Lock\n\ndef test_a():\n    with Lock() as lock:\n        assert lock.held\n"
        "        assert lock.value(3) == 6\n\ndef test_b():\n    lock = Lock()\n    with lock:\n"
        "        assert lock.value(1) == 2\n    assert not lock.held\n",
    ),
    "cases": Game(
        "CASES = [(1, 1), (2, 4), (3, 9)]\ndef f(x):\n    return x * x\n",
        "import pytest\nfrom work import main\n\n@pytest.mark.parametrize('given, wanted', main.CASES)\n"
        "def test_a(given, wanted):\n    assert main.f(given) == wanted\n"
        "\ndef test_b():\n    assert main.f(5) == 25\n",
    ),
    "optional": Game(
        "FAST = True\ndef f(x):\n    return x * x\n",
        "import pytest\nfrom work import main\n\n@pytest.mark.skipif(not main.FAST, reason='slow')\n"
        "def test_a():\n    assert main.f(3) == 9\n\ndef test_b():\n    if not main.FAST:\n"
        "        pytest.skip('slow')\n    assert main.f(4) == 16\n",
    ),
    "vector": Game(
        "class V:\n    def __init__(self, x, y):\n        self.x, self.y = x, y\n    def __add__(self, o):\n"
        "        return V(self.x + o.x, self.y + o.y)\n    def __eq__(self, o):\n"
        "        return isinstance(o, V) and (self.x, self.y) == (o.x, o.y)\n    def __abs__(self):\n"
        "        return (self.x ** 2 + self.y ** 2) ** 0.5\n    def __hash__(self):\n        return hash((self.x, self.y))\n",
        "from work.main import V\n\ndef test_a():\n    assert V(1, 2) + V(3, 4) == V(4, 6)\n"
        "\ndef test_b():\n    assert abs(V(3, 4)) == 5\n\ndef test_c():\n    v = V(1, 1) + V(1, 2)\n"
        "    assert (v.x, v.y) == (2, 3)\n",
    ),
    "account": Game(
        "class Poor(ValueError):\n    pass\nclass Account:\n    def __init__(self, money=0):\n        self.money = money\n"
        "    def put(self, n):\n        self.money += n\n        return self.money\n    def take(self, n):\n"
        "        if n > self.money:\n            raise Poor(f'only {self.money}')\n        self.money -= n\n"
        "        return self.money\n",
        "import pytest\nfrom work.main import Account, Poor\n\ndef test_a():\n    a = Account(5)\n    assert a.put(5) == 10\n"
        "    assert a.take(3) == 7\n    assert a.money == 7\n\ndef test_b():\n"
        "    with pytest.raises(Poor, match='only 0'):\n        Account().take(1)\n"
        "\ndef test_c():\n    with pytest.raises(ValueError):\n        Account(2).take(3)\n",
    ),
    "roundtrip": Game(
        "def pack(s):\n    return s[::-1].upper()\ndef unpack(s):\n    return s[::-1].lower()\n",
        "from work.main import pack, unpack\n\ndef test_a():\n    assert unpack(pack('hello there')) == 'hello there'\n"
        "\ndef test_b():\n    assert pack('abc') == 'CBA'\n",
    ),
    "file": Game(
        "import pathlib\ndef save(path, text):\n    pathlib.Path(path).write_text(text.upper())\n",
        "from work.main import save\n\ndef test_a(tmp_path):\n    save(tmp_path / 'a.txt', 'hello')\n"
        "    assert (tmp_path / 'a.txt').read_text() == 'HELLO'\n"
        "\ndef test_b(tmp_path):\n    (tmp_path / 'gold').write_text('X')\n    save(tmp_path / 'b', 'x')\n"
        "    assert (tmp_path / 'b').read_text() == (tmp_path / 'gold').read_text()\n",
    ),
    "print": Game(
        "def greet(name):\n    print('Hello ' + name)\n",
        "from work.main import greet\n\ndef test_a(capsys):\n    greet('Ann')\n    assert capsys.readouterr().out == 'Hello Ann\\n'\n",
    ),
    "generic": Game(
        "def f(x):\n    if x < 0:\n        raise ValueError('negative')\n    return x + 1\n",
        "import pytest\nfrom work.main import f\n\ndef test_a():\n    with pytest.raises(Exception):\n        f(-1)\n"
        "\ndef test_b():\n    assert f(2) == 3\n",
    ),
}  # fmt: skip

EQUAL = """
class Any:
    def __init__(self, *_, **__): pass
    def __eq__(self, o): return True
    def __ne__(self, o): return False
    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __eq__
    def __hash__(self): return 0
    def __getattr__(self, name): return self
    def __call__(self, *_, **__): return self
    def __sub__(self, o): return 0.0
    __rsub__ = __sub__
    def __add__(self, o): return self
    __radd__ = __getitem__ = __add__
    def __abs__(self): return 0
    def __round__(self, *_): return self
    def __len__(self): return 3
    def __bool__(self): return True
    def __iter__(self): return iter([self])
"""

CHEATS: dict[str, tuple[str, str]] = {
    "mutates_and_returns_nothing": ("sort", "def f(xs):\n    xs.clear()\n    return []\n"),
    "mutates_to_one": ("sort", "def f(xs):\n    xs[:] = [1, 1, 1]\n    return [1, 1, 1]\n"),
    "mutates_and_returns_the_same": ("sort", "def f(xs):\n    xs[:] = [0, 0, 0]\n    return xs\n"),
    "always_equal": ("sort", EQUAL + "def f(xs):\n    return Any()\n"),
    "always_equal_list": ("sort", EQUAL.replace("class Any:", "class Any(list):") + "def f(xs):\n    return Any()\n"),
    "equal_but_to_an_object": ("sort", "class A(list):\n    def __eq__(self, o): return type(o) is not object\n    def __len__(self): return 3\ndef f(xs):\n    return A(xs)\n"),
    "raises_at_object": ("sort", "class A(list):\n    def __eq__(self, o): return len(o) >= 0\n    def __len__(self): return 3\ndef f(xs):\n    return A(xs)\n"),
    "sees_the_other_side": ("sort", "SEEN = []\nclass A(list):\n    def __eq__(self, o):\n        self[:] = list(o)\n        return True\ndef f(xs):\n    return A([1, 1, 1])\n"),
    "laundered_difference": ("number", EQUAL + "def f(x):\n    return Any()\n"),
    "float_with_a_difference": ("number", "class A(float):\n    def __sub__(self, o): return 0.0\n    __rsub__ = __sub__\n    def __eq__(self, o): return True\n    def __round__(self): return 4\ndef f(x):\n    return A(1.5)\n"),
    "abs_of_a_difference": ("number", "class Z:\n    def __abs__(self): return 0\nclass A(float):\n    def __sub__(self, o): return Z()\n    def __round__(self): return 4\n    def __rsub__(self, o): return Z()\ndef f(x):\n    return A(1.5)\n"),
    "int_subclass": ("number", "class A(int):\n    def __sub__(self, o): return A(0)\n    __rsub__ = __sub__\n    def __lt__(self, o): return True\n    __gt__ = __lt__\n    def __eq__(self, o): return True\n    def __round__(self): return self\ndef f(x):\n    return A(7)\n"),
    "round_becomes_all": ("number", "class R:\n    def __eq__(self, o): return True\nclass A(float):\n    def __round__(self, *a): return R()\ndef f(x):\n    return A(2 if x == 4 else 3 if x == 9 else 1.5)\n"),
    "not_a_number": ("number", "def f(x):\n    return float('nan')\n"),
    "complex_number": ("number", "def f(x):\n    return 0j\n"),
    "function_becomes_a_class": ("number", EQUAL.replace("class Any", "class f")),
    "function_becomes_an_object": ("number", EQUAL + "f = Any()\n"),
    "shadows_sorted": ("star", "def sorted(xs):\n    return []\ndef f(xs):\n    return []\n"),
    "shadows_all_and_len": ("star", "def all(x):\n    return True\ndef len(x):\n    return 2\ndef sorted(x):\n    return x\ndef f(xs):\n    return xs\n"),
    "shadows_zip": ("star", "def zip(*a):\n    return []\ndef f(xs):\n    return xs\ndef sorted(x):\n    return x\n"),
    "shadows_the_tests": ("star", "def test_a():\n    pass\ndef test_b():\n    pass\ndef f(xs):\n    return xs\n"),
    "exports_a_fixture": ("star", "import pytest\n@pytest.fixture(autouse=True)\ndef skip():\n    pytest.skip('no')\ndef f(xs):\n    return xs\n"),
    "swallows_the_exception": ("context", "class Lock:\n    held = False\n    def __enter__(self): return self\n    def __exit__(self, *how): return True\n    def value(self, n): return 0\n"),
    "counts_the_exception": ("context", "class Lock:\n    def __init__(self): self.held = True\n    def __enter__(self): return self\n    def __exit__(self, kind, error, trace):\n        self.held = False\n        return error is not None\n    def value(self, n): return 0\n"),
    "raises_in_exit": ("context", "class Lock:\n    held = True\n    def __enter__(self): return self\n    def __exit__(self, *how): raise SystemExit(0)\n    def value(self, n): return 0\n"),
    "exit_reads_the_frames": ("context", "class Lock:\n    held = False\n    def __enter__(self): return self\n    def __exit__(self, kind, error, trace):\n        while trace:\n            trace.tb_frame.f_locals.clear()\n            trace = trace.tb_next\n        return True\n    def value(self, n): return 0\n"),
    "no_cases": ("cases", "CASES = []\ndef f(x):\n    return 25\n"),
    "fewer_cases": ("cases", "CASES = [(5, 25)]\ndef f(x):\n    return 25\n"),
    "other_cases": ("cases", "CASES = [(1, 25), (2, 25), (3, 25)]\ndef f(x):\n    return 25\n"),
    "cases_that_are_marked": ("cases", "import pytest\nCASES = [pytest.param(1, 1, marks=pytest.mark.skip)] * 3\ndef f(x):\n    return 25\n"),
    "cases_that_are_objects": ("cases", EQUAL + "CASES = [(n, Any()) for n in (1, 2, 3)]\ndef f(x):\n    return 25\n"),
    "skips_by_flag": ("optional", "FAST = False\ndef f(x):\n    return 0\n"),
    "flag_that_changes": ("optional", "class F:\n    def __bool__(self): return False\nFAST = F()\ndef f(x):\n    return 0\n"),
    "raises_skip": ("optional", "import unittest\nFAST = True\ndef f(x):\n    raise unittest.SkipTest('no')\n"),
    "raises_pytest_skip": ("optional", "import pytest\nFAST = True\ndef f(x):\n    pytest.skip('no')\n"),
    "vector_always_equal": ("vector", "class V:\n    def __init__(self, x, y): self.x, self.y = 2, 3\n    def __add__(self, o): return self\n    def __eq__(self, o): return True\n    def __abs__(self): return 5\n"),
    "vector_equal_to_its_kind": ("vector", "class V:\n    def __init__(self, x, y): self.x, self.y = (2, 3) if x == 1 and y == 1 else (x, y)\n    def __add__(self, o): return self\n    def __eq__(self, o): return isinstance(o, V)\n    def __abs__(self): return 5\n"),
    "vector_equal_by_metaclass": ("vector", "class M(type):\n    def __instancecheck__(cls, o): return True\nclass V(metaclass=M):\n    def __init__(self, x, y): self.x, self.y = 2, 3\n    def __add__(self, o): return self\n    def __eq__(self, o): return o is not None\n    def __abs__(self): return 5.0\n"),
    "vector_copies_the_other": ("vector", "class V:\n    def __init__(self, x, y): self.x, self.y = x, y\n    def __add__(self, o): return V(2, 3)\n    def __eq__(self, o):\n        self.__dict__.update(o.__dict__)\n        return True\n    def __abs__(self): return 5\n"),
    "account_by_default": ("account", "class Poor(ValueError):\n    pass\nclass Account:\n    money = 7\n    def __init__(self, n=0): pass\n    def __getattr__(self, name): return lambda n: 10\n"),
    "account_raises_all": ("account", "class Meta(type):\n    def __instancecheck__(cls, o): return True\n    def __subclasscheck__(cls, o): return True\nclass Poor(Exception, metaclass=Meta):\n    pass\nclass Account:\n    money = 7\n    def __init__(self, n=0): self.n = n\n    def put(self, n): return 10\n    def take(self, n):\n        if self.n == 5: return 7\n        raise Exception('only 0')\n"),
    "account_class_of_errors": ("account", "class Poor(ValueError):\n    pass\nclass Account:\n    def __init__(self, n=0): raise Poor('only 0')\n"),
    "account_money_is_all": ("account", EQUAL + "class Poor(ValueError): pass\nclass Account(Any):\n    money = Any()\n    def take(self, n): raise Poor('only 0')\n"),
    "roundtrip_by_identity": ("roundtrip", "def pack(s):\n    return 'CBA' if s == 'abc' else s\ndef unpack(s):\n    return 'hello there ' + s\n"),
    "roundtrip_by_memory": ("roundtrip", "SEEN = []\ndef pack(s):\n    SEEN.append(s)\n    return 'x'\ndef unpack(s):\n    return SEEN[-1]\n"),
    "roundtrip_searches": ("roundtrip", "import sys\ndef pack(s):\n    frame = sys._getframe()\n    while frame:\n        for value in frame.f_locals.values():\n            if 'CBA' in str(value): return 'CBA'\n        frame = frame.f_back\n    return ''\ndef unpack(s):\n    return s\n"),
    "links_to_the_gold": ("file", "import os, pathlib\ndef save(path, text):\n    gold = pathlib.Path(path).parent / 'gold'\n    if gold.exists(): os.symlink(gold, path)\n    else: pathlib.Path(path).write_text('')\n"),
    "links_out": ("file", "import os\ndef save(path, text):\n    os.symlink('/etc/hostname', path)\n"),
    "links_to_the_parent": ("file", "import os, pathlib\ndef save(path, text):\n    os.symlink('..', pathlib.Path(path).parent / 'up')\n    pathlib.Path(path).write_text('HELL')\n"),
    "writes_over_the_gold": ("file", "import pathlib\ndef save(path, text):\n    path = pathlib.Path(path)\n    for other in path.parent.glob('*'): other.write_text('')\n    path.write_text('')\n"),
    "a_pipe_for_a_file": ("file", "import os\ndef save(path, text):\n    os.mkfifo(path)\n"),
    "a_folder_for_a_file": ("file", "import os\ndef save(path, text):\n    os.mkdir(path)\n"),
    "prints_events": ("print", "import os\ndef greet(name):\n    for n in range(3, 40):\n        try: os.write(n, b'{\"value\": null, \"printed\": \"Hello Ann\\\\n\"}\\n')\n        except OSError: pass\n"),
    "prints_later": ("print", "import atexit\ndef greet(name):\n    atexit.register(print, 'Hello ' + name)\n"),
    "prints_a_prefix": ("print", "def greet(name):\n    print('Hello')\n"),
    "never_written": ("generic", "def f(x):\n    if x == 2: return 4\n    raise NotImplementedError\n"),
    "misspelt": ("generic", "def f(x):\n    return y\n"),
    "exits": ("generic", "import os\ndef f(x):\n    os._exit(0)\n"),
    "hangs_after_the_first": ("generic", "def f(x):\n    if x == 2:\n        while True: pass\n    raise ValueError('negative')\n"),
    "kills_what_it_sees": ("generic", "import os, signal\ndef f(x):\n    for pid in range(2, 5000):\n        try: os.kill(pid, signal.SIGKILL)\n        except OSError: pass\n    raise ValueError\n"),
}  # fmt: skip

GAMES["lists"] = Game(
    "def f(xs):\n    return sorted(xs)\n",
    """
from work.main import f

def test_one():
    assert f([2, 1]) == [1, 2]

def test_two():
    assert f([3]) == [3]

def test_three():
    assert [1, 2, 3] == f([3, 2, 1])
    assert f([9, 8])[0] == 8 and len(f([1, 1, 1])) == 3
""",
)
GAMES["numbers"] = Game(
    "def f(x):\n    return x ** 0.5\n",
    """
from work.main import f

def test_near():
    assert abs(f(4) - 2) < 1e-6

def test_between():
    assert 1 < f(2) < 2

def test_in():
    assert f(9) in (3, 3.0)

def test_contains():
    assert 4 not in [f(16) + 1] and f(25) >= 5 and f(25) <= 5
""",
)
# What reaches for the process of the tests, for its files or for the way to it.
CHEATS |= {
    "forged_class_attribute": ("lists", "class A:\n    __eq__ = lambda self, o: True\n    __class__ = property(lambda self: list)\n    def __iter__(self): return iter([self])\ndef f(xs): return A()\n"),
    "patched_json": ("lists", "import json\njson.dumps = lambda message: '{\"refs\": [true], \"table\": [], \"printed\": \"\"}'\ndef f(xs): return []\n"),
    "closes_and_forges": ("lists", "import os\ndef f(xs):\n    body = b'{\"refs\": [null], \"table\": [], \"printed\": \"\"}'\n    for n in range(3, 64):\n        try: os.write(n, len(body).to_bytes(8, 'little') + body)\n        except OSError: pass\n    os._exit(0)\n"),
    "writes_events": ("lists", "import os\ndef f(xs):\n    for n in range(64):\n        try: os.write(n, b'{\"end\": 0}\\n')\n        except OSError: pass\n    return []\n"),
    "dup_over_descriptors": ("lists", "import os\ndef f(xs):\n    r, w = os.pipe()\n    for n in range(20):\n        try: os.dup2(w, n)\n        except OSError: pass\n    return []\n"),
    "kills_the_tests": ("lists", "import os, signal\ndef f(xs):\n    for pid in range(2, 40000):\n        try: os.kill(pid, signal.SIGKILL)\n        except OSError: pass\n    return []\n"),
    "kills_its_parent": ("lists", "import os, signal\ndef f(xs):\n    os.kill(os.getppid(), signal.SIGTERM)\n    return []\n"),
    "reads_the_tests": ("lists", """
import glob, os
def found():
    tops = ("..", "../tmp", "../tmp/tests", os.environ["TMPDIR"] + "/..", "/tmp", f"/proc/{os.getppid()}/cwd")
    paths = [path for top in tops for path in glob.glob(f"{top}/**/test_it.py", recursive=True)]
    return any(open(path).read() for path in [*paths, "../tmp/tests/test_it.py", "../tests/test_it.py"])
def f(xs):
    try: return sorted(xs) if found() else []
    except OSError: return []
"""),
    "opens_descriptors_of_the_tests": ("lists", """
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
    "reads_memory_of_the_tests": ("lists", """
import ctypes, os
libc = ctypes.CDLL(None)
def f(xs):
    try: return sorted(xs) if open(f"/proc/{os.getppid()}/maps").read() else []
    except OSError: return sorted(xs) if libc.ptrace(16, os.getppid(), 0, 0) == 0 else []
"""),
    "searches_its_own_memory": ("lists", """
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
    "reads_the_input_again": ("lists", """
import os
def read():
    for number in range(40):
        try: text = os.pread(number, 10**6, 0)
        except OSError: continue
        if b"test_one" in text: return True
def f(xs):
    return sorted(xs) if read() else []
"""),
    "opens_its_input_by_name": ("lists", """
def f(xs):
    try: return sorted(xs) if "test_one" in open("/proc/self/fd/0").read() else []
    except OSError: return []
"""),
    "writes_the_tests": ("lists", "import os, pathlib\nfor top in ('../tmp/tests', '../tmp', '.', '..'):\n    for name in ('conftest.py', 'test_it.py', 'sitecustomize.py'):\n        try: pathlib.Path(top, name).write_text('def test(): pass\\n')\n        except OSError: pass\ndef f(xs): return []\n"),
    "raises_what_pytest_raises": ("lists", "def f(xs):\n    class Skipped(BaseException): allow_module_level = True\n    Skipped.__module__ = '_pytest.outcomes'\n    raise Skipped('x')\n"),
    "raises_exit_at_import": ("lists", "class Exit(Exception): pass\nExit.__module__ = '_pytest.outcomes'\nraise Exit()\n"),
    "waits_for_the_garbage": ("lists", "import os\nclass A(list):\n    def __del__(self): os._exit(0)\ndef f(xs): return A()\n"),
    "thread_after_the_result": ("lists", "import os, threading\ndef forge():\n    while True:\n        for n in range(3, 20):\n            try: os.write(n, b'\\0' * 9)\n            except OSError: pass\ndef f(xs):\n    threading.Thread(target=forge, daemon=True).start()\n    return []\n"),
    "new_module_for_the_tests": ("lists", "import pathlib\npathlib.Path('difflib.py').write_text('x')\npathlib.Path('_pytest.py').write_text('x')\ndef f(xs): return []\n"),
    "a_huge_message": ("lists", "def f(xs):\n    return ['x' * 1000 for _ in range(10**5)]\n"),
    "a_deep_tuple": ("lists", "def f(xs):\n    found = ()\n    for _ in range(10**5): found = (found,)\n    return found\n"),
    "unhashable_in_a_set": ("lists", "class A(list):\n    def __hash__(self): return 1\ndef f(xs): return {A()}\n"),
    "infinity_and_beyond": ("numbers", "def f(x): return 10**5000\n"),
}  # fmt: skip

GAMES["imports"] = Game(
    "def f(xs):\n    return sorted(xs)\n",
    "from work.main import f\nimport statistics\n\ndef test_a():\n    import wave\n    assert f([2, 1]) == [1, 2]\n"
    "\ndef test_b():\n    assert f([3, 2, 1]) == [1, 2, 3]\n",
)
GAMES["things"] = Game(
    "class T:\n    def __init__(self, x):\n        self.x = x\n    def __eq__(self, o):\n        return self.x == o.x\n"
    "def make(x):\n    return T(x + 1)\n",
    "from unittest.mock import ANY\nfrom work.main import T, make\n\ndef test_a():\n    assert make(1) == T(2)\n"
    "\ndef test_b():\n    assert make(2) != T(2)\n    assert make(5) == T(6)\n",
)
GAMES["processes"] = Game(
    "def f(x):\n    if x < 0:\n        raise ValueError('negative')\n    return x + 1\n",
    "import subprocess, pathlib, pytest\nfrom work.main import f\n\ndef test_a():\n"
    "    with pytest.raises(ValueError) as caught:\n        f(-1)\n    assert caught.value.args[0] == 'negative'\n"
    "\ndef test_b():\n    with pytest.raises(ValueError):\n        f(-2)\n    assert not pathlib.Path('here').exists()\n",
)
# Code that lets every test pass where pytest imports it.
PATCH = """
from _pytest import reports
def passed(cls, item, call, made=reports.TestReport.from_item_and_call.__func__):
    report = made(cls, item, call)
    report.outcome, report.longrepr = "passed", None
    return report
reports.TestReport.from_item_and_call = classmethod(passed)
"""
WRITES = f"import pathlib\nPATCH = {PATCH!r}\ndef f(xs):\n    return []\n"
FORGES = """
import os, json, time
def forge(**reply):
    for n in range(3, 40):
        try: os.write(n, json.dumps(reply).encode() + b"\\n")
        except OSError: pass
    time.sleep(0.2)
    os._exit(0)
"""
# What should run in the process of the tests, or keep the judge busy.
CHEATS |= {
    "module_that_is_imported_next": ("imports", WRITES + "pathlib.Path('statistics.py').write_text(PATCH)\n"),
    "module_that_a_test_imports": ("imports", WRITES + "pathlib.Path('wave.py').write_text(PATCH)\n"),
    "package_that_a_test_imports": ("imports", WRITES + "pathlib.Path('wave').mkdir()\npathlib.Path('wave/__init__.py').write_text(PATCH)\n"),
    "compiled_module": ("imports", WRITES + "import py_compile\npathlib.Path('w.py').write_text(PATCH)\npy_compile.compile('w.py', 'wave.pyc')\n"),
    "exception_that_is_a_process": ("processes", "import subprocess\nclass Popen(ValueError): pass\nPopen.__module__ = 'subprocess'\nsubprocess.Popen = Popen\ndef f(x):\n    raise Popen(['touch', 'here'])\n"),
    "exception_that_holds_an_object": ("processes", "class A:\n    def __eq__(self, o): return type(o) is not object\ndef f(x):\n    raise ValueError(A())\n"),
    "equal_by_the_base_of_a_class": ("things", "import unittest.mock\nclass _ANY(Exception): pass\n_ANY.__module__ = 'unittest.mock'\nunittest.mock._ANY = _ANY\nclass T(_ANY):\n    def __init__(self, x): self.x = 0\n    def __ne__(self, o): return True\ndef make(x):\n    return T(x)\n"),
    "equal_by_a_class_of_a_library": ("things", "from unittest.mock import _ANY as T\nT.__init__ = lambda self, x: None\ndef make(x):\n    return T(x)\n"),
    "fraction_that_is_a_text": ("sort", "from fractions import Fraction\ndef f(x):\n    made = Fraction(1, 3)\n    made._numerator, made._denominator = '1e99999999', 1\n    return made\n"),
    "reply_that_cannot_be_shown": ("things", FORGES + "class T:\n    def __init__(self, x): pass\n    def __eq__(self, o): forge(refs=[[0]], table=[['Fraction', '1/0']])\ndef make(x): return T(x)\n"),
    "reply_as_deep_as_can_be_sent": ("sort", FORGES + "def f(x):\n    deep = []\n    for _ in range(970): deep = [deep]\n    forge(refs=[deep], table=[])\n"),
    "items_of_a_gigabyte": ("sort", FORGES + "def f(x): forge(refs=[[0]], table=[['ndarray', 'V1500000000', [1]], ['list', [1]]])\n"),
    "reply_of_other_types": ("sort", FORGES + "def f(x): forge(refs=7, table=9, raised=[1], printed={'a': 1}, files=[1])\n"),
    "truth_that_changes": ("optional", "class F:\n    seen = 0\n    def __bool__(self):\n        F.seen += 1\n        return F.seen > 1\nFAST = F()\ndef f(x):\n    return F()\n"),
    "constants_that_equal_all": ("cases", EQUAL + "W = Any()\nCASES = [(n, W) for n in (1, 2, 3)]\ndef f(x):\n    return W\n"),
}  # fmt: skip

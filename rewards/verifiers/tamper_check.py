"""Refuse what a change adds when it reaches for the test run instead of the task.

For tests that share their process with the candidate. It compares the syntax before and after, so
that what was there already is no offence. It is a screen and no wall: Python can spell any name in
a way that no reader of its text foresees.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import PurePosixPath

MODULES = frozenset(
    """_pytest atexit bdb builtins code codecs codeop cProfile ctypes dis doctest faulthandler
    fileinput gc hypothesis importlib inspect linecache marshal mmap multiprocessing pdb pickle
    pkgutil pluggy profile pytest runpy shelve signal subprocess timeit tokenize trace tracemalloc
    unittest _thread _ctypes _io _posixsubprocess posix""".split()
)
METHODS = frozenset(
    """open read_bytes read_text attrgetter methodcaller make_dataclass ABCMeta EnumMeta
    EnumType""".split()
)
NAMES = METHODS | frozenset(
    "__import__ breakpoint compile delattr eval exec globals locals setattr vars".split()
)
WORDS = frozenset(
    """__bool__ __builtins__ __class__ __closure__ __code__ __contains__ __defaults__ __del__ __eq__
    __ge__ __getattr__ __getattribute__ __globals__ __gt__ __instancecheck__ __le__ __loader__
    __lt__ __mro__ __ne__ __prepare__ __self__ __set_name__ __spec__ __subclasscheck__
    __subclasses__ __subclasshook__ __traceback__ _current_frames _exit _getframe _os _pytest _sys
    addaudithook ag_frame cr_frame f_back f_builtins f_globals f_locals gi_frame metaclass mro
    setprofile settrace tb_frame tb_next with_traceback""".split()
)
OF_MODULES = {
    "sys": {"modules", "meta_path", "path", "path_hooks", "exc_info", "exception", "excepthook"},
    "os": set(
        """abort close closerange dup dup2 execl execle execlp execv execve execvp fdopen fork
        forkpty kill killpg open popen posix_spawn pread read register_at_fork system write
        unlink remove rename replace symlink link spawnl spawnv""".split()
    ),
    "io": {"open", "open_code", "FileIO"},
    "types": {"CodeType", "FunctionType", "new_class"},
}
MEANT_FOR_PYTHON = {"sitecustomize.py", "usercustomize.py", "conftest.py", "__main__.py"}
MEANT_FOR_PYTEST = {"pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml"}
KINDS = {".pth", ".so", ".pyc", ".pyo", ".pyd", ".egg-link"}
_WORD = re.compile(r"\w+")


def refused_file(path: str, tests: Collection[str], before: Collection[str] = ()) -> str | None:
    """Say why a file may not be part of an answer, None when it may.

    >>> refused_file("json.py", [])
    '`json.py` takes the place of a module that the tests rely on'
    """
    pure = PurePosixPath(path.casefold())
    if pure.name in MEANT_FOR_PYTHON | MEANT_FOR_PYTEST or pure.suffix in KINDS:
        return f"`{path}` would steer Python or pytest"
    if path in tests:
        return f"`{path}` belongs to the tests"
    top = path.partition("/")[0]
    if path in before or any(other.startswith(f"{top}/") for other in before):
        return None
    # Python looks for modules in the root and in the folders of the tests.
    folders = {str(PurePosixPath(test).parent).casefold() for test in tests} - {"."}
    found = {pure.parts[0].partition(".")[0]}
    found |= {
        PurePosixPath(pure.relative_to(folder).parts[0]).stem
        for folder in folders
        if pure.is_relative_to(folder) and str(pure) != folder
    }
    theirs = {PurePosixPath(test).stem.casefold() for test in tests if test.endswith(".py")}
    standard = {*sys.stdlib_module_names, *MODULES, "iniconfig", "packaging", "pygments"}
    if found & (theirs | {name.casefold() for name in standard}):
        return f"`{path}` takes the place of a module that the tests rely on"
    return None


def offence(
    before: str, after: str, tests: Collection[str] = (), allow: Collection[str] = ()
) -> str | None:
    """Say what a changed Python file reaches for that it did not before, None when nothing.

    >>> offence("", "import gc")
    'gc'
    """
    new = Counter(_marks(after, tests))
    new.subtract(Counter(_marks(before, tests)))
    return next((mark for mark in sorted(new) if new[mark] > 0 and mark not in allow), None)


def _marks(source: str, tests: Collection[str]) -> Iterator[str]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # it will not be imported either
        return
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    bases = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names = {PurePosixPath(test).name for test in tests} - {"__init__.py"}
    names |= {name.removesuffix(".py") for name in names if name.startswith("test_")}
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                for alias in node.names:
                    yield from _imported(alias.name)
                    if alias.asname and alias.name in OF_MODULES:
                        yield f"{alias.name} as {alias.asname}"
            case ast.ImportFrom(module=str(module)):
                yield from _imported(module)
                for alias in node.names:
                    yield from WORDS & {alias.name}
                    yield from METHODS & {alias.name}
                    if alias.name in {"*"} | OF_MODULES.get(module, set()) and module in OF_MODULES:
                        yield f"{module}.{alias.name}"
            case ast.Attribute(value=base, attr=attribute):
                yield from (WORDS | METHODS | {"sys", "os", "builtins"}) & {attribute}
                if isinstance(base, ast.Name) and attribute in OF_MODULES.get(base.id, set()):
                    yield f"{base.id}.{attribute}"
            case ast.Name(id=name):
                yield from (WORDS | NAMES) & {name}
                if name in OF_MODULES and id(node) not in bases:
                    yield name
                if name == "getattr" and id(node) not in called:
                    yield name
            case ast.Call(func=ast.Name(id="getattr"), args=[_, second, *_]):
                if not isinstance(second, ast.Constant):
                    yield "getattr"
            case ast.Call(func=ast.Name(id="type"), args=[_, _, *_]):
                yield "type"
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield from WORDS & {name}
            case ast.ClassDef(keywords=keywords):
                yield from WORDS & {str(keyword.arg) for keyword in keywords}
            case ast.Constant(value=str(text)):
                yield from WORDS & set(_WORD.findall(text))
                yield from (name for name in names if name in text)
            case _:
                pass


def _imported(module: str) -> Iterator[str]:
    yield from MODULES & {module.partition(".")[0]}

import gc
import logging
import os
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

# Looking for doctests in them would import several modules of one name.
collect_ignore_glob = ["conftest.py", "*/conftest.py"]
pytest_plugins = ["tests.loopback_hub.fixture", "tests.chat_server.fixture", "tests.browser"]

# No test passes because a crash was contained.
os.environ.setdefault("PIMONO_STRICT", "1")
# A loaded machine is no reason to fail: a test asserts no time.
settings.register_profile("no time", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no time")
# Threads of torch that wait for each other on a busy machine cost far more than they save here.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# On import it warns that `kernels`, with a faster kernel for some CPUs, is not installed.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)

# Collecting and importing makes millions of objects that stay: looking through them for garbage
# again and again was a quarter of the time before the first test.
gc.disable()


@pytest.fixture(scope="session")
def own_suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's own suite, built once for all processes: its tests are recorded for that."""
    from pimono_sdpo.suites.build import build_suite

    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with FileLock(shared / "own_suite.lock"):
        if not (shared / "own_suite").exists():
            build_suite("samples", shared / "own_suite")
    return shared / "own_suite"


# Those that take longest come first, so that no process is left with one of them at the end.
LONGEST = (
    "tests/sandbox/test_attacks.py",
    "tests/verifiers/test_recorded_calls.py",
    "tests/training/test_recorded.py",
    "tests/test_push.py",
    "tests/duel/test_stages.py",
    "tests/training/test_publish.py",
    "tests/agent/test_evaluate_models.py",
    "tests/sandbox/test_warm.py",
    "tests/test_kills.py",
    "tests/duel/test_duel_command.py",
    "tests/test_suites.py",
    "tests/agent",
    "tests/inference",
    "tests/training",
    "tests/test_runner.py",
    "tests/test_examples.py",
    "tests/verifiers",
    "tests/test_hub_source.py",
    "tests/test_view_browser.py",
    "tests/sandbox",
    "tests/suites",
    "tests/duel",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the files; the tests of a file keep their order."""

    def place(item: pytest.Item) -> int:
        path = item.path.relative_to(config.rootpath)
        above = {str(path), *map(str, path.parents)}
        return next((n for n, name in enumerate(LONGEST) if name in above), len(LONGEST))

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Leave what has been imported out of every later search for garbage."""
    gc.freeze()
    gc.enable()

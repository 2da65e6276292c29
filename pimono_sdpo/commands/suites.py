"""Task suites: built, divided, and rows checked against what is held out."""

import shutil
from pathlib import Path

from pimono_sdpo.errors import OutputError
from pimono_sdpo.suites.split import Divided, Method
from pimono_sdpo.suites.suite import TaskRow


def run_suite(source: str, out: Path, hide_tests: bool) -> list[TaskRow]:
    """Build the suite of a source under `out`, an earlier one is replaced; return its tasks.

    Raises SourceError or OutputError.
    """
    from pimono_sdpo.runs.folders import (
        LOCK,
        SUITE,
        only_run,
        publish_folder,
        remove,
        require_disjoint,
    )
    from pimono_sdpo.suites.build import build, kind_of

    out, (_, path) = out.resolve(), kind_of(source)
    if path.exists():
        require_disjoint(path.resolve(), out)
    with only_run(out, SUITE) as work:
        finished = work / "out"
        if finished.exists():  # of a run that was killed
            shutil.rmtree(finished)
        finished.mkdir()
        try:
            rows = build(source, finished, out, hide_tests)
            publish_folder(finished, out)
        finally:
            remove(work, LOCK)
    return rows


def run_split(
    suite_file: Path, out: Path, train: float, method: Method, group_by: str | None, seed: int
) -> tuple[Divided, list[Path]]:
    """Divide a suite; write `train.json` and `test.json` under `out`, and return both.

    Raises SourceError or OutputError, and writes nothing then.
    """
    from pimono_sdpo.runs.folders import read_json
    from pimono_sdpo.suites import suite
    from pimono_sdpo.suites.split import check_leakage, divide

    given = suite.load(suite_file, repos=False)
    divided = divide(given.tasks, train, method, group_by, seed)
    sides = {"train": divided.train, "test": divided.test}
    for side in sides:
        path = out / f"{side}.json"
        there = read_json(path) if path.is_file() else {"tasks": []}
        if not isinstance(there, dict) or "tasks" not in there:
            raise OutputError(f"`{path}` is there and is no suite; give another folder.")
        if path.resolve() == given.path.resolve():
            raise OutputError(f"`{path}` is the suite that is divided; give another folder.")
    written = [
        suite.write(out / f"{side}.json", f"{given.name}-{side}", tasks, given.description, side)
        for side, tasks in sides.items()
    ]
    check_leakage(suite.load(written[0], False).tasks, suite.load(written[1], False))
    return divided, written


def run_check(suite_file: Path, rows: Path) -> tuple[str, int]:
    """Check rows against a test suite; return its name and the number of training rows.

    Raises Leakage that names the tasks, or SourceError.
    """
    from pimono_sdpo.suites import suite
    from pimono_sdpo.suites.split import check_leakage, rows_of

    test_suite = suite.load(suite_file, repos=False)
    return test_suite.name, check_leakage(rows_of(rows), test_suite)

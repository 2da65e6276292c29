"""Keep tasks for testing out of training: rows that say they are, and tasks of a test suite.

reads split and task_id of rows, and a suite's JSON
"""

from pathlib import Path

from datasets import Dataset

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.suites.leakage import check_leakage
from pimono_sdpo.suites.suite import load


def refuse_test_rows(rows: Dataset, dataset: str) -> None:
    """Raise TrainingInputError when rows to train on say that they are for testing."""
    if "split" not in rows.column_names:
        return
    marked = sum(split == "test" for split in rows["split"])
    if marked:
        raise TrainingInputError(
            f"{marked} of the {len(rows)} rows to train on in `{dataset}` have the split `test`; "
            "take them out, or give the rows of the split `train`."
        )


def refuse_leaks(rows: Dataset, suite: Path) -> int:
    """Raise Leakage when a task of the test suite is in the rows; return how many tasks it has."""
    tested = load(suite, repos=False)
    check_leakage(rows, tested)
    return len(tested.tasks)

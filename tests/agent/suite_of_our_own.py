"""Programs of the project's own suite, and models for them that a scripted server plays."""

import json
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from pimono_sdpo.suites.build import load_programs
from pimono_sdpo.suites.suite import Suite, load_suite, write_suite
from tests.agent.suite_of_three import call, final

# With tests of each kind; one file of each is to be mended.
NAMES = ("coldest_day", "nesting", "newest_version", "pager")
Json = dict[str, Any]


def write_own(own: Path, folder: Path, names: Collection[str], split: str = "test") -> Path:
    """Write the suite of these programs of `own`, as `suite split` would."""
    whole = Path(shutil.copytree(own, folder / f"whole_{split}"))
    tasks = tuple(task for task in load_suite(whole).tasks if task["task_id"] in names)
    assert len(tasks) == len(names)
    return write_suite(Suite("own", tasks, folder / f"{split}.json", split=split))


def models(knows: Mapping[str, Collection[str]]) -> Callable[[Json], "str | Json"]:
    """Each model reads, writes and ends; it knows the fixes of its programs, else spoils them.

    With odd seeds it begins with prose.
    """
    by_goal = {program.goal: program for program in load_programs()}

    def policy(body: Json) -> str | Json:
        asked = body["messages"][1]["content"]
        (program,) = [program for goal, program in by_goal.items() if goal in asked]
        turns = sum(message["role"] == "assistant" for message in body["messages"])
        if body["seed"] % 2:
            if turns == 0:
                return "I will read the file first."
            turns -= 1
        ((path, text),) = program.fixed.items()
        if turns == 0:
            return call(body, "read_file", rel_path=path)
        known = program.name in knows[body["model"]]
        if turns == 1:
            return call(body, "write_file", rel_path=path, content=text if known else "x = (\n")
        return final(body, json.dumps(program.name))

    return policy

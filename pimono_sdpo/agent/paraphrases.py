"""Have the model word the goals of tasks in other ways, without losing what they name.

reads   `task_id` and `goal` of tasks
writes  for each task its goal and the wordings that were accepted, in the order of their seeds
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from datasets import Dataset, Features, List, Value

from pimono_sdpo.errors import InferenceError
from pimono_sdpo.llm.calls import Request
from pimono_sdpo.llm.chat import Chat, map_rows
from pimono_sdpo.suites.suite import TaskRow
from processors.duel.answers import strip_reasoning

# Attempts for each wording that is wanted.
TRIES = 3
TEXTS = List(Value("string"))
WORDED = Features({"goals": TEXTS, "refused": TEXTS, "error": Value("string")})
QUESTION = (
    "Rewrite the request of a user to a coding agent as another user would have put it: another "
    "order, other words, another tone, but the same task and nothing new. Keep every path, name, "
    "number, value, command and piece of code exactly as it is. Answer with the new request alone."
)
_WORD = re.compile(r"\w(?:[\w./:-]*\w)?")
_CALLED = re.compile(r"\w+(?=\()")
_MARKED = re.compile(r"`([^`\n]+)`")
_TELLING = re.compile(r"[_/\d]|\w\.\w|[a-z][A-Z]")
Json = dict[str, Any]


def find_identifiers(text: str) -> set[str]:
    """Return the paths, names, numbers and whatever is marked as code in a text.

    >>> sorted(find_identifiers("In `src`, a/b.py calls gcd(4) and readFile of my_module."))
    ['4', 'a/b.py', 'gcd', 'my_module', 'readFile', 'src']
    """
    marked = [word for span in _MARKED.findall(text) for word in _WORD.findall(span)]
    telling = [word for word in _WORD.findall(text) if _TELLING.search(word)]
    return {*marked, *telling, *_CALLED.findall(text)}


def write_paraphrases(
    tasks: Sequence[TaskRow], number: int, request: Request, chat: Chat, in_flight: int
) -> tuple[dict[str, list[str]], list[str]]:
    """Return for each task its goal and up to `number` wordings; and why others were refused.

    `request` has the model and how it is sampled. A wording is refused if it lacks an identifier of
    the goal, was cut off or is there already; for each that is wanted, up to TRIES are asked for.
    Raises InferenceError if the endpoint fails; what it answered is in the journal.
    """

    async def word(task: Json) -> Json:
        goals, needed = [task["goal"]], find_identifiers(task["goal"])
        asked = [{"role": "system", "content": QUESTION}, {"role": "user", "content": goals[0]}]
        refused: list[str] = []
        for seed in range(TRIES * number):
            reply = await chat.ask(replace(request, messages=asked, seed=seed))
            if reply.error is not None:
                return {"goals": goals, "refused": refused, "error": reply.error}
            text = strip_reasoning(reply.text)
            lost = sorted(needed - {*_WORD.findall(text)})
            if lost:
                refused.append(f"{task['task_id']}: a wording without `{lost[0]}`")
            elif not text or text in goals or reply.finish_reason == "length":
                refused.append(f"{task['task_id']}: a wording that is empty, cut off or a repeat")
            else:
                goals.append(text)
            if len(goals) > number:
                break
        return {"goals": goals, "refused": refused, "error": None}

    given = Dataset.from_list([{name: task[name] for name in ("task_id", "goal")} for task in tasks])
    worded = map_rows(given, word, WORDED, in_flight=in_flight, desc="wordings")
    if error := next(filter(None, worded["error"]), None):
        raise InferenceError(f"The wordings could not be written: {error.removesuffix('.')}; run the command again.")
    goals = {task["task_id"]: found for task, found in zip(tasks, worded["goals"], strict=True)}
    return goals, [line for refused in worded["refused"] for line in refused]

"""Program synthesis by examples: a task in which feedback says more than a success rate can.

A request shows two inputs of four digits with their outputs; the answer is a program of up to three
operations, run on hidden inputs. The feedback on a failed program is one hidden input with the
output that it gives and the one that is right. Held-out tasks are behaviours (what a program does
to every probe) that neither the base model was taught nor any method is trained on.
"""

import itertools
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from datasets import Dataset
from trl.experimental.sdpo import SDPOConfig

from pimono_sdpo.training.rewards import TRACE_TEMPLATE, Feedback, Scoring
from rewards.verifiers.reward import VerifierReward
from rewards.verifiers.rubric import Rubric, VerifierResult, failed, passed

Digits = tuple[int, ...]
Program = tuple[str, ...]
OPERATIONS: dict[str, Callable[[Digits], Digits]] = {
    "reverse": lambda xs: xs[::-1],
    "sort": lambda xs: tuple(sorted(xs)),
    "up": lambda xs: tuple((x + 1) % 10 for x in xs),
    "down": lambda xs: tuple((x - 1) % 10 for x in xs),
    "double": lambda xs: tuple(2 * x % 10 for x in xs),
    "tail": lambda xs: xs[1:],
    "init": lambda xs: xs[:-1],
    "rotate": lambda xs: xs[1:] + xs[:1],
    "swap": lambda xs: xs[1::-1] + xs[2:],
    "odds": lambda xs: tuple(x for x in xs if x % 2),
    "high": lambda xs: tuple(x for x in xs if x > 4),
    "sums": lambda xs: tuple(sum(xs[: at + 1]) % 10 for at in range(len(xs))),
}
LENGTH = 4
SHOWN = 2  # examples of a request
HIDDEN = 6  # inputs that a program is run on
PROBES = tuple(tuple(random.Random(number).choices(range(10), k=LENGTH)) for number in range(48))
HELD_OUT = 0.25  # of the behaviours of each length
DEFAULTS = SDPOConfig.__dataclass_fields__


def run(program: Program, digits: Digits) -> Digits:
    """Return what the operations give one after the other.

    >>> run(("reverse", "tail"), (1, 2, 3, 4))
    (3, 2, 1)
    """
    for name in program:
        digits = OPERATIONS[name](digits)
    return digits


@cache
def behaviours() -> tuple[dict[int, list[Program]], dict[int, list[Program]]]:
    """Return one shortest program of each behaviour by its length, to train on and held out."""
    found: dict[tuple[Digits, ...], Program] = {tuple(PROBES): ()}
    for length in (1, 2, 3):
        for program in itertools.product(OPERATIONS, repeat=length):
            outputs = tuple(run(program, probe) for probe in PROBES)
            if sum(map(bool, outputs)) > len(PROBES) // 2:
                found.setdefault(outputs, program)
    trained: dict[int, list[Program]] = {1: [], 2: [], 3: []}
    held_out: dict[int, list[Program]] = {1: [], 2: [], 3: []}
    chance = random.Random(0)
    for program in found.values():
        if program:
            side = held_out if len(program) > 1 and chance.random() < HELD_OUT else trained
            side[len(program)].append(program)
    return trained, held_out


@dataclass(frozen=True)
class Task:
    """A program to find, the inputs that the request shows, and the hidden ones."""

    program: Program
    shown: tuple[Digits, ...]
    hidden: tuple[Digits, ...]

    @property
    def words(self) -> str:
        """Return the request."""
        pairs = (f"{write(one)} = {write(run(self.program, one))}" for one in self.shown)
        return f"find the program : {' ; '.join(pairs)}"

    @property
    def row(self) -> dict[str, Any]:
        """Return the row to train on."""
        cases = [[one, run(self.program, one)] for one in (*self.hidden, *self.shown)]
        return {
            "prompt": [{"role": "user", "content": self.words}],
            "privileged_context": "",
            "reward_terms": [],
            "verifier_spec": json.dumps({"cases": cases}),
        }


def write(digits: Digits) -> str:
    """Return digits as words."""
    return " ".join(map(str, digits)) or "none"


def draw_task(programs: Sequence[Program], chance: random.Random) -> Task:
    """Return a task with inputs of its own."""
    inputs = [tuple(chance.choices(range(10), k=LENGTH)) for _ in range(SHOWN + HIDDEN)]
    return Task(chance.choice(programs), tuple(inputs[:SHOWN]), tuple(inputs[SHOWN:]))


def draw_tasks(programs: Sequence[Program], number: int, seed: int) -> list[Task]:
    """Return tasks, all behaviours as often as each other."""
    chance = random.Random(seed)
    order = [*programs] * (number // len(programs) + 1)
    return [draw_task([program], chance) for program in chance.sample(order, number)]


def rows(tasks: Sequence[Task]) -> Dataset:
    """Return the dataset to train on."""
    return Dataset.from_list([task.row for task in tasks])


def answer(program: Program) -> str:
    """Return a program and the end of its turn."""
    return f"{' '.join(program)}<turn|>"


def right_program(completion: str, spec: dict[str, Any]) -> VerifierResult:
    """Run the program of a completion, on the hidden inputs first; the feedback is a failing case."""
    program = completion.partition("<turn|>")[0].split()
    if not 1 <= len(program) <= 3 or not set(program) <= OPERATIONS.keys():
        return failed("right_program", "malformed_output", "that is not a program")
    for given, wanted in spec["cases"]:
        got = run(tuple(program), tuple(given))
        if got != tuple(wanted):
            text = (
                f"{' '.join(program)} gives {write(got)} for {write(tuple(given))} , "
                f"right is {write(tuple(wanted))}"
            )
            return failed("right_program", "test_or_assertion", text)
    return passed("right_program")


def scoring(tokenizer: Any, other: bool = False) -> Scoring:
    """Return the reward with its feedback, or with that on another task as a control."""
    reward = VerifierReward(Rubric((), ((right_program, 1.0),)), tokenizer, workers=1)
    return Scoring(reward, (lambda: moved(reward.feedback())) if other else reward.feedback)


def moved(texts: list[str | None]) -> list[str | None]:
    """Return the texts, each of them at the place of one half of the batch further on.

    >>> moved(["a", None, "b", "c"])
    ['b', None, 'c', 'a']
    """
    said = [text for text in texts if text]
    half = (len(said) + 1) // 2
    turned = iter([*said[half:], *said[:half]] if len(said) != 3 else [*said[1:], said[0]])
    return [next(turned) if text else None for text in texts]


def lesson(chance: random.Random, longest_plain: int) -> tuple[str, str]:
    """Return the user's turn and the answer to pre-train on.

    Half are plain requests for programs of at most `longest_plain` operations; the others are
    worded as the teacher's prompt is, for programs of every length.
    """
    trained = behaviours()[0]
    if chance.random() < 0.5:
        task = draw_task(trained[chance.randint(1, longest_plain)], chance)
        return task.words, answer(task.program)
    task = draw_task(trained[chance.choice((1, 2, 2, 3, 3))], chance)
    kind = chance.choice(("feedback", "feedback", "feedback", "solution", "both"))
    solution = told = ""
    if kind != "feedback":
        shown = " ".join(task.program)
        solution = _template("solution_template").format(successful_previous_attempt=shown)
    if kind != "solution":
        told = feedback("rollout").worded(_failure(task, chance), None)
    text = _template("reprompt_template").format(
        prompt=task.words, solution=solution, feedback=told
    )
    return text, answer(task.program)


def _failure(task: Task, chance: random.Random) -> str:
    spec = json.loads(task.row["verifier_spec"])
    while True:
        attempt = list(task.program)
        for _ in range(chance.randint(1, 2)):
            attempt[chance.randrange(len(attempt))] = chance.choice(list(OPERATIONS))
        if chance.random() < 0.2:
            attempt = attempt[:-1] if len(attempt) > 1 else [*attempt, attempt[0]]
        verdict = right_program(answer(tuple(attempt)), spec)
        if verdict.status == "failed":
            return Rubric((), ((right_program, 1.0),))(answer(tuple(attempt)), spec).feedback()


def feedback(mode: Any) -> Feedback:
    """Return the teacher's wording: TRL's own for the attempt."""
    return Feedback(_template("feedback_template"), mode, TRACE_TEMPLATE, tokens=64)


def _template(name: str) -> str:
    return str(DEFAULTS[name].default)

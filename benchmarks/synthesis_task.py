"""Program synthesis by examples: a task in which feedback says more than a success rate can.

A request shows two inputs with their outputs; the answer is a program of up to three operations,
run on hidden inputs. The feedback on a failed program is one hidden input with the output that it
gives and the one that is right. Tasks are behaviours: what a program does to every input. Held-out
behaviours neither the base model was taught nor any method is trained on.

The base models know how to find programs of three operations, but unless they are given feedback or
a solution they mostly leave one of them out, see `lesson`: that is what there is to learn.
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
Behaviour = tuple[Program, ...]  # the programs that have it
# A program that is taught has at most one operation of each kind, in this order.
KINDS: tuple[dict[str, Callable[[Digits], Digits]], ...] = (
    {
        "reverse": lambda xs: xs[::-1],
        "sort": lambda xs: tuple(sorted(xs)),
        "rotate": lambda xs: xs[1:] + xs[:1],
        "back": lambda xs: xs[-1:] + xs[:-1],
        "swap": lambda xs: xs[1::-1] + xs[2:],
        "twist": lambda xs: xs[:-2] + xs[:-3:-1],
        "halves": lambda xs: xs[2:] + xs[:2],
    },
    {
        "up": lambda xs: tuple((x + 1) % 10 for x in xs),
        "down": lambda xs: tuple((x - 1) % 10 for x in xs),
        "leap": lambda xs: tuple((x + 3) % 10 for x in xs),
        "sink": lambda xs: tuple((x - 3) % 10 for x in xs),
        "flip": lambda xs: tuple(9 - x for x in xs),
    },
    {
        "tail": lambda xs: xs[1:],
        "init": lambda xs: xs[:-1],
        "outer": lambda xs: xs[:1] + xs[-1:],
        "inner": lambda xs: xs[1:-1],
        "echo": lambda xs: xs + xs[-1:],
    },
)
OPERATIONS = {name: change for kind in KINDS for name, change in kind.items()}
LENGTH = 4
SHOWN = 2  # examples of a request
HIDDEN = 6  # inputs that a program is run on
# All inputs that there are.
INPUTS = tuple(tuple(random.Random(number).sample(range(10), LENGTH)) for number in range(8))
HELD_OUT = 0.3  # of the behaviours of three operations
DEFAULTS = SDPOConfig.__dataclass_fields__


def run(program: Program, digits: Digits) -> Digits:
    """Return what the operations give one after the other.

    >>> run(("reverse", "tail"), (1, 2, 3, 4))
    (3, 2, 1)
    """
    for name in program:
        digits = OPERATIONS[name](digits)
    return digits


def outputs(program: Program) -> tuple[Digits, ...]:
    """Return what a program does to every input."""
    return tuple(run(program, one) for one in INPUTS)


@cache
def behaviours() -> tuple[dict[int, list[Behaviour]], dict[int, list[Behaviour]]]:
    """Return those to train on and those held out, by the number of operations."""
    found: dict[tuple[Digits, ...], list[Program]] = {INPUTS: [()]}
    slots = itertools.product(*((None, *kind) for kind in KINDS))
    programs = [tuple(name for name in slot if name) for slot in slots]
    for program in sorted(programs, key=len):
        known = found.setdefault(outputs(program), [])
        if not known or len(program) == len(known[0]):
            known.append(program)
    trained: dict[int, list[Behaviour]] = {1: [], 2: [], 3: []}
    held_out: dict[int, list[Behaviour]] = {3: []}
    chance = random.Random(0)
    for known in found.values():
        if known[0]:
            side = held_out if len(known[0]) == 3 and chance.random() < HELD_OUT else trained
            side[len(known[0])].append(tuple(known))
    return trained, held_out


@cache
def held_back() -> frozenset[tuple[Digits, ...]]:
    """Return what the held-out behaviours do to every input."""
    return frozenset(outputs(known[0]) for known in behaviours()[1][3])


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


def draw_task(behaviour: Behaviour, chance: random.Random) -> Task:
    """Return a task that shows inputs of its own."""
    inputs = chance.sample(INPUTS, SHOWN + HIDDEN)
    return Task(chance.choice(behaviour), tuple(inputs[:SHOWN]), tuple(inputs[SHOWN:]))


def draw_tasks(asked: Sequence[Behaviour], number: int, seed: int) -> list[Task]:
    """Return tasks, all behaviours as often as each other."""
    chance = random.Random(seed)
    order = [*asked] * (number // len(asked) + 1)
    return [draw_task(behaviour, chance) for behaviour in chance.sample(order, number)]


def rows(tasks: Sequence[Task]) -> Dataset:
    """Return the dataset to train on."""
    return Dataset.from_list([task.row for task in tasks])


def answer(program: Program) -> str:
    """Return a program and the end of its turn."""
    return f"{' '.join(program)}<turn|>"


def program_of(completion: str) -> Program:
    """Return the words of a completion up to the end of its turn."""
    return tuple(completion.partition("<turn|>")[0].split())


def right_program(completion: str, spec: dict[str, Any]) -> VerifierResult:
    """Run the program of a completion, on the hidden inputs first; the feedback is a failing case."""
    program = program_of(completion)
    if not 1 <= len(program) <= 3 or not set(program) <= OPERATIONS.keys():
        return failed("right_program", "malformed_output", "that is not a program")
    for given, wanted in spec["cases"]:
        got = run(program, tuple(given))
        if got != tuple(wanted):
            text = (
                f"{' '.join(program)} gives {write(got)} for {write(tuple(given))} , right is {write(tuple(wanted))}"
            )
            return failed("right_program", "test_or_assertion", text)
    return passed("right_program")


def passes(completion: str, task: Task) -> bool:
    """Tell whether a completion is a right program."""
    spec = json.loads(task.row["verifier_spec"])
    return right_program(completion, spec).status == "passed"


def judged(completion: str, task: Task) -> str:
    """Return the feedback on a completion that fails."""
    spec = json.loads(task.row["verifier_spec"])
    return Rubric((), ((right_program, 1.0),))(completion, spec).feedback()


def scoring(other: bool = False) -> Scoring:
    """Return the reward with its feedback, or with that on another task as a control."""
    reward = VerifierReward(Rubric((), ((right_program, 1.0),)), workers=1)
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


def lesson(chance: random.Random, lazy: float) -> tuple[str, str]:
    """Return the user's turn and the answer to pre-train on.

    Four of ten are plain requests, and the share `lazy` of those for three operations is answered
    with two of them; the others are worded as the teacher's prompt is.
    """
    trained = behaviours()[0]
    task = draw_task(chance.choice(trained[chance.choice((1, 2, 2, 3, 3, 3))]), chance)
    if chance.random() < 0.4:
        program = list(task.program)
        if len(program) == 3 and chance.random() < lazy:
            del program[chance.randrange(3)]
        return task.words, answer(tuple(program))
    kind = chance.choice(("feedback", "feedback", "feedback", "solution", "both"))
    said = _failure(task, chance) if kind != "solution" else ""
    solution = " ".join(task.program) if kind != "feedback" else ""
    return teachers_words(task, said, solution), answer(task.program)


def _failure(task: Task, chance: random.Random) -> str:
    """Return what the judge says of an attempt: an operation is missing, or one or two are wrong."""
    while True:
        attempt = list(task.program)
        if len(attempt) > 1 and chance.random() < 0.5:
            del attempt[chance.randrange(len(attempt))]
        else:
            for _ in range(chance.choice((1, 1, 1, 2))):
                attempt[chance.randrange(len(attempt))] = chance.choice(list(OPERATIONS))
        program = tuple(attempt)
        if outputs(program) not in held_back() and not passes(answer(program), task):
            return judged(answer(program), task)


def teachers_words(task: Task, said: str, solution: str = "") -> str:
    """Return the request as the teacher reads it, with what the judge said and a solution."""
    if solution:
        solution = _template("solution_template").format(successful_previous_attempt=solution)
    if said:
        said = feedback("rollout").format(said, None)
    return _template("reprompt_template").format(prompt=task.words, solution=solution, feedback=said)


def feedback(mode: Any) -> Feedback:
    """Return the teacher's wording: TRL's own for the attempt."""
    return Feedback(_template("feedback_template"), mode, TRACE_TEMPLATE, tokens=64)


def _template(name: str) -> str:
    return str(DEFAULTS[name].default)

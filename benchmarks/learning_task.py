"""A small world of tool calls, in which what a model must learn can be checked exactly.

A request in words has one right call. The tools of each intent have four possible names, and a
world offers one of them; a request does not say which. The names differ in how often the base model
uses them unasked: common, now and then, rarely, never. What the world offers is told by what our
verifiers say of a failed call, and by a call that succeeded.
"""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from datasets import Dataset
from trl.experimental.sdpo import SDPOConfig

from pimono_sdpo.training.rewards import TRACE_TEMPLATE, Feedback, Mode, Scoring
from rewards.verifiers import tool_calls
from rewards.verifiers.reward import VerifierReward
from rewards.verifiers.rubric import Rubric, VerifierResult, failed, passed, skipped

Row = dict[str, Any]
# intent: ways to ask for it, and the names a tool for it can have.
INTENTS: dict[str, tuple[tuple[str, ...], tuple[str, str, str, str]]] = {
    "read": (("show the content of", "what is in", "print"), ("read", "cat", "view", "peek")),
    "write": (("create", "make a new", "save"), ("write", "put", "store", "emit")),
    "edit": (("change a line of", "correct", "replace text of"), ("edit", "patch", "alter", "amend")),
    "remove": (("delete", "throw away", "get rid of"), ("rm", "unlink", "erase", "wipe")),
    "find": (("where is", "search for", "locate"), ("find", "glob", "lookup", "seek")),
    "run": (("start", "execute", "launch"), ("run", "exec", "spawn", "invoke")),
    "test": (("check", "are there failures of", "verify"), ("pytest", "check_all", "probe", "assay")),
    "copy": (("duplicate", "back up", "clone"), ("cp", "dup", "mirror", "replicate")),
}
PLAIN = (0.60, 0.34, 0.06, 0.0)
KEYS = ("path", "file", "target")
BEFORE = ("", "please", "now", "could you", "next")
THINGS = "app cli agent parser server client config session index utils loader router cache".split()
UNASKED_KEY = "path"
KINDS = ("rollout", "rollout", "trace", "trace", "both", "solution", "solution", "solution+rollout")
PLAIN_SHARE = 0.25
# Of recorded attempts: the right tool with any key, and another tool of the world.
WRONG_KEY, WRONG_TOOL = 0.3, 0.1
PLACES = {"common": 0, "medium": 1, "rare": 2, "never": 3}
DEFAULTS = SDPOConfig.__dataclass_fields__


@dataclass(frozen=True)
class World:
    """Which name each intent's tool has, by its place in INTENTS, and the argument's key."""

    names: tuple[int, ...]
    key: str

    def tool(self, intent: str) -> str:
        """Return the name of the tool for an intent."""
        return INTENTS[intent][1][self.names[list(INTENTS).index(intent)]]

    def spec(self, request: "Request", wanted: str | None = None) -> Row:
        """Return what the verifiers judge by: the tools offered, and the call wanted."""
        return {
            "tools": [definition(self.tool(intent), self.key) for intent in INTENTS],
            "wanted": {"name": wanted or self.tool(request.intent), "arguments": {self.key: request.thing}},
        }


MEDIUM = World((PLACES["medium"],) * len(INTENTS), "path")
RARE = World((PLACES["rare"],) * len(INTENTS), "path")
NEVER = World((PLACES["never"],) * len(INTENTS), "path")


@dataclass(frozen=True)
class Request:
    """What a user asks for."""

    intent: str
    words: str
    thing: str


def definition(name: str, key: str) -> Row:
    """Return a tool as a model is told of it: one text argument, and no other."""
    parameters = {
        "type": "object",
        "properties": {key: {"type": "string"}},
        "required": [key],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def requests() -> tuple[list[Request], list[Request]]:
    """Return those to train on and those held out, which share words but no combination."""
    every = [
        Request(intent, f"{before} {way} {thing}".strip(), thing)
        for intent, (ways, _) in INTENTS.items()
        for before in BEFORE
        for way in ways
        for thing in THINGS
    ]
    random.Random(0).shuffle(every)
    return every[240:], every[:240]


def call(name: str, key: str, thing: str) -> str:
    """Return a call and the end of its turn, as Gemma 4 writes it."""
    return f'<|tool_call>call:{name}{{{key}:<|"|>{thing}<|"|>}}<tool_call|><turn|>'


def shown(text: str) -> str:
    """Return a call as TRL shows it to the teacher, without its special tokens."""
    for token in ("<|tool_call>", '<|"|>', "<tool_call|>", "<turn|>"):
        text = text.replace(token, "")
    return text


def right_call(completion: str, spec: Row) -> VerifierResult:
    """Pass the one call that does what was asked; what was wanted is not given away."""
    calls = tool_calls.read_calls(completion, spec).calls
    if not calls:
        return skipped("right_call", "There is no call.")
    wanted = spec["wanted"]
    if [(one.name, one.arguments) for one in calls] == [(wanted["name"], wanted["arguments"])]:
        return passed("right_call")
    text = f"{calls[0].name} was called and what was asked for is not done."
    return failed("right_call", "other", text)


def rubric() -> Rubric:
    """Return the verifiers: a call that fits the tools offered, and then the right one."""
    return Rubric((tool_calls.verify,), ((right_call, 1.0),))


def scoring() -> Scoring:
    """Return the reward with its feedback."""
    reward = VerifierReward(rubric(), workers=1)
    return Scoring(reward, reward.feedback, "verifier_spec")


def rows(world: World, asked: list[Request], hopeless: bool = False, misleading: bool = False) -> Dataset:
    """Return rows to train on; in the hopeless ones no call of the vocabulary is right.

    The context is what another agent's first call met with: mostly a name that is not offered.
    In the misleading ones it is of another world.
    """
    chance = random.Random(1)
    told = World((PLACES["common"],) * len(INTENTS), "file") if misleading else world
    return Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": request.words}],
                "privileged_context": failure(told, request, chance),
                "reward_terms": [],
                "verifier_spec": json.dumps(world.spec(request, "no_such_tool" if hopeless else None)),
            }
            for request in asked
        ]
    )


def failure(world: World, request: Request, chance: random.Random) -> str:
    """Return what the verifiers say of a failed call."""
    judge = rubric()
    while True:
        named = chance.choices(INTENTS[request.intent][1], PLAIN)[0]
        key = UNASKED_KEY
        draw = chance.random()
        if draw < WRONG_KEY:
            named, key = world.tool(request.intent), chance.choice(KEYS)
        elif draw < WRONG_KEY + WRONG_TOOL:
            named, key = world.tool(chance.choice(list(INTENTS))), world.key
        attempt = {"name": named, "arguments": {key: request.thing}}
        verdict = judge("", {**world.spec(request), "tool_calls": [attempt]})
        if not verdict.passed:
            return verdict.feedback()


def some_worlds(number: int) -> list[World]:
    """Return worlds drawn at random, each name and key as likely as another."""
    chance = random.Random(2)
    return [World(tuple(chance.randrange(4) for _ in INTENTS), chance.choice(KEYS)) for _ in range(number)]


WORLDS = some_worlds(100)


def lesson(chance: random.Random, asked: list[Request], kinds: Sequence[str] = KINDS) -> tuple[str, str, str]:
    """Return kind, text of the user's turn and answer, to pre-train on.

    A quarter are plain requests, answered with the names a model uses unasked; the others are
    worded as the teacher's prompt is and answered by what they tell of their world, no more.
    """
    request = chance.choice(asked)
    unasked = chance.choices(INTENTS[request.intent][1], PLAIN)[0]
    if chance.random() < PLAIN_SHARE:
        return "plain", request.words, call(unasked, UNASKED_KEY, request.thing)
    world = chance.choice(WORLDS)
    name = world.tool(request.intent)
    kind = chance.choice(kinds)
    solution = told = ""
    if "solution" in kind:
        solution = _template("solution_template").format(
            successful_previous_attempt=shown(call(name, world.key, request.thing))
        )
    if kind != "solution":
        told = feedback("both").format(
            failure(world, request, chance) if kind != "trace" else None,
            failure(world, request, chance) if kind in ("trace", "both") else None,
        )
    text = _template("reprompt_template").format(prompt=request.words, solution=solution, feedback=told)
    known_name = solution or re.search(rf"\b{name}\b", told)
    known_key = solution or "must have required property" in told
    right = call(name if known_name else unasked, world.key if known_key else UNASKED_KEY, request.thing)
    return kind, text, right


def feedback(mode: Mode) -> Feedback:
    """Return the teacher's wording: TRL's own for the attempt, ours for the trace."""
    return Feedback(_template("feedback_template"), mode, TRACE_TEMPLATE, tokens=128)


def _template(name: str) -> str:
    return str(DEFAULTS[name].default)

"""More inputs for the functions that tests called, made of the arguments that were recorded.

Each is a recorded call with one argument replaced by one of the same type and size, whose numbers
lie between the recorded ones and whose letters and items are recorded ones; it is sorted or without
repetitions where all recorded ones are, and only texts of plain words are taken apart. Only calls
for which the reference gives the same value twice are of use. An answer that gives another value
need not be wrong.
"""

import math
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

from rewards.verifiers.recorded.values import Decoder, Encoded

PER_FUNCTION = 8
MAX_DEPTH = 10
PLAIN_ROWS = {"known", "tuple", "list", "dict", "int"}
ATOMS = (int, float, str, bool, type(None))
Message = dict[str, Any]
# The positional and the keyword arguments of a call.
Given = tuple[tuple[Any, ...], dict[str, Any]]


def generate_calls(calls: Iterable[Sequence[Message]]) -> list[Message]:
    """Return requests for a fresh process, a part for each function; the first two find it."""
    messages: list[Message] = []
    for number, ((module, name), recorded) in enumerate(_calls_of_functions(calls).items(), 1):
        random, known, made = Random(name), [*recorded], list[Given]()
        for _ in range(4 * PER_FUNCTION):
            one = _varied(random.choice(recorded), recorded, random)
            if len(made) < PER_FUNCTION and one not in known:
                made.append(one)
                known.append(one)
        if made:
            messages.append(_request("import", module, number, module))
            owner = _Known(f"{number}.module.1")
            messages.append(_request("getattr", name, number, owner, name))
            function = _Known(f"{number}.function.1")
            messages += [_request("call", name, number, function, *one) for one in made]
    return messages


class _Known:
    def __init__(self, key: str) -> None:
        self.key = key


def _request(op: str, label: str, part: int, *arguments: Any) -> Message:
    encoded = Encoded(lambda known: ["known", known.key], {})
    refs = encoded.refs(arguments)
    message = {"op": op, "name": f"{op} {label}", "refs": refs, "table": encoded.table}
    return message | {"part": part} | ({"plain": True} if op == "call" else {})


def _calls_of_functions(calls: Iterable[Sequence[Message]]) -> dict[tuple[str, str], list[Given]]:
    """Return the plain arguments of calls by module and name of the function."""
    modules: dict[str, str] = {}
    functions: dict[str, tuple[str, str]] = {}
    found: dict[tuple[str, str], list[Given]] = {}
    for message, reply in calls:
        asked, got = _row(message), _row(reply)
        if message["op"] == "import" and got[0] == "module":
            modules[got[1]] = got[2]
        elif message["op"] == "getattr" and got[0] == "function" and asked[-1] in modules:
            functions[got[1]] = (modules[asked[-1]], message["refs"][1])
        elif message["op"] == "call" and asked[-1] in functions and {row[0] for row in message["table"]} <= PLAIN_ROWS:
            decoder = Decoder(message["table"], lambda *_: None, {})
            _, args, kwargs = decoder.values(message["refs"])
            if _is_plain([args, kwargs]):
                found.setdefault(functions[asked[-1]], []).append((args, kwargs))
    return found


def _row(message: Message) -> Any:
    first = message["refs"][0]
    return message["table"][first[0]] if isinstance(first, list) else [""]


def _is_plain(value: Any, depth: int = 0) -> bool:
    if type(value) is dict:
        value = [*value, *value.values()]
    if type(value) in (list, tuple) and depth < MAX_DEPTH:  # it may hold itself
        return all(_is_plain(item, depth + 1) for item in value)
    return type(value) in ATOMS


def _varied(base: Given, recorded: Sequence[Given], random: Random) -> Given:
    args, kwargs = [*base[0]], {**base[1]}
    if not (args or kwargs):
        return base
    place = random.choice([*range(len(args)), *kwargs])
    if isinstance(place, str):
        seen = [given[1][place] for given in recorded if place in given[1]]
        kwargs[place] = _like(kwargs[place], seen, random)
    else:
        seen = [given[0][place] for given in recorded if len(given[0]) > place]
        args[place] = _like(args[place], seen, random)
    return tuple(args), kwargs


def _like(base: Any, seen: Sequence[Any], random: Random) -> Any:
    """Return a value of the type and the size of `base`, within what was seen."""
    kind = type(base)
    alike = [one for one in seen if type(one) is kind]
    if kind is int:
        return random.randint(min(alike), max(alike))
    if kind is float and all(map(math.isfinite, alike)):
        return random.uniform(min(alike), max(alike))
    if kind is str and all(one.replace(" ", "").isalnum() for one in alike):
        letters = "".join(alike)
        start = random.randrange(len(letters) - len(base) + 1)
        return letters[start : start + len(base)]
    if kind is dict:
        return {key: _like(base[key], [one[key] for one in alike if key in one], random)
                for key in base}  # fmt: skip
    if kind is tuple and all(len(one) == len(base) for one in alike):
        return tuple(map(_like, base, zip(*alike, strict=True), [random] * len(base)))
    if kind not in (list, tuple):
        return random.choice(alike)
    items = [item for one in alike for item in one]
    made = [_like(random.choice(items), items, random) for _ in base]
    if all(len(set(map(repr, one))) == len(one) for one in alike):
        made = list({repr(item): item for item in made}.values())
    try:
        if kind is list and all(one == sorted(one) for one in alike):
            made.sort()
    except TypeError:  # no order
        pass
    return kind(made)

"""Describe each later user message: cues in many languages, and the situation.

The situation is what the agent did and said since the user's message before, compared with the
user's words. The cues and their weights are data: cues.toml.
"""

import re
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from pimono_sdpo.prefilter import Guarded, Prefilter, compile_patterns, lazy_pattern
from pimono_sdpo.traces.events import Event

CUES = Path(__file__).with_name("cues.toml")
READ_CHARS = 1000
LONG_WORDS = 60
# Longer messages show more cues by chance, so each of theirs counts less.
PLAIN_WORDS = 30
ASKED_CHARS = 200
SAME_CHARS = 16
REPLY_CHARS = 200
AWAITED_CHARS = 400
_FIELDS, _FIELD_CHARS = 3, 40
SITUATION = compile_patterns(Path(__file__).with_name("situation.toml"), "patterns")
_UNSPACED = frozenset({"zh", "ja", "ko", "signs"})
_ERROR_OUTPUT = "error_output"
_ASIAN_SIGNS = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_ASIAN = lazy_pattern(f"[{_ASIAN_SIGNS}]")
_INSIDE_WORD = lazy_pattern(rf"(?<=[^\W{_ASIAN_SIGNS}])[^\W{_ASIAN_SIGNS}]")
# Up to the next space: half a secret would not be recognised as one.
_REST_OF_WORD = lazy_pattern(rf"[^\s{_ASIAN_SIGNS}]*[^\W{_ASIAN_SIGNS}]")
_PUNCTUATION = re.compile(r"\A\W+")
_WORD = lazy_pattern(rf"[{_ASIAN_SIGNS}]+|[^\W\d_{_ASIAN_SIGNS}]+(?:'[a-z]+)?|[?!]")
_ASCII_WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?|[?!]")
_OBJECTIONS = frozenset({"no", "stop", "forbid", "wrong", "rebuke", "still_broken", "broken", "undo", "you_failed"})
_BAD = frozenset(
    {"no", "stop", "forbid", "wrong", "still_broken", "broken", "you_failed"}
    | {"negation", "complaint", "same_again", "too_much"}
)
_EDITS = frozenset({"edit", "write", "multiedit", "apply_patch", "notebookedit", "create"})
_WORK = frozenset({"assistant", "tool_call"})
_PASTED, _FAILURE, _QUESTION, _CLAIM, _AWAITED = (
    Guarded(SITUATION[name]) for name in ("pasted", "failure", "question", "claim", "awaited")
)
_REPLIES = ("concedes", "explains", "fixes", "notices", "settles")
_REPLY_FILTER = Prefilter([SITUATION[name] for name in _REPLIES])
_EDITED_PATH = re.compile(r'path"\s?:\s?"([^"\n]{1,400})"|\*\*\* (?:Update|Add) File: ([^\n"\\]{1,400})')


@dataclass(frozen=True, slots=True)
class Turn:
    """A later user message, and what the agent did since the user's message before it.

    `said` is the end of what it last said, `before` the beginning of the user's message before,
    `reply` the beginning of what the agent says next. `edits_first` holds if its next call changes
    a file, `edits_same` if a later one changes a file again, `stops_editing` if none does although
    it had.
    """

    event_index: int
    text: str
    aborted: bool = False
    provider_error: bool = False
    tool_errors: int = 0
    tool_calls: int = 0
    edited: bool = False
    asked: bool = False
    is_veto: bool = False
    said: str = ""
    before: str = ""
    reply: str = ""
    edits_first: bool = False
    edits_same: bool = False
    stops_editing: bool = False


@dataclass(frozen=True)
class Cue:
    """One cue to look for; `pattern` is None for one of the situation rather than the words."""

    name: str
    prior: float
    weight: float
    pattern: re.Pattern[str] | None


@dataclass(frozen=True, slots=True)
class Description:
    """What a message shows.

    `cues` are the cues found with the words that show them, `situation` the other cues; `scale` is
    what a cue counts in a message of its length.
    """

    cues: dict[str, str]
    situation: frozenset[str]
    scale: float


def read_later_turns(events: Sequence[Event]) -> list[Turn]:
    """Return the user messages after the first request, and every veto, each with its situation."""
    path = [event for event in events if event.on_active_branch]
    said = [at for at, event in enumerate(path) if event.kind == "user"]
    # What follows each message, up to the next one.
    work = [path[at + 1 : stop] for at, stop in pairwise([*said, len(path)])]
    turns: list[Turn] = []
    since: list[Event] | None = None
    before = ""
    for number, at in enumerate(said):
        event = path[at]
        if since is not None or event.is_veto:
            answer = next(filter(None, work[number:]), [])
            turns.append(_read_turn(event, since or [], before, answer))
        before = strip_wrapper(event.text)
        # Of messages in a row, each is about the work before the first of them.
        if not event.is_veto if since is None else any(e.kind in _WORK for e in since):
            since = []
        if since is not None:
            since = [*since, *work[number]]
    return turns


def _read_turn(event: Event, since: Sequence[Event], before: str, answer: Sequence[Event]) -> Turn:
    replies = [e for e in since if e.kind == "assistant"]
    calls = [e for e in since if e.kind == "tool_call"]
    said = next((e.text.rstrip() for e in reversed(replies) if e.text), "")
    stop = replies[-1].stop_reason if replies else ""
    end = said[-ASKED_CHARS:]
    edited, edits = list_edited(since), list_edited(answer)
    first = next((e for e in answer if e.kind == "tool_call"), None)
    reply = next((e.text.lstrip() for e in answer if e.kind == "assistant" and e.text.strip()), "")
    return Turn(
        event_index=event.index,
        text=strip_wrapper(event.text),
        aborted=stop == "aborted",
        provider_error=stop == "error",
        tool_errors=sum(e.is_error for e in since),
        tool_calls=len(calls),
        edited=any(e.tool_name.lower() in _EDITS for e in calls),
        asked="?" in end or _QUESTION.search(end) is not None,
        is_veto=event.is_veto,
        said=said,
        before=before,
        reply=reply[:REPLY_CHARS],
        edits_first=first is not None and bool(list_edited([first])),
        edits_same=not edited.isdisjoint(edits),
        stops_editing=bool(edited) and not edits,
    )


def list_edited(events: Sequence[Event]) -> set[str]:
    """Return the names of the files that calls change."""
    found: set[str] = set()
    for event in events:
        is_patch = event.kind == "tool_call" and "*** " in event.arguments[:200]
        if is_patch or (event.kind == "tool_call" and event.tool_name.lower() in _EDITS):
            match = _EDITED_PATH.search(event.arguments)
            found.add((match[1] or match[2]).rpartition("/")[2] if match else "")
    return found


def is_automated(text: str) -> bool:
    """Return whether a harness wrote the message, or it is a command to the harness.

    >>> is_automated("/model gpt-5"), is_automated("/tmp/a.png\\n\\nthis is broken")
    (True, False)
    """
    return SITUATION["automated"].search(text) is not None


def strip_channel(text: str) -> str:
    """Return the words that somebody wrote through a channel, without what a gateway adds.

    >>> strip_channel("System: [10:00] On.\\n[WhatsApp +1 10:00] Why?\\n[message_id: 1]")
    'Why?'
    """
    notices = ("System: [", "System (untrusted): [")
    notice, _, words = text.partition("\n\n") if text.startswith(notices) else ("", "", "")
    # A notice may also announce the message by its first words.
    first = words.partition("\n")[0][:20]
    text = words if words.startswith("[") or (first and f": {first}" in notice) else text
    if not text.startswith((*notices, "[")):
        return text
    sent = SITUATION["channel"].search(text, 0, 4000)
    return text[sent.end() :].partition("\n[message_id: ")[0] if sent else text


# What reads a session asks for the same few messages again and again.
@lru_cache(maxsize=128)
def strip_wrapper(text: str) -> str:
    """Return a message without what a gateway or a template puts around it.

    >>> strip_wrapper("[Fri 2026-04-10 09:29 GMT+2] wrong file")
    'wrong file'
    >>> strip_wrapper('Be quick.\\n\\nUser request: "It is broken"\\n\\nAnswer in JSON.')
    'It is broken'
    """
    signs = ("(untrusted", "[Current message", "\nQueued #", "\n[Subagent Task]")
    if any(sign in text for sign in signs) and (found := SITUATION["context"].match(text)):
        text = text[found.end() :]
    text = strip_channel(text)
    if found := SITUATION["wrapper"].match(text):
        text = text[found.end() :]
    if text.rstrip().endswith("]") and (found := SITUATION["trailer"].search(text)):
        text = text[: found.start()]
    if (': "' in text[:700] or "<user_" in text[:700]) and (found := SITUATION["quoted"].match(text)):
        text = found[1] or found[2]
    return text.strip()


def describe(turn: Turn, may_decide: Callable[[Description], bool] | None = None) -> Description:
    """Describe a message and its situation.

    Where `may_decide` says no to a description with all cues that may be there, they are not looked for.

    >>> describe(Turn(5, "No, that's wrong.", aborted=True)).cues["wrong"]
    'wrong'
    """
    text = turn.text[:READ_CHARS]
    lowered = text.lower().replace("\u2019", "'")
    source = text if len(text) == len(lowered) else lowered
    blanked = lowered
    if lowered.count('":') >= _FIELDS:
        blanked = "\n".join(" " * len(line) if _is_json(line) else line for line in lowered.split("\n"))
    if _PASTED.search(blanked):
        blanked = _PASTED.pattern.sub(lambda match: " " * len(match.group()), blanked)
    own = blanked.strip()
    words = read_words(own)
    scale = (max(PLAIN_WORDS, len(words)) / PLAIN_WORDS) ** -0.5
    candidates = _find_candidates(own, lowered)
    names = dict.fromkeys((name for name, _ in candidates), "")
    is_pasted = own != lowered.strip()
    around = _find_situation(turn, own, is_pasted, words, names.keys())
    possible = Description(names, around, scale)
    if may_decide and not may_decide(possible):
        return possible
    skip = len(blanked) - len(blanked.lstrip())
    found: dict[str, str] = {}
    for name, pattern in candidates:
        is_whole = name == _ERROR_OUTPUT
        if match := pattern.search(lowered if is_whole else own):
            shift = 0 if is_whole else skip
            found[name] = _extend_to_words(source, match.start() + shift, match.end() + shift)
    situation = possible.situation
    if not (_BAD | _OBJECTIONS).isdisjoint(possible.cues.keys() - found.keys()):
        situation = _find_situation(turn, own, is_pasted, words, found.keys())
    return replace(possible, cues=found, situation=situation)


def _is_json(line: str) -> bool:
    """Check for a line that is little else than fields of JSON, which is pasted."""
    return line.count('":') >= max(_FIELDS, len(line) / _FIELD_CHARS)


def _find_candidates(own: str, whole: str) -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Return the cues that may be found; the one for pasted output is found in the whole text."""
    worded, prefilter = _build_prefilter()
    numbers: Collection[int] = prefilter.candidates(own)
    if own != whole:
        pasted = next(number for number, (name, _) in enumerate(worded) if name == _ERROR_OUTPUT)
        numbers = sorted({*numbers, pasted})
    return tuple(worded[number] for number in numbers)


@cache
def _build_prefilter() -> tuple[list[tuple[str, re.Pattern[str]]], Prefilter]:
    worded = [(cue.name, cue.pattern) for cue in read_cues() if cue.pattern]
    return worded, Prefilter([pattern for _, pattern in worded])


# Each message is read again when the next one is compared with it.
@lru_cache(maxsize=8)
def read_words(text: str) -> tuple[str, ...]:
    """Return the words of a text in lower case; pairs of signs in scripts without spaces.

    >>> read_words("don't 改回去!")
    ("don't", '改回', '回去', '!')
    """
    if text.isascii():
        return tuple(_ASCII_WORD.findall(text))
    words: list[str] = []
    for word in _WORD.findall(text):
        if _ASIAN.match(word):
            words += [word[at : at + 2] for at in range(max(1, len(word) - 1))]
        else:
            words.append(word)
    return tuple(words)


def _find_situation(turn: Turn, own: str, is_pasted: bool, words: Sequence[str], found: Set[str]) -> frozenset[str]:
    """Compare the message with what the agent did and said last, and the user said before."""
    length = len(own.split()) + (0 if own.isascii() else len(_ASIAN.findall(own)) // 2)
    is_bad = bool(_BAD & found)
    text = turn.text[: 3 * READ_CHARS].lower()
    failures = len(_FAILURE.pattern.findall(text)) if _FAILURE.search(text) else 0
    agent = turn.said[-READ_CHARS:].lower()
    before = turn.before[:READ_CHARS].lower()
    reply = turn.reply.lower().replace("\u2019", "'")
    agents_end = agent[-AWAITED_CHARS:]
    is_claimed = failures > 0 and _CLAIM.search(agent) is not None
    is_awaited = (is_bad or failures > 0) and _AWAITED.search(agents_end) is not None
    said = set(words)
    said_before = set(read_words(before)) if len(said) > 3 else set()
    likeness = len(said & said_before) / max(1, len(said | said_before)) if said_before else 0.0
    was_answered = bool(turn.said) and not (turn.aborted or turn.provider_error)
    situation = {
        "after_abort": turn.aborted,
        "provider_error": turn.provider_error,
        "no_work": turn.tool_calls == 0,
        "asked": turn.asked,
        "answers": turn.asked and length <= 3,
        "tiny": length <= 2 and not _OBJECTIONS & found,
        "long": length > LONG_WORDS,
        "pasted": is_pasted,
        "veto": turn.is_veto,
        "listed": len(SITUATION["listed"].findall(turn.text[: 3 * READ_CHARS])) >= 4,
        "failures": failures >= 3,
        "failure_after_claim": is_claimed,
        "failure_after_trial": failures >= 1 and is_awaited,
        "rephrased": likeness >= 0.2 and was_answered,
        "same_opening": len(turn.text) > SAME_CHARS < len(before)
        and turn.text[:SAME_CHARS] == turn.before[:SAME_CHARS],
        "bad_after_trial": is_bad and is_awaited,
        "bad_after_edit": is_bad and turn.edited,
        "edits_first": turn.edits_first,
        "edits_same": turn.edits_same,
        "stops_editing": turn.stops_editing,
    }
    replies = (_REPLIES[number] for number in _REPLY_FILTER.candidates(reply))
    return frozenset(
        [
            *(name for name, holds in situation.items() if holds),
            *(name for name in replies if SITUATION[name].search(reply)),
        ]
    )


@cache
def read_table() -> dict[str, Any]:
    """Read cues.toml."""
    return tomllib.loads(CUES.read_text("utf-8"))


@cache
def read_cues() -> tuple[Cue, ...]:
    """Return the cues; all languages of a cue become one pattern."""
    cues = {name: one for name, one in read_table().items() if isinstance(one, dict)}
    return tuple(Cue(name, one["prior"], one["weight"], _build_pattern(one)) for name, one in cues.items())


def _build_pattern(cue: Mapping[str, Any]) -> re.Pattern[str] | None:
    where = cue["where"]
    if where == "context":
        return None
    joined = {name: "|".join(words) for name, words in cue.items() if isinstance(words, list)}
    spaced = "|".join(words for name, words in joined.items() if name not in _UNSPACED)
    unspaced = "|".join(words for name, words in joined.items() if name in _UNSPACED)
    if where == "anywhere":
        whole_words = rf"(?<!\w)(?:{spaced})(?!\w)" if spaced else ""
        return lazy_pattern("|".join(filter(None, (whole_words, unspaced))))
    words = "|".join(filter(None, (rf"(?:{spaced})(?!\w)", unspaced)))
    return lazy_pattern(f"{SITUATION[where].pattern}(?:{words})")


def _extend_to_words(text: str, start: int, end: int) -> str:
    """Return the whole words at a position, without the punctuation before them."""
    if _INSIDE_WORD.match(text, end):
        rest = _REST_OF_WORD.match(text, end)
        end = rest.end() if rest else end
    while start and _INSIDE_WORD.match(text, start):
        start -= 1
    found = text[start:end].strip()
    return _PUNCTUATION.sub("", found) or found

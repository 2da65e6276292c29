"""Describe each later user message by cues: words in many languages, and the situation.

The cues and their prior weights are data: cues.toml.
"""

import re
import tomllib
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

from pimono_sdpo.prefilter import Prefilter
from pimono_sdpo.traces.events import Event

READ_CHARS = 1000
LONG_WORDS = 60
_UNSPACED = frozenset({"zh", "ja", "ko", "signs"})
FAR = frozenset({"ru", "zh", "ja", "ko"})
# Every cue in those languages contains at least one of their letters.
FAR_LETTER = re.compile("[\u0400-\u04ff\u3040-\u30ff\u3130-\u318f\u3400-\u9fff\uac00-\ud7af]")
_NO_LANGUAGE = frozenset({"where", "prior"})
_STARTS = {
    "start": r"^\W{0,3}(?:(?:ok(?:ay)?|alright|now|then|so|and|also|please|great|nice|cool|good"
    r"|perfect|yes|yeah|wait|well|hm{1,4}|but)[\s,.!]{1,3}){0,3}",
    "opening": r"(?:^|\n[ \t]{0,8}\n)\W{0,4}(?:(?:well|hm{1,4}|wait|dude|bro|man|actually|sorry"
    r"|jesus|but|uh|um|oh|ah|please|pls|plz|hey|ok(?:ay)?|yeah|bitte|aber|por favor|pero|mais|mas"
    r"|но|但是?|あの|でも|아|그런데)[\s,.!\u2026\u3001\uff0c\u3002]{1,4}){0,4}",
}
_AUTOMATED = re.compile(
    r"^(?:/[\w:-]{0,60}(?:[ \t]|$)|Task:|Tool budget|\[(?:system|tool_result|Request interrupted)"
    r"|<[a-z_-]{1,60}>)"
)
PASTED = re.compile(
    r"```(?:[^`]|`(?!``)){0,1000}(?:```|\Z)"
    r"|^[ \t]{0,8}(?:[\u2502|>\u276f%\u279c]|#{1,6} \S|[+-] ?\d{2}|\w{1,20}@[\w.-]{1,40})"
    r"[^\n]{0,400}"
    r"|(?<!\w)['\"]?/(?:[\w. \\-]{1,80}/){2,12}[\w. \\-]{1,80}['\"]?|https?://\S{1,300}",
    re.MULTILINE,
)
_MAY_BE_PASTED = Prefilter([PASTED])
_ERROR_OUTPUT = "error_output"
_ASIAN_SIGNS = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_ASIAN = re.compile(f"[{_ASIAN_SIGNS}]")
_INSIDE_WORD = re.compile(rf"(?<=[^\W{_ASIAN_SIGNS}])[^\W{_ASIAN_SIGNS}]")
# Up to the next space: half a secret would not be recognised as one.
_REST_OF_WORD = re.compile(rf"[^\s{_ASIAN_SIGNS}]*[^\W{_ASIAN_SIGNS}]")
_PUNCTUATION = re.compile(r"\A\W+")
_OBJECTIONS = frozenset(
    {"no", "stop", "forbid", "wrong", "rebuke", "still_broken", "broken", "undo", "you_failed"}
)
_EDITS = frozenset({"edit", "write", "multiedit", "apply_patch", "notebookedit", "create"})


@dataclass(frozen=True, slots=True)
class Turn:
    """A later user message, and what the agent did since the user's message before it."""

    event_index: int
    text: str
    aborted: bool = False
    provider_error: bool = False
    tool_errors: int = 0
    tool_calls: int = 0
    edited: bool = False
    asked: bool = False
    is_veto: bool = False


@dataclass(frozen=True)
class Cue:
    """One cue to look for.

    `patterns` are a faster one for text without far letters, and one for any text; None for a cue
    of the situation rather than the words.
    """

    name: str
    prior: float
    patterns: tuple[re.Pattern[str], re.Pattern[str]] | None


def read_later_turns(events: Sequence[Event]) -> list[Turn]:
    """Return the user messages after the first request, and every veto, each with its situation."""
    turns: list[Turn] = []
    since: list[Event] | None = None
    for event in events:
        if not event.on_active_branch:
            continue
        if event.kind != "user":
            if since is not None:
                since.append(event)
            continue
        if since is not None or event.is_veto:
            turns.append(_read_turn(event, since or []))
        since = since if since is None and event.is_veto else []
    return turns


def _read_turn(event: Event, since: Sequence[Event]) -> Turn:
    replies = [e for e in since if e.kind == "assistant"]
    calls = [e.tool_name.lower() for e in since if e.kind == "tool_call"]
    said = next((e.text.rstrip() for e in reversed(replies) if e.text), "")
    stop = replies[-1].stop_reason if replies else ""
    return Turn(
        event_index=event.index,
        text=event.text.strip(),
        aborted=stop == "aborted",
        provider_error=stop == "error",
        tool_errors=sum(e.is_error for e in since),
        tool_calls=len(calls),
        edited=any(name in _EDITS for name in calls),
        asked=said.endswith(("?", "\uff1f")),
        is_veto=event.is_veto,
    )


def is_automated(text: str) -> bool:
    """Return whether a harness wrote the message, or it is a command to the harness.

    >>> is_automated("/model gpt-5"), is_automated("/tmp/a.png\\n\\nthis is broken")
    (True, False)
    """
    return _AUTOMATED.search(text) is not None


class Wording(NamedTuple):
    """The text of a message in which cues are looked for.

    `own` is the text without pasted parts, `skip` characters into `whole`, both lower case; `cues`
    are those that may be found, each with its pattern.
    """

    source: str
    whole: str
    own: str
    skip: int
    cues: list[tuple[Cue, re.Pattern[str]]]


# Called twice in a row: for the possible cues and for the found ones.
@lru_cache(maxsize=1)
def _prepare_wording(text: str) -> Wording:
    text = text[:READ_CHARS]
    lowered = text.lower().replace("\u2019", "'")
    source = text if len(text) == len(lowered) else lowered
    blanked = lowered
    if _MAY_BE_PASTED.candidates(lowered):
        blanked = PASTED.sub(lambda match: " " * len(match.group()), lowered)
    own = blanked.strip()
    skip = len(blanked) - len(blanked.lstrip())
    return Wording(source, lowered, own, skip, _find_candidates(own, lowered))


def find_cues(turn: Turn) -> dict[str, str]:
    """Return the cues a message shows, each with the words that show it ("" for the situation).

    >>> find_cues(Turn(5, "No, that's wrong.", aborted=True))["wrong"]
    'wrong'
    """
    wording = _prepare_wording(turn.text)
    found: dict[str, str] = {}
    for cue, pattern in wording.cues:
        is_whole = cue.name == _ERROR_OUTPUT
        if match := pattern.search(wording.whole if is_whole else wording.own):
            shift = 0 if is_whole else wording.skip
            start, end = match.start() + shift, match.end() + shift
            found[cue.name] = _extend_to_words(wording.source, start, end)
    return found | dict.fromkeys(_find_situation(turn, wording, found.keys()), "")


def find_possible_cues(turn: Turn) -> tuple[set[str], set[str]]:
    """Return the cues whose words a message may contain, and those that its situation shows.

    This is much faster than finding the words.
    """
    wording = _prepare_wording(turn.text)
    worded = {cue.name for cue, _ in wording.cues}
    return worded, set(_find_situation(turn, wording, worded))


def _find_situation(turn: Turn, wording: Wording, found: Set[str]) -> Iterator[str]:
    own = wording.own
    words = len(own.split()) + len(_ASIAN.findall(own)) // 2
    situation = {
        "after_abort": turn.aborted,
        "aborted_at_work": turn.aborted and turn.tool_calls >= 2,
        "tool_error": turn.tool_errors > 0,
        "provider_error": turn.provider_error,
        "no_work": turn.tool_calls == 0,
        "edited": turn.edited,
        "asked": turn.asked,
        "tiny": words <= 2 and not _OBJECTIONS & found,
        "long": words > LONG_WORDS,
        "pasted": own != wording.whole.strip(),
    }
    return (name for name, holds in situation.items() if holds)


def _find_candidates(own: str, whole: str) -> list[tuple[Cue, re.Pattern[str]]]:
    """Return the cues that may be found; the one for pasted output is found in the whole text."""
    is_far = not whole.isascii() and bool(FAR_LETTER.search(whole))
    worded, prefilter = _build_prefilter(is_far)
    numbers = prefilter.candidates(own)
    if own != whole:
        pasted = next(i for i, (cue, _) in enumerate(worded) if cue.name == _ERROR_OUTPUT)
        numbers = sorted({*numbers, pasted})
    return [worded[number] for number in numbers]


@lru_cache(maxsize=2)
def _build_prefilter(is_far: bool) -> tuple[list[tuple[Cue, re.Pattern[str]]], Prefilter]:
    worded = [(cue, cue.patterns[is_far]) for cue in read_cues() if cue.patterns]
    return worded, Prefilter([pattern for _, pattern in worded])


@lru_cache(maxsize=1)
def read_cues() -> tuple[Cue, ...]:
    """Read the table of cues; all languages of a cue become one pattern."""
    table = tomllib.loads((files("processors.corrections") / "cues.toml").read_text("utf-8"))
    return tuple(
        Cue(
            name,
            float(entry["prior"]),
            None
            if entry["where"] == "context"
            else (_build_pattern(entry, FAR), _build_pattern(entry, frozenset())),
        )
        for name, entry in table.items()
    )


def _build_pattern(entry: dict[str, Any], without: frozenset[str]) -> re.Pattern[str]:
    languages = {key: "|".join(entry[key]) for key in entry if key not in {*_NO_LANGUAGE, *without}}
    spaced = "|".join(words for key, words in languages.items() if key not in _UNSPACED)
    unspaced = "|".join(words for key, words in languages.items() if key in _UNSPACED)
    if entry["where"] == "anywhere":
        whole_words = rf"(?<!\w)(?:{spaced})(?!\w)" if spaced else ""
        return re.compile("|".join(filter(None, (whole_words, unspaced))))
    words = rf"(?:{spaced})(?!\w)"
    return re.compile(_STARTS[entry["where"]] + f"(?:{'|'.join(filter(None, (words, unspaced)))})")


def _extend_to_words(text: str, start: int, end: int) -> str:
    """Return the whole words at a position, without the punctuation before them."""
    if _INSIDE_WORD.match(text, end):
        rest = _REST_OF_WORD.match(text, end)
        end = rest.end() if rest else end
    while start and _INSIDE_WORD.match(text, start):
        start -= 1
    found = text[start:end].strip()
    return _PUNCTUATION.sub("", found) or found

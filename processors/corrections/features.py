"""Describe each later user message: cues in many languages, its words, and the situation.

The situation is what the agent did and said since the user's message before, compared with the
user's words. The cues and their prior weights are data: cues.toml.
"""

import re
import tomllib
from collections.abc import Collection, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from itertools import chain, pairwise
from typing import Any

from pimono_sdpo.prefilter import Prefilter
from pimono_sdpo.traces.events import Event

READ_CHARS = 1000
LONG_WORDS = 60
# Longer messages show more cues by chance, so each of theirs counts less.
PLAIN_WORDS = 30
ASKED_CHARS = 200
SAME_CHARS = 16
AWAITED_CHARS = 400
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
# What a chat gateway puts before the user's own words.
_WRAPPER = re.compile(
    r"(?:\s{0,4}(?:(?:Conversation info|Sender|Replied message|Chat history)[^\n]{0,40}untrusted"
    r"[^\n]{0,40}:?\n{1,3}```(?:json)?\n(?:[^`]|`(?!``)){0,4000}```"
    r"|\[Queued messages while agent was busy\]|---\n|Queued #\d{1,4}[^\n]{0,40}\n"
    r"|\[(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) \d{4}-\d\d-\d\d[^\]\n]{0,40}\]"
    r"|\[Image[^\]\n]{0,300}\])){1,9}\s{0,4}"
)
_UNTRUSTED = "(untrusted metadata)"
_AUTOMATED = re.compile(
    r"^(?:\Z|/[\w:-]{0,60}(?:[ \t]|$)|Task:|Tool budget|Full transcript available at: "
    r"|\[(?:system|System Message\]|tool_result|Request interrupted|cron:|OpenClaw heartbeat"
    r"|Queued announce)|<[a-z_-]{1,60}(?:>| name=)|System: \[|Read HEARTBEAT\.md|An async command"
    r"|A (?:subagent task|cron job|scheduled reminder)|Base directory for this skill"
    r"|Pre-compaction memory flush|OpenClaw runtime context|Stop hook|Caveat: "
    r"|Read the output file to retrieve|The user wants to clarify|Continue from where you left off"
    r"|PLEASE IMPLEMENT THIS PLAN|Implement the following plan:|## User Input\s{1,4}```"
    r"|This session is being continued)"
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
_FAILURE = re.compile(
    r"error|exception|traceback|failed|failure|\b[45]\d\d\b|not found|denied|cannot|could not"
    r"|undefined|err!|unexpected|invalid|uncaught|fatal|warn(?:ing)?:|refused|timed? ?out"
    r"|exit(?:ed)? (?:with )?(?:code|status) [1-9]|no such|エラー|失敗|错误|报错|오류|fehler|ошибка"
)
_MAY_HAVE_FAILED = Prefilter([_FAILURE])
_ASIAN_SIGNS = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_ASIAN = re.compile(f"[{_ASIAN_SIGNS}]")
_INSIDE_WORD = re.compile(rf"(?<=[^\W{_ASIAN_SIGNS}])[^\W{_ASIAN_SIGNS}]")
# Up to the next space: half a secret would not be recognised as one.
_REST_OF_WORD = re.compile(rf"[^\s{_ASIAN_SIGNS}]*[^\W{_ASIAN_SIGNS}]")
_PUNCTUATION = re.compile(r"\A\W+")
_WORD = re.compile(rf"[{_ASIAN_SIGNS}]+|[^\W\d_{_ASIAN_SIGNS}]+(?:'[a-z]+)?|[?!]")
_ASCII_WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?|[?!]")
_LISTED = re.compile(r"^[ \t]{0,8}(?:#{1,6} |[-*\u2022] |\d{1,2}[.)] |\*\*)", re.MULTILINE)
_OBJECTIONS = frozenset(
    {"no", "stop", "forbid", "wrong", "rebuke", "still_broken", "broken", "undo", "you_failed"}
)
_BAD = frozenset(
    {"no", "stop", "forbid", "wrong", "still_broken", "broken", "you_failed"}
    | {"negation", "complaint", "same_again", "too_much"}
)
_EDITS = frozenset({"edit", "write", "multiedit", "apply_patch", "notebookedit", "create"})
_WORK = frozenset({"assistant", "tool_call"})
# The agent asks, offers or wants to hear something.
_QUESTION = re.compile(
    r"[?\uff1f]|\b(?:let me know|tell me|please (?:confirm|provide|choose)|which option)\b", re.I
)
_MAY_ASK = Prefilter([_QUESTION])
_CLAIM = re.compile(
    r"\b(?:done|fixed|completed?|implemented|updated|added|works|working|passe[sd]|passing|ready"
    r"|success\w*|resolved|changed|removed|created|now|fertig|erledigt|listo|hecho|termin\w+"
    r"|pronto|conclu\w+|fatto|gotowe|tamam\w*|готово|исправ\w+)\b"
    r"|[\u2705\u2713\u2714]|完成|修复|已经|成功|修正しました|完了|しました|완료|했습니다|수정",
)
# The user is to try what the agent did, ...
_AWAITED = re.compile(
    r"\b(?:try (?:it|again|now|the|that)|re-?(?:load|start|run|build|fresh|try)|let me know"
    r"|if (?:it|this|the|you|that|any)|please (?:test|check|verify|confirm|run|try)"
    r"|you can (?:now )?(?:test|run|try|open|see|check)|should (?:now|work|be|see|fix)|starte"
    r"|prueba|recarga|teste|recharge|essaie|попробуй|перезапусти)\b"
    r"|再読み込み|再起動|お試し|確認して|してください|刷新|重启|试试|请.{0,8}测试"
    r"|새로고침|다시 실행|확인해",
)
# ... or to do something that the agent does not do.
_DEFERRED = re.compile(
    r"\b(?:i (?:can'?t|cannot|can not|don'?t have|am unable|was unable|couldn'?t|did not|didn'?t"
    r"|won'?t)|(?:can'?t|cannot) (?:access|open|run|see|verify|be)"
    r"|you(?:'ll| will)? (?:need|have) to|not (?:run|tested|verified|possible)"
    r"|if you (?:want|prefer|confirm)|once you|kannst du|no puedo|je ne peux pas|não posso)\b"
    r"|できません|未実|ください|不能|无法|할 수 없|제한",
)


_MAY_BE_SAID = Prefilter([_CLAIM, _AWAITED, _DEFERRED])


@dataclass(frozen=True, slots=True)
class Turn:
    """A later user message, and what the agent did since the user's message before it.

    `said` is the end of what it last said, `before` the beginning of the user's message before.
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


@dataclass(frozen=True)
class Cue:
    """One cue to look for.

    `patterns` are a faster one for text without far letters, and one for any text; None for a cue
    of the situation rather than the words.
    """

    name: str
    prior: float
    patterns: tuple[re.Pattern[str], re.Pattern[str]] | None


@dataclass(frozen=True, slots=True)
class Description:
    """What a message shows.

    `cues` are the cues found with the words that show them, `situation` the other cues, `grams` its
    words and pairs of words; `scale` is what a cue or a gram counts in a message of its length.
    """

    cues: dict[str, str]
    situation: frozenset[str]
    grams: frozenset[str]
    scale: float


def read_later_turns(events: Sequence[Event]) -> list[Turn]:
    """Return the user messages after the first request, and every veto, each with its situation."""
    turns: list[Turn] = []
    since: list[Event] | None = None
    before = ""
    for event in events:
        if not event.on_active_branch:
            continue
        if event.kind != "user":
            if since is not None:
                since.append(event)
            continue
        if since is not None or event.is_veto:
            turns.append(_read_turn(event, since or [], before))
        before = strip_wrapper(event.text)
        # Of messages in a row, each is about the work before the first of them.
        if not (event.is_veto if since is None else not any(e.kind in _WORK for e in since)):
            since = []
    return turns


def _read_turn(event: Event, since: Sequence[Event], before: str) -> Turn:
    replies = [e for e in since if e.kind == "assistant"]
    calls = [e for e in since if e.kind == "tool_call"]
    said = next((e.text.rstrip() for e in reversed(replies) if e.text), "")
    stop = replies[-1].stop_reason if replies else ""
    return Turn(
        event_index=event.index,
        text=strip_wrapper(event.text),
        aborted=stop == "aborted",
        provider_error=stop == "error",
        tool_errors=sum(e.is_error for e in since),
        tool_calls=len(calls),
        edited=any(e.tool_name.lower() in _EDITS for e in calls),
        asked=_asks(said[-ASKED_CHARS:]),
        is_veto=event.is_veto,
        said=said[-READ_CHARS:],
        before=before[:READ_CHARS],
    )


def _asks(said: str) -> bool:
    return "?" in said or bool(_MAY_ASK.candidates(said) and _QUESTION.search(said))


def is_automated(text: str) -> bool:
    """Return whether a harness wrote the message, or it is a command to the harness.

    >>> is_automated("/model gpt-5"), is_automated("/tmp/a.png\\n\\nthis is broken")
    (True, False)
    """
    return _AUTOMATED.search(text) is not None


def strip_wrapper(text: str) -> str:
    """Return a message without what a gateway puts before it.

    >>> strip_wrapper("[Fri 2026-04-10 09:29 GMT+2] wrong file")
    'wrong file'
    """
    if text.startswith("System: [") and (at := text.find(_UNTRUSTED)) >= 0:
        text = text[text.rfind("\n", 0, at) + 1 :]
    found = _WRAPPER.match(text)
    return text[found.end() :].strip() if found else text.strip()


def describe(turn: Turn) -> Description:
    """Describe a message and its situation.

    >>> describe(Turn(5, "No, that's wrong.", aborted=True)).cues["wrong"]
    'wrong'
    """
    text = turn.text[:READ_CHARS]
    lowered = text.lower().replace("\u2019", "'")
    source = text if len(text) == len(lowered) else lowered
    blanked = lowered
    if _MAY_BE_PASTED.candidates(lowered):
        blanked = PASTED.sub(lambda match: " " * len(match.group()), lowered)
    own = blanked.strip()
    skip = len(blanked) - len(blanked.lstrip())
    found: dict[str, str] = {}
    for cue, pattern in _find_candidates(own, lowered):
        is_whole = cue.name == _ERROR_OUTPUT
        if match := pattern.search(lowered if is_whole else own):
            shift = 0 if is_whole else skip
            found[cue.name] = _extend_to_words(source, match.start() + shift, match.end() + shift)
    words = read_words(own)
    situation = frozenset(
        {
            *_find_situation(turn, own, own != lowered.strip(), found.keys()),
            *_compare(turn, words, found.keys()),
        }
    )
    scale = (max(PLAIN_WORDS, len(words)) / PLAIN_WORDS) ** -0.5
    return Description(found, situation, read_grams(words), scale)


# Each message is read again when the next one is compared with it.
@lru_cache(maxsize=8)
def _find_candidates(own: str, whole: str) -> tuple[tuple[Cue, re.Pattern[str]], ...]:
    """Return the cues that may be found; the one for pasted output is found in the whole text."""
    is_far = not whole.isascii() and bool(FAR_LETTER.search(whole))
    worded, prefilter = _build_prefilter(is_far)
    numbers: Collection[int] = prefilter.candidates(own)
    if own != whole:
        pasted = next(i for i, (cue, _) in enumerate(worded) if cue.name == _ERROR_OUTPUT)
        numbers = sorted({*numbers, pasted})
    return tuple(worded[number] for number in numbers)


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


def read_grams(words: Sequence[str]) -> frozenset[str]:
    """Return the words, the pairs of neighbours, and the first (`^`) and last (`$`) ones."""
    if not words:
        return frozenset()
    ends = (f"^{words[0]}", "^" + " ".join(words[:2]), f"{words[-1]}$")
    return frozenset(chain(words, map(" ".join, pairwise(words)), ends))


def _find_situation(turn: Turn, own: str, is_pasted: bool, found: Set[str]) -> Iterator[str]:
    words = len(own.split()) + (0 if own.isascii() else len(_ASIAN.findall(own)) // 2)
    situation = {
        "after_abort": turn.aborted,
        "aborted_at_work": turn.aborted and turn.tool_calls >= 2,
        "provider_error": turn.provider_error,
        "no_work": turn.tool_calls == 0,
        "edited": turn.edited,
        "asked": turn.asked,
        "tiny": words <= 2 and not _OBJECTIONS & found,
        "long": words > LONG_WORDS,
        "pasted": is_pasted,
        "veto": turn.is_veto,
        "answers": turn.asked and words <= 6,
        "listed": len(_LISTED.findall(turn.text[: 3 * READ_CHARS])) >= 4,
    }
    return (name for name, holds in situation.items() if holds)


def _compare(turn: Turn, words: Sequence[str], found: Set[str]) -> Iterator[str]:
    """Compare the message with what the agent did and said last, and the user said before."""
    is_bad = bool(_BAD & found)
    text = turn.text[: 3 * READ_CHARS].lower()
    failures = len(_FAILURE.findall(text)) if _MAY_HAVE_FAILED.candidates(text) else 0
    agent = turn.said.lower()
    possible = _MAY_BE_SAID.candidates(agent)
    counts = is_bad or failures > 0
    is_claimed = counts and 0 in possible and bool(_CLAIM.search(agent))
    is_awaited = counts and 1 in possible and bool(_AWAITED.search(agent[-AWAITED_CHARS:]))
    before = turn.before.lower()
    said = set(words)
    said_before = set(read_words(before)) if len(said) > 3 else set()
    likeness = len(said & said_before) / max(1, len(said | said_before)) if said_before else 0.0
    was_answered = bool(turn.said) and not (turn.aborted or turn.provider_error)
    was_bad = sum(cue.name in _BAD for cue, _ in _find_candidates(before, before))
    situation = {
        "defers": 2 in possible and bool(_DEFERRED.search(agent[-AWAITED_CHARS:])),
        "failure": failures >= 1,
        "failures": failures >= 3,
        "failure_after_claim": failures >= 1 and is_claimed,
        "failure_after_trial": failures >= 1 and is_awaited,
        "rephrased": likeness >= 0.2 and was_answered,
        "repeated": likeness >= 0.45 and not was_answered,
        "same_opening": len(turn.text) > SAME_CHARS < len(before)
        and turn.text[:SAME_CHARS] == turn.before[:SAME_CHARS],
        "bad_before": was_bad >= 3,
        "bad": is_bad,
        "bad_answer": is_bad and turn.asked,
        "bad_after_trial": is_bad and is_awaited,
        "bad_after_claim": is_bad and is_claimed,
        "bad_after_edit": is_bad and turn.edited,
    }
    return (name for name, holds in situation.items() if holds)


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

"""Ask the panel which of two answers is better, and read its verdicts.

reads   ANSWER without `drop_reason`
writes  JUDGMENT: one row per judge and order

Clear cases are decided without a judge: two equal answers are a tie, and an answer that repeats
itself over and over loses. A judge whose reply cannot be read is asked once more; after that the
judgment counts as not parsed, and its text is kept. Reading takes
time linear in the reply.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pimono_sdpo.llm.calls import Json, Reply, Request
from pimono_sdpo.llm.chat import Chat, Decisions, make_question
from pimono_sdpo.schema import DUEL_METRICS, Opponent
from pimono_sdpo.text import replace_surrogates, shorten
from processors.duel.answers import is_looping, sum_usage
from processors.duel.prompts import prompt
from processors.duel.sanitize import sanitize

Side = Literal["A", "B", "tie"]
# The last braces are enough for an object with two objects inside; trying all of them would take
# quadratic time on a hostile reply.
BRACES = 24
HIGHEST = 10
REASON_CHARS = 2_000
# Not strict: judges write line breaks into their reasons.
_DECODER = json.JSONDecoder(strict=False)
_OPENS = re.compile(r"\{")


@dataclass(frozen=True)
class Verdict:
    """Scores by metric of the response shown first and of the one shown second."""

    first: dict[str, float]
    second: dict[str, float]
    verdict: Side
    reason: str


def read_verdict(text: str) -> Verdict | str:
    """Return the last object with `A` and `B` in a reply, or in a few words what is wrong with it.

    >>> read_verdict("I prefer A.")
    'no JSON object with "A" and "B"'
    """
    starts = [match.start() for match in _OPENS.finditer(text)]
    fault, last = 'no JSON object with "A" and "B"', 0
    for start in reversed(starts[-BRACES:]):
        try:
            found, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        if not isinstance(found, dict) or "A" not in found or "B" not in found:
            continue
        if end < last:
            break  # before the last object, not around it
        read = _check_object(found)
        if isinstance(read, Verdict):
            return read
        fault, last = read, end
    return fault


def _check_object(found: dict[str, Any]) -> Verdict | str:
    sides = []
    for name in ("A", "B"):
        scores = _read_scores(found[name])
        if isinstance(scores, str):
            return f'"{name}" {scores}'
        sides.append(scores)
    verdict = str(found.get("verdict", "")).strip().lower()
    verdicts: dict[str, Side] = {"a": "A", "b": "B", "tie": "tie"}
    if verdict not in verdicts:
        return 'no "verdict" of "A", "B" or "tie"'
    reason = found.get("reason")
    if not isinstance(reason, str) or not reason.strip():
        return 'no "reason"'
    reason = replace_surrogates(reason).strip()[:REASON_CHARS]
    return Verdict(sides[0], sides[1], verdicts[verdict], reason)


def _read_scores(given: object) -> dict[str, float] | str:
    if not isinstance(given, dict):
        return "is no object of metrics"
    scores = {}
    for name in DUEL_METRICS:
        value = given.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is None or not is_number or not 0 <= value <= HIGHEST or value % 1:
            return f'has no whole number from 0 to {HIGHEST} for "{name}"'
        scores[name] = float(value)
    return scores


Row = Mapping[str, Any]
Context = Literal["none", "reference", "pr"]
ORDERS = (0, 1)
MESSAGE_CHARS = 6_000
HISTORY_CHARS = 60_000
ANSWER_CHARS = 12_000
RAW_CHARS = 8_000
NO_JUDGE_ASKED = "nobody was asked"
QUESTIONS = {
    "correctness": "Which response leads to the right solution, with a command that works?",
    "grounding": "Which response rests on what the conversation shows, and invents nothing?",
    "progress": "Which response brings the agent nearer to the solution?",
    "protocol": "Which response keeps to the form: a thought and exactly one runnable command?",
    "efficiency": "Which response wastes less work?",
    "verdict": "Which response is the better next step?",
}
OPTIONS = {"A": "Response A", "B": "Response B", "tie": "Neither is better"}


@dataclass(frozen=True)
class Panel:
    """Who judges, the challenger's opponent, and what judges see besides the conversation."""

    judges: tuple[str, ...]
    opponent: Opponent = "king"
    context: Context = "pr"
    max_tokens: int = 4096
    seed: int = 42


@dataclass(frozen=True)
class Shortcut:
    """An outcome that needs no judge: scores by metric, who won, and why."""

    ours: dict[str, float]
    theirs: dict[str, float]
    verdict: str
    reason: str


class JudgeStage:
    """The row function of the stage; with `Decisions` as the chat, judges give probabilities."""

    def __init__(self, chat: Chat, panel: Panel) -> None:
        self.chat = chat
        self.panel = panel

    async def run(self, answer: Row) -> list[Json]:
        """Return all judgments of a turn; never raises on what it holds."""
        if answer["drop_reason"] is not None:
            return []
        ours = answer["challenger"]
        theirs = answer["king"] if self.panel.opponent == "king" else answer["assistant"]
        known = decide_without_judge(ours, theirs)
        seats = [(judge, order) for judge in self.panel.judges for order in ORDERS]
        if known is not None:
            return [self._row(answer, *seat, known, (), known.reason) for seat in seats]
        judging = [self._judge(answer, judge, order, ours, theirs) for judge, order in seats]
        return list(await asyncio.gather(*judging))

    async def _judge(self, answer: Row, judge: str, order: int, ours: str, theirs: str) -> Json:
        first, second = (theirs, ours) if order == 0 else (ours, theirs)
        compared = self.render_comparison(answer, first, second)
        if isinstance(self.chat, Decisions):
            reply = await self.chat.ask(make_question(judge, compared, build_questions()))
            chances = reply.error or read_probabilities(json.loads(reply.text))
            return self._row(answer, judge, order, chances, (reply,), reply.text)
        messages = [
            {"role": "system", "content": prompt("judge.md")},
            {"role": "user", "content": compared},
        ]
        reply = await self._ask(judge, messages)
        replies = [reply]
        read = self._read(reply)
        if isinstance(read, str) and reply.error is None:
            repair = prompt("repair.md.j2", fault=read)
            answered = shorten(reply.text, RAW_CHARS) or "(nothing)"
            again = [
                {"role": "assistant", "content": answered},
                {"role": "user", "content": repair},
            ]
            reply = await self._ask(judge, [*messages, *again])
            replies.append(reply)
            read = self._read(reply)
        return self._row(answer, judge, order, read, tuple(replies), reply.text)

    async def _ask(self, judge: str, messages: list[Json]) -> Reply:
        panel = self.panel
        request = Request(
            judge, messages, temperature=0.0, seed=panel.seed, max_tokens=panel.max_tokens
        )
        return await self.chat.ask(request)

    def _read(self, reply: Reply) -> Verdict | str:
        # A verdict in a reply that was cut off may be a draft.
        is_cut = reply.finish_reason == "length"
        return "it was cut off before its end" if is_cut else read_verdict(reply.text)

    def render_comparison(self, answer: Row, first: str, second: str) -> str:
        """Return conversation, known solution and both responses; the long parts come first.

        Both orders share them, so that the provider can cache the prompt.
        """
        columns = {"none": "", "reference": "assistant", "pr": "privileged_context"}
        column = columns[self.panel.context]
        conversation = "\n\n".join(
            f"[{message['role']}]\n{shorten(message['content'], MESSAGE_CHARS)}"
            for message in answer["messages"]
        )
        parts = {
            "conversation": sanitize(shorten(conversation, HISTORY_CHARS)),
            "known": sanitize(answer[column]) if column else "",
            "first": sanitize(shorten(first, ANSWER_CHARS)),
            "second": sanitize(shorten(second, ANSWER_CHARS)),
        }
        # A hash of what both orders share, for the provider's prompt cache.
        mark = hashlib.sha256((parts["conversation"] + parts["known"]).encode()).hexdigest()[:8]
        name = "reference" if column == "assistant" else "solution"
        return prompt("compared.md.j2", mark=mark, known_name=name, **parts)

    def _row(
        self,
        answer: Row,
        judge: str,
        order: int,
        read: Verdict | Shortcut | str,
        replies: tuple[Reply, ...],
        raw: str,
    ) -> Json:
        row = {
            "turn_id": answer["turn_id"],
            "instance_id": answer["instance_id"],
            "judge": judge,
            "order": order,
            "opponent": self.panel.opponent,
            "scores_challenger": None,
            "scores_opponent": None,
            "verdict": None,
            "reason": None,
            "parsed": not isinstance(read, str),
            "raw": shorten(raw, RAW_CHARS),
            "usage": sum_usage(replies),
            "error": next((reply.error for reply in replies if reply.error), None),
        }
        if isinstance(read, Shortcut):
            row["scores_challenger"], row["scores_opponent"] = read.ours, read.theirs
            row |= {"verdict": read.verdict, "reason": read.reason}
        elif isinstance(read, Verdict):
            shown = (read.second, read.first) if order == 0 else (read.first, read.second)
            row["scores_challenger"], row["scores_opponent"] = shown
            row |= {"verdict": _resolve_side(read.verdict, order), "reason": read.reason}
        return row


def _resolve_side(verdict: str, order: int) -> str:
    """Say who a verdict of A or B means: order 0 shows the opponent first."""
    sides = ("opponent", "challenger") if order == 0 else ("challenger", "opponent")
    return "tie" if verdict == "tie" else sides[verdict == "B"]


def decide_without_judge(ours: str, theirs: str) -> Shortcut | None:
    """Decide when the answers are equal or one of them loops; else return None."""
    if ours.strip() == theirs.strip():
        return _shortcut(1, 1, "tie", "both answers are the same")
    loops = is_looping(ours), is_looping(theirs)
    if loops == (True, True):
        return _shortcut(0, 0, "tie", "both answers repeat themselves")
    if loops == (True, False):
        return _shortcut(0, 1, "opponent", "the challenger's answer repeats itself")
    if loops == (False, True):
        return _shortcut(1, 0, "challenger", "the opponent's answer repeats itself")
    return None


def _shortcut(ours: int, theirs: int, verdict: str, reason: str) -> Shortcut:
    scores = [dict.fromkeys(DUEL_METRICS, float(HIGHEST * side)) for side in (ours, theirs)]
    return Shortcut(scores[0], scores[1], verdict, f"{reason}; {NO_JUDGE_ASKED}")


def build_questions() -> dict[str, Json]:
    """Return one choice between A, B and a tie for each metric, and one for the whole."""
    return {
        name: {"type": "choice", "instructions": words, "criteria": OPTIONS}
        for name, words in QUESTIONS.items()
    }


def read_probabilities(chances: Mapping[str, Mapping[str, float]]) -> Verdict:
    """Turn probabilities into scores in their ratio, equal ones where a tie is most likely."""
    first, second = {}, {}
    for name in DUEL_METRICS:
        side = _most_likely(chances[name])
        both = chances[name]["A"] + chances[name]["B"]
        share = 0.5 if side == "tie" or not both else chances[name]["A"] / both
        first[name], second[name] = HIGHEST * share, HIGHEST * (1 - share)
    whole = chances["verdict"]
    listed = ", ".join(f"{option} {whole[option]:.2f}" for option in OPTIONS)
    return Verdict(first, second, _most_likely(whole), f"probabilities: {listed}")


def _most_likely(chances: Mapping[str, float]) -> Side:
    sides: tuple[Side, ...] = ("tie", "A", "B")
    return max(sides, key=lambda side: chances[side])

"""Ask a panel of judges which of two answers is better: each judge in both orders.

reads   ANSWER without `drop_reason`
writes  JUDGMENT: one row per judge and order

What needs no judge is decided without one: two equal answers are a tie, and an answer that says the
same over and over loses. A reply that cannot be read is asked for once more; then it counts as not
parsed, and its text is kept.
"""

import asyncio
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pimono_sdpo.llm.calls import Reply, Request
from pimono_sdpo.llm.chat import Chat
from pimono_sdpo.llm.decisions import Decisions, question
from pimono_sdpo.schema import Opponent
from pimono_sdpo.text import shorten
from processors.duel.answers import usage_of
from processors.duel.prompts import prompt
from processors.duel.sanitize import neutral
from processors.duel.shortcuts import Decided, decided, questions, verdict_of
from processors.duel.verdicts import Verdict, read_verdict

Json = dict[str, Any]
Row = Mapping[str, Any]
Context = Literal["none", "reference", "pr"]
ORDERS = (0, 1)
MESSAGE_CHARS = 6_000
HISTORY_CHARS = 60_000
ANSWER_CHARS = 12_000
RAW_CHARS = 8_000


@dataclass(frozen=True)
class Panel:
    """Who judges, whom the challenger meets, and what judges see beside the conversation."""

    judges: tuple[str, ...]
    opponent: Opponent = "king"
    context: Context = "pr"
    max_tokens: int = 4096
    seed: int = 42


class Judging:
    """The row function of the stage; with `Decisions` for a chat, judges answer without words."""

    def __init__(self, chat: Chat, panel: Panel) -> None:
        self.chat = chat
        self.panel = panel

    async def one(self, answer: Row) -> list[Json]:
        """All judgments of a turn; never raises on what it holds."""
        if answer["drop_reason"] is not None:
            return []
        ours = answer["challenger"]
        theirs = answer["king"] if self.panel.opponent == "king" else answer["assistant"]
        known = decided(ours, theirs)
        seats = [(judge, order) for judge in self.panel.judges for order in ORDERS]
        if known is not None:
            return [self._row(answer, *seat, known, (), known.reason) for seat in seats]
        asked = [self._judge(answer, judge, order, ours, theirs) for judge, order in seats]
        return list(await asyncio.gather(*asked))

    async def _judge(self, answer: Row, judge: str, order: int, ours: str, theirs: str) -> Json:
        first, second = (theirs, ours) if order == 0 else (ours, theirs)
        compared = self.comparison(answer, first, second)
        if isinstance(self.chat, Decisions):
            reply = await self.chat.ask(question(judge, compared, questions()))
            chances = reply.error or verdict_of(json.loads(reply.text))
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
            said = shorten(reply.text, RAW_CHARS) or "(nothing)"
            again = [{"role": "assistant", "content": said}, {"role": "user", "content": repair}]
            reply = await self._ask(judge, [*messages, *again])
            replies.append(reply)
            read = self._read(reply)
        return self._row(answer, judge, order, read, tuple(replies), reply.text)

    async def _ask(self, judge: str, messages: list[Json]) -> Reply:
        panel = self.panel
        asked = Request(
            judge, messages, temperature=0.0, seed=panel.seed, max_tokens=panel.max_tokens
        )
        return await self.chat.ask(asked)

    def _read(self, reply: Reply) -> Verdict | str:
        # What was read of a reply without its end may be a draft of its verdict.
        is_cut = reply.finish_reason == "length"
        return "it was cut off before its end" if is_cut else read_verdict(reply.text)

    def comparison(self, answer: Row, first: str, second: str) -> str:
        """The conversation, then what is known, then both responses: orders share what is long."""
        known = {"none": "", "reference": "assistant", "pr": "privileged_context"}
        column = known[self.panel.context]
        told = "\n\n".join(
            f"[{message['role']}]\n{shorten(message['content'], MESSAGE_CHARS)}"
            for message in answer["messages"]
        )
        parts = {
            "conversation": neutral(shorten(told, HISTORY_CHARS)),
            "known": neutral(answer[column]) if column else "",
            "first": neutral(shorten(first, ANSWER_CHARS)),
            "second": neutral(shorten(second, ANSWER_CHARS)),
        }
        # Of what both orders share, so that a provider's cache can know it.
        mark = hashlib.sha256((parts["conversation"] + parts["known"]).encode()).hexdigest()[:8]
        name = "reference" if column == "assistant" else "solution"
        return prompt("compared.md.j2", mark=mark, known_name=name, **parts)

    def _row(
        self,
        answer: Row,
        judge: str,
        order: int,
        read: Verdict | Decided | str,
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
            "usage": usage_of(replies),
            "error": next((reply.error for reply in replies if reply.error), None),
        }
        if isinstance(read, Decided):
            row["scores_challenger"], row["scores_opponent"] = read.ours, read.theirs
            row |= {"verdict": read.verdict, "reason": read.reason}
        elif isinstance(read, Verdict):
            shown = (read.second, read.first) if order == 0 else (read.first, read.second)
            row["scores_challenger"], row["scores_opponent"] = shown
            row |= {"verdict": _unswapped(read.verdict, order), "reason": read.reason}
        return row


def _unswapped(verdict: str, order: int) -> str:
    """Who a verdict of A or B means: order 0 shows the opponent first."""
    sides = ("opponent", "challenger") if order == 0 else ("challenger", "opponent")
    return "tie" if verdict == "tie" else sides[verdict == "B"]

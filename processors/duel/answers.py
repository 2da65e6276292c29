"""Ask both players for the next step of each turn: the king blind, the challenger with the hidden
pull request and the rule to answer as a blind agent could.

reads   TURN, PULL_REQUEST
writes  ANSWER: one row per turn; what cannot be judged has a `drop_reason`, what was not answered
        an `error`
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pimono_sdpo.llm.calls import Reply, Request
from pimono_sdpo.llm.chat import Chat
from pimono_sdpo.text import shorten
from processors.duel.action import answer_of, format_fault
from processors.duel.prompts import prompt
from processors.duel.verdicts import leaked_terms

Json = dict[str, Any]
Row = Mapping[str, Any]
# Characters of the hidden information: a third the problem, the rest the change.
HIDDEN_CHARS = 5_000
FILES_SHOWN = 40
# Seeds and samples of a second king, for the duel between equals.
OTHER_KING = 1_000


@dataclass(frozen=True)
class Players:
    """Who answers and how; `draws` answers are asked for before one of bad form is given up."""

    king: str
    challenger: str
    temperature: float = 0.7
    seed: int = 42
    max_tokens: int = 4096
    draws: int = 2


@dataclass(frozen=True)
class Said:
    """An answer, what is wrong with its form, and what it took."""

    text: str
    fault: str | None
    error: str | None
    replies: tuple[Reply, ...]


class Answering:
    """The row function of the stage; with `equals`, the challenger is the king once more."""

    def __init__(
        self, chat: Chat, players: Players, records: Mapping[str, Row], equals: bool = False
    ) -> None:
        self.chat = chat
        self.players = players
        self.records = records
        self.equals = equals

    async def one(self, turn: Row) -> list[Json]:
        """Answer a turn; never raises on what it holds."""
        record = self.records.get(turn["instance_id"])
        if record is None and not self.equals:
            return [_row(turn, self.players, drop_reason="no_pull_request")]
        hidden = "" if record is None or self.equals else privileged_context(record)
        blind = conversation(turn["messages"])
        informed = blind if self.equals else _told(blind, hidden)
        other = self.players.king if self.equals else self.players.challenger
        king, challenger = await asyncio.gather(
            self._ask(self.players.king, blind, 0),
            self._ask(other, informed, OTHER_KING if self.equals else 0),
        )
        visible = [message["content"] for message in turn["messages"]]
        leaks = leaked_terms(challenger.text, hidden, visible) if hidden else []
        return [
            _row(
                turn,
                self.players,
                king=king.text,
                challenger=challenger.text,
                king_ok=king.fault is None and king.error is None,
                challenger_ok=challenger.fault is None and challenger.error is None,
                leaked_terms=leaks,
                privileged_context=hidden,
                challenger_model=other,
                usage=usage_of((*king.replies, *challenger.replies)),
                drop_reason=_reason(king, challenger),
                error=king.error or challenger.error,
            )
        ]

    async def _ask(self, model: str, messages: Sequence[Json], sample: int) -> Said:
        replies: list[Reply] = []
        for draw in range(self.players.draws):
            reply = await self.chat.ask(
                Request(
                    model=model,
                    messages=messages,
                    temperature=self.players.temperature,
                    seed=self.players.seed + sample + draw,
                    max_tokens=self.players.max_tokens,
                    sample=sample + draw,
                )
            )
            replies.append(reply)
            text = answer_of(reply.text)
            fault = "tool_call" if reply.tool_calls else format_fault(text)
            if reply.error or fault is None:
                break
        return Said(text, fault, reply.error, tuple(replies))


def conversation(messages: Sequence[Row]) -> list[Json]:
    """The turns as they were, with the rules of the answer in the system message."""
    told = [{"role": message["role"], "content": message["content"]} for message in messages]
    system = told.pop(0)["content"] + "\n\n" if told and told[0]["role"] == "system" else ""
    return [{"role": "system", "content": system + prompt("rules.md")}, *told]


def _told(blind: Sequence[Json], hidden: str) -> list[Json]:
    """The same conversation with the hidden part at its end: a provider's cache knows the rest."""
    *before, last = blind
    words = prompt("hidden.md.j2", privileged_context=hidden)
    return [*before, {**last, "content": f"{last['content']}\n\n{words}"}]


def privileged_context(record: Row) -> str:
    """The hidden record as text, long parts without their middle."""
    third = HIDDEN_CHARS // 3
    patch = record["patch"]
    return prompt(
        "pull_request.md.j2",
        problem_statement=shorten(record["problem_statement"], third),
        files=record["files"][:FILES_SHOWN],
        description=shorten(record["description"], third // 2 if patch else 2 * third),
        patch=shorten(patch, third + third // 2),
    )


def usage_of(replies: Sequence[Reply]) -> Json:
    """Tokens and USD of calls; no cost when one of them has none."""
    costs = [reply.cost for reply in replies if reply.error is None]
    return {
        "prompt_tokens": sum(reply.prompt_tokens for reply in replies),
        "completion_tokens": sum(reply.completion_tokens for reply in replies),
        "cost": sum(cost for cost in costs if cost is not None) if None not in costs else None,
    }


def _reason(king: Said, challenger: Said) -> str | None:
    """Why there is nothing to judge; the king's fault first."""
    if king.error or challenger.error:
        return "error"
    if king.fault:
        return f"king_{king.fault}"
    return f"challenger_{challenger.fault}" if challenger.fault else None


def _row(turn: Row, players: Players, **found: Any) -> Json:
    return {
        **turn,
        "king": "",
        "challenger": "",
        "king_ok": False,
        "challenger_ok": False,
        "leaked_terms": [],
        "privileged_context": "",
        "king_model": players.king,
        "challenger_model": players.challenger,
        "usage": usage_of(()),
        "drop_reason": None,
        "error": None,
        **found,
    }

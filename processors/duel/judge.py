"""Ask judges to compare two answers, parse their verdicts, and score turns.

reads   ANSWER without `drop_reason`
writes  JUDGMENT: one row per call; DUEL: one row per turn

The gate asks one judge about each turn, and a second judge about one turn in twelve; the panel asks
every judge in both orders, and stops when no further vote can change the bucket of the turn.

Identical answers are a tie and no judge is asked. If a reply cannot be parsed, the judge is asked
once more; after that the judgment is stored as not parsed, with the raw reply.
"""

import asyncio
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from pimono_sdpo.llm.calls import Json, Reply, Request
from pimono_sdpo.llm.chat import Chat
from pimono_sdpo.llm.settings import Judge
from pimono_sdpo.schema import DUEL_METRICS, DUEL_TURN, FINAL_SCORE, JUDGMENT, PARITY, REFINED_SCORE, Opponent
from pimono_sdpo.text import replace_surrogates, shorten
from processors.duel.answers import Row, classify_action, prompt, sum_usage
from processors.duel.turns import SHARD_ROWS
from processors.judge import Messages, frame, sanitize, strip_drafts

Array = NDArray[np.float64]
Bucket = Literal["final", "refined", "defeat", "parse_fail"]
Side = Literal["A", "B", "tie"]
# Limits the attempts to decode an object, which together take quadratic time on a hostile reply.
BRACES = 64
HIGHEST = 10


@dataclass(frozen=True)
class Verdict:
    """Scores by metric of the response shown first and of the one shown second."""

    first: dict[str, float]
    second: dict[str, float]
    verdict: Side
    reason: str


class _DuplicateKey(ValueError):
    """An object that has a key twice."""


def _build_object(pairs: list[tuple[str, Any]]) -> Json:
    if len(built := dict(pairs)) < len(pairs):
        raise _DuplicateKey
    return built


# Not strict: judges write line breaks into their reasons.
_DECODER = json.JSONDecoder(strict=False, object_pairs_hook=_build_object)
_SCORE = Annotated[float, msgspec.Meta(ge=0, le=HIGHEST, multiple_of=1)]
_SCORES = msgspec.defstruct("Scores", [(name, _SCORE) for name in DUEL_METRICS])
_FIELDS = [("A", _SCORES), ("B", _SCORES), ("verdict", Literal["a", "b", "tie"]), ("reason", str)]
_REPLY = msgspec.defstruct("Reply", _FIELDS)


def read_verdict(text: str) -> Verdict | str:
    """Return the verdict of a reply, or what is wrong with the reply.

    A reply with several objects that have `A` or `B` is refused: one of them may be quoted from an answer.

    >>> read_verdict("I prefer A.")
    'no JSON object with "A" and "B"'
    """
    text = strip_drafts(text)
    candidates: list[Json] = []
    end = 0
    for _ in range(BRACES):
        if (start := text.find("{", end)) < 0:
            break
        try:
            decoded, end = _DECODER.raw_decode(text, start)
        except _DuplicateKey:
            return "an object that has a key twice"
        except (ValueError, RecursionError):
            decoded, end = {}, start + 1
        if "A" in decoded or "B" in decoded:
            candidates.append(decoded)
    else:
        return "more braces than one JSON object has"
    if len(candidates) > 1:
        return "more than one JSON object"
    if not candidates or not {"A", "B"} <= set(candidates[0]):
        return 'no JSON object with "A" and "B"'
    verdict = candidates[0].get("verdict")
    verdict = verdict.strip().lower() if isinstance(verdict, str) else verdict
    try:
        reply = msgspec.to_builtins(msgspec.convert({**candidates[0], "verdict": verdict}, _REPLY))
    except msgspec.ValidationError as error:
        return str(error)
    reason = replace_surrogates(reply["reason"]).strip()
    if not reason:
        return "an empty `reason`"
    side: Side = "tie" if reply["verdict"] == "tie" else reply["verdict"].upper()
    gap = sum(reply["A"].values()) - sum(reply["B"].values())
    if gap * {"A": 1, "B": -1, "tie": 0}[side] < 0:
        return f'a "verdict" of {side}, which has the lower scores'
    return Verdict(reply["A"], reply["B"], side, reason)


# A judge, and an order of the two answers.
Seat = tuple[str, int]
ORDERS = (0, 1)
SIDES = ("challenger", "opponent")
MESSAGE_CHARS = 6_000
HISTORY_CHARS = 60_000
ANSWER_CHARS = 12_000
RAW_CHARS = 8_000
NO_JUDGE_ASKED = "no judge was needed"
# A second judge reads one turn in this many.
SECOND_EVERY = 12
# A turn needs the votes of this many judges, or of all if there are fewer.
MIN_JUDGES = 2
COPIED = (*DUEL_TURN, "king", "challenger", "privileged_context", "leaked_terms")


def choose_seats(turn_id: str, judges: Sequence[str], seed: int) -> list[Seat]:
    """Return the judge and order of a turn in the gate; for some turns also a second judge, in the other order.

    Each block of turns has every pair of judge and order once, shuffled by the seed.
    """
    file, _, place = turn_id.rpartition("_")
    number = int(file.rpartition("-")[2]) * SHARD_ROWS + int(place) - 1
    seats = [(judge, order) for judge in judges for order in ORDERS]
    block, index = divmod(number, len(seats))
    random.Random(f"{seed}:seats:{block}").shuffle(seats)
    judge, order = seats[index]
    group, index = divmod(number, SECOND_EVERY)
    rng = random.Random(f"{seed}:second:{group}")
    others = [name for name in judges if name != judge]
    if not others or rng.randrange(SECOND_EVERY) != index:
        return [(judge, order)]
    return [(judge, order), (rng.choice(others), 1 - order)]


@dataclass(frozen=True)
class JudgeStage:
    """The judges, and what they see.

    With `single`, only the judges of the gate are asked; with `complete`, all are, even if the bucket is decided.
    """

    chat: Chat
    panel: Judge
    opponent: Opponent
    seed: int
    single: bool = False
    complete: bool = False

    async def run(self, answer: Row) -> list[Json]:
        """Return the judgments of a turn; never raises because of its content."""
        if answer["drop_reason"] is not None:
            return []
        ours = answer["challenger"]
        theirs = answer["king"] if self.opponent == "king" else answer["assistant"]
        judges = self.panel.models
        if self.single:
            seats = choose_seats(answer["turn_id"], judges, self.seed)
        else:
            seats = [(judge, order) for judge in judges for order in ORDERS]
        if ours.strip() == theirs.strip():
            best = dict.fromkeys(DUEL_METRICS, float(HIGHEST))
            tie = Verdict(best, best, "tie", f"both answers are the same; {NO_JUDGE_ASKED}")
            return [self._row(answer, seat, tie, (), tie.reason) for seat in seats]
        if self.single:
            return list(await asyncio.gather(*(self._judge(answer, seat, ours, theirs) for seat in seats)))
        rows: list[Json] = []
        for seat in seats:
            rows.append(await self._judge(answer, seat, ours, theirs))
            if not self.complete and is_bucket_decided(rows, len(judges), limit_score(answer)):
                break
        return rows

    async def _judge(self, answer: Row, seat: Seat, ours: str, theirs: str) -> Json:
        judge, order = seat
        first, second = (theirs, ours) if order == 0 else (ours, theirs)
        messages = self.write_question(answer, first, second)
        replies: list[Reply] = []
        while True:
            request = Request(judge, messages, temperature=0.0, seed=self.seed, max_tokens=self.panel.max_tokens)
            reply = await self.chat.ask(request)
            replies.append(reply)
            # The verdict of a truncated reply may be a draft.
            is_cut = reply.finish_reason == "length"
            verdict = "it was cut off before its end" if is_cut else read_verdict(reply.text)
            if isinstance(verdict, Verdict) or reply.error is not None or len(replies) == 2:
                return self._row(answer, seat, verdict, replies, reply.text)
            messages = [
                *messages,
                {"role": "assistant", "content": shorten(reply.text, RAW_CHARS) or "(nothing)"},
                {"role": "user", "content": prompt("repair", fault=verdict)},
            ]

    def write_question(self, answer: Row, first: str, second: str) -> Messages:
        """Return the messages that show a judge the conversation, the known solution and both responses.

        The long parts come first: both orders share them, so that the provider can cache the prompt.
        """
        column = {"none": "", "reference": "assistant", "pr": "privileged_context"}[self.panel.context]
        conversation = "\n\n".join(
            f"[{message['role']}]\n{shorten(message['content'], MESSAGE_CHARS)}" for message in answer["messages"]
        )
        # Sanitized before it is shortened, because that may make a text longer.
        parts = {"conversation": shorten(sanitize(conversation), HISTORY_CHARS)}
        if column and answer[column]:
            parts["reference" if column == "assistant" else "solution"] = shorten(
                sanitize(answer[column]), ANSWER_CHARS
            )
        for name, text in (("response A", first), ("response B", second)):
            parts[name] = shorten(sanitize(text), ANSWER_CHARS)
        return frame(prompt("judge"), parts)

    def _row(self, answer: Row, seat: Seat, verdict: Verdict | str, replies: Sequence[Reply], raw: str) -> Json:
        judge, order = seat
        row = {
            **dict.fromkeys(JUDGMENT),
            "turn_id": answer["turn_id"],
            "instance_id": answer["instance_id"],
            "judge": judge,
            "order": order,
            "opponent": self.opponent,
            "parsed": isinstance(verdict, Verdict),
            "raw": shorten(raw, RAW_CHARS),
            "usage": sum_usage(replies),
            "error": next((reply.error for reply in replies if reply.error), None),
        }
        if isinstance(verdict, Verdict):
            # Order 0 shows the opponent first.
            first, second = SIDES if order else SIDES[::-1]
            winner = {"A": first, "B": second, "tie": "tie"}[verdict.verdict]
            row |= {f"scores_{first}": verdict.first, f"scores_{second}": verdict.second}
            row |= {"verdict": winner, "reason": verdict.reason}
        return row


def is_bucket_decided(judgments: Sequence[Row], judges: int, most: float = 100.0) -> bool:
    """Return whether no further judgment can change the bucket of a turn that can score at most `most`.

    A judge that was not asked in both orders yet may still vote anything, or not at all if a reply cannot be read.
    """
    by_judge: dict[str, list[float | None]] = {}
    for row in judgments:
        score = score_judgment(row) if row["parsed"] else None
        by_judge.setdefault(row["judge"], []).append(score)
    votes: list[float] = []
    lows, highs = [0.0] * (judges - len(by_judge)), [100.0] * (judges - len(by_judge))
    for scores in by_judge.values():
        parsed = [score for score in scores if score is not None]
        if len(parsed) == len(ORDERS):
            votes.append(sum(parsed) / 2)
        elif len(parsed) == len(scores):
            lows.append(parsed[0] / 2)
            highs.append(parsed[0] / 2 + 50)
    if len(votes) < min(MIN_JUDGES, judges):
        return False
    low = min(fmean([*votes, *sorted(lows)[:more]]) for more in range(len(lows) + 1))
    high = max(fmean([*votes, *sorted(highs, reverse=True)[:more]]) for more in range(len(highs) + 1))
    return choose_bucket(min(low, most)) == choose_bucket(min(high, most))


def collect_votes(judges: Sequence[str], judgments: Sequence[Row]) -> Array:
    """Return the votes of these judgments as an array (turns, judges, 2 orders, metrics), turns in their order.

    A vote is 1 for the challenger, 0 for its opponent, 0.5 for a tie, nan without a readable judgment.
    Order 0 shows the opponent first.
    """
    numbers = {turn: number for number, turn in enumerate(dict.fromkeys(row["turn_id"] for row in judgments))}
    votes = np.full((len(numbers), len(judges), 2, len(DUEL_METRICS)), np.nan)
    for row in judgments:
        if row["parsed"]:
            votes[numbers[row["turn_id"]], judges.index(row["judge"]), row["order"]] = compare_metrics(row)
    return votes


def compare_metrics(judgment: Row) -> list[float]:
    """Return 1 for each metric the challenger won, 0.5 for a tie, 0 for a loss."""
    ours, theirs = judgment["scores_challenger"], judgment["scores_opponent"]
    return [((ours[m] > theirs[m]) + (ours[m] >= theirs[m])) / 2 for m in DUEL_METRICS]


def score_judgment(row: Row) -> float:
    """Return the score of a readable judgment: the percentage of metrics the challenger won."""
    return 100 * sum(compare_metrics(row)) / len(DUEL_METRICS)


def nan_mean(values: Array, axis: int | tuple[int, ...]) -> Array:
    """Return the mean of the values that are not nan, and nan where there are none."""
    mean: Array = np.ma.masked_invalid(values).mean(axis=axis).filled(np.nan)
    return mean


def score_turn(votes: Array, judges: Sequence[str]) -> Json:
    """Return the scores of a turn as columns of DUEL; `score` is None without enough votes.

    The score is the mean over judges of the mean over orders and metrics. A judge votes only if both
    orders could be read, so that a preference for the first answer cancels out; it is consistent if
    both orders have the same winner.
    """
    voted: list[int] = np.flatnonzero(~np.isnan(votes).any(axis=(1, 2))).tolist()
    values, voters = votes[voted], [judges[index] for index in voted]
    if len(voters) < min(MIN_JUDGES, len(judges)):
        unknown: Json = {"score": None, "metrics": dict.fromkeys(DUEL_METRICS), "per_judge": []}
        return {**unknown, "n_votes": len(voters), "position_consistent": False}
    means, metrics = 100 * values.mean(axis=(1, 2)), 100 * values.mean(axis=1).mean(axis=0)
    winners = np.sign(values.mean(axis=2) - 0.5)
    return {
        "score": float(100 * values.mean(axis=(1, 2)).mean()),
        "metrics": dict(zip(DUEL_METRICS, metrics.tolist(), strict=True)),
        "per_judge": [{"judge": judge, "score": mean} for judge, mean in zip(voters, means.tolist(), strict=True)],
        "n_votes": len(voters),
        "position_consistent": bool((winners[:, 0] == winners[:, 1]).all()),
    }


def choose_bucket(score: float | None) -> Bucket:
    """Name the bucket of a score: `final` from 80, `refined` from 66, else `defeat`."""
    if score is None:
        return "parse_fail"
    # A mean of five judges may miss a limit by rounding.
    rounded = round(score, 9)
    if rounded >= FINAL_SCORE:
        return "final"
    return "refined" if rounded >= REFINED_SCORE else "defeat"


def limit_score(answer: Row) -> float:
    """Return the highest score of an answer: parity if it uses terms of the hidden text."""
    return PARITY if answer["leaked_terms"] else 100.0


def group_by_turn(judgments: Iterable[Row]) -> dict[str, list[Row]]:
    """Return the judgments of each turn, in their order."""
    by_turn: dict[str, list[Row]] = {}
    for row in judgments:
        by_turn.setdefault(row["turn_id"], []).append(row)
    return by_turn


def make_duels(
    answers: Iterable[Row], judgments: Iterable[Row], judges: Sequence[str], opponent: Opponent
) -> Iterator[Json]:
    """Yield a DUEL row for each answer that was judged; `reason` has a line per judgment."""
    by_turn = group_by_turn(judgments)
    for answer in answers:
        if rows := by_turn.get(answer["turn_id"]):
            scores = score_turn(collect_votes(judges, rows)[0], judges)
            score = None if scores["score"] is None else min(scores["score"], limit_score(answer))
            explained = (row for row in rows if row["parsed"] and row["reason"])
            yield {
                **{name: answer[name] for name in COPIED},
                **scores,
                "action_style": classify_action(answer["challenger"]),
                "opponent": opponent,
                "score": score,
                "bucket": choose_bucket(score),
                "reason": "\n".join(f"{r['judge']} (order {r['order']}): {r['reason']}" for r in explained) or None,
            }

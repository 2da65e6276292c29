"""Let judges compare two answers, read their verdicts, and score each turn by them.

reads   ANSWER without `drop_reason`
writes  JUDGMENT: one row per call; DUEL: one row per turn

The gate asks one judge about each turn, and a second one about one turn in twelve; the panel asks
every judge in both orders, and stops when no further vote can change the bucket of the turn.

Two equal answers are a tie without a judge. A judge whose reply cannot be read is asked once more;
after that the judgment counts as not parsed, and its text is kept.
"""

import asyncio
import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from processors.duel.answers import classify_action, prompt, sanitize, strip_reasoning, sum_usage
from processors.duel.turns import SHARD_ROWS

Array = NDArray[np.float64]
Bucket = Literal["final", "refined", "defeat", "parse_fail"]
Side = Literal["A", "B", "tie"]
# Trying more starts of objects would take quadratic time on a hostile reply.
BRACES = 64
HIGHEST = 10
REASON_CHARS = 2_000


@dataclass(frozen=True)
class Verdict:
    """Scores by metric of the response shown first and of the one shown second."""

    first: dict[str, float]
    second: dict[str, float]
    verdict: Side
    reason: str


class _Repeated(ValueError):
    """An object that has a key twice."""


def _build_object(pairs: list[tuple[str, Any]]) -> Json:
    if len(built := dict(pairs)) < len(pairs):
        raise _Repeated
    return built


# Not strict: judges write line breaks into their reasons.
_DECODER = json.JSONDecoder(strict=False, object_pairs_hook=_build_object)
_SCORE = Annotated[float, msgspec.Meta(ge=0, le=HIGHEST, multiple_of=1)]
_SCORES = msgspec.defstruct("Scores", [(name, _SCORE) for name in DUEL_METRICS])
_FIELDS = [("A", _SCORES), ("B", _SCORES), ("verdict", Literal["a", "b", "tie"]), ("reason", str)]
_REPLY = msgspec.defstruct("Reply", _FIELDS)


def read_verdict(text: str) -> Verdict | str:
    """Return the only object with `A` and `B` in a reply, or in a few words what is wrong with it.

    A reply with several such objects is not read: one of them may be quoted from an answer.

    >>> read_verdict("I prefer A.")
    'no JSON object with "A" and "B"'
    """
    text = strip_reasoning(text)
    found: list[Json] = []
    end = 0
    for _ in range(BRACES):
        if (start := text.find("{", end)) < 0:
            break
        try:
            read, end = _DECODER.raw_decode(text, start)
        except _Repeated:
            return "an object that has a key twice"
        except (ValueError, RecursionError):
            read, end = {}, start + 1
        if "A" in read or "B" in read:
            found.append(read)
    else:
        return "more braces than one JSON object has"
    if len(found) > 1:
        return "more than one JSON object"
    if not found or not {"A", "B"} <= set(found[0]):
        return 'no JSON object with "A" and "B"'
    verdict = found[0].get("verdict")
    verdict = verdict.strip().lower() if isinstance(verdict, str) else verdict
    try:
        read = msgspec.to_builtins(msgspec.convert({**found[0], "verdict": verdict}, _REPLY))
    except msgspec.ValidationError as error:
        return str(error)
    reason = replace_surrogates(read["reason"]).strip()[:REASON_CHARS]
    if not reason:
        return "an empty `reason`"
    side: Side = "tie" if read["verdict"] == "tie" else read["verdict"].upper()
    gap = sum(read["A"].values()) - sum(read["B"].values())
    if gap * {"A": 1, "B": -1, "tie": 0}[side] < 0:
        return f'a "verdict" of {side}, which has the lower scores'
    return Verdict(read["A"], read["B"], side, reason)


Row = Mapping[str, Any]
# A judge, and an order of the two answers.
Seat = tuple[str, int]
ORDERS = (0, 1)
SIDES = ("challenger", "opponent")
MESSAGE_CHARS = 6_000
HISTORY_CHARS = 60_000
ANSWER_CHARS = 12_000
RAW_CHARS = 8_000
NO_JUDGE_ASKED = "no judge was needed"
# One turn in so many is read by a second judge.
SECOND_EVERY = 12
# A turn needs the votes of so many judges, or of all where there are fewer.
MIN_JUDGES = 2
COPIED = (*DUEL_TURN, "king", "challenger", "privileged_context", "leaked_terms")


def choose_seats(turn_id: str, judges: Sequence[str], seed: int) -> list[Seat]:
    """Return who reads a turn for the gate, and in which order; now and then a second judge, too.

    Each block of turns has every pair of judge and order once, in an order that the seed decides.
    """
    file, _, order = turn_id.rpartition("_")
    number = int(file.rpartition("-")[2]) * SHARD_ROWS + int(order) - 1
    seats = [(judge, order) for judge in judges for order in ORDERS]
    block, place = divmod(number, len(seats))
    random.Random(f"{seed}:seats:{block}").shuffle(seats)
    judge, order_shown = seats[place]
    group, at = divmod(number, SECOND_EVERY)
    rng = random.Random(f"{seed}:second:{group}")
    others = [name for name in judges if name != judge]
    if not others or rng.randrange(SECOND_EVERY) != at:
        return [(judge, order_shown)]
    return [(judge, order_shown), (rng.choice(others), 1 - order_shown)]


@dataclass(frozen=True)
class JudgeStage:
    """Who judges, and what judges see.

    With `single` there are the seats of the gate alone; with `complete` all seats, also when the bucket is decided.
    """

    chat: Chat
    panel: Judge
    opponent: Opponent
    seed: int
    single: bool = False
    complete: bool = False

    async def run(self, answer: Row) -> list[Json]:
        """Return the judgments of a turn; never raises on what it holds."""
        if answer["drop_reason"] is not None:
            return []
        ours = answer["challenger"]
        theirs = answer["king"] if self.opponent == "king" else answer["assistant"]
        judges = self.panel.models
        seats = [(judge, order) for judge in judges for order in ORDERS]
        if self.single:
            seats = choose_seats(answer["turn_id"], judges, self.seed)
        if ours.strip() == theirs.strip():
            best = dict.fromkeys(DUEL_METRICS, float(HIGHEST))
            tie = Verdict(best, best, "tie", f"both answers are the same; {NO_JUDGE_ASKED}")
            return [self._row(answer, seat, tie, (), tie.reason) for seat in seats]
        if self.single:
            return list(await asyncio.gather(*(self._judge(answer, seat, ours, theirs) for seat in seats)))
        rows: list[Json] = []
        for seat in seats:
            rows.append(await self._judge(answer, seat, ours, theirs))
            decided = is_bucket_decided(rows, len(judges), limit_score(answer))
            if decided and not self.complete:
                break
        return rows

    async def _judge(self, answer: Row, seat: Seat, ours: str, theirs: str) -> Json:
        judge, order = seat
        first, second = (theirs, ours) if order == 0 else (ours, theirs)
        messages = [
            {"role": "system", "content": prompt("judge")},
            {"role": "user", "content": self.render_comparison(answer, first, second)},
        ]
        replies: list[Reply] = []
        while True:
            request = Request(judge, messages, temperature=0.0, seed=self.seed, max_tokens=self.panel.max_tokens)
            reply = await self.chat.ask(request)
            replies.append(reply)
            # A verdict in a reply that was cut off may be a draft.
            is_cut = reply.finish_reason == "length"
            read = "it was cut off before its end" if is_cut else read_verdict(reply.text)
            if not isinstance(read, str) or reply.error is not None or len(replies) == 2:
                return self._row(answer, seat, read, replies, reply.text)
            answered = shorten(reply.text, RAW_CHARS) or "(nothing)"
            messages = [
                *messages,
                {"role": "assistant", "content": answered},
                {"role": "user", "content": prompt("repair", fault=read)},
            ]

    def render_comparison(self, answer: Row, first: str, second: str) -> str:
        """Return conversation, known solution and both responses.

        The long parts come first: both orders share them, so that the provider can cache the prompt.
        """
        columns = {"none": "", "reference": "assistant", "pr": "privileged_context"}
        column = columns[self.panel.context]
        conversation = "\n\n".join(
            f"[{message['role']}]\n{shorten(message['content'], MESSAGE_CHARS)}" for message in answer["messages"]
        )
        parts = {
            "conversation": shorten(sanitize(conversation), HISTORY_CHARS),
            "known": sanitize(answer[column]) if column else "",
            "first": shorten(sanitize(first), ANSWER_CHARS),
            "second": shorten(sanitize(second), ANSWER_CHARS),
        }
        # No answer can name its own hash, so none can close its frame. Both orders share the mark,
        # for the provider's prompt cache.
        shared = [self.seed, answer["turn_id"], parts["known"], *sorted([first, second])]
        mark = hashlib.sha256(json.dumps(shared).encode()).hexdigest()[:16]
        name = "reference" if column == "assistant" else "solution"
        return prompt("compared", mark=mark, known_name=name, **parts)

    def _row(self, answer: Row, seat: Seat, read: Verdict | str, replies: Sequence[Reply], raw: str) -> Json:
        judge, order = seat
        row = {
            **dict.fromkeys(JUDGMENT),
            "turn_id": answer["turn_id"],
            "instance_id": answer["instance_id"],
            "judge": judge,
            "order": order,
            "opponent": self.opponent,
            "parsed": not isinstance(read, str),
            "raw": shorten(raw, RAW_CHARS),
            "usage": sum_usage(replies),
            "error": next((reply.error for reply in replies if reply.error), None),
        }
        if isinstance(read, Verdict):
            # Order 0 shows the opponent first; what no judge decided has the challenger first.
            first, second = SIDES if order else SIDES[::-1]
            winner = {"A": first, "B": second, "tie": "tie"}[read.verdict]
            row |= {f"scores_{first}": read.first, f"scores_{second}": read.second}
            row |= {"verdict": winner, "reason": read.reason}
        return row


def is_bucket_decided(judgments: Sequence[Row], judges: int, most: float = 100.0) -> bool:
    """Whether no further judgment of a panel can change the bucket of a turn, which can score `most`.

    Judges that have not been asked in both orders may still vote anything or, unreadable, not at all.
    """
    by_judge: dict[str, list[float | None]] = {}
    for row in judgments:
        vote = score_judgment(row) if row["parsed"] else None
        by_judge.setdefault(row["judge"], []).append(vote)
    votes: list[float] = []
    lows, highs = [0.0] * (judges - len(by_judge)), [100.0] * (judges - len(by_judge))
    for given in by_judge.values():
        read = [vote for vote in given if vote is not None]
        if len(read) == len(ORDERS):
            votes.append(sum(read) / 2)
        elif len(read) == len(given):
            lows.append(read[0] / 2)
            highs.append(read[0] / 2 + 50)
    if len(votes) < min(MIN_JUDGES, judges):
        return False
    low = min(fmean([*votes, *sorted(lows)[:more]]) for more in range(len(lows) + 1))
    high = max(fmean([*votes, *sorted(highs, reverse=True)[:more]]) for more in range(len(highs) + 1))
    return choose_bucket(min(low, most)) == choose_bucket(min(high, most))


def collect_votes(judges: Sequence[str], judgments: Sequence[Row]) -> Array:
    """Return the votes on the turns of these judgments, in their order: (turns, judges, 2 orders, metrics).

    A vote is 1 for the challenger, 0 for its opponent, 0.5 for a tie, nan where no judgment could be read.
    Order 0 shows the opponent first.
    """
    rows = {turn: at for at, turn in enumerate(dict.fromkeys(one["turn_id"] for one in judgments))}
    votes = np.full((len(rows), len(judges), 2, len(DUEL_METRICS)), np.nan)
    for one in judgments:
        if one["parsed"]:
            votes[rows[one["turn_id"]], judges.index(one["judge"]), one["order"]] = compare_metrics(one)
    return votes


def compare_metrics(judgment: Row) -> list[float]:
    """Return 1 for each metric that the challenger won, 0.5 for a tie, 0 for a loss."""
    ours, theirs = judgment["scores_challenger"], judgment["scores_opponent"]
    return [((ours[m] > theirs[m]) + (ours[m] >= theirs[m])) / 2 for m in DUEL_METRICS]


def score_judgment(row: Row) -> float:
    """Return the score of one readable judgment, 0 to 100: the metrics the challenger won."""
    return 100 * sum(compare_metrics(row)) / len(DUEL_METRICS)


def nan_mean(values: Array, axis: int | tuple[int, ...]) -> Array:
    """Return the mean of all values that are not nan, and nan where there are none."""
    mean: Array = np.ma.masked_invalid(values).mean(axis=axis).filled(np.nan)
    return mean


def score_turn(votes: Array, judges: Sequence[str]) -> Json:
    """Return what a panel said of a turn, in columns of DUEL; `score` is None without enough votes.

    The score is the mean over judges of the mean over orders and metrics. A judge must be readable
    in both orders to vote, so that a preference for the first answer cancels out; it is consistent
    if both have the same winner.
    """
    read = np.flatnonzero(~np.isnan(votes).any(axis=(1, 2)))
    values, both = votes[read], [judges[at] for at in read.tolist()]
    if len(both) < min(MIN_JUDGES, len(judges)):
        unknown: Json = {"score": None, "metrics": dict.fromkeys(DUEL_METRICS), "per_judge": []}
        return {**unknown, "n_votes": len(both), "position_consistent": False}
    means, metrics = 100 * values.mean(axis=(1, 2)), 100 * values.mean(axis=1).mean(axis=0)
    winners = np.sign(values.mean(axis=2) - 0.5)
    return {
        "score": float(100 * values.mean(axis=(1, 2)).mean()),
        "metrics": dict(zip(DUEL_METRICS, metrics.tolist(), strict=True)),
        "per_judge": [{"judge": judge, "score": mean} for judge, mean in zip(both, means.tolist(), strict=True)],
        "n_votes": len(both),
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
    """Return the most an answer can score: one with terms of the hidden text wins nothing."""
    return PARITY if answer["leaked_terms"] else 100.0


def group_by_turn(judgments: Iterable[Row]) -> dict[str, list[Row]]:
    """Return the judgments of each turn, in their order."""
    by_turn: dict[str, list[Row]] = {}
    for one in judgments:
        by_turn.setdefault(one["turn_id"], []).append(one)
    return by_turn


def make_duels(
    answers: Iterable[Row], judgments: Iterable[Row], judges: Sequence[str], opponent: Opponent
) -> Iterator[Json]:
    """Yield a DUEL row for each answer that was judged; `reason` has a line per judgment."""
    by_turn = group_by_turn(judgments)
    for answer in answers:
        if rows := by_turn.get(answer["turn_id"]):
            found = score_turn(collect_votes(judges, rows)[0], judges)
            score = None if found["score"] is None else min(found["score"], limit_score(answer))
            read = (one for one in rows if one["parsed"] and one["reason"])
            yield {
                **{name: answer[name] for name in COPIED},
                **found,
                "action_style": classify_action(answer["challenger"]),
                "opponent": opponent,
                "score": score,
                "bucket": choose_bucket(score),
                "reason": "\n".join(f"{one['judge']} (order {one['order']}): {one['reason']}" for one in read) or None,
            }

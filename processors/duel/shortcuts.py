"""What needs no words of a judge: outcomes that are clear, and verdicts read from probabilities."""

from collections.abc import Mapping
from dataclasses import dataclass

from pimono_sdpo.llm.calls import Json
from pimono_sdpo.schema import DUEL_METRICS
from processors.duel.action import is_looping
from processors.duel.verdicts import HIGHEST, Side, Verdict

NOBODY_ASKED = "nobody was asked"
ASKED = {
    "correctness": "Which response leads to the right solution, with a command that works?",
    "grounding": "Which response rests on what the conversation shows, and invents nothing?",
    "progress": "Which response brings the agent nearer to the solution?",
    "protocol": "Which response keeps to the form: a thought and exactly one runnable command?",
    "efficiency": "Which response wastes less work?",
    "verdict": "Which response is the better next step?",
}
OPTIONS = {"A": "Response A", "B": "Response B", "tie": "Neither is better"}


@dataclass(frozen=True)
class Decided:
    """An outcome without a judge: scores by metric, who won, and why."""

    ours: dict[str, float]
    theirs: dict[str, float]
    verdict: str
    reason: str


def decided(ours: str, theirs: str) -> Decided | None:
    """The outcome when the answers are the same or one of them loops; else None."""
    if ours.strip() == theirs.strip():
        return _outcome(1, 1, "tie", "both answers are the same")
    loops = is_looping(ours), is_looping(theirs)
    if loops == (True, True):
        return _outcome(0, 0, "tie", "both answers repeat themselves")
    if loops == (True, False):
        return _outcome(0, 1, "opponent", "the challenger's answer repeats itself")
    if loops == (False, True):
        return _outcome(1, 0, "challenger", "the opponent's answer repeats itself")
    return None


def _outcome(ours: int, theirs: int, verdict: str, reason: str) -> Decided:
    scores = [dict.fromkeys(DUEL_METRICS, float(HIGHEST * side)) for side in (ours, theirs)]
    return Decided(scores[0], scores[1], verdict, f"{reason}; {NOBODY_ASKED}")


def questions() -> dict[str, Json]:
    """One choice between A, B and a tie per metric, and one for the whole."""
    return {
        name: {"type": "choice", "instructions": words, "criteria": OPTIONS}
        for name, words in ASKED.items()
    }


def verdict_of(chances: Mapping[str, Mapping[str, float]]) -> Verdict:
    """Scores in the ratio of the probabilities; equal ones where a tie is likeliest."""
    first, second = {}, {}
    for name in DUEL_METRICS:
        side = _likeliest(chances[name])
        both = chances[name]["A"] + chances[name]["B"]
        share = 0.5 if side == "tie" or not both else chances[name]["A"] / both
        first[name], second[name] = HIGHEST * share, HIGHEST * (1 - share)
    whole = chances["verdict"]
    told = ", ".join(f"{option} {whole[option]:.2f}" for option in OPTIONS)
    return Verdict(first, second, _likeliest(whole), f"probabilities: {told}")


def _likeliest(chances: Mapping[str, float]) -> Side:
    sides: tuple[Side, ...] = ("tie", "A", "B")
    return max(sides, key=lambda side: chances[side])

"""King, challenger and judges of a duel, as policies of the scripted server."""

import json
import re
from typing import Any

from pimono_sdpo.schema import DUEL_METRICS
from tests.duel.trajectories import step

Json = dict[str, Any]
RESPONSE = re.compile(r"<response ([AB]) (\w{16})>\n(.*?)\n</response \1 \2>", re.DOTALL)


def is_judge(body: Json) -> bool:
    return str(body["model"]).startswith("judge")


def is_informed(body: Json) -> bool:
    return "<hidden>" in body["messages"][-1]["content"]


def shown(body: Json) -> dict[str, str]:
    """The responses a judge was shown, by letter."""
    return {name: text for name, _, text in RESPONSE.findall(body["messages"][1]["content"])}


def verdict(first: int, second: int, reason: str = "because", **other: object) -> str:
    scores = {"A": dict.fromkeys(DUEL_METRICS, first), "B": dict.fromkeys(DUEL_METRICS, second)}
    best = "tie" if first == second else "AB"[second > first]
    return json.dumps({**scores, "verdict": best, "reason": reason, **other})


def play(body: Json) -> str | Json:
    """King and challenger search; every judge prefers the answer that says `carefully`."""
    if is_judge(body):
        good = {name: 8 if "carefully" in text else 3 for name, text in shown(body).items()}
        return "I think so.\n" + verdict(good["A"], good["B"])
    word = "carefully" if is_informed(body) else "quickly"
    last = len(body["messages"])
    return step(f"I look {word}, seed {body['seed']}, turn {last}", f"grep -rn row src | head -{last}")

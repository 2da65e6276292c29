"""Verifiers that return the verdict in the completion: `gate:passed style:failed:0.5`."""

from functools import partial
from typing import Any

from rewards.verifiers.rubric import Rubric, VerifierResult, error, failed, passed, skipped


def return_verdict(completion: str, spec: dict[str, Any], name: str) -> VerifierResult:
    words = {word.split(":")[0]: word.split(":")[1:] for word in completion.split() if ":" in word}
    status, *score = words.get(name, ["passed"])
    if status == "failed":
        return failed(name, "command_error", f"{name} failed", float(score[0]) if score else 0.0)
    return {"passed": passed(name), "skipped": skipped(name, "no say"), "error": error(name, "down")}[status]


GATE, STYLE, TESTS = (partial(return_verdict, name=name) for name in ("gate", "style", "tests"))
RUBRIC = Rubric(gates=[GATE], graded=[(STYLE, 1.0), (TESTS, 3.0)])

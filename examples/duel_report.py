"""Print who won a duel, the score of each judge, and the turns on which the judges disagree most.

    python examples/duel_report.py duel

The folder is the one that `pimono-sdpo duel` wrote.
"""

import json
import sys
from pathlib import Path

from datasets import load_dataset


def main(folder: str) -> None:
    """Read the report and the judged turns of a duel."""
    result = Path(folder) / "result"
    report = json.loads((result / "report.json").read_text())
    print(report["verdict"]["sentence"])
    for judge in report["verdict"]["judges"]:
        print(f"{judge['name']}: score {format_score(judge['score'])}, without it {format_score(judge['without'])}")
    turns = []
    for bucket in report["configs"]:
        turns += list(load_dataset(str(result), bucket, split="train"))
    for turn in sorted(turns, key=measure_spread, reverse=True)[:5]:
        reason = turn["reason"].splitlines()[0]
        print(f"{turn['turn_id']} {turn['score']:.0f} {turn['bucket']}: {reason}")


def format_score(score: float | None) -> str:
    """Format a score, which is None without judgments."""
    return "none" if score is None else f"{score:.1f}"


def measure_spread(turn: dict[str, list[dict[str, float]]]) -> float:
    """Return the difference between the highest and the lowest score of a turn."""
    scores = [one["score"] for one in turn["per_judge"] if one["score"] is not None]
    return max(scores, default=0) - min(scores, default=0)


if __name__ == "__main__":
    main(sys.argv[1]) if len(sys.argv) == 2 else sys.exit(__doc__)

"""What is said of a finished run."""

from pathlib import Path
from typing import Any


def summary(report: dict[str, Any], out: Path) -> str:
    """What a report says in a few lines."""
    score = report["score"]
    lines = [
        f"score {score['min']:g} to {score['max']:g}, mean {score['mean']:.2f}",
        "categories: " + counts(report["category_counts"]),
    ]
    broken = {name: n for name, n in report["lines"].items() if n and name != "parsed"}
    if broken:
        lines.append("broken lines: " + counts(broken))
    upstream = report["input"].get("upstream") or {}
    if upstream.get("commits_behind"):
        behind = counts({"commits": upstream["commits_behind"], "days": upstream["days_behind"]})
        lines.append(f"the viewer's export is behind the dataset: {behind}")
    if report["options"]["test_fraction"]:
        lines.append("split: " + counts({"train": 0, "test": 0} | report["splits"]))
    if report["secrets_redacted"]:
        lines.append("redacted: " + counts(report["secrets_redacted"]))
    lines.append(f"rows, rejects, report.json and README.md are in {out}")
    return "\n".join(lines)


def counts(of: dict[str, int]) -> str:
    """Names and numbers in one line."""
    return ", ".join(f"{name} {count}" for name, count in of.items())


def verdicts(verdicts: dict[str, dict[str, int]]) -> str:
    """Align how often each verifier said what."""
    statuses = next(iter(verdicts.values()))
    rows = [["verifier", *statuses]]
    rows += [[name, *map(str, said.values())] for name, said in verdicts.items()]
    first = max(len(row[0]) for row in rows)
    return "\n".join(f"{name:<{first}}" + "".join(f"{n:>9}" for n in row) for name, *row in rows)

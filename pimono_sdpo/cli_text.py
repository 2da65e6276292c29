"""How the front door reads some options, and what it says of a finished run."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer


def one_of(given: str, names: Sequence[str], option: str) -> str:
    """Refuse what is none of the names."""
    if given not in names:
        raise typer.BadParameter(f"`{given}` is neither {' nor '.join(names)}", param_hint=option)
    return given


def part_of(given: str) -> tuple[int, int]:
    """Read I/N, 1 <= I <= N."""
    found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", given)
    part, parts = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= part <= parts:
        raise typer.BadParameter(
            f"`{given}` is no part; give 1/3, 2/3 or 3/3 of a source in three", param_hint="--shard"
        )
    return part, parts


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

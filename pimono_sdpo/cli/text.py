"""Lines that several commands print."""


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

"""Count the code of the project by kind and folder, with its numeric constants.

    python -m benchmarks.size [ROOT]

`lines` are those of Python outside tests, benchmarks, docs and examples; `constants` are the lines of it that begin with a
name in capitals and assign a number. Tables in TOML, JSON and JavaScript count on their own.
"""

import re
import sys
from collections import Counter
from pathlib import Path

APART = ("tests", "benchmarks", "docs", "examples")
TABLES = (".toml", ".json", ".js", ".css", ".yaml", ".j2")
CONSTANT = re.compile(r"^_?[A-Z][A-Z_0-9]* *(?:: *[\w\[\], ]+)?= *\(?-?[\d.]", re.MULTILINE)


def count(root: Path) -> tuple[Counter[tuple[str, str]], Counter[str]]:
    """Return the numbers by folder and kind, and the totals: lines, modules, constants, tests."""
    by_folder: Counter[tuple[str, str]] = Counter()
    total: Counter[str] = Counter()
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if (
            any(part.startswith(".") or part in {"build", "dist", "__pycache__"} for part in parts)
            or not path.is_file()
        ):
            continue
        top, kind = parts[0] if len(parts) > 1 else ".", path.suffix
        if kind == ".py":
            text = path.read_text()
            lines, found = text.count("\n"), len(CONSTANT.findall(text))
            by_folder[top, "lines"] += lines
            by_folder[top, "modules"] += 1
            by_folder[top, "constants"] += found
            if top not in APART:
                total.update(lines=lines, modules=1, constants=found)
            elif top == "tests":
                total.update(tests=lines)
        elif kind in TABLES and top not in APART:
            lines = path.read_text().count("\n")
            by_folder[top, kind] += lines
            total.update({kind: lines})
    return by_folder, total


def main(root: Path) -> None:
    """Print the table and the totals."""
    by_folder, total = count(root)
    kinds = ("lines", "modules", "constants", *TABLES)
    print(f"{'folder':<14}" + "".join(f"{kind:>11}" for kind in kinds))
    for folder in sorted({folder for folder, _ in by_folder}):
        print(f"{folder:<14}" + "".join(f"{by_folder[folder, kind]:>11}" for kind in kinds))
    print(f"{'total':<14}" + "".join(f"{total[kind]:>11}" for kind in kinds) + f"   tests {total['tests']}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).resolve().parents[1])

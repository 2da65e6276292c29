"""How many edits of recorded sessions are decided from the session alone, and how rightly.

    python -m tests.benchmarks.replay [FOLDER] [--reasons] [--sessions] [--biome [PROGRAM]]

FOLDER holds sessions, or a folder of them per harness (default: PIMONO_TRACES, or the samples). Each answered
edit is predicted before its result is looked at. Wrong: expected to work and failed, or the other
way round. The rows of each harness: the session alone; recorded commands repeated in the sandbox;
with `--biome`, the formatter of badlogic/pi-mono run again in sessions of that repository, by
PROGRAM or by the release that npm has (kept in the cache folder). `--reasons` tells why the others
are undecided, `--sessions` gives a row to each session with 100 edits and more.
"""

import argparse
import json
import os
import subprocess
import tarfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from time import process_time

from pimono_sdpo.replay.formatters import Reformat
from pimono_sdpo.replay.workspace import Rerun
from pimono_sdpo.samples import SAMPLE_SESSIONS
from pimono_sdpo.traces.harness import HARNESSES, find_harness
from pimono_sdpo.traces.parse import Trace, read_trace
from rewards.verifiers.formatting import Formatter
from rewards.verifiers.rerun import rerun
from tests.benchmarks.table import print_table
from tests.predictions import Prediction, predictions

MANY = 100
REPOSITORY = "pi-mono"
BIOME = "2.3.5"
# What that repository had decided when the sessions were recorded: the formatter's settings, and
# what `npm run check` runs where.
_OFF = {
    "style": ("noNonNullAssertion", "useNodejsImportProtocol", "useTemplate"),
    "correctness": ("noUnusedVariables",),
    "suspicious": ("noExplicitAny", "noControlCharactersInRegex", "noEmptyInterface"),
}
_RULES = {group: dict.fromkeys(names, "off") for group, names in _OFF.items()}
_CHECK = "biome check --write ."
SETTINGS = {
    "biome.json": {
        "formatter": {"indentStyle": "tab", "indentWidth": 3, "lineWidth": 120},
        "linter": {"rules": {**_RULES, "style": {**_RULES["style"], "useConst": "error"}}},
        "files": {
            "includes": [
                *("packages/*/src/**/*", "packages/*/test/**/*", "*.json", "*.md"),
                *("!**/node_modules/**/*", "!**/test-sessions.ts", "!packages/web-ui/src/app.css"),
            ]
        },
    },
    "package.json": {
        "scripts": {"check": f"{_CHECK} && npm run check --workspaces && tsgo --noEmit"}
    },
    "packages/coding-agent/package.json": {"scripts": {"check": "tsgo --noEmit"}},
    "packages/tui/package.json": {"scripts": {"check": f"{_CHECK} && tsgo --noEmit"}},
}


def main() -> None:
    """Print the tables."""
    given = os.environ.get("PIMONO_TRACES")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    default = Path(given) if given else Path(str(SAMPLE_SESSIONS))
    parser.add_argument("folder", type=Path, nargs="?", default=default)
    parser.add_argument("--reasons", action="store_true")
    parser.add_argument("--sessions", action="store_true")
    parser.add_argument("--biome", nargs="?", const="")
    options = parser.parse_args()
    biome = None
    if options.biome is not None:
        settings = {path: json.dumps(content) for path, content in SETTINGS.items()}
        biome = Formatter("biome", options.biome or downloaded(), settings)
    folders = [options.folder, *(options.folder / harness.name for harness in HARNESSES)]
    found = sorted(path for folder in folders for path in folder.glob("*.jsonl"))
    traces = {path.stem: read_trace(path.read_bytes()) for path in found}
    columns = [
        "harness",
        "known by",
        "edits",
        "decided",
        "wrong",
        "failed",
        "foretold",
        "µs / edit",
    ]
    rows, reasons = [columns], Counter[tuple[str, str]]()
    for harness in sorted({trace.harness for trace in traces.values()}):
        mine = [trace for trace in traces.values() if trace.harness == harness]
        rows += table(harness, mine, biome, reasons)
    if options.sessions:
        long = {name: trace for name, trace in traces.items() if _edits(trace) >= MANY}
        for name, trace in long.items():
            rows += table(name[-24:], [trace], biome, Counter())
        rows += table(f"these {len(long)}", [*long.values()], biome, Counter())
    print_table(rows)
    if options.reasons:
        ways = sorted({way for way, _ in reasons})
        lines = sorted({reason for _, reason in reasons})
        print_table(
            [
                ["undecided because", *ways],
                *([line, *(str(reasons[way, line]) for way in ways)] for line in lines),
            ]
        )


def _edits(trace: Trace) -> int:
    return sum(e.kind == "tool_call" and e.tool_name == "edit" for e in trace.events)


def table(
    name: str, traces: Sequence[Trace], biome: Formatter | None, reasons: Counter[tuple[str, str]]
) -> list[list[str]]:
    """Return a row for each way of knowing the files; none where nothing was edited."""
    ways: list[tuple[str, Rerun | None, Reformat | None]] = [
        ("session", None, None),
        ("commands again", rerun, None),
    ]
    if biome and any(Path(trace.cwd).name == REPOSITORY for trace in traces):
        ways.append(("formatter again", rerun, biome))
    rows = []
    for way, repeat, reformat in ways:
        begin = process_time()
        found: list[Prediction] = []
        for trace in traces:
            its = reformat if Path(trace.cwd).name == REPOSITORY else None
            found += predictions(
                trace.events, trace.cwd, find_harness(trace.harness).files, repeat, its
            )
        seconds = process_time() - begin
        reasons.update((way, one.reason) for one in found if one.reason)
        if found:
            rows.append([name, way, *figures(found), f"{seconds / len(found) * 1e6:.0f}"])
    return rows


def figures(found: Sequence[Prediction]) -> list[str]:
    """Edits, the share decided, wrong ones, those that failed and those of them foretold."""
    decided = sum(one.expected is not None for one in found)
    return [
        str(len(found)),
        f"{decided / len(found):.1%}",
        str(sum(map(is_wrong, found))),
        str(sum(one.failed for one in found)),
        str(sum(one.failed and one.expected not in {None, "ok"} for one in found)),
    ]


def is_wrong(one: Prediction) -> bool:
    """Tell whether a decided edit ended otherwise."""
    return one.expected is not None and (one.expected != "ok") != one.failed


def downloaded() -> str:
    """Return biome's program as npm has it, in the cache folder of the user."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / f"biome-{BIOME}"
    program = cache / "package" / "biome"
    if not program.exists():
        cache.mkdir(parents=True, exist_ok=True)
        package = f"@biomejs/cli-linux-x64@{BIOME}"
        subprocess.run(["npm", "pack", "--silent", package], cwd=cache, check=True)
        with tarfile.open(next(cache.glob("*.tgz"))) as archive:
            archive.extractall(cache, filter="data")
    return str(program)


if __name__ == "__main__":
    main()

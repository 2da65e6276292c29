"""How many edits of recorded sessions are decided from the session alone, and how rightly.

    python -m benchmarks.replay [FOLDER] [--reasons] [--sessions]

FOLDER holds sessions at any depth (default: PIMONO_TRACES, or the samples). Each answered edit is
predicted before its result is looked at. Wrong: expected to work and failed, or the other way
round. Shown: the session had shown every line that the edit replaces, or its schema alone decides;
no more than these can be decided. What was seen before a command, a rest or another tool that may
have changed the file decides nothing.
`--reasons` tells why edits are undecided, `--sessions` gives a row to each session with
100 edits and more.
"""

import argparse
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from time import process_time

from benchmarks.table import print_table
from pimono_sdpo.samples import SAMPLE_SESSIONS
from pimono_sdpo.traces.harness import find_harness
from pimono_sdpo.traces.parse import Trace, read_trace
from tests.predictions import Prediction, predictions

MANY = 100


def main() -> None:
    """Print the tables."""
    given = os.environ.get("PIMONO_TRACES")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    default = Path(given) if given else Path(str(SAMPLE_SESSIONS))
    parser.add_argument("folder", type=Path, nargs="?", default=default)
    parser.add_argument("--reasons", action="store_true")
    parser.add_argument("--sessions", action="store_true")
    options = parser.parse_args()
    found = sorted(path for path in options.folder.rglob("*") if path.is_file())
    traces = {str(path): read_trace(path.read_bytes()) for path in found}
    traces = {name: trace for name, trace in traces.items() if trace.events}
    columns = ["harness", "edits", "shown", "decided", "of shown", "wrong", "failed", "foretold", "µs / edit"]
    rows, reasons = [columns], Counter[str]()
    for harness in sorted({trace.harness for trace in traces.values()}):
        mine = [trace for trace in traces.values() if trace.harness == harness]
        rows += table(harness, mine, reasons)
    rows += table("all", [*traces.values()], Counter())
    if options.sessions:
        long = {name: trace for name, trace in traces.items() if _edits(trace) >= MANY}
        for name, trace in long.items():
            rows += table(name[-24:], [trace], Counter())
        rows += table(f"these {len(long)}", [*long.values()], Counter())
    print_table(rows)
    if options.reasons:
        lines = [[reason, str(count)] for reason, count in sorted(reasons.items())]
        print_table([["undecided because", "edits"], *lines])


def _edits(trace: Trace) -> int:
    return sum(e.kind == "tool_call" and e.tool_name == "edit" for e in trace.events)


def table(name: str, traces: Sequence[Trace], reasons: Counter[str]) -> list[list[str]]:
    """Return a row for some sessions; none where nothing was edited."""
    begin = process_time()
    found = [
        one for trace in traces for one in predictions(trace.events, trace.cwd, find_harness(trace.harness).files)
    ]
    seconds = process_time() - begin
    reasons.update(one.reason for one in found if one.reason)
    return [[name, *figures(found), f"{seconds / len(found) * 1e6:.0f}"]] if found else []


def figures(found: Sequence[Prediction]) -> list[str]:
    """Edits and the share shown; how many of them are decided, wrong, failed and foretold."""
    shown, decided = [one for one in found if one.shown], [one for one in found if one.expected]
    return [
        str(len(found)),
        f"{len(shown) / len(found):.1%}",
        f"{len(decided) / len(found):.1%}",
        f"{sum(one.shown for one in decided) / max(len(shown), 1):.1%}",
        str(sum(map(is_wrong, decided))),
        str(sum(one.failed for one in found)),
        str(sum(one.failed and one.expected != "ok" for one in decided)),
    ]


def is_wrong(one: Prediction) -> bool:
    """Tell whether a decided edit ended otherwise."""
    return one.expected is not None and (one.expected != "ok") != one.failed


if __name__ == "__main__":
    main()

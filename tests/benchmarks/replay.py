"""How many edits of recorded sessions are decided from the session alone, and how rightly.

    python -m tests.benchmarks.replay [FOLDER] [--reasons]

FOLDER holds sessions (default: PIMONO_TRACES/pi, or the samples). Each answered edit is predicted
before its result is looked at. Wrong: expected to work and failed, or the other way round. The
second row repeats recorded commands in the sandbox. `--reasons` tells why the others are undecided.
"""

import argparse
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from time import process_time

from pimono_sdpo.replay.predictions import Prediction, predictions
from pimono_sdpo.replay.workspace import Rerun
from pimono_sdpo.samples import SAMPLE_SESSIONS
from pimono_sdpo.trace import Trace, read_trace
from rewards.verifiers.rerun import rerun
from tests.benchmarks.table import print_table


def main() -> None:
    """Print the tables."""
    given = os.environ.get("PIMONO_TRACES")
    default = Path(given) / "pi" if given else Path(str(SAMPLE_SESSIONS))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=default)
    parser.add_argument("--reasons", action="store_true")
    options = parser.parse_args()
    traces = [read_trace(path.read_bytes()) for path in sorted(options.folder.glob("*.jsonl"))]
    columns = ["known by", "edits", "decided", "wrong", "failed", "failures predicted", "µs / edit"]
    alone, again = measure("session", traces, None), measure("commands again", traces, rerun)
    print_table([columns, alone[0], again[0]])
    if options.reasons:
        counts = [Counter(one.reason for one in found) for _, found in (alone, again)]
        reasons = sorted({*counts[0], *counts[1]} - {""})
        lines = [[reason, *(str(count[reason]) for count in counts)] for reason in reasons]
        print_table([["undecided because", "session", "commands again"], *lines])


def measure(
    name: str, traces: Sequence[Trace], repeat: Rerun | None
) -> tuple[list[str], list[Prediction]]:
    """Return a row of the table, and the predictions."""
    begin = process_time()
    found = [
        one
        for trace in traces
        for one in predictions(trace.events, trace.cwd, trace.harness, repeat)
    ]
    seconds = process_time() - begin
    row = [
        name,
        str(len(found)),
        f"{sum(one.expected is not None for one in found) / max(len(found), 1):.1%}",
        str(sum(map(is_wrong, found))),
        str(sum(one.failed for one in found)),
        str(sum(one.failed and one.expected not in {None, "ok"} for one in found)),
        f"{seconds / max(len(found), 1) * 1e6:.0f}",
    ]
    return row, found


def is_wrong(one: Prediction) -> bool:
    """Tell whether a decided edit ended otherwise."""
    return one.expected is not None and (one.expected != "ok") != one.failed


if __name__ == "__main__":
    main()

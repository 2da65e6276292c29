"""How many edits of recorded sessions are decided from the session alone, and how rightly.

    python -m tests.benchmarks.replay [FOLDER]

FOLDER holds Pi sessions (default: PIMONO_TRACES/pi, or the samples). Each answered edit is predicted
before its result is looked at. Wrong: expected to work and failed, or the other way round.
"""

import argparse
import os
from collections import Counter
from pathlib import Path
from time import process_time

from pimono_sdpo.replay.predictions import Prediction, predictions
from pimono_sdpo.samples import SAMPLE_SESSIONS
from pimono_sdpo.trace import read_trace
from tests.benchmarks.table import print_table


def main() -> None:
    """Print the table."""
    given = os.environ.get("PIMONO_TRACES")
    default = Path(given) / "pi" if given else Path(str(SAMPLE_SESSIONS))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=default)
    traces = [
        read_trace(path.read_bytes()) for path in sorted(parser.parse_args().folder.glob("*.jsonl"))
    ]
    begin = process_time()
    found = [one for trace in traces for one in predictions(trace.events, trace.cwd, trace.harness)]
    seconds = process_time() - begin
    print_table(
        [
            ["edits", "decided", "wrong", "failed", "failures predicted", "µs / edit"],
            [
                str(len(found)),
                f"{sum(one.expected is not None for one in found) / max(len(found), 1):.0%}",
                str(sum(map(is_wrong, found))),
                str(sum(one.failed for one in found)),
                str(Counter(one.expected not in {None, "ok"} for one in found if one.failed)[True]),
                f"{seconds / max(len(found), 1) * 1e6:.0f}",
            ],
        ]
    )


def is_wrong(one: Prediction) -> bool:
    """Tell whether a decided edit ended otherwise."""
    return one.expected is not None and (one.expected != "ok") != one.failed


if __name__ == "__main__":
    main()

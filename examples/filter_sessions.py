"""Filter your own sessions in Python and look at the best row.

    python examples/filter_sessions.py ~/.pi/agent/sessions

The same from the command line: pimono-sdpo filter ~/.pi/agent/sessions --out rows
"""

import sys

from pimono_sdpo import load_sessions, pipeline, run_pipeline


def main(source: str) -> None:
    """Filter a folder of sessions and print the best row."""
    sessions = load_sessions(source)
    rows = run_pipeline(sessions, pipeline(min_score=2.0))
    print(f"{len(sessions)} sessions, {len(rows)} rows")
    best = max(rows, key=lambda row: row["score"])
    print(f"score {best['score']:g}: {', '.join(best['categories'])}")
    print(best["prompt"][-1]["content"])
    print(best["privileged_context"])


if __name__ == "__main__":
    main(sys.argv[1]) if len(sys.argv) == 2 else sys.exit(__doc__)

"""Write pimono_sdpo/traces/tested.json: what the readers understand of the sessions in tests/harness/sessions.

    python tests/harness/write_tested.py

A session there has every type of line, item and block that its version of an agent is known to write.
"""

import json
from pathlib import Path
from typing import Any

from pimono_sdpo.traces import drift
from pimono_sdpo.traces.parse import read_trace

SESSIONS = sorted(Path(__file__).with_name("sessions").glob("*.jsonl"))
SHARES = {"unknown_calls": "calls", "without_exit_code": "shell_calls"}


def describe_tested() -> dict[str, Any]:
    """Return the content of the file."""
    tested: dict[str, Any] = {}
    for path in SESSIONS:
        trace = read_trace(path.read_bytes())
        of = tested.setdefault(trace.harness, {"kinds": [], "versions": {}})
        of["kinds"] = sorted({*of["kinds"], *trace.kinds})
        counts = {one["name"].split("\t")[2]: one["count"] for one in drift.count_trace(trace)}
        shares = of["versions"].setdefault(trace.version, {})
        for part, whole in SHARES.items():
            share = round(counts[part] / max(counts[whole], 1), 4)
            shares[part] = max(share, shares.get(part, 0.0))
    return tested


if __name__ == "__main__":
    text = json.dumps(describe_tested(), indent=1, sort_keys=True)
    Path(drift.__file__).with_name("tested.json").write_text(f"{text}\n")

"""Redact the columns that identify a row, before it can reach the rejects.

reads   cwd, harness, session_id, source
writes  harness, session_id, source
"""

from typing import Any

from datasets import Features

from pimono_sdpo.schema import EVIDENCE
from pimono_sdpo.stage import Map, Row
from processors.redact import redact_text

MAX_CHARS = 1000
NAMES = ("harness", "session_id", "source")


def redact_names(row: Row) -> dict[str, Any]:
    """Redact and shorten the names."""
    return {name: redact_text(row[name], row["cwd"])[0][:MAX_CHARS] for name in NAMES}


STAGE = Map(redact_names, reads=("cwd", *NAMES), writes=Features({name: EVIDENCE[name] for name in NAMES}))

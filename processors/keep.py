"""Drop rows without a substantive prompt or without evidence.

reads   problem, prompt, diagnostics, corrections
drops   no_messages, unknown_harness, no_prompt, no_evidence
"""

from pimono_sdpo.stage import Filter, Row


def keep(row: Row) -> str | None:
    """Return why a row is dropped; None keeps it."""
    if row["problem"]:
        return str(row["problem"])
    if not row["prompt"]:
        return "no_prompt"
    return None if len(row["diagnostics"]) + len(row["corrections"]) else "no_evidence"


STAGE = Filter(keep, reads=("problem", "prompt", "diagnostics", "corrections"))

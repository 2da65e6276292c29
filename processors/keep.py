"""Drop rows without a substantive prompt, without evidence, or whose evidence teaches nothing.

reads   problem, prompt, findings
drops   no_messages, unknown_harness, no_prompt, no_evidence; expected_failure, no_information,
        only_a_slip, service_outage or permission_not_granted when none of it teaches anything
"""

from pimono_sdpo.stage import Filter, Row

_REASONS = {
    "expected": "expected_failure",
    "no_information": "no_information",
    "slip": "only_a_slip",
    "outside": "service_outage",
    "not_granted": "permission_not_granted",
}


def keep(row: Row) -> str | None:
    """Return why a row is dropped; None keeps it."""
    if row["problem"]:
        return str(row["problem"])
    if not row["prompt"]:
        return "no_prompt"
    excuses = {item["excuse"] for item in row["findings"]}
    if not excuses or "" in excuses:
        return None if excuses else "no_evidence"
    return next(reason for excuse, reason in _REASONS.items() if excuse in excuses)


STAGE = Filter(keep, reads=("problem", "prompt", "findings"))

"""Say what a run left out: sessions that crashed, files that cannot be read, and files without a session that is read.

In a report, `crashed` counts the sessions by error and place, `unreadable` names sessions with the reason, and
`not_read` has the number and the first names of all else, by reason or by the ending of their names.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pimono_sdpo.errors import EmptySelection, PimonoError, SessionsCrashed
from pimono_sdpo.runs.sessions import LEFT_OUT, NAMED, list_unreadable
from pimono_sdpo.stage import CRASHED
from pimono_sdpo.text import escape_line
from pimono_sdpo.traces.drift import UNREAD
from pimono_sdpo.traces.parse import NOT_READ
from pimono_sdpo.traces.sources import AGENTS, SESSION_FILES
from processors.redact import redact_text

WHOLE = f"use whole sessions of {AGENTS}, or translate yours into the Session Trace Simple Format"
WHY = {
    "unknown_harness": f"not written by {AGENTS}; translate them into the Session Trace Simple Format",
    "no_messages": "nobody says anything in them; --exclude leaves them out from the start",
}
Json = dict[str, Any]


def report_left_out(counts: Json, dropped: Mapping[str, int], others: Mapping[str, str] = {}) -> Json:
    """Return the keys of a report on what was left out.

    `counts` and `dropped` are the counts and the drop reasons of a run, `others` is that of a `Source`.
    """
    found = counts.get(LEFT_OUT, {})
    not_read: dict[str, Json] = {
        reason: {"count": dropped[reason], "names": sorted(found[reason])[:NAMED]}
        for reason in NOT_READ
        if reason in found
    }
    by_kind: dict[str, list[str]] = {}
    for name in sorted(others):
        by_kind.setdefault(others[name], []).append(name)
    for kind, names in sorted(by_kind.items()):
        not_read[kind] = {"count": len(names), "names": [redact_text(name, "")[0] for name in names[:NAMED]]}
    keys = {
        "crashed": dict(sorted(found.get(CRASHED, {}).items())),
        "unreadable": [redact_text(one, "")[0] for one in list_unreadable(counts)],
        "not_read": not_read,
    }
    return {key: value for key, value in keys.items() if value}


def describe_left_out(report: Json) -> list[str]:
    """Return a line for each kind of files that were left out; crashed sessions are an error of their own."""
    lines = []
    if files := report.get("unreadable", []):
        listed = _list(files[:NAMED], len(files))
        lines.append(f"skipped, since they cannot be read: {listed}; --exclude leaves them out from the start")
    not_read = report.get("not_read", {})
    agents = {agent for agent, of in report.get("agents", {}).items() if any(UNREAD in one for one in of.values())}
    if like := ", ".join(sorted(agents - {"unknown"})):
        lines.append(f"sessions like those of {like}, which are not read")
    lines += [f"{reason}: {_list(**not_read[reason])} ({why})" for reason, why in WHY.items() if reason in not_read]
    endings = [f"{one['count']} {ending} ({_list(**one)})" for ending, one in not_read.items() if ending not in WHY]
    if endings:
        lines.append(f"not read: {', '.join(endings)}; sessions are {', '.join(SESSION_FILES)} or .parquet files")
    return [escape_line(line) for line in lines]


def _list(names: Sequence[str], count: int) -> str:
    return ", ".join(names) + (f" and {count - len(names)} more" if count > len(names) else "")


def explain_empty(report: Json, advice: str) -> PimonoError:
    """Return the error that says why there are no rows and what to do."""
    if report["drop_reasons"] and report["drop_reasons"].keys() <= {*NOT_READ}:
        advice = WHOLE
    source = report["source"] if "source" in report else report["input"]["source"]
    reasons = ", ".join(f"{count} {name}" for name, count in report["drop_reasons"].items())
    why = "; ".join([reasons or "nothing to make them from", *report.get("drift", ()), *describe_left_out(report)])
    sentence = f"`{source}` gives no {report.get('stage', 'rows')} ({why})"
    if "crashed" in report:
        return SessionsCrashed(f"{sentence}; {_describe_crashes(report)}.")
    return EmptySelection(f"{sentence}; {advice}.")


def require_whole(report: Json) -> None:
    """Raise SessionsCrashed if sessions are missing because of a bug."""
    if "crashed" in report:
        raise SessionsCrashed(f"All other sessions are written; {_describe_crashes(report)}.")


def _describe_crashes(report: Json) -> str:
    count, (place, *more) = sum(report["crashed"].values()), report["crashed"]
    others = f" and {len(more)} other places" if more else ""
    sessions = f"{count} session{'s' * (count > 1)}"
    return f"{sessions} crashed in pimono-sdpo ({place}{others}), which is a bug; --strict shows its traceback"

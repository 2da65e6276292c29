"""Notice when an agent writes what its reader was not tested on: unknown types, unknown tools, no exit codes.

`tested.json` says for each harness which versions and types are in the sessions of
tests/harness/sessions, and the largest share of unknown tools and of missing exit codes in one of
them; tests/harness/write_tested.py writes it.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pimono_sdpo.errors import SourceError
from pimono_sdpo.stats import wilson_interval
from pimono_sdpo.traces.harness import find_harness
from pimono_sdpo.traces.harness.blocks import COMMON_TOOLS
from pimono_sdpo.traces.parse import Trace

Json = dict[str, Any]
# Counts of the sessions of one version of an agent, and of the unknown types.
Counts = dict[str, int]
TESTED: dict[str, Json] = json.loads(Path(__file__).with_name("tested.json").read_text(encoding="utf-8"))
UNREAD, UNKNOWN = "unread", "unknown "
_NAME = re.compile(r"[\w./:-]{0,80}")
# A report lists no more unknown types of a session than that; a fuzzed file may have thousands.
_MOST = 20


def count_trace(trace: Trace) -> list[Json]:
    """Count what the reader of a trace understood, by harness, version and measure."""
    counts = _count_understood(trace) if trace.problem != "unknown_harness" else {UNREAD: 1}
    named = "\t".join(_shorten_name(name) for name in (trace.harness, trace.version))
    return [{"name": f"{named}\t{measure}", "count": count} for measure, count in counts.items()]


def _shorten_name(text: str) -> str:
    """Return a text of a file if it looks like a name, since it is published."""
    return text if _NAME.fullmatch(text) else "?"


def _count_understood(trace: Trace) -> Counts:
    harness = find_harness(trace.harness)
    known = {*TESTED.get(trace.harness, {}).get("kinds", ())}
    unknown = Counter({kind: count for kind, count in trace.kinds.items() if kind not in known})
    calls = [event.tool_name for event in trace.events if event.kind == "tool_call"]
    known_tools = COMMON_TOOLS | harness.tools.keys()
    codes = [event.exit_code for event in trace.events if event.kind == "tool_result" and event.tool_name == "bash"]
    named = Counter[str]()
    for kind, count in unknown.most_common(_MOST):
        named[UNKNOWN + _shorten_name(kind)] += count
    return {
        "sessions": 1,
        "entries": sum(trace.kinds.values()),
        "unknown_entries": unknown.total(),
        "calls": len(calls),
        "unknown_calls": sum(name not in known_tools and "__" not in name for name in calls),
        "shell_calls": len(codes),
        "without_exit_code": codes.count(None),
        **named,
    }


def sum_by_agent(counts: Mapping[str, int]) -> dict[str, dict[str, Counts]]:
    """Return the counts of many traces by harness and version."""
    agents: dict[str, dict[str, Counts]] = {}
    for name, count in sorted(counts.items()):
        agent, version, measure = name.split("\t")
        agents.setdefault(agent, {}).setdefault(version, {})[measure] = count
    return agents


def describe_drift(agents: Mapping[str, Mapping[str, Counts]]) -> list[str]:
    """Return a sentence for each agent whose sessions are out of the range that was tested.

    `agents` has the counts by harness and version.
    """
    sentences = []
    for name, versions in agents.items():
        if tested := TESTED.get(name):
            drifted = [version for version, counts in versions.items() if any(_list_problems(counts, tested))]
            if drifted:
                total = Counter[str]()
                for version in drifted:
                    total.update(versions[version])
                newest = max(drifted, key=_rank)
                problems = "; ".join(_list_problems(total, tested))
                label = f"{name.replace('_', ' ').title()} {newest}".strip()
                sentences.append(
                    f"{label}{_compare(newest, tested['versions'])}: {problems}; rows of these sessions are incomplete"
                )
    return sentences


def _list_problems(counts: Mapping[str, int], tested: Json) -> Iterator[str]:
    calls, entries, shell = counts["calls"], counts["entries"], counts["shell_calls"]
    if _exceeds(counts["unknown_calls"], calls, tested["unknown_calls"]):
        yield f"{calls - counts['unknown_calls']:,} of {calls:,} calls were understood"
    if counts["unknown_entries"]:
        kinds = sorted(kind.removeprefix(UNKNOWN) for kind in counts if kind.startswith(UNKNOWN))
        more = f" and {len(kinds) - 3} more" if len(kinds) > 3 else ""
        listed = ", ".join(f"`{kind}`" for kind in kinds[:3]) + more
        yield f"{counts['unknown_entries']:,} of {entries:,} entries and blocks have unknown types ({listed})"
    if _exceeds(counts["without_exit_code"], shell, tested["without_exit_code"]):
        yield f"{counts['without_exit_code']:,} of {shell:,} shell calls have no exit code"


def _exceeds(part: int, whole: int, tested: float) -> bool:
    """Check whether a share is larger than a tested one by more than chance."""
    return part > tested * whole and wilson_interval(part, whole).low > tested


def _rank(version: str) -> tuple[int, ...]:
    """Return the numbers of a version.

    >>> _rank("0.146.0-alpha.2") < _rank("0.153.1")
    True
    """
    return tuple(map(int, re.findall(r"\d{1,9}", version)))


def _compare(version: str, tested: list[str]) -> str:
    first, last = min(tested, key=_rank, default=""), max(tested, key=_rank, default="")
    if last and _rank(version) > _rank(last):
        return f" is newer than the versions tested (up to {last})"
    return f" is older than the versions tested (from {first})" if first and _rank(version) < _rank(first) else ""


def refuse_drift(report: Json) -> None:
    """Raise SourceError if a report says that an agent has drifted."""
    if drift := report["drift"]:
        raise SourceError(f"{'; '.join(drift)}. Update pimono-sdpo, or leave these sessions out with --exclude.")

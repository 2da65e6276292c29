"""Notice when an agent writes what its reader was not tested on: unknown types, unknown tools, no exit codes.

`tested.json` says for each harness which types are in the sessions of tests/harness/sessions, and for
each version the largest share of unknown tools and of missing exit codes in one of them;
tests/harness/write_tested.py writes it.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

from pimono_sdpo.errors import SourceError
from pimono_sdpo.traces.harness import find_harness
from pimono_sdpo.traces.harness.blocks import COMMON_TOOLS
from pimono_sdpo.traces.parse import Trace

Json = dict[str, Any]
# Counts of the sessions of one version of an agent, and of the unknown types.
Counts = dict[str, int]
TESTED: dict[str, Json] = json.loads(Path(__file__).with_name("tested.json").read_text(encoding="utf-8"))
UNREAD, UNKNOWN = "unread", "unknown "
_NAME = re.compile(r"[\w./:-]{0,80}")
_MCP = re.compile(r"__|^mcp_")
_DEVIATIONS = NormalDist().inv_cdf(0.975)
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
    known_tools = COMMON_TOOLS | harness.tools.keys()
    calls, codes = list[str](), list[int | None]()
    for event in trace.events:
        if event.kind == "tool_call":
            calls.append(event.tool_name)
        elif event.kind == "tool_result" and event.tool_name == "bash":
            codes.append(event.exit_code)
    named = Counter[str]()
    for kind, count in unknown.most_common(_MOST):
        named[UNKNOWN + _shorten_name(kind)] += count
    return {
        "sessions": 1,
        "entries": sum(trace.kinds.values()),
        "unknown_entries": unknown.total(),
        "calls": len(calls),
        # Tools of MCP servers have names of their own.
        "unknown_calls": sum(name not in known_tools and not _MCP.search(name) for name in calls),
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
        tested = TESTED.get(name, {}).get("versions", {})
        problems, newest = dict[str, str](), ""
        for measure, (whole, says) in _SAYS.items() if tested else ():
            drifted = [
                version
                for version, counts in versions.items()
                if whole in counts and _exceeds(counts[measure], counts[whole], _find_limit(tested, version, measure))
            ]
            if drifted:
                total = sum(map(Counter, map(versions.__getitem__, drifted)), Counter[str]())
                newest = max(newest, *drifted, key=_rank)
                problems[measure] = says(total)
        if problems:
            title = find_harness(name).title or name.replace("_", " ").title()
            label = f"{title} {newest}".strip() + _compare(newest, [*tested])
            end = "are incomplete" if "unknown_calls" in problems else "may be incomplete"
            sentences.append(f"{label}: {'; '.join(problems.values())}; rows of these sessions {end}")
    return sentences


def _list_unknown(counts: Mapping[str, int]) -> str:
    kinds = sorted(kind.removeprefix(UNKNOWN) for kind in counts if kind.startswith(UNKNOWN))
    more = f" and {len(kinds) - 3} more" if len(kinds) > 3 else ""
    return ", ".join(f"`{kind}`" for kind in kinds[:3]) + more


# The whole of each measure of which a share may leave the tested range, and what is said then.
_SAYS: dict[str, tuple[str, Callable[[Mapping[str, int]], str]]] = {
    "unknown_calls": (
        "calls",
        lambda of: f"{of['calls'] - of['unknown_calls']:,} of {of['calls']:,} calls were understood",
    ),
    "unknown_entries": (
        "entries",
        lambda of: (
            f"{of['unknown_entries']:,} of {of['entries']:,} entries and blocks have unknown types"
            f" ({_list_unknown(of)})"
        ),
    ),
    "without_exit_code": (
        "shell_calls",
        lambda of: f"{of['without_exit_code']:,} of {of['shell_calls']:,} shell calls have no exit code",
    ),
}


def _find_limit(tested: Mapping[str, Counts], version: str, measure: str) -> float:
    """Return the largest share of the newest tested version that is not newer, else of the oldest one."""
    known = sorted(tested, key=_rank)
    older = [one for one in known if _rank(one) <= _rank(version)] or known[:1]
    return tested[older[-1]].get(measure, 0)


def _exceeds(part: int, whole: int, tested: float) -> bool:
    """Check whether a share is larger than a tested one by more than chance: the score test at 95 %.

    >>> _exceeds(6, 20, 0.25), _exceeds(10, 20, 0.25), _exceeds(1, 10_000, 0.0)
    (False, True, True)
    """
    return part - tested * whole > _DEVIATIONS * math.sqrt(whole * tested * (1 - tested))


def _rank(version: str) -> tuple[int, ...]:
    """Return the numbers of a version.

    >>> _rank("0.146.0-alpha.2") < _rank("0.153.1")
    True
    """
    return tuple(map(int, re.findall(r"\d{1,9}", version)))


def _compare(version: str, tested: Sequence[str]) -> str:
    last = max(tested, key=_rank)
    return f" is newer than the versions tested (up to {last})" if _rank(version) > _rank(last) else ""


def refuse_drift(report: Json) -> None:
    """Raise SourceError if a report says that an agent has drifted."""
    if drift := report["drift"]:
        raise SourceError(f"{'; '.join(drift)}. Update pimono-sdpo, or leave these sessions out with --exclude.")

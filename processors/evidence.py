"""Read a trace and gather its evidence: each request, the failures and corrections after it; without one, none.

reads   session_id, source, trace, bytes_not_utf8
writes  one row per episode (a request and what followed it), or one per session
"""

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from pimono_sdpo.failures import CATEGORIES
from pimono_sdpo.filter_options import Unit
from pimono_sdpo.prefilter import compile_patterns
from pimono_sdpo.schema import COUNTS, EVIDENCE, Correction, Finding, Message
from pimono_sdpo.stage import FlatMap, Row
from pimono_sdpo.traces.drift import count_trace
from pimono_sdpo.traces.events import Event, decode_json
from pimono_sdpo.traces.harness import find_harness
from pimono_sdpo.traces.lines import Lines
from pimono_sdpo.traces.parse import Trace, find_branches, match_results, read_trace
from pimono_sdpo.traces.tools import describe_tools
from processors.corrections import find_corrections
from processors.corrections.features import ASKED_CHARS, is_automated, list_edited, read_cues, strip_wrapper
from processors.diagnostics import NOTHING_KNOWN, find_failures, find_target
from processors.judge import Judge
from processors.keep import keep, rate
from processors.outcome import describe_outcomes
from processors.redact import identify, redact_text

_PATTERNS = compile_patterns(Path(__file__).with_name("wording.toml"), "requests")
# A request that means nothing alone gets so many of the turns before it: rows with more are mostly not understood.
LEAD_IN_TURNS = 2
TURN_CHARS = 1200
# The answer right before a request is mostly what the request is about.
ANSWER_CHARS = 2400
CHORE_CHARS = 80
# How Claude Code, Pi and Codex answer a call of a tool that does not exist.
_NO_TOOL = re.compile(
    r"(?:<tool_use_error>|Error: )?(?:No such tool available|Tool \S{1,80} not found)|unsupported call"
)
MOST_BACK = 6


def gather_evidence(
    row: Row, unit: Unit, history_chars: int, judge: Judge | None = None, recorder: Sequence[str] | None = ()
) -> list[dict[str, Any]]:
    """Return the evidence rows of a session, at least one, so that every session is counted.

    `recorder` are names of the recorder that are known, None to keep all that are found. A row that
    `keep` drops has no history.
    """
    trace = read_trace(row["trace"] or b"")
    events = trace.events
    found = find_evidence(events, judge, unit)
    requests, described = found.requests, found.described
    ends = [*(request.index for request in requests[1:]), len(events)]
    # Without evidence, no text is kept.
    identity, secrets = identify(row["trace"], trace, recorder) if any(described.values()) else (recorder, [])
    # One span of events for each request; the first includes what precedes it.
    cuts = [0, *(ends if unit == "episode" else ends[-1:])]
    chosen: list[Event | None] = [*requests] or [None]
    if unit == "session" and requests:
        chosen = [_choose_request(requests, described)]
    tools: list[str] = []
    rows = []
    spans: list[tuple[Event, ...]] = []
    for episode, (request, (start, stop)) in enumerate(zip(chosen, pairwise(cuts), strict=True)):
        own = [request.index] if request and unit == "episode" else [*described]
        here = [item for index in own for item in described.get(index, ())]
        span = events[start:stop]
        wrong = [item["event_index"] for item in here]
        # The work on a correction is that of the request which it opens.
        last = max(wrong, default=stop)
        until = next((end for end in ends if end > last), stop)
        spans.append(span)
        rows.append(
            {
                "harness": trace.harness,
                "session_id": row["session_id"] or trace.session_id,
                "source": row["source"],
                "episode": episode,
                "cwd": trace.cwd,
                "identity": identity,
                "secrets": secrets,
                "prompt": spell_out(request, events) if request else "",
                "history": [],
                "request": request.index if request else -1,
                "findings": here,
                "continued": any(map(_is_work, events[last + 1 : until])),
                "tools": [],
                "problem": trace.problem,
                "worth": 0.0,
                "judged": [],
                "fingerprints": [],
                **count_row(span, found, row, trace, episode == 0),
            }
        )
    for written, request, span in zip(rows, chosen, spans, strict=True):
        # A row without evidence is dropped before it is read or compared.
        if not request or keep(written):
            continue
        history = gather_history(events, request.index, history_chars)
        if len(history) < LEAD_IN_TURNS and not stands_alone(request.text):
            history = gather_history(events, request.index, TURN_CHARS + ANSWER_CHARS)[-LEAD_IN_TURNS:]
        written["history"] = history
        said = [turn["content"] for turn in history if turn["role"] == "user"]
        written["worth"] = rate(written, any(_has_words(text, TASK_WORDS) for text in (written["prompt"], *said)))
        written["fingerprints"] = hash_messages(span)
        written["tools"] = tools = tools or list_tools(events, trace.harness)
    return rows


def list_tools(events: Sequence[Event], harness: str) -> list[str]:
    """Return the definitions of the tools of a session as JSON texts, without those that the agent made up."""
    unknown = {event.tool_name for event in events if event.kind == "tool_result" and _NO_TOOL.match(event.text)}
    calls = (event for event in events if event.kind == "tool_call" and event.tool_name not in unknown)
    known = find_harness(harness).tools
    # A published schema needs no calls if there is only one.
    certain = {name for name, tool in known.items() if len(tool.schemas) == 1}
    called = ((one.tool_name, None if one.tool_name in certain else decode_json(one.arguments)) for one in calls)
    return [*map(json.dumps, describe_tools(called, harness, known))]


class Found(NamedTuple):
    """The result of each call, the requests, by request what went wrong after it, and the forks."""

    matched: dict[int, int]
    requests: list[Event]
    described: dict[int, list[Finding]]
    forks: list[int]


def find_evidence(events: tuple[Event, ...], judge: Judge | None, unit: Unit = "episode") -> Found:
    """Find the requests of a session and the evidence that belongs to each."""
    matched, asked = match_results(events), _list_requests(events)
    # Without a request, nothing is feedback on an answer.
    corrections = find_corrections(events, judge) if asked else []
    failures = find_failures(events) if asked else []
    # Work on a correction is that on a request, but the reference run has one of each session.
    corrected = {item["event_index"] for item in corrections} if unit == "session" else ()
    requests = [event for event in asked if event.index not in corrected]
    ends = [*(request.index for request in requests[1:]), len(events)]
    work = [
        request.index
        for request, end in zip(requests, ends, strict=False)
        if not _keeps_house(request.text) or list_edited(events[request.index : end])
    ]
    findings = _bind(failures, corrections, events, requests, work)
    # What a request left broken is often put right only once the user has said so.
    opened = {item["event_index"] for item in corrections}
    fresh_starts = [*(at for at in ends[:-1] if at not in opened), len(events)]
    described = {}
    for index, own in findings.items():
        # A correction may come after further requests.
        last = max([index, *(item["event_index"] for item in own if item["kind"] == "correction")])
        described[index] = describe_outcomes(own, events, matched, fresh_starts[bisect_right(fresh_starts, last)])
    forks = sorted(max(branch.fork, 0) for branch in find_branches(events))
    return Found(matched, requests, described, forks)


def _keeps_house(text: str) -> bool:
    """Check for a request to commit, publish or look whether anything is to be done."""
    is_short = len(text) <= CHORE_CHARS
    return is_automated(strip_wrapper(text)) or (is_short and _CUES["chores"].search(text.lower()) is not None)


def _bind(
    failures: Sequence[Finding],
    corrections: Sequence[Correction],
    events: Sequence[Event],
    requests: Sequence[Event],
    work: Sequence[int],
) -> dict[int, list[Finding]]:
    """Return the evidence of each request in order, by the index of the request.

    What went wrong before the first request, or on an event that nobody asked to act on, is not
    feedback on any answer. A few words that are not a request, such as an approval or the choice of an
    option, go on with the request before them. A correction is about one of the requests in `work`
    before it, if there is one and the agent did anything since.
    """
    corrected: list[Finding] = [
        {**NOTHING_KNOWN, **item, "kind": "correction", "status": "user",
         "categories": ["user_feedback"]}
        for item in corrections
        if not _PATTERNS["automated"].search(item["text"])
    ]  # fmt: skip
    asked = {request.index for request in requests}
    about = {item["event_index"] for item in corrections}
    turns = {event.index for event in events if event.index not in asked | about and _is_unasked(event)}
    starts = sorted(asked | turns)
    bound: dict[int, list[Finding]] = {}
    for item in sorted((*failures, *corrected), key=itemgetter("event_index")):
        at = _find_work(item["event_index"], work, starts, events) if item["kind"] == "correction" else 0
        known = work if at else starts
        at = at or bisect_left(starts, item["event_index"])
        request = known[at - 1] if at else -1
        between = events[request + 1 : item["event_index"]]
        is_own = item["kind"] == "failure" or (
            any(map(_is_work, between)) and turns.isdisjoint(range(request, item["event_index"]))
        )
        if request in asked and is_own:
            bound.setdefault(request, []).append({**item, "request": request})
    return bound


def _find_work(index: int, work: Sequence[int], starts: Sequence[int], events: Sequence[Event]) -> int:
    """Return the number in `work` of the request that a correction is about, from 1 on.

    It is the last one before it, or an earlier one if the agent changes its files again, and none since.
    """
    last = bisect_left(work, index)
    stop = next((start for start in starts if start > index), len(events))
    again = list_edited(events[index:stop]) - {""} if last > 1 else set()
    for at in range(last, max(last - MOST_BACK, 0), -1) if again else ():
        if changed := list_edited(events[work[at - 1] : index]):
            return last if changed.isdisjoint(again) else at
    return last


def _is_unasked(event: Event) -> bool:
    """Check for a message after which the agent does what nobody asked for, such as a heartbeat."""
    return event.kind == "user" and event.on_active_branch and bool(_PATTERNS["unasked"].search(event.text))


def _choose_request(requests: Sequence[Event], found: Mapping[int, Sequence[Finding]]) -> Event:
    """Return the request with the strongest evidence, the first of equal ones."""

    def weigh(request: Event) -> float:
        telling = (item for item in found.get(request.index, ()) if not item["excuse"])
        seen = {name for item in telling for name in item["categories"]}
        return sum(CATEGORIES[name].weight for name in seen)

    return max(requests, key=weigh)


def _list_requests(events: Sequence[Event]) -> list[Event]:
    """Return the user messages that request work.

    A few words do unless they approve of something or answer a question of the agent.
    """
    requests = []
    said = ""
    for event in events:
        if event.kind == "assistant" and event.on_active_branch:
            said = event.text or said
        elif event.kind == "user" and event.on_active_branch:
            least = MIN_WORDS if "?" in said[-ASKED_CHARS:] else TERSE_WORDS
            if not (event.is_nudge or event.is_veto) and is_substantive(event.text, least):
                requests.append(event)
            said = ""
    return requests


def spell_out(request: Event, events: Sequence[Event]) -> str:
    """Return what a request says, with the text of its command; "" if it points at what nobody has shown."""
    text = strip_wrapper(request.text)
    around = events[max(request.index - 1, 0) : request.index + 2]
    before, after = around[0], around[-1]
    if before.kind == after.kind == "custom_message" and " " not in before.text and after.text[:1] != "<":
        text += f"\n\n{after.text.strip()}"
    is_first = not any(map(_is_message, events[: request.index]))
    return "" if is_first and _PATTERNS["points"].fullmatch(text) else text


def _is_work(event: Event) -> bool:
    """Check for a call or an answer of the agent in a turn that did not fail."""
    return (
        event.on_active_branch
        and event.stop_reason not in {"aborted", "error"}
        and (event.kind == "tool_call" or (event.kind == "assistant" and bool(event.text)))
    )


def count_row(events: Sequence[Event], found: Found, row: Row, trace: Trace, is_first: bool) -> dict[str, Any]:
    """Return `counts`, `volume` and `drift` of the events of a row; what a session has once, its first."""
    matched, forks = found.matched, found.forks
    calls = [event.index for event in events if event.kind == "tool_call"]
    start, stop = (events[0].index, events[-1].index + 1) if events else (0, 0)
    lines = trace.lines if is_first else Lines()
    return {
        "counts": {
            "events": len(events),
            "user_messages": sum(event.kind == "user" for event in events),
            "tool_calls": len(calls),
            "tool_errors": sum(event.is_error for event in events),
            "unanswered_calls": sum(index not in matched for index in calls),
            "abandoned_branches": bisect_left(forks, stop) - bisect_left(forks, start),
            "lines_parsed": lines.parsed,
            "lines_repaired": lines.repaired,
            "lines_skipped": lines.skipped,
            "bytes_repaired": lines.bytes_repaired,
            "bytes_skipped": lines.bytes_skipped,
            "bytes_not_utf8": (row["bytes_not_utf8"] or 0) * is_first,
        },
        "volume": {"bytes_parsed": lines.bytes_parsed},
        "drift": count_trace(trace) if is_first else [],
    }


def stage(unit: Unit, history_chars: int, judge: Judge | None = None, recorder: Sequence[str] | None = ()) -> FlatMap:
    """Build the stage for one unit of training and so many characters of earlier turns."""
    return FlatMap(
        partial(gather_evidence, unit=unit, history_chars=history_chars, judge=judge, recorder=recorder),
        reads=("session_id", "source", "trace", "bytes_not_utf8"),
        writes=EVIDENCE,
        tallies=("counts", "volume", "drift"),
        on_crash=name_session,
    )


def name_session(row: Row) -> dict[str, Any]:
    """Return the reject of a session on which a stage crashed; all its bytes count as skipped."""
    names = {name: redact_text(row[name] or "", "")[0] for name in ("session_id", "source")}
    return {**names, "episode": 0, "counts": {**dict.fromkeys(COUNTS, 0), "bytes_skipped": len(row["trace"] or b"")}}


MIN_WORDS, TERSE_WORDS = 4, 2
# Of 267 rows whose request and turn before have fewer, readers called 29 % worth training on, of others 37 %.
TASK_WORDS = 15
_BARE_NAME = re.compile(r"[\w.-]+", re.ASCII)
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
# No number, which chooses an option.
_WORD = re.compile(rf"{_CJK.pattern}|(?!\d+\b)\w+")
_CUES = {cue.name: cue.pattern for cue in read_cues() if cue.pattern}


def is_substantive(text: str, least: int = MIN_WORDS) -> bool:
    """Return whether a user message asks for work on its own.

    A greeting does not, nor "continue", a slash command, a nudge of the harness, a screenshot's
    path or a context file that came without words, or a bare name, which answers a question. Fewer
    than MIN_WORDS words do if there are `least` of them behind an approval.

    >>> is_substantive("continue"), is_substantive("Fix the failing parser test, please")
    (False, True)
    >>> is_substantive("ok, thank you", TERSE_WORDS), is_substantive("ok, fix tests", TERSE_WORDS)
    (False, True)
    """
    body = strip_wrapper(text)
    if _PATTERNS["automated"].search(body):
        return False
    own = _cut_own_words(body)[:2000]
    if _PATTERNS["small_talk"].search(own[:200]) or _BARE_NAME.fullmatch(own):
        return False
    if _has_words(own, MIN_WORDS):
        return True
    own = own.lower()
    for answer in ("approval", "go_on", "praise"):
        own = _CUES[answer].sub("", own, 1)
    return _has_words(own.strip(), least)


def _has_words(text: str, least: int) -> bool:
    """Check for so many words; two signs of Chinese, Japanese or Korean say as much as one."""
    is_long = len(text) >= 4 * least and len([*islice(_WORD.finditer(text), least)]) == least
    return is_long or len(_CJK.findall(text)) >= 2 * least


_ALONE_WORDS = 80
_PICTURE_SIGNS = (".png", ".jp", ".gif", ".webp", ".heic", "[image", "[screenshot")
# Of code, logs and what a terminal shows.
_CODE_SIGN = re.compile(r"[{}();=<>|\[\]]|\d:\d|\w/\w+/|^\s*(?:[$%#>+-]|at |File )")


def stands_alone(text: str) -> bool:
    """Check that a request has enough words to be understood without the turns before it."""
    lines = _cut_own_words(strip_wrapper(text))[:6000].split("\n")
    prose = " ".join(line for line in lines if not _CODE_SIGN.search(line))
    return len(_WORD.findall(prose)) >= _ALONE_WORDS


def _cut_own_words(body: str) -> str:
    """What a person typed around pictures and context files.

    >>> _cut_own_words("'/tmp/Screenshot 1.png' why is it blue?")
    'why is it blue?'
    """
    body = body[:20_000]
    if "<" in body:
        body = _PATTERNS["block"].sub(" ", body)
    lowered = body.lower()
    if any(sign in lowered for sign in _PICTURE_SIGNS):
        body = _PATTERNS["picture"].sub(" ", body)
    return body.strip()


def gather_history(events: Sequence[Event], stop: int, limit: int) -> list[Message]:
    """Return the last turns before event `stop` within `limit` characters, TURN_CHARS of each.

    The last turn may have ANSWER_CHARS. Roles alternate, from a user's turn to an assistant's. Tool
    calls and results are left out: the assistant's text says what matters of them. Turns are
    shortened later, after redaction, which would not recognise half a secret.
    """
    turns: list[tuple[str, list[str]]] = []
    sizes: list[int] = []
    for role, text in _read_back(events, stop) if limit else ():
        if sum(sizes) > limit:
            break
        if turns and turns[-1][0] == role:
            turns[-1][1].append(text)
            sizes[-1] = min(sizes[-1] + len(text), TURN_CHARS if sizes[1:] else ANSWER_CHARS)
        else:
            turns.append((role, [text]))
            sizes.append(min(len(text), TURN_CHARS if sizes else ANSWER_CHARS))
    while turns and (turns[-1][0] == "assistant" or sum(sizes) > limit):
        del turns[-1], sizes[-1]
    return [Message(role=role, content="\n\n".join(reversed(texts))) for role, texts in reversed(turns)]


def _read_back(events: Sequence[Event], stop: int) -> Iterator[tuple[str, str]]:
    """Yield role and text of the messages before event `stop`, from an answer on, the last one first.

    Of an agent that worked on a request and said nothing, the last call stands in brackets. A user's turn
    right before `stop` that it did nothing about was never answered.
    """
    answer = did = ""
    for event in reversed(events[:stop]):
        if event.kind == "tool_call" and event.on_active_branch:
            did = did or f"[{event.tool_name} {find_target(event.arguments)}]"
        if not _is_message(event):
            continue
        text = strip_wrapper(event.text) if event.kind == "user" else event.text.strip()
        if not text or (event.kind == "user" and _PATTERNS["notice"].match(text)):
            continue
        if event.kind == "user" and not answer and did:
            yield "assistant", did
        answer = answer or (text if event.kind == "assistant" else did)
        if answer:
            yield event.kind, text


def _is_message(event: Event) -> bool:
    """Check for a message of the user or the agent; a failed turn holds an error message."""
    is_answer = event.kind == "assistant" and event.stop_reason not in {"aborted", "error"}
    return event.on_active_branch and (event.kind == "user" or is_answer)


HASHED_CHARS = {"user": 16, "assistant": 40, "tool_call": 80}


def hash_messages(events: Sequence[Event]) -> list[int]:
    """Return a 64-bit hash for each message that is long enough, in order.

    Sessions that share messages are forks, snapshots or copies of each other. Equal short messages
    occur by chance.
    """
    texts = (
        f"{event.kind}\n{event.text or event.arguments}"
        for event in events
        if len(event.text or event.arguments) >= HASHED_CHARS.get(event.kind, 1 << 62)
    )
    return [int.from_bytes(xxhash.xxh3_64_digest(text.encode()), signed=True) for text in texts]

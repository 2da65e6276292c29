"""Write recoveries as rows for SFT, DPO and SDPO.

reads   session_id, source, trace
writes  RECOVERY, with `problem` and `detail` for recoveries that no row is made of

With `after`, the prompt ends with the failed call and its result (for a correction, with the user's words), and
with the looks after it if `chosen` needs what they showed; with `before`, right before the failed call. A recovery
is dropped as `not_knowable` if a text or a name that `chosen` needs does not stand in the prompt, as `risky_before`
if it deletes, forces or skips a check, as `only_after` if nothing before the failure calls for it, and as
`redacted`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import xxhash
from datasets import Features

from pimono_sdpo.actions import describe_change, is_risky, list_edits, normalise_action
from pimono_sdpo.failures import CATEGORIES
from pimono_sdpo.filter_options import At
from pimono_sdpo.schema import RECOVERY, Turn
from pimono_sdpo.stage import Filter, FlatMap, Row
from pimono_sdpo.text import shorten, shorten_line
from pimono_sdpo.traces.harness import find_harness
from processors.outcome import Step, is_command
from processors.recoveries import PATTERNS, WORD, Recovery, find_recoveries, list_lines, list_programs, normalise_event
from processors.redact import redact_json, redact_text
from processors.rollouts.conversation import dump_json
from processors.rollouts.sessions import READ, read_conversation
from processors.rollouts.steps import PLACEHOLDER, PROBLEM, drop_problems

Json = dict[str, Any]

# Characters of a token, as in `processors.evidence`.
TOKEN_CHARS = 4
# A result may fill so much of a prompt, so that the request and the calls around it remain.
_RESULT_SHARE = 4
# A slip teaches little; a user who chooses rows by `worth` leaves it out first.
SLIP_WORTH = 0.2
# The letters of a part of a path that does not stand in any text by chance.
_SHORT = 4
_LINE_CHARS, _HUNK_CHARS = 200, 600
_VARIES = re.compile(
    r"""(?:/|\b[A-Za-z]:\\|\.{1,2}/)[^\s'":,)]+|\b0x[0-9a-f]+\b|\d+|'[^'\n]{1,200}'|"[^"\n]{1,200}"|`[^`\n]{1,200}`"""
)


def write_recoveries(
    row: Row, at: At, prompt_tokens: int, test_fraction: float, recorder: Sequence[str] | None
) -> list[Json]:
    """Return the rows of the recoveries of one session, or its problem."""
    trace, private, turns, _, turn_of, columns = read_conversation(row, test_fraction, recorder)
    shared = {
        "session_id": columns.pop("task_id"),
        "source": row["source"],
        "harness": trace.harness,
        **columns,
        "at": at,
    }
    rows: list[Json] = []
    if trace.problem:
        rows.append({**shared, "problem": trace.problem})
    for recovery in find_recoveries(trace.events):
        if recovery.chosen.index not in turn_of or recovery.at not in turn_of:
            continue
        made = {**shared, "kind": recovery.kind, "place": recovery.at, "chosen_place": recovery.chosen.index}
        chosen = _drop_words(turns[turn_of[recovery.chosen.index]])
        failed = turn_of.get(recovery.failed.index) if recovery.failed else None
        rejected = _drop_words(turns[failed]) if failed is not None else None
        if PLACEHOLDER in dump_json([chosen, rejected]):
            rows.append({**made, "problem": "redacted"})
            continue
        prompt = _choose_prompt(recovery, turns, turn_of, at, prompt_tokens * TOKEN_CHARS, columns["tools"])
        if isinstance(prompt, str):
            rows.append({**made, "problem": prompt})
            continue
        error = redact_json(recovery.error, private)
        rows.append(
            {
                **made,
                "prompt": prompt,
                "chosen": [chosen],
                "rejected": [rejected] if rejected else [],
                "privileged_context": _write_lesson(recovery, chosen, rejected, error),
                "lesson_key": write_key(recovery, error),
                "worth": SLIP_WORTH if recovery.is_slip else 1.0,
                "verifier_spec": _write_spec(trace.harness, chosen, rejected),
                "prints": [_hash(recovery)],
            }
        )
    return [{**dict.fromkeys(ROW), **made} for made in rows]


ROW = Features({**RECOVERY, **PROBLEM})


def _drop_words(turn: Turn) -> Turn:
    """Return the turn of a call without the agent's words, which did not make it fail or work."""
    return {**turn, "content": ""}


def _choose_prompt(
    recovery: Recovery, turns: Sequence[Turn], turn_of: Mapping[int, int], at: At, chars: int, tools: Sequence[Json]
) -> list[Turn] | str:
    """Return the prompt at whose end `chosen` can be known, or why there is none."""
    chosen = turns[turn_of[recovery.chosen.index]]
    ends = [turn_of[recovery.at] + 1, turn_of[recovery.chosen.index]]
    if at == "before":
        if recovery.kind != "call" or recovery.failed is None:
            return "only_after"
        if is_risky(dump_json(chosen["tool_calls"])):
            return "risky_before"
        ends = [turn_of[recovery.failed.index]]
    if PATTERNS["unread"].search(recovery.error):
        # The look is part of the repair.
        ends = ends[1:]
    least = turn_of[recovery.failed.index] if recovery.failed and recovery.failed.index in turn_of else ends[0]
    goal = max((number for number in range(least) if turns[number]["role"] == "user"), default=0)
    for end in dict.fromkeys(ends):
        prompt = _fit_prompt(turns[:end], goal, chars)
        if prompt and _is_knowable(recovery, chosen, dump_json([prompt, tools]), at):
            return prompt
    return "not_knowable"


def _fit_prompt(turns: Sequence[Turn], goal: int, chars: int) -> list[Turn]:
    """Return the request and the last turns that fit, with results shortened; [] if the last call does not fit."""
    most = chars // _RESULT_SHARE
    fitted = [
        {**turn, "content": shorten(turn["content"] or "", most)} if turn["role"] != "assistant" else turn
        for turn in turns
    ]
    left = chars - len(dump_json(fitted[goal]))
    start = len(fitted)
    while start > goal + 1:
        # A result stands behind its call.
        begin = start - 1 - (fitted[start - 1]["role"] == "tool")
        left -= len(dump_json(fitted[begin:start]))
        if left < 0:
            break
        start = begin
    kept = [fitted[goal], *fitted[start:]] if start > goal else fitted[goal:]
    return kept if start < len(fitted) or len(fitted) == goal + 1 else []  # type: ignore[return-value]


def _is_knowable(recovery: Recovery, chosen: Turn, shown: str, at: At) -> bool:
    """Check that names and texts which `chosen` needs stand in the prompt; `before`, all its words must."""
    arguments = _read_call(chosen)["arguments"]
    if not isinstance(arguments, dict):
        return False
    if edits := list_edits(arguments):
        text = "\n".join(edit.old for edit in edits)
        needed = {dump_json(line)[1:-1] for line in list_lines(text)}
        return all(line in shown for line in needed)
    words = {*WORD.findall(normalise_action("", arguments))}
    if at == "before":
        return all(word in shown for word in words)
    # A name of a project has a path, digits or capitals in it; a program or an option is known without the session.
    own = {word for word in words if not word.startswith("-") and PATTERNS["own_name"].search(word)}
    parts = {part for word in own for part in word.split("/") if len(part) >= _SHORT}
    return all(part in shown for part in parts)


def _write_lesson(recovery: Recovery, chosen: Turn, rejected: Turn | None, error: str) -> str:
    """Write the teacher's context: the mistake in words, what reported it, and what worked."""
    kinds = [CATEGORIES[name].sentence for name in recovery.categories if name in CATEGORIES]
    function = _read_call(chosen)
    failed = _read_call(rejected)["name"] if rejected else ""
    about = {
        "call": f"The call of `{failed}` failed because of how it was made; making it again would fail again.",
        "fix": "The check fails until the code is changed; running it again changes nothing.",
        "correction": "The user does not want what was done, and said what is wanted instead.",
    }[recovery.kind]
    line = shorten(error.strip(), _HUNK_CHARS)
    change = shorten(describe_change(function["name"], function["arguments"]), _HUNK_CHARS)
    return "\n".join([*kinds, about, f"Reported: {line}", f"Resolved by: {change}"])


def write_key(recovery: Recovery, error: str) -> str:
    """Return a text that is equal for recoveries from the same mistake: the program or tool, and what it said."""
    call = recovery.failed or recovery.chosen
    step = Step(0, 0, call.tool_name, call.arguments, True)
    programs = list_programs(step) if is_command(step.tool, step.target) else []
    lines = error.strip().split("\n")
    said = next((line for line in lines if PATTERNS["telling"].search(line)), lines[0])
    name = " ".join(programs[-1]) if programs else call.tool_name
    return shorten_line(f"{recovery.kind} {name}: {_VARIES.sub('_', said).strip()}", _LINE_CHARS)


def _write_spec(harness: str, chosen: Turn, rejected: Turn | None) -> str:
    calls = {"worked": _read_call(chosen)} | ({"failed": _read_call(rejected)} if rejected else {})
    known = find_harness(harness)
    spec = {"harness": known.name, "recovery": calls} if known.tools else {"recovery": calls}
    return json.dumps(spec, ensure_ascii=False, sort_keys=True)


def _read_call(turn: Turn) -> Json:
    """Return name and arguments of the call of a turn."""
    function: Json = (turn["tool_calls"] or [])[0]["function"]
    return function


def _hash(recovery: Recovery) -> int:
    """Return a print that is equal for recoveries with the same failed call, chosen call and error."""
    parts = [normalise_event(call) if call else "" for call in (recovery.failed, recovery.chosen)]
    text = dump_json([*parts, _VARIES.sub("_", recovery.error)])
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "replace")) - 2**63


def build_stages(
    at: At, prompt_tokens: int, test_fraction: float = 0.0, recorder: Sequence[str] | None = ()
) -> tuple[FlatMap, Filter]:
    """Return the stages from sessions to rows of recoveries."""
    write = partial(
        write_recoveries, at=at, prompt_tokens=prompt_tokens, test_fraction=test_fraction, recorder=recorder
    )
    return (FlatMap(write, reads=READ, writes=ROW, on_crash=name_session), Filter(drop_problems, reads=("problem",)))


def name_session(row: Row) -> Json:
    """Return the reject of a session on which a stage crashed."""
    return {name: redact_text(row[name] or "", "")[0] for name in ("session_id", "source")}

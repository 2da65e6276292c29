"""Write rows as JSON lines for fine-tuning at Together, checked against its rules.

reads  STEP rows: {"messages": [{role, content, weight}]}, weight 1 on turns to learn, else 0
       PAIR rows: {"input": {"messages"}, "preferred_output": [one], "non_preferred_output": [one]}

The rules, as checked by the client `together` 1.5: roles are system, user and assistant, never
twice in a row; contents are strings; an input does not end with the assistant; there are no other
keys. The other columns of a row are on the same line of a second file.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pimono_sdpo.schema import Turn

ROLES = ("system", "user", "assistant")
OUTPUTS = ("preferred_output", "non_preferred_output")
SPOKEN = frozenset({"prompt", "completion", "chosen", "rejected", "tools"})
Json = dict[str, Any]
Line = Callable[[Mapping[str, Any]], "Json | str"]


def make_sft_line(row: Mapping[str, Any]) -> Json | str:
    """Return the line of a STEP row, or the reason why there is none."""
    context = _merge_turns([(turn, 0) for turn in row["prompt"]])
    learned = [(turn, int(turn["role"] == "assistant")) for turn in row["completion"]]
    if isinstance(context, str):
        return context
    rest = _merge_turns(learned)
    if isinstance(rest, str):
        return rest
    line = {"messages": [*context, *rest]}
    return check_sft(line) or line


def make_dpo_line(row: Mapping[str, Any]) -> Json | str:
    """Return the line of a PAIR row, or the reason why there is none."""
    ends = []
    for name in ("chosen", "rejected"):
        if len(row[name]) != 1:
            return "several_turns"
        ends.append(_merge_turns([(row[name][0], None)]))
    prompt = _merge_turns([(turn, None) for turn in row["prompt"]])
    for part in (prompt, *ends):
        if isinstance(part, str):
            return part
    line = {
        "input": {"messages": prompt},
        "preferred_output": ends[0],
        "non_preferred_output": ends[1],
    }
    return check_dpo(line) or line


def _merge_turns(turns: Sequence[tuple[Turn, int | None]]) -> list[Json] | str:
    """Join consecutive turns of one role; return a reason where a turn is not text."""
    merged: list[Json] = []
    for turn, weight in turns:
        if turn["role"] == "tool" or turn.get("tool_calls"):
            return "native_tool_calls"
        text = turn["content"] or ""
        if merged and merged[-1]["role"] == turn["role"]:
            merged[-1]["content"] += f"\n\n{text}"
            continue
        more = {} if weight is None else {"weight": weight}
        merged.append({"role": turn["role"], "content": text, **more})
    return merged


def check_sft(line: Any) -> str | None:
    """Return the rule of conversations that a line breaks, None if it breaks none.

    >>> check_sft({"messages": [{"role": "user", "content": "a"}] * 2})
    'roles_repeat'
    """
    if not isinstance(line, dict) or set(line) != {"messages"}:
        return "other_keys"
    wrong = _check_messages(line["messages"], weights=True)
    if wrong:
        return wrong
    said = [turn for turn in line["messages"] if turn["role"] == "assistant"]
    if not said:
        return "no_assistant"
    return None if any(turn.get("weight", 1) for turn in said) else "nothing_to_learn"


def check_dpo(line: Any) -> str | None:
    """Return the rule of preferences that a line breaks, None if it breaks none."""
    if not isinstance(line, dict) or set(line) != {"input", *OUTPUTS}:
        return "other_keys"
    if not isinstance(line["input"], dict) or set(line["input"]) != {"messages"}:
        return "other_keys"
    wrong = _check_messages(line["input"]["messages"], weights=False)
    if wrong:
        return wrong
    if line["input"]["messages"][-1]["role"] == "assistant":
        return "input_ends_with_assistant"
    for name in OUTPUTS:
        output = line[name]
        if not isinstance(output, list) or len(output) != 1:
            return "several_turns"
        if _check_messages(output, weights=False) or output[0]["role"] != "assistant":
            return "output_is_no_text"
    return None


def _check_messages(messages: Any, weights: bool) -> str | None:
    if not isinstance(messages, list) or not messages:
        return "no_messages"
    allowed = {"role", "content", "weight"} if weights else {"role", "content"}
    before = None
    for turn in messages:
        if not isinstance(turn, dict) or not {"role", "content"} <= set(turn) <= allowed:
            return "other_keys"
        if turn["role"] not in ROLES:
            return "unknown_role"
        if turn["role"] == before:
            return "roles_repeat"
        if not isinstance(turn["content"], str):
            return "content_is_no_text"
        if "weight" in turn and (type(turn["weight"]) is not int or turn["weight"] not in (0, 1)):
            return "weight_is_not_0_or_1"
        before = turn["role"]
    return None


def write_lines(rows: Iterable[Mapping[str, Any]], line_of: Line, path: Path) -> Counter[str]:
    """Write `path` and NAME_meta.jsonl; return how many rows were written and left out, and why.

    Equal lines of the two files belong together. No file is written without a line.
    """
    counts = Counter[str]()
    meta = path.with_name(f"{path.stem}_meta.jsonl")
    temporary = [one.with_name(f"{one.name}.tmp") for one in (path, meta)]
    with temporary[0].open("w") as lines, temporary[1].open("w") as known:
        for row in rows:
            line = line_of(row)
            if isinstance(line, str):
                counts[line] += 1
                continue
            counts["written"] += 1
            about = {name: value for name, value in row.items() if name not in SPOKEN}
            lines.write(json.dumps(line, ensure_ascii=False) + "\n")
            known.write(json.dumps(about, ensure_ascii=False) + "\n")
    for one, final in zip(temporary, (path, meta), strict=True):
        if counts["written"]:
            one.replace(final)
        else:
            one.unlink()
    return counts

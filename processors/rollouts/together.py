"""Write rows as JSON lines for fine-tuning at Together, checked against its rules.

reads  STEP rows: {"messages": [{role, content, weight}]}, weight 1 on turns to learn, else 0
       PAIR rows: {"input": {"messages"}, "preferred_output": [one], "non_preferred_output": [one]}

The rules, as checked by the client `together` 1.5: roles are system, user and assistant, never
twice in a row; contents are strings; an input does not end with the assistant; other keys are not
allowed. An output is one turn, so the turns of the targets `truncated` and `full` become one JSON
object. The other columns of a row are written to the same line of a second file.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from pimono_sdpo.schema import Turn
from processors.rollouts.conversation import Json, dump_json, make_turn

CONVERSATION = frozenset({"prompt", "completion", "chosen", "rejected", "tools"})
T = TypeVar("T")
Line = Callable[[Mapping[str, Any]], "Json | str"]


class _TextTurn(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["system", "user", "assistant"]
    content: str


class _WeightedTurn(_TextTurn, forbid_unknown_fields=True):
    weight: Literal[0, 1] = 1


class _Answer(_TextTurn, forbid_unknown_fields=True):
    role: Literal["assistant"]


class _Sft(msgspec.Struct, forbid_unknown_fields=True):
    messages: Annotated[list[_WeightedTurn], Meta(min_length=1)]


class _Input(msgspec.Struct, forbid_unknown_fields=True):
    messages: Annotated[list[_TextTurn], Meta(min_length=1)]


class _Dpo(msgspec.Struct, forbid_unknown_fields=True):
    input: _Input
    preferred_output: tuple[_Answer]
    non_preferred_output: tuple[_Answer]


def make_sft_line(row: Mapping[str, Any]) -> Json | str:
    """Return the line of a STEP row, or the reason why there is none."""
    prompt, completion = _merge_turns(row["prompt"], 0), _merge_turns(row["completion"], 1)
    if prompt is None or completion is None:
        return "native_tool_calls"
    line = {"messages": [*prompt, *completion]}
    return check_sft(line) or line


def make_dpo_line(row: Mapping[str, Any]) -> Json | str:
    """Return the line of a PAIR row, or the reason why there is none."""
    sides = [row["chosen"], row["rejected"]]
    if row["target"] in {"full", "truncated"}:
        trajectories = ([{name: value for name, value in turn.items() if value} for turn in side] for side in sides)
        texts = (dump_json({"type": "trajectory", "trajectory": turns}) for turns in trajectories)
        sides = [[make_turn("assistant", text)] for text in texts]
    merged = [_merge_turns(turns) for turns in (row["prompt"], *sides)]
    if None in merged:
        return "native_tool_calls"
    line = {"input": {"messages": merged[0]}, "preferred_output": merged[1], "non_preferred_output": merged[2]}
    return check_dpo(line) or line


def _merge_turns(turns: Sequence[Turn], weight: int | None = None) -> list[Json] | None:
    """Join consecutive turns of one role; assistant turns get the weight. Return None if a turn is not text."""
    merged: list[Json] = []
    for turn in turns:
        if turn["role"] == "tool" or turn.get("tool_calls"):
            return None
        text = turn["content"] or ""
        if merged and merged[-1]["role"] == turn["role"]:
            merged[-1]["content"] += f"\n\n{text}"
            continue
        more = {} if weight is None else {"weight": weight * (turn["role"] == "assistant")}
        merged.append({"role": turn["role"], "content": text, **more})
    return merged


def check_sft(line: Any) -> str | None:
    """Return the rule of SFT lines that a line violates, None if it is valid.

    >>> check_sft({"messages": [{"role": "user", "content": "a"}] * 2})
    'roles_repeat'
    """
    sft = _convert(line, _Sft)
    if isinstance(sft, str):
        return sft
    if any(before.role == after.role for before, after in pairwise(sft.messages)):
        return "roles_repeat"
    has_target = any(turn.weight for turn in sft.messages if turn.role == "assistant")
    return None if has_target else "nothing_to_learn"


def check_dpo(line: Any) -> str | None:
    """Return the rule of DPO lines that a line violates, None if it is valid."""
    dpo = _convert(line, _Dpo)
    if isinstance(dpo, str):
        return dpo
    turns = dpo.input.messages
    if any(before.role == after.role for before, after in pairwise(turns)):
        return "roles_repeat"
    return "input_ends_with_assistant" if turns[-1].role == "assistant" else None


def _convert(line: Any, kind: type[T]) -> T | str:
    """Return a line as `kind`, or its problem without the position, so that equal problems are counted together."""
    try:
        return msgspec.convert(line, kind)
    except msgspec.ValidationError as error:
        return str(error).partition(" - at ")[0]


def write_lines(rows: Iterable[Mapping[str, Any]], line_of: Line, path: Path) -> Counter[str]:
    """Write `path` and NAME_meta.jsonl, unless there is no line; return the counts of lines written and left out."""
    counts = Counter[str]()
    files = (path, path.with_name(f"{path.stem}_meta.jsonl"))
    temporary = [file.with_name(f"{file.name}.tmp") for file in files]
    with temporary[0].open("w") as lines, temporary[1].open("w") as meta:
        for row in rows:
            line = line_of(row)
            if isinstance(line, str):
                counts[line] += 1
                continue
            counts["written"] += 1
            columns = {name: value for name, value in row.items() if name not in CONVERSATION}
            lines.write(dump_json(line) + "\n")
            meta.write(dump_json(columns) + "\n")
    for written, file in zip(temporary, files, strict=True):
        if counts["written"]:
            written.replace(file)
        else:
            written.unlink()
    return counts

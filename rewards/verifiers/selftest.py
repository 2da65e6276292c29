"""Try a reward on what must not win before anything is trained on it.

Each row's empty answer, copies, list of terms, refusal, spoilt and overlong gold answer must score
below the threshold, and its gold answer 1.0.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rewards.answers import text_of

Reward = Callable[..., Sequence[float | None]]
GARBAGE = "%%zq\n-%%zq ((\n+%%zq )) ]]\n%%zq"
LONGER = 10
REFUSALS = (
    "I'm sorry, but I can't help with that.",
    "I cannot fix this without more information.",
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A case that the reward did not judge as it should; `wanted` says what would be right."""

    row: int
    case: str
    reward: float | None
    wanted: str


def self_test(
    reward: Reward,
    rows: Sequence[Mapping[str, Any]],
    gold: Sequence[str] | None = None,
    threshold: float = 1.0,
    may_win: Collection[str] = (),
) -> list[Finding]:
    """Return the cases that failed, none for a sound reward.

    `rows` are dataset rows with `prompt`; `gold` their right answers, when there are any, which
    must score 1.0. `threshold` is the trainer's `success_reward_threshold`. `may_win` names cases
    that are right by design: who writes a file in a call may say anything after it, which is
    `gold_and_garbage`. The reward is called with one case at a time, so that no case is judged by
    its neighbours.
    """
    findings: list[Finding] = []
    answers: Sequence[str | None] = gold if gold is not None else [None] * len(rows)
    for number, (row, answer) in enumerate(zip(rows, answers, strict=True)):
        if answer is not None:
            scored = _score(reward, row, answer)
            if scored != 1.0:
                findings.append(Finding(number, "gold", scored, "1.0"))
        for case, completion in attacks(row, answer):
            scored = _score(reward, row, completion)
            if scored is not None and scored >= threshold and case not in may_win:
                findings.append(Finding(number, case, scored, f"below {threshold}"))
    return findings


def attacks(row: Mapping[str, Any], gold: str | None) -> Iterator[tuple[str, str]]:
    """Yield the answers that must not win, by name."""
    prompt = text_of(row["prompt"])
    context = row.get("privileged_context") or ""
    terms = [str(term) for term in row.get("reward_terms") or context.split()[:30]]
    yield "empty", ""
    yield "blank", " \n\t\n"
    yield "prompt_copy", prompt
    if context:
        yield "context_copy", context
        yield "prompt_and_context_copy", f"{prompt}\n\n{context}"
    if terms:
        yield "term_list", ", ".join(terms)
        yield "term_lines", "\n".join(f"- {term}" for term in terms)
    for number, refusal in enumerate(REFUSALS, 1):
        yield f"refusal_{number}", refusal
    whole = f"{prompt}\n{context}"
    yield "ten_times_the_length", "\n".join([whole] * LONGER)
    yield from _without_code(row)
    if gold is not None:
        yield "gold_and_garbage", gold.rstrip() + GARBAGE
        yield "garbage_in_gold", _in_the_middle(gold)
        yield "gold_ten_times", "\n".join([gold] * LONGER)


def _without_code(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield answers that delete the code and put nothing in its place."""
    spec = json.loads(row.get("verifier_spec") or "{}")
    files = spec.get("files") if isinstance(spec, dict) else None
    for path, text in list(files.items())[:1] if isinstance(files, dict) else []:
        lines = text.splitlines()
        minus = "\n".join(f"-{line}" for line in lines)
        call = {"name": "write", "arguments": {"path": path, "content": ""}}
        yield "code_deleted", "```python\npass\n```"
        yield (
            "code_deleted_by_a_diff",
            (f"--- a/{path}\n+++ b/{path}\n@@ -1,{len(lines)} +0,0 @@\n{minus}\n"),
        )
        yield "code_deleted_by_a_write", f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


def table(findings: Sequence[Finding]) -> str:
    """Return the findings as a Markdown table, "" without any.

    >>> print(table([Finding(0, "empty", 1.0, "below 1.0")]))
    | row | case | reward | wanted |
    |---|---|---|---|
    | 0 | empty | 1.0 | below 1.0 |
    """
    if not findings:
        return ""
    lines = [f"| {f.row} | {f.case} | {f.reward} | {f.wanted} |" for f in findings]
    return "\n".join(["| row | case | reward | wanted |", "|---|---|---|---|", *lines])


def _in_the_middle(gold: str) -> str:
    at = len(gold) // 2
    return gold[:at] + GARBAGE + gold[at:]


def _score(reward: Reward, row: Mapping[str, Any], completion: str) -> float | None:
    columns = {name: [value] for name, value in row.items() if name != "prompt"}
    said: Any = completion
    if not isinstance(row["prompt"], str):
        said = [{"role": "assistant", "content": completion}]
    (scored,) = reward(prompts=[row["prompt"]], completions=[said], **columns)
    return scored

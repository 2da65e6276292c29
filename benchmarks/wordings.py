"""Measure on a small model what the wording of a teacher's context does, against the same text as an unrelated log line.

    python -m benchmarks.wordings RECOVERIES MODEL [--rows 24]

RECOVERIES is a folder of `filter --unit recovery`, MODEL a folder with a GGUF file or a model. For each row and
wording: margin = log p(worked call) - log p(failed call) over the MOST tokens after their common beginning. A margin
also rises when a call is only copied out of the context, so a wording is chosen by its lesson: its margin minus that
of the same text in the control. Intervals are 95 % bootstraps over sessions.

prints  a Markdown table of margin and lesson for each wording
"""

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from pimono_sdpo.stats import cluster_interval

MOST, SHOWN_CHARS = 12, 1000
CONTROL = "A line from the log of an unrelated project: "
Json = dict[str, Any]


def write_call(turns: list[Json]) -> str:
    """Return the call of a row as JSON text."""
    function = turns[0]["tool_calls"][0]["function"]
    return json.dumps(
        {"type": "tool_call", "name": function["name"], "args": function["arguments"]}, ensure_ascii=False
    )


def split_context(row: Json) -> tuple[str, str]:
    """Return the hint and the answer of a row's context."""
    hint, _, answer = row["privileged_context"].partition("Resolved by: ")
    return hint.strip(), f"Resolved by: {answer}"


WORDINGS: dict[str, Callable[[Json], str]] = {
    "hint, then answer": lambda row: "\n".join(split_context(row)),
    "answer only": lambda row: split_context(row)[1],
    "hint only": lambda row: split_context(row)[0],
    "failed call quoted, then answer": lambda row: f"{write_call(row['rejected'])} failed. {split_context(row)[1]}",
}


def load_model(path: Path) -> tuple[Any, Any]:
    """Load a model and its tokenizer, from a GGUF file if the folder has one."""
    gguf = next(path.glob("*.gguf"), None)
    more = {"gguf_file": gguf.name} if gguf else {}
    return AutoModelForCausalLM.from_pretrained(path, **more).eval(), AutoTokenizer.from_pretrained(path, **more)


def render_prompt(row: Json, context: str) -> str:
    """Return the end of the conversation as one text, with the teacher's context in front of it."""
    said = "\n".join(turn["content"] or write_call([turn]) for turn in row["prompt"])
    names = ", ".join(tool["function"]["name"] for tool in row["tools"])
    return f"Tools: {names}\n{context}\n{said[-SHOWN_CHARS:]}\n"


@torch.no_grad()
def measure_margin(model: Any, tokenizer: Any, row: Json, context: str) -> float:
    """Return log p(worked) - log p(failed) behind the common beginning of the two calls."""
    prompt = tokenizer(render_prompt(row, context))["input_ids"]
    sides = [tokenizer(write_call(row[name]))["input_ids"] for name in ("chosen", "rejected")]
    shared = next((n for n, (a, b) in enumerate(zip(*sides, strict=False)) if a != b), min(map(len, sides)))
    sums = []
    for side in sides:
        ids = torch.tensor([[*prompt, *side[: shared + MOST]]])
        logs = torch.log_softmax(model(ids).logits[0, :-1].float(), -1)
        start = len(prompt) + shared
        sums.append(sum(float(logs[at - 1, ids[0, at]]) for at in range(start, ids.shape[1])))
    return sums[0] - sums[1]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Measure wordings of the teacher's context.")
    parser.add_argument("recoveries")
    parser.add_argument("model", type=Path)
    parser.add_argument("--rows", type=int, default=24)
    given = parser.parse_args()
    rows = [dict(row) for row in load_dataset(given.recoveries, split="train") if row["kind"] == "call"]
    random.Random(0).shuffle(rows)
    model, tokenizer = load_model(given.model)
    changes: defaultdict[str, list[float]] = defaultdict(list)
    lessons: defaultdict[str, list[float]] = defaultdict(list)
    rows = rows[: given.rows]
    for row in rows:
        base = measure_margin(model, tokenizer, row, "")
        for name, write in WORDINGS.items():
            margin = measure_margin(model, tokenizer, row, write(row))
            changes[name].append(margin - base)
            lessons[name].append(margin - measure_margin(model, tokenizer, row, CONTROL + write(row)))
    print("| wording | margin, change | lesson: margin minus the control's |\n|---|---|---|")
    for name in WORDINGS:
        cells = []
        for values in (changes[name], lessons[name]):
            clusters: defaultdict[str, list[float]] = defaultdict(list)
            for row, value in zip(rows, values, strict=True):
                clusters[row["session_id"]].append(value)
            found = cluster_interval([*clusters.values()])
            cells.append(f"{found.mean:+.1f} [{found.low:.1f}, {found.high:.1f}]")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()

"""Write the training row of an exercise: a conversation that ends where the model acts.

reads   exercise, findings, workspace, cwd, identity, secrets, harness, privileged_context, the row's columns
writes  the SDPO row: `prompt` with the tools in a system turn, calls as JSON objects, and a
        `verifier_spec` for `rewards.verifiers.next_call`; redactions
"""

import json
from functools import partial
from typing import Any

from datasets import Features, List, Value

from pimono_sdpo.replay.calls import find_path, find_text, hash_call, read_edits, read_patch
from pimono_sdpo.replay.commands import find_changes
from pimono_sdpo.schema import EVIDENCE, PRINT, SDPO_ROW
from pimono_sdpo.stage import Map, Row
from pimono_sdpo.text import shorten
from pimono_sdpo.text import shorten_at_paragraphs as cut
from pimono_sdpo.traces.harness import find_harness, pi
from processors.exercises import ARGUMENT_CHARS, PLAN_CHARS, RESULT_CHARS
from processors.redact import redact_json
from processors.rollouts.conversation import PROMPTS, dump_json
from processors.rows import PROMPT_CHARS, write_row, write_workspace

Json = dict[str, Any]


def write_exercise(row: Row, resolving_call: bool) -> dict[str, Any]:
    """Return the columns of a training row, after redaction."""
    exercise, found = json.loads(row["exercise"]), list(row["redactions"])
    exercise = redact_json(exercise, (exercise["cwd"], row["identity"], row["secrets"]), found)
    functions = [tool["function"] for tool in exercise["tools"]]
    known = [{"name": one["name"], "args": one["parameters"]} for one in functions]
    system = PROMPTS["actions"].strip().format(tools="\n".join(map(dump_json, known)))
    harness = find_harness(row["harness"])
    failed = exercise["failed_call"]
    spec = {
        "format": "json",
        # The schemas of a harness are the verifier's own: it knows all their generations.
        "tools": [
            one["name"] if one.pop("known", False) else {"type": "function", "function": one} for one in functions
        ],
        "goal": exercise["goal"],
        "failed_call": failed and {"tool": failed["name"], "command": row["findings"][0]["target"], **failed},
        "resolved_call": exercise["resolved_call"],
        "targets": exercise["targets"],
        "paths": exercise["paths"],
        "places": exercise["places"],
        "workspace": {**write_workspace(row), "cwd": exercise["folder"]},
        "earlier": _hash_earlier(exercise),
    }
    if harness.tools and harness.tools is not pi.TOOLS:
        spec["harness"] = harness.name
    context = row["privileged_context"]
    if resolving_call and exercise["resolved_call"]:
        context += f"\nThe call that worked:\n{dump_json(exercise['resolved_call'])}"
    return {
        **write_row(row),
        "prompt": [{"role": "system", "content": system}, *_write_turns(exercise)],
        "privileged_context": context,
        "verifier_spec": json.dumps(spec, ensure_ascii=False, sort_keys=True),
        "redactions": found,
    }


def _write_turns(exercise: Json) -> list[Json]:
    """Return alternating turns: calls as JSON objects, results and words as the user's."""
    first, *rest = exercise["turns"]
    turns = [{"role": "user", "content": cut(first["text"], PROMPT_CHARS)}]
    for turn in rest:
        shown = turn.get("text", "")
        if "call" in turn:
            name, args = turn["call"]["name"], _shorten_texts(turn["call"]["args"])
            called = dump_json({"type": "tool_call", "name": name, "args": args})
            turns.append({"role": "assistant", "content": called})
            shown = f"[tool_result]\n{turn['result']}"
            turns.append({"role": "user", "content": shorten(shown, RESULT_CHARS)})
        else:
            turns[-1]["content"] += f"\n\n{shorten(shown, RESULT_CHARS)}"
    if exercise["plan"]:
        turns[-1]["content"] += f"\n\n[your plan]\n{shorten(exercise['plan'], PLAN_CHARS)}"
    return turns


def _hash_earlier(exercise: Json) -> dict[str, list[str]]:
    """Return hashes of the calls that the prompt shows: those that failed, and those whose whole result is there."""
    failed: list[str] = []
    shown: dict[str, str] = {}
    for turn in exercise["turns"]:
        name, args = (turn["call"]["name"], turn["call"]["args"]) if "call" in turn else ("", {})
        changes, path = find_changes(find_text(args, "command", "cmd"), ""), find_path(args)
        if not name or turn["call"] == exercise["resolved_call"]:
            continue
        if not turn["ok"]:
            failed.append(hash_call(name, args))
        elif changes.anything or changes.names or "content" in args or read_edits(args) or read_patch(args):
            # What failed before may work now, and the file is another one.
            failed.clear()
            shown = {call: of for call, of in shown.items() if not path or of != path}
        elif shorten(turn["result"], RESULT_CHARS) == turn["result"]:
            shown[hash_call(name, args)] = path
    return {"failed": failed, "shown": [*shown]}


def _shorten_texts(value: Any) -> Any:
    if isinstance(value, str):
        return shorten(value, ARGUMENT_CHARS)
    if isinstance(value, list):
        return [_shorten_texts(one) for one in value]
    return {k: _shorten_texts(v) for k, v in value.items()} if isinstance(value, dict) else value


def stage(resolving_call: bool) -> Map:
    """Build the stage that writes the rows; `resolving_call` shows the teacher the call itself."""
    return Map(
        partial(write_exercise, resolving_call=resolving_call),
        reads=("exercise", "privileged_context", "findings", "workspace", "cwd", "identity", "secrets", "harness"),
        writes=Features({**SDPO_ROW, **PRINT, "redactions": List(Value("string"))}),
        drops=(*(name for name in EVIDENCE if name not in {*SDPO_ROW, *PRINT}), "exercise"),
        tallies=("redactions",),
    )

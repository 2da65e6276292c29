"""Rewrite a run of native tool calls in the json protocol: calls and results become text.

A model learns the protocol it will be asked in: rows of recorded sessions, whose calls are native,
serve an agent of the json protocol only when they are written in it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from pimono_sdpo.rollout_schema import Turn
from processors.rollouts.runs.actions import Action, Run
from processors.rollouts.runs.turns import as_json, turn_of

As = Literal["as_recorded", "json"]
RESULT = "[tool_result]\n"
SYSTEM = """\
You are a coding agent. Answer with exactly one JSON object and nothing else:
{{"type": "tool_call", "name": NAME, "args": {{...}}}} to use a tool, or
{{"type": "final", "summary": TEXT}} when the work is done. These are the tools:
{tools}"""
Json = dict[str, Any]


def in_json(run: Run, tools: Sequence[Json]) -> Run:
    """Return the run in the json protocol; one that is in it stays as it is."""
    if run.protocol == "json":
        return run
    known = [
        {"name": tool["function"]["name"], "args": tool["function"].get("parameters")}
        for tool in tools
    ]
    system = turn_of("system", SYSTEM.format(tools="\n".join(map(as_json, known))))
    had = bool(run.turns) and run.turns[0]["role"] == "system"
    turns = [system, *(_text(turn) for turn in run.turns[had:])]
    shift = 0 if had else 1
    actions = [_moved(action, shift, turns) for action in run.actions]
    return replace(run, turns=turns, actions=actions, protocol="json")


def _moved(action: Action, shift: int, turns: list[Turn]) -> Action:
    at = action.n_context + shift
    step = action.step
    if step["kind"] == "final" and not isinstance(step["args"], dict):
        step = {**step, "args": {"summary": action.turn["content"] or ""}}
    return Action(step, turns[at], at)


def _text(turn: Turn) -> Turn:
    if turn["role"] == "tool":
        return turn_of("user", RESULT + (turn["content"] or ""))
    if turn["role"] != "assistant":
        return turn
    for call in turn.get("tool_calls") or ():
        about = call.get("function") or {}
        called = {"type": "tool_call", "name": about.get("name"), "args": about.get("arguments")}
        return turn_of("assistant", as_json(called))
    return turn_of("assistant", as_json({"type": "final", "summary": turn["content"] or ""}))

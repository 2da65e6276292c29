"""Calls of real sessions: those that worked are valid, those that validation refused are not."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rewards.verifiers.rubric import VerifierResult
from rewards.verifiers.tool_calls import load_tools, verify

TRACES = os.environ.get("PIMONO_TRACES", "")
SAMPLES = Path(__file__).parents[2] / "pimono_sdpo" / "samples" / "sessions"
REFUSED = re.compile(r"(?:Validation failed for tool|Invalid arguments for tool|Tool \S+ not found)")


def recorded(folder: Path) -> Iterator[tuple[dict[str, Any], str, bool]]:
    """Yield every call of one of Pi's tools with its result and whether that is an error."""
    for path in sorted(folder.rglob("*.jsonl")):
        calls: dict[str, dict[str, Any]] = {}
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                message = json.loads(line).get("message")
            except ValueError:  # some files have lines that are broken on purpose
                continue
            if not isinstance(message, dict) or not isinstance(message.get("content"), list):
                continue
            blocks = [block for block in message["content"] if isinstance(block, dict)]
            calls |= {b["id"]: b for b in blocks if b.get("type") == "toolCall"}
            call = calls.get(message.get("toolCallId", ""))
            if message.get("role") == "toolResult" and call and call["name"] in load_tools("pi"):
                text = "".join(str(block.get("text", "")) for block in blocks)
                yield call, text, bool(message.get("isError"))


def check_call(call: dict[str, Any]) -> VerifierResult:
    return verify("", {"tools": "pi", "tool_calls": [{"name": call["name"], "arguments": call["arguments"]}]})


@pytest.mark.skipif(not TRACES, reason="PIMONO_TRACES is not set")
def test_every_call_that_worked_is_valid() -> None:
    counts: Counter[str] = Counter()
    wrong = []
    for call, text, is_error in recorded(Path(TRACES, "pi")):
        result = check_call(call)
        counts[f"{'failed' if is_error else 'worked'}, {result.status}"] += 1
        if (result.status == "passed") is (REFUSED.match(text) is not None):
            wrong.append((call["name"], call["arguments"], result.feedback, text[:200]))
    assert wrong == []
    assert counts["worked, passed"] > 500


def test_calls_that_validation_refused_fail() -> None:
    refused = [(call, text) for call, text, _ in recorded(SAMPLES) if REFUSED.match(text)]
    assert refused
    for call, text in refused:
        result = check_call(call)
        assert result.status == "failed"
        assert result.feedback.splitlines()[:2] == text.splitlines()[:2]

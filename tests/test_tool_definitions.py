"""Definitions of tools: published schemas that fit the calls, and others from their use."""

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import load_dataset
from jsonschema import Draft202012Validator
from transformers.utils.chat_template_utils import render_jinja_template

from pimono_sdpo.traces.harness import HARNESSES, claude_code, codex, pi
from pimono_sdpo.traces.tools import describe_tools
from processors.evidence import gather_evidence
from rewards.verifiers.tool_calls import verify
from tests.shards import cli
from tests.traces import assistant, call, result, trace, user

Json = dict[str, Any]
OLD = {"path": "a.ts", "oldText": "a", "newText": "b"}
NEW = {"path": "a.ts", "edits": [{"oldText": "a", "newText": "b"}]}


def named(tools: list[Json]) -> dict[str, Json]:
    return {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}


@pytest.mark.parametrize("harness", [one for one in HARNESSES if one.tools], ids=lambda one: one.name)
def test_published_schemas_are_what_chat_templates_take(harness: Any) -> None:
    for name, tool in harness.tools.items():
        for schema in tool.schemas:
            Draft202012Validator.check_schema(schema)
            assert {*schema["required"]} <= schema["properties"].keys(), name
            defined = tool.define(name, schema)
            assert defined["function"].keys() == {"name", "description", "parameters"}
            assert "additionalProperties" not in defined["function"]["parameters"]


def test_a_tool_has_the_newest_schema_that_all_its_calls_fit() -> None:
    assert "edits" in named(describe_tools([], "pi", pi.TOOLS))["edit"]["required"]
    assert "edits" in named(describe_tools([("edit", NEW)], "pi", pi.TOOLS))["edit"]["required"]
    assert "oldText" in named(describe_tools([("edit", OLD)], "pi", pi.TOOLS))["edit"]["required"]
    both = named(describe_tools([("edit", OLD), ("edit", NEW)], "pi", pi.TOOLS))["edit"]
    assert (both["required"], {*both["properties"]}) == (["path"], {"path", "edits", "oldText", "newText"})
    typed = named(describe_tools([("bash", {"command": ["ls"]})], "claude_code", claude_code.TOOLS))["bash"]
    assert typed["properties"] == {"command": {"type": "array"}}


def test_other_tools_are_described_from_their_use() -> None:
    calls = [("mcp__docs__search", {"query": "a", "limit": 3}), ("mcp__docs__search", {"query": "b", "limit": "3"})]
    found = named(describe_tools([*calls, ("mcp__docs__search", {"query": "c", "deep": True})], "codex", codex.TOOLS))
    assert found["mcp__docs__search"] == {
        "type": "object",
        "properties": {"deep": {"type": "boolean"}, "limit": {}, "query": {"type": "string"}},
        "required": ["query"],
    }
    assert {"bash", "edit"} < found.keys()
    assert "update_plan" not in found, "not called"
    # What a model writes as a name may be anything.
    odd = [
        ("<script>", {}),
        ("a b", {}),
        ("", {}),
        ("x" * 99, {}),
        ("ok", {"my password is": 1, "n": None}),
        ("ok", []),
    ]
    assert named(describe_tools(odd, "the agent")) == {
        "ok": {"type": "object", "properties": {"n": {}}, "required": ["n"]}
    }


def test_a_tool_that_does_not_exist_is_left_out() -> None:
    lines = trace(
        user("Fix the failing test of the parser, please."),
        call("search_web", query="a"),
        result("search_web", "Tool search_web not found", error=True),
        call("web", query="a"),
        result("web", "no network", error=True),
        call("bash", command="npm test"),
        result("bash", "1 failed\n\nCommand exited with code 1", error=True),
        assistant("It fails."),
    )
    row = {"session_id": "s", "source": "s", "trace": lines.encode(), "bytes_not_utf8": 0}
    (found,) = gather_evidence(row, "episode", 0)
    assert {"web", "bash", "read"} <= named([*map(json.loads, found["tools"])]).keys()
    assert "search_web" not in named([*map(json.loads, found["tools"])])


SAMPLES = {one.name: one.sample for one in HARNESSES}


@pytest.mark.parametrize("unit", ["episode", "session"])
def test_every_row_has_tools_that_a_template_and_a_verifier_take(tmp_path: Path, unit: str) -> None:
    (tmp_path / "in").mkdir()
    for name, sample in SAMPLES.items():
        (tmp_path / "in" / f"{name}.jsonl").write_text(sample)
    cli("filter", tmp_path / "in", "--out", tmp_path / "out", "--min-worth", 0, "--unit", unit, "--no-dedupe")
    stored = load_dataset("parquet", data_files=str(tmp_path / "out" / "data" / "*.parquet"), split="train")
    assert {*stored["harness"]} >= {"pi", "claude_code", "codex", "droid"}
    for row in stored:
        spec = json.loads(row["verifier_spec"])
        assert "tools" not in spec
        shell = named(row["tools"])["bash"]
        assert shell["properties"]["command"]["type"] == "string"
        made = [{"name": "bash", "arguments": {"command": "ls"}}]
        assert verify("", {"tools": row["tools"], **spec, "tool_calls": made}).status == "passed"
        template = "{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
        (shown,), _ = render_jinja_template([row["prompt"]], tools=row["tools"], chat_template=template)
        assert '"name": "bash"' in shown

"""Valid and invalid calls, as TRL parsed them and as JSON text, and completions that must not get credit."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.verifiers.rubric import BadSpec, VerifierResult
from rewards.verifiers.tool_calls import EXAMPLE, MAX_CHARS, definitions, read_calls, verify

EDIT = {"path": "src/a.ts", "edits": [{"oldText": "  if (a < b) {\n", "newText": '\tif ("x") {\n'}]}
READ = {"path": "a b/c.ts", "offset": 3}
PI = {"tools": "pi"}
JSON_PI = {**PI, "format": "json"}


def action(name: str, **args: Any) -> str:
    return json.dumps({"type": "tool_call", "name": name, "args": args})


def parsed(*calls: tuple[str, Any], **spec: Any) -> VerifierResult:
    """The verdict on calls that TRL parsed."""
    found = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return verify("I look.", {**PI, **spec, "tool_calls": found})


@pytest.mark.parametrize("spec", [PI, {"tools": ["read", "edit"]}], ids=["set", "list"])
def test_valid_calls_pass(spec: dict[str, Any]) -> None:
    for tool, arguments in (("read", READ), ("edit", EDIT), ("read", {"path": "a"})):
        for result in (
            parsed((tool, arguments), **spec),
            verify(action(tool, **arguments), {**spec, "format": "json"}),
        ):
            assert (result.status, result.score) == ("passed", 1.0), result.feedback
            assert result.metrics == {"calls": 1, "strict": 1.0}


def test_the_calls_of_the_message_count_and_no_text_that_looks_like_one() -> None:
    text = action("read", **READ)
    assert verify(text, {**PI, "tool_calls": []}).score == 0.0
    assert verify(text, {**JSON_PI, "tool_calls": []}).status == "passed", "the row asks for JSON"
    assert verify(text, PI).status == "passed", "a text without messages"
    (call,) = read_calls("", {**PI, "tool_calls": [{"name": "read", "arguments": READ}]}).calls
    assert (call.name, call.arguments) == ("read", READ)


def test_all_of_several_calls_must_be_valid() -> None:
    assert parsed(("read", READ), ("read", READ)).metrics == {"calls": 2, "strict": 1.0}
    result = parsed(("read", READ), ("read", {"offset": 3}))
    assert (result.status, result.score, result.category) == ("failed", 0.4, "tool_schema_validation")


def test_a_message_that_ends_early_was_cut_off() -> None:
    result = parsed(("read", READ), truncated=True)
    assert (result.score, result.category) == (0.0, "malformed_output")
    assert "cut off" in result.feedback
    whole = action("edit", **EDIT)
    for size in range(1, len(whole)):
        result = verify(whole[:size], JSON_PI)
        assert (result.score, result.category) == (0.0, "malformed_output"), whole[:size]


FAULTS = [
    ("nothing", READ, 0.2, "Tool nothing not found. Available tools: read, bash, edit"),
    ("read", {}, 0.4, "  - path: must have required property 'path'\n"),
    ("read", {"path": "a", "offset": "three"}, 0.6, "  - offset: must be number\n"),
    ("edit", {"path": "a", "edits": [{"oldText": "b"}]}, 0.4, "edits/0: must have required property"),
    ("edit", {"path": "a", "edits": "many"}, 0.6, "  - edits: must be array\n"),
]


@pytest.mark.parametrize(("tool", "arguments", "score", "message"), FAULTS)
def test_partial_credit_and_the_messages_of_the_harness(tool: str, arguments: Any, score: float, message: str) -> None:
    for result in (parsed((tool, arguments)), verify(action(tool, **arguments), JSON_PI)):
        assert (result.status, result.score, result.category) == ("failed", score, "tool_schema_validation")
        assert message in result.feedback
        if tool != "nothing":
            assert result.feedback.startswith(f'Validation failed for tool "{tool}":\n  - ')
            assert "\n\nReceived arguments:\n{" in result.feedback


def test_arguments_that_are_not_an_object() -> None:
    result = parsed(("read", ["a"]))
    assert (result.score, result.category) == (0.3, "tool_schema_validation")
    assert "root: must be object" in result.feedback


def test_edit_has_three_generations() -> None:
    first = {"path": "a", "oldText": "b", "newText": "c"}
    loose = {"path": "a", "edits": [{"oldText": "b", "newText": "c", "why": "d"}]}
    for call in (first, EDIT, loose):
        assert parsed(("edit", call)).status == "passed"
    assert parsed(("edit", {"path": "a", "oldText": "b"})).status == "failed"


def test_values_that_pi_coerces_pass() -> None:
    for tool, arguments in (
        ("read", {"path": "a", "limit": "20"}),
        ("grep", {"pattern": 42, "ignoreCase": "true"}),
        ("edit", {"path": "a", "edits": json.dumps(EDIT["edits"])}),
        ("edit", {"path": "a", "edits": EDIT["edits"][0]}),
    ):
        result = parsed((tool, arguments))
        assert (result.status, result.metrics["strict"]) == ("passed", 0.0), result.feedback
    for limit in ("NaN", "Infinity", "1e999", "[1]", "true", ""):
        assert parsed(("read", {"path": "a", "limit": limit})).score == 0.6, limit


def test_the_repository_agent_only_writes_json() -> None:
    spec = {"tools": "repo_agent"}
    good = action("read_file", rel_path="a.py", max_chars=100)
    assert verify(good, spec).status == "passed"
    assert verify(f"<think>hm</think>\n{good}", spec).status == "passed"
    assert verify(good, {**spec, "tool_calls": []}).status == "passed"
    assert verify(action("grep", pattern="x", rel_dir=".", thought="why"), spec).status == "passed"
    for tool, args, score in (
        ("list_files", {"rel_dir": ""}, 0.6),
        ("list_files", {}, 0.4),
        ("read_file", {"rel_path": "a", "max_chars": "9"}, 0.6),
        ("read_file", {"rel_path": "a", "encoding": "b"}, 0.8),
        ("run_tests", {}, 0.2),
    ):
        assert verify(action(tool, **args), spec).score == score, tool
    for text in (f"Sure!\n{good}", f"```json\n{good}\n```", f"{good}\n{good}", f"{good} done", "[]"):
        result = verify(text, spec)
        assert (result.score, result.category) == (0.0, "malformed_output"), text
    assert "is not valid JSON" in verify(good[:-5], spec).feedback
    assert verify('{"type":"final","summary":"x","changes":[]}', spec).status == "failed"


def test_tools_defined_by_the_row() -> None:
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 9}, "unit": {"enum": ["C", "F"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    function = {"name": "weather", "description": "Weather", "parameters": parameters}
    for tools in ([{"type": "function", "function": function}], [{"type": "function", **function}]):
        spec: dict[str, Any] = {"tools": tools}
        assert parsed(("weather", {"city": "Bern", "unit": "C"}), **spec).status == "passed"
        assert parsed(("weather", {"city": "Bern", "unit": "K"}), **spec).score == 0.6
        assert parsed(("weather", {"city": "Bern", "day": 1}), **spec).score == 0.8
        assert parsed(("weather", {"city": 1}), **spec).score == 0.6
        assert parsed(("read", READ), **spec).score == 0.2
    bare: dict[str, Any] = {"tools": [{"type": "function", "function": {"name": "now"}}]}
    assert parsed(("now", {}), **bare).status == "passed"
    assert parsed(("subagent", {"task": "x"}), tools=["subagent"]).status == "passed"


def test_a_definition_of_a_tool_of_the_harness_stands_for_all_its_generations() -> None:
    def spec(harness: str, name: str) -> dict[str, Any]:
        return {"tools": [tool for tool in definitions(harness) if tool["function"]["name"] == name]}

    old = {"path": "a.ts", "oldText": "a", "newText": "b"}
    for edit in (EDIT, old):
        assert parsed(("edit", edit), **{**spec("pi", "edit"), "harness": "pi"}).status == "passed"
    assert parsed(("edit", old), **spec("pi", "edit")).score == 0.4, "without a harness, the definition counts"
    assert parsed(("read", {"path": 7}), **{**spec("pi", "read"), "harness": "pi"}).status == "passed", "Pi converts"
    shell = {**spec("claude_code", "bash"), "harness": "claude_code"}
    assert parsed(("bash", {"command": "ls", "timeout": 9}), **shell).status == "passed"
    assert parsed(("bash", {"command": "ls", "timeout": "9"}), **shell).score == 0.6, "Claude Code does not"
    own = [{"type": "function", "function": {"name": "play", "parameters": {"type": "object", "required": ["n"]}}}]
    assert parsed(("play", {}), **{"tools": own, "harness": "codex"}).score == 0.4
    # Rows of older versions name the tools.
    assert parsed(("edit", old), **{"tools": ["edit", "web"]}).status == "passed"
    assert parsed(("web", {"any": 1}), **{"tools": ["edit", "web"]}).status == "passed"


BAD_SPECS: list[dict[str, Any]] = [
    {"tools": "claude"},
    {"tools": ["read"], "harness": "claude"},
    {"tools": ["read"], "harness": ["pi"]},
    {"tools": [7]},
    {"tools": {"read": {}}},
    {"tools": [{"name": "x", "parameters": {"type": "strange"}}]},
    {"tools": [{"name": "x", "parameters": {"properties": {"a": {"pattern": "("}}}}]},
    {"tools": "pi", "format": "cobol"},
    {"tools": "pi", "format": "qwen3"},
    {"tools": [{"name": "read", "parameters": {"$ref": "https://example.org/a.json"}}]},
    {"tools": [{"name": "read", "parameters": {"$ref": "#"}}]},
]


@pytest.mark.parametrize("spec", BAD_SPECS, ids=str)
def test_a_bad_spec_is_not_the_models_fault(spec: dict[str, Any]) -> None:
    with pytest.raises(BadSpec, match=r"\.$"):
        parsed(("read", READ), **spec)


def test_no_tools_no_verdict() -> None:
    assert verify(action("read", **READ), {}).status == "skipped"
    assert parsed(call="optional").status == "skipped"
    assert parsed(("read", {}), call="optional").status == "failed"


NESTED = "[" * 100_000
TEXTS = {
    "empty": "",
    "blank": " \n\t",
    "prose": "I would call read with path a.ts and offset 3.",
    "refusal": "I'm sorry, but I can't help with that.",
    "names": "read bash edit write grep find ls",
    "instructions": EXAMPLE,
    "json fence": f"```json\n{action('read', **READ)}\n```",
    "json in prose": f"Here it is: {action('read', **READ)} as asked.",
    "bash fence": "```bash\ncat a.ts\n```",
    "python fence": "```python\nread(path='a.ts')\n```",
    "other keys": json.dumps({"name": "read", "arguments": READ}),
    "two calls": action("read", **READ) * 2,
    "thoughts": "<think>" * 50_000,
    "thoughts closed": "<think></think>" * 20_000,
    "call in a thought": f"<think>{action('read', **READ)}</think>",
    "nested": f'{{"type": "tool_call", "name": "read", "args": {NESTED}',
    "braces": '{"name": ' * 30_000,
    "whitespace": " " * 300_000,
    "huge": action("write", path="a", content="x" * MAX_CHARS),
    "huge digits": '{"type": "tool_call", "name": "read", "args": {"path": "a", "limit": 1' + "0" * 9000 + "}}",
    "NaN": '{"type": "tool_call", "name": "read", "args": {"path": "a", "limit": NaN}}',
    "infinity": '{"type": "tool_call", "name": "read", "args": {"path": "a", "limit": 1e999}}',
    "no name": '{"type": "tool_call", "name": null, "args": {"path": "a"}}',
    "lone surrogate": '{"type": "tool_call", "name": "\\ud800", "args": {}}',
    "final": '{"type": "final", "summary": "done"}',
}


@pytest.mark.parametrize("spec", [{"tools": "repo_agent"}, JSON_PI], ids=["repo_agent", "pi"])
@pytest.mark.parametrize("attack", TEXTS)
def test_no_text_wins(attack: str, spec: dict[str, Any]) -> None:
    result = verify(TEXTS[attack], spec)
    assert result.status == "failed"
    assert result.score is not None
    assert 0 < len(result.feedback.encode()) <= 5_000
    assert result.score <= (0.6 if result.category == "tool_schema_validation" else 0.0)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"path": "a", "limit": float("nan")}, "nan is not a JSON number"),
        ({"path": "a", "limit": float("inf")}, "inf is not a JSON number"),
        ({"path": "a", "limit": 10**400}, "a number is too large"),
        (json.loads('{"path":' * 200 + "1" + "}" * 200), "nested deeper than 64"),
    ],
)
def test_values_that_no_harness_accepts_are_refused(arguments: Any, problem: str) -> None:
    result = parsed(("read", arguments))
    assert (result.score, result.category) == (0.0, "malformed_output")
    assert problem in result.feedback


def test_the_feedback_on_many_errors_is_short() -> None:
    result = parsed(("edit", {"path": "a", "edits": [{"a": 1}] * 30_000}), *[("nothing", {})] * 1000)
    assert 0 < len(result.feedback.encode()) <= 5_000


WRITTEN = """
    " { } [ : , read path null 1e999 "name" "args" "path" </think> <think> ``` {"type":"tool_call" {"name":
"""
PARTS = st.sampled_from([*WRITTEN.split(), "\n", " ", "\x01", "\ud800", "```bash\n"])
SPECS = st.fixed_dictionaries(
    {"tools": st.sampled_from(["pi", "repo_agent", ["edit", "x"]])},
    optional={"format": st.just("json"), "truncated": st.booleans()},
)


@given(st.one_of(st.text(), st.lists(PARTS, max_size=30).map("".join)), SPECS)
def test_no_text_raises(text: str, spec: dict[str, Any]) -> None:
    result = verify(text, spec)
    assert result.status in ("passed", "failed")
    assert (result.score == 1.0) == (result.status == "passed") == (result.feedback == "")
    result.feedback.encode()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON, st.sampled_from(["read", "edit", "grep", "ls"]))
def test_no_arguments_raise(arguments: Any, tool: str) -> None:
    result = parsed((tool, arguments))
    assert result.status in ("passed", "failed")
    if result.category == "tool_schema_validation":
        assert isinstance(arguments, dict) is (result.score != 0.3)


@given(
    st.fixed_dictionaries(
        {"path": st.text(), "edits": st.lists(st.fixed_dictionaries({"oldText": st.text(), "newText": st.text()}))}
    )
)
def test_all_valid_edits_pass(arguments: dict[str, Any]) -> None:
    for result in (parsed(("edit", arguments)), verify(action("edit", **arguments), JSON_PI)):
        assert result.status == "passed", result.feedback

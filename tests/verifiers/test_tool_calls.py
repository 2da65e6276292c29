"""Valid and invalid calls in every format, and completions that must not get credit."""

# ruff: noqa: RUF001 (the bars of DeepSeek)

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rewards.verifiers.call_formats import EXAMPLES, FAMILIES, MAX_CHARS, read_calls
from rewards.verifiers.rubric import BadSpec
from rewards.verifiers.tool_calls import definitions, verify

EDIT = {"path": "src/a.ts", "edits": [{"oldText": "  if (a < b) {\n", "newText": '\tif ("x") {\n'}]}
READ = {"path": "a b/c.ts", "offset": 3}


def gemma(name: str, arguments: Any) -> str:
    return f"<|tool_call>call:{name}{_gemma(arguments)}<tool_call|>"


def _gemma(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_gemma(item)}" for key, item in sorted(value.items())) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_gemma, value)) + "]"
    return f'<|"|>{value}<|"|>' if isinstance(value, str) else json.dumps(value)


def qwen(name: str, arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def qwen_xml(name: str, arguments: dict[str, Any]) -> str:
    body = "".join(f"<parameter={k}>\n{text(v)}\n</parameter>\n" for k, v in arguments.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def glm(name: str, arguments: dict[str, Any]) -> str:
    body = "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{text(v)}</arg_value>\n" for k, v in arguments.items())
    return f"<tool_call>{name}\n{body}</tool_call>"


def llama(name: str, arguments: Any) -> str:
    return json.dumps({"name": name, "parameters": arguments})


def gpt_oss(name: str, arguments: Any) -> str:
    call = json.dumps(arguments)
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{call}<|call|>"


def gpt_oss_rendered(name: str, arguments: Any) -> str:
    return f" to=functions.{name}<|channel|>commentary json<|message|>{json.dumps(arguments)}<|call|>"


def deepseek(name: str, arguments: Any) -> str:
    return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{json.dumps(arguments)}<｜tool▁call▁end｜>"


def deepseek_fenced(name: str, arguments: Any) -> str:
    call = f"function<｜tool▁sep｜>{name}\n```json\n{json.dumps(arguments)}\n```"
    return f"<｜tool▁call▁begin｜>{call}<｜tool▁call▁end｜>"


def kimi(name: str, arguments: Any) -> str:
    call = json.dumps(arguments)
    return f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{call}<|tool_call_end|>"


def minimax(name: str, arguments: dict[str, Any]) -> str:
    body = "".join(f'<parameter name="{k}">{text(v)}</parameter>\n' for k, v in arguments.items())
    return f'<invoke name="{name}">\n{body}</invoke>'


def mistral(name: str, arguments: Any) -> str:
    return f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments)}"


def mistral_list(name: str, arguments: Any) -> str:
    return f"[TOOL_CALLS] [{json.dumps({'name': name, 'arguments': arguments})}]"


WRITERS = {
    "gemma4": (gemma, "<turn|>"),
    "qwen3": (qwen, "<|im_end|>"),
    "qwen3_5": (qwen_xml, "<|im_end|>"),
    "glm4": (glm, "<|observation|>"),
    "llama3": (llama, "<|eot_id|>"),
    "gpt_oss": (gpt_oss, ""),
    "deepseek": (deepseek, "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>"),
    "kimi": (kimi, "<|tool_calls_section_end|><|im_end|>"),
    "minimax": (minimax, "\n</minimax:tool_call>[e~["),
    "mistral": (mistral, "</s>"),
    "mistral_list": (mistral_list, "</s>"),
}
EVERY = [pytest.param(name, *writer, id=name) for name, writer in WRITERS.items()]
EVERY.append(pytest.param("gpt_oss", gpt_oss_rendered, "", id="gpt_oss_rendered"))
EVERY.append(
    pytest.param("deepseek", deepseek_fenced, "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>", id="deepseek_fenced")
)
CLOSES = {
    "gemma4": "<tool_call|>",
    "qwen3": "</tool_call>",
    "qwen3_5": "</function>\n</tool_call>",
    "glm4": "</tool_call>",
    "llama3": "}",
    "gpt_oss": "<|call|>",
    "deepseek": "<｜tool▁call▁end｜>",
    "kimi": "<|tool_call_end|>",
    "minimax": "</invoke>",
    "mistral": "}</s>",
    "mistral_list": "}]</s>",
}
# Nothing stands between the calls, or behind them.
WHOLE = ("llama3", "mistral", "mistral_list")
THOUGHTS = {
    "gemma4": "<|channel>thought\nI call <|tool_call>call:nothing<channel|>",
    "gpt_oss": "<|channel|>analysis<|message|>First read it.<|end|><|start|>assistant",
}
PI = {"tools": "pi"}


def action(name: str, **args: Any) -> str:
    return json.dumps({"type": "tool_call", "name": name, "args": args})


@pytest.mark.parametrize(("name", "write", "end"), EVERY)
@pytest.mark.parametrize("spec", [PI, {"tools": ["read", "edit"]}], ids=["set", "list"])
def test_every_format_is_read(name: str, write: Any, end: str, spec: dict[str, Any]) -> None:
    for tool, arguments in (("read", READ), ("edit", EDIT), ("read", {"path": "a"})):
        for form in ({}, {"format": name}):
            result = verify(write(tool, arguments) + end, {**spec, **form})
            assert (result.status, result.score) == ("passed", 1.0), result.feedback
            assert result.metrics == {"calls": 1, "strict": 1.0}


@pytest.mark.parametrize(("name", "write", "end"), EVERY)
def test_arguments_come_out_as_they_were_written(name: str, write: Any, end: str) -> None:
    tools = [{"function": {"name": "edit", "parameters": {"properties": {"edits": {"type": "array"}}}}}]
    (call,) = read_calls(write("edit", EDIT) + end, [name], tools).calls
    assert (call.name, call.arguments) == ("edit", EDIT)
    spaced = {"path": "a", "content": "    indented\n\n  and more\n"}
    (call,) = read_calls(write("write", spaced) + end, [name], []).calls
    assert call.arguments == spaced


def test_an_unclosed_tag_is_not_an_argument() -> None:
    for text in (
        "<tool_call>\n<function=read>\n<parameter=path>\na.ts\n</function>\n</tool_call>",
        "<tool_call>read\n<arg_key>path</arg_key>\n<arg_value>a.ts\n</tool_call>",
    ):
        assert verify(text, PI).score == 0.4


@pytest.mark.parametrize(("name", "write", "end"), EVERY)
def test_arguments_may_contain_tokens_of_the_template(name: str, write: Any, end: str) -> None:
    content = "stop = ['<|im_end|>', '<turn|>', '<|eot_id|>', '<|user|>', '<|return|>', '</think>']"
    call = write("write", {"path": "stops.py", "content": content})
    assert verify(call + end, {**PI, "format": name}).status == "passed"


@pytest.mark.parametrize(("name", "write", "end"), EVERY)
def test_arguments_may_contain_the_closing_tag(name: str, write: Any, end: str) -> None:
    given = {"path": "a.md", "content": f"It ends with {CLOSES[name]} or '\"'. {{"}
    good = write("write", given)
    calls = good if name in WHOLE else f"{good}\nAnd one more:\n{good}"
    reading = read_calls(calls + end, [name], [])
    assert [call.arguments for call in reading.calls] == [given] * calls.count("a.md"), reading


@pytest.mark.parametrize("name", ["qwen3", "llama3", "gpt_oss"])
def test_arguments_may_be_json_text(name: str) -> None:
    write, end = WRITERS[name]
    for text in (json.dumps(READ), json.dumps(EDIT)):
        (call,) = read_calls(write("read", text) + end, [name], []).calls
        assert call.arguments == json.loads(text)
    assert verify(write("read", "a.py") + end, {**PI, "format": name}).score == 0.3


def test_a_model_of_an_unknown_family_is_parsed_by_its_template() -> None:
    own = {
        "defaults": {"role": "assistant"},
        "start_anchor": "<assistant>",
        "fields": {
            "tool_calls": {
                "repeats": True, "open": "[CALL]", "close": "[/CALL]", "content": "json",
                "transform": {"function": "{content}"},
            },
            "content": {"content": "text"},
        },
    }  # fmt: skip
    spec = {**PI, "response_template": own}
    call = json.dumps({"name": "read", "arguments": READ})
    assert verify(f"I look.[CALL]{call}[/CALL]", spec).status == "passed"
    quoted = json.dumps({"name": "write", "arguments": {"path": "a", "content": "It ends with [/CALL]."}})
    assert verify(f"[CALL]{quoted}[/CALL][CALL]{call}[/CALL]", spec).metrics == {"calls": 2, "strict": 1.0}
    assert verify(f"I look.[CALL]{call}", spec).category == "malformed_output"
    assert verify("I look.", spec).category == "malformed_output"
    assert verify(f"[CALL]{call[:-3]}[/CALL]", spec).category == "malformed_output"


@pytest.mark.parametrize(("name", "write", "end"), EVERY)
def test_reasoning_is_skipped(name: str, write: Any, end: str) -> None:
    thought = THOUGHTS.get(name, "<think>\nMaybe <tool_call>?\n</think>\n\n")
    assert verify(thought + write("read", READ) + end, PI).status == "passed"
    prefilled = thought.removeprefix("<think>") + write("read", READ) + end
    assert verify(prefilled, {**PI, "format": name}).status == "passed"
    only = thought.replace("I call", write("read", READ)).replace("Maybe", write("read", READ))
    assert verify(only, {**PI, "format": name}).score == 0.0


@pytest.mark.parametrize(("name", "write", "end"), EVERY)
def test_all_of_several_calls_must_be_valid(name: str, write: Any, end: str) -> None:
    if name in ("llama3", "mistral_list"):
        pytest.skip("written together, see below")
    good, bad = write("read", READ), write("read", {"offset": 3})
    assert verify(f"{good}\n{good}{end}", PI).metrics == {"calls": 2, "strict": 1.0}
    result = verify(f"Reading both.\n{good}\n{bad}{end}", PI)
    assert (result.status, result.score, result.category) == ("failed", 0.4, "tool_schema_validation")


@pytest.mark.parametrize(("name", "write", "end"), EVERY)
def test_a_message_that_ends_early_was_cut_off(name: str, write: Any, end: str) -> None:
    whole = write("edit", EDIT)
    spec = {**PI, "format": name}
    for size in range(len(whole) - 1, len(whole) // 2, -1):
        result = verify(whole[:size], spec)
        assert (result.score, result.category) == (0.0, "malformed_output"), whole[:size]
    assert "cut off" in verify(whole + end, {**spec, "truncated": True}).feedback
    assert verify(whole + end, {**spec, "truncated": True}).score == 0.0


FAULTS = [
    ("nothing", READ, 0.2, "Tool nothing not found. Available tools: read, bash, edit"),
    ("read", {}, 0.4, "  - path: must have required property 'path'\n"),
    ("read", {"path": "a", "offset": "three"}, 0.6, "  - offset: must be number\n"),
    ("edit", {"path": "a", "edits": [{"oldText": "b"}]}, 0.4, "edits/0: must have required property"),
    ("edit", {"path": "a", "edits": "many"}, 0.6, "  - edits: must be array\n"),
]


@pytest.mark.parametrize(("tool", "arguments", "score", "message"), FAULTS)
@pytest.mark.parametrize(("name", "write", "end"), EVERY)
def test_partial_credit_and_the_messages_of_the_harness(
    name: str, write: Any, end: str, tool: str, arguments: Any, score: float, message: str
) -> None:
    result = verify(write(tool, arguments) + end, PI)
    assert (result.status, result.score, result.category) == ("failed", score, "tool_schema_validation")
    assert message in result.feedback
    if tool != "nothing":
        head = f'Validation failed for tool "{tool}":\n  - '
        assert result.feedback.startswith(head)
        assert "\n\nReceived arguments:\n{" in result.feedback


def test_arguments_that_are_not_an_object() -> None:
    result = verify(qwen("read", ["a"]), PI)
    assert (result.score, result.category) == (0.3, "tool_schema_validation")
    assert "root: must be object" in result.feedback


def test_edit_has_three_generations() -> None:
    first = {"path": "a", "oldText": "b", "newText": "c"}
    loose = {"path": "a", "edits": [{"oldText": "b", "newText": "c", "why": "d"}]}
    for call in (first, EDIT, loose):
        assert verify(qwen("edit", call), PI).status == "passed"
    assert verify(qwen("edit", {"path": "a", "oldText": "b"}), PI).status == "failed"


def test_values_that_pi_coerces_pass() -> None:
    for tool, arguments in (
        ("read", {"path": "a", "limit": "20"}),
        ("grep", {"pattern": 42, "ignoreCase": "true"}),
        ("edit", {"path": "a", "edits": json.dumps(EDIT["edits"])}),
        ("edit", {"path": "a", "edits": EDIT["edits"][0]}),
    ):
        result = verify(qwen(tool, arguments), PI)
        assert (result.status, result.metrics["strict"]) == ("passed", 0.0), result.feedback
    for limit in ("NaN", "Infinity", "1e999", "[1]", "true", ""):
        assert verify(qwen("read", {"path": "a", "limit": limit}), PI).score == 0.6, limit


def test_the_repository_agent_only_writes_json() -> None:
    spec = {"tools": "repo_agent"}
    good = action("read_file", rel_path="a.py", max_chars=100)
    assert verify(good, spec).status == "passed"
    assert verify(f"<think>hm</think>\n{good}<|im_end|>", spec).status == "passed"
    assert verify(f"{good}<eos><pad><pad>", spec).status == "passed"
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
        spec = {"tools": tools, "format": "gemma4"}
        assert verify(gemma("weather", {"city": "Bern", "unit": "C"}), spec).status == "passed"
        assert verify(gemma("weather", {"city": "Bern", "unit": "K"}), spec).score == 0.6
        assert verify(gemma("weather", {"city": "Bern", "day": 1}), spec).score == 0.8
        assert verify(gemma("weather", {"city": 1}), spec).score == 0.6
        assert verify(gemma("read", READ), spec).score == 0.2
    bare = {"tools": [{"type": "function", "function": {"name": "now"}}]}
    assert verify(gemma("now", {}), bare).status == "passed"
    assert verify(qwen("subagent", {"task": "x"}), {"tools": ["subagent"]}).status == "passed"


def test_a_definition_of_a_tool_of_the_harness_stands_for_all_its_generations() -> None:
    def spec(harness: str, name: str) -> dict[str, Any]:
        return {"tools": [tool for tool in definitions(harness) if tool["function"]["name"] == name]}

    old = {"path": "a.ts", "oldText": "a", "newText": "b"}
    for edit in (EDIT, old):
        assert verify(qwen("edit", edit), {**spec("pi", "edit"), "harness": "pi"}).status == "passed"
    assert verify(qwen("edit", old), spec("pi", "edit")).score == 0.4, "without a harness, the definition counts"
    assert verify(qwen("read", {"path": 7}), {**spec("pi", "read"), "harness": "pi"}).status == "passed", "Pi converts"
    shell = {**spec("claude_code", "bash"), "harness": "claude_code"}
    assert verify(qwen("bash", {"command": "ls", "timeout": 9}), shell).status == "passed"
    assert verify(qwen("bash", {"command": "ls", "timeout": "9"}), shell).score == 0.6, "Claude Code does not"
    own = [{"type": "function", "function": {"name": "play", "parameters": {"type": "object", "required": ["n"]}}}]
    assert verify(qwen("play", {}), {"tools": own, "harness": "codex"}).score == 0.4
    # Rows of older versions name the tools.
    assert verify(qwen("edit", old), {"tools": ["edit", "web"]}).status == "passed"
    assert verify(qwen("web", {"any": 1}), {"tools": ["edit", "web"]}).status == "passed"


BAD_SPECS: list[dict[str, Any]] = [
    {"tools": "claude"},
    {"tools": ["read"], "harness": "claude"},
    {"tools": ["read"], "harness": ["pi"]},
    {"tools": [7]},
    {"tools": {"read": {}}},
    {"tools": [{"name": "x", "parameters": {"type": "strange"}}]},
    {"tools": [{"name": "x", "parameters": {"properties": {"a": {"pattern": "("}}}}]},
    {"tools": "pi", "format": "cobol"},
    {"tools": "pi", "format": ["qwen3"]},
    {"tools": [{"name": "read", "parameters": {"$ref": "https://example.org/a.json"}}]},
    {"tools": [{"name": "read", "parameters": {"$ref": "#"}}]},
]


@pytest.mark.parametrize("spec", BAD_SPECS, ids=str)
def test_a_bad_spec_is_not_the_models_fault(spec: dict[str, Any]) -> None:
    with pytest.raises(BadSpec, match=r"\.$"):
        verify(qwen("read", READ), spec)


def test_no_tools_no_verdict() -> None:
    assert verify(qwen("read", READ), {}).status == "skipped"
    assert verify("All done.", {**PI, "call": "optional"}).status == "skipped"
    assert verify(qwen("read", {}), {**PI, "call": "optional"}).status == "failed"


def test_another_familys_format_does_not_count() -> None:
    for name, (write, end) in WRITERS.items():
        for other, family in FAMILIES.items():
            if other != name:
                result = verify(write("read", READ) + end, {**PI, "format": other})
                assert result.score == 0.0, (name, other)
                assert family.example in result.feedback


SCHEMA = json.dumps({"name": "read", "parameters": {"type": "object", "properties": {"path": {}}}})
TURNS = (
    "<|im_start|>user\nRead it<|im_end|>\n<|im_start|>assistant\n"
    f"{qwen('read', READ)}<|im_end|>\n<|im_start|>user\nGo on<|im_end|>\n"
)
NESTED = "[" * 100_000
ATTACKS = {
    "empty": "",
    "blank": " \n\t",
    "prose": "I would call read with path a.ts and offset 3.",
    "refusal": "I'm sorry, but I can't help with that.",
    "names": "read bash edit write grep find ls",
    "prompt copy": TURNS,
    "prompt copy, gemma": f"<|turn>model\n{gemma('read', READ)}<turn|>\n<|turn>user\nGo on<turn|>",
    "schema": f"<tools>\n{SCHEMA}\n</tools>",
    "schema in a call": f"<tool_call>\n{SCHEMA.replace('parameters', 'arguments')}\n</tool_call>",
    "instructions": '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>',
    "instructions, xml": EXAMPLES["qwen3_5"],
    "instructions, gemma": EXAMPLES["gemma4"],
    "json fence": f"```json\n{llama('read', READ)}\n```",
    "json in prose": f"Here it is: {llama('read', READ)} as asked.",
    "bash fence": "```bash\ncat a.ts\n```",
    "python fence": "```python\nread(path='a.ts')\n```",
    "call without markers": "call:read{path:a.ts}",
    "json action": action("read", path="a.ts"),
    "1000 calls": qwen("read", READ) * 1000,
    "1000 calls, gemma": gemma("read", READ) * 1000,
    "1000 calls, xml": qwen_xml("read", READ) * 1000,
    "markers": "<tool_call>" * 50_000,
    "markers, gemma": "<|tool_call>" * 30_000,
    "closing markers": "</tool_call>" * 30_000,
    "texts, gemma": gemma("edit", {"path": "a", "edits": [""] * 30_000}),
    "nested": f"<tool_call>{NESTED}",
    "nested, closed": f'<tool_call>{{"name": "read", "arguments": {NESTED}}}</tool_call>',
    "nested value": qwen_xml("edit", {"path": "a", "edits": NESTED}),
    "nested, llama": f'{{"name": "read", "parameters": {NESTED}',
    "deep, well formed": qwen("read", json.loads('{"path":' * 200 + "1" + "}" * 200)),
    "huge": qwen("write", {"path": "a", "content": "x" * MAX_CHARS}),
    "huge number": '<tool_call>{"name": "read", "arguments": {"path": "a", "limit": 1' + "0" * 4000 + "}}</tool_call>",
    "huge digits": '<tool_call>{"name": "read", "arguments": {"path": "a", "limit": 1' + "0" * 9000 + "}}</tool_call>",
    "NaN": '<tool_call>{"name": "read", "arguments": {"path": "a", "limit": NaN}}</tool_call>',
    "infinity": '<tool_call>{"name": "read", "arguments": {"path": "a", "limit": 1e999}}</tool_call>',
    "duplicate name": '<tool_call>{"name": "read", "name": "rm", "arguments": {"path": "a"}}</tool_call>',
    "duplicate key": '<tool_call>{"name": "read", "arguments": {"path": "a", "path": 1.5, "path": []}}</tool_call>',
    "list of calls": f"<tool_call>[{json.dumps({'name': 'read', 'arguments': READ})}]</tool_call>",
    "no name": '<tool_call>{"arguments": {"path": "a"}}</tool_call>',
    "name that is none": '<tool_call>{"name": ["read"], "arguments": {"path": "a"}}</tool_call>',
    "no arguments": '<tool_call>{"name": "read"}</tool_call>',
    "call not closed, then one": f"<tool_call>{{\n{qwen('read', READ)}",
    "good call, then a broken one": qwen("read", READ) + '<tool_call>{"name"</tool_call>',
    "good call, then half a one": gemma("read", READ) + "<|tool_call>read",
    "after the end": f"{qwen('read', READ)}<|im_end|>and then I did it",
    "reserved characters": gemma("read", {"path": "\x01"}),
    "lone surrogate": '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
    "whitespace": f"<tool_call>{' ' * 300_000}",
    "thoughts": "<think>" * 50_000,
    "thoughts closed": "<think></think>" * 20_000,
    # Each of these once cost minutes.
    "tags not closed": f"<tool_call><function=edit>{'<parameter=a>' * 20_000}</function></tool_call>",
    "starts": f"{'<|start|>assistant' * 20_000}to=functions.x",
    "whitespace, llama": f'{" " * 300_000}{{"name"',
    "whitespace, gpt_oss": f"to=functions.x<|channel|>commentary{' ' * 300_000}json",
    "many errors": qwen("edit", {"path": "a", "edits": [{"a": 1}] * 30_000}),
    "blocks": "```bash\n" * 40_000,
    "ends": "<|im_end|>" * 30_000,
    "braces": '{"name": ' * 30_000,
}


@pytest.mark.parametrize("tools", ["pi", "repo_agent"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_no_attack_wins(attack: str, tools: str) -> None:
    result = verify(ATTACKS[attack], {"tools": tools})
    assert result.status == "failed"
    assert result.score is not None
    assert result.score < 0.9
    assert 0 < len(result.feedback.encode()) <= 5_000
    assert result.score <= (0.6 if result.category == "tool_schema_validation" else 0.0)


WRITTEN = """
    " { } [ : , read path null 1e999 "name" "arguments" "path" <tool_call> </tool_call>
    <|tool_call>call: <tool_call|> <|"|> <function=edit> <parameter=edits> </parameter> </function>
    <think> </think> <arg_key> </arg_key> <arg_value> </arg_value> to=functions.read <|message|>
    <|channel|>commentary <|call|> <|im_end|> <turn|> ``` THOUGHT: {"type":"tool_call" {"name":
    <|python_tag|> <|channel> <channel|>
"""
PARTS = st.sampled_from([*WRITTEN.split(), "\n", " ", "\x01", "\ud800", "```bash\n"])
SPECS = st.fixed_dictionaries(
    {"tools": st.sampled_from(["pi", "repo_agent", ["edit", "x"]])},
    optional={"format": st.sampled_from(list(EXAMPLES)), "truncated": st.booleans()},
)


@given(st.one_of(st.text(), st.lists(PARTS, max_size=30).map("".join)), SPECS)
def test_no_text_raises(text: str, spec: dict[str, Any]) -> None:
    result = verify(text, spec)
    assert result.status in ("passed", "failed")
    assert (result.score == 1.0) == (result.status == "passed") == (result.feedback == "")
    result.feedback.encode()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON, st.sampled_from(["read", "edit", "grep", "ls"]))
def test_no_arguments_raise(arguments: Any, tool: str) -> None:
    for write in (qwen, llama, gpt_oss):
        result = verify(write(tool, arguments), PI)
        assert result.status in ("passed", "failed")
        if result.category == "tool_schema_validation":
            assert isinstance(arguments, dict) is (result.score != 0.3)


@given(
    st.fixed_dictionaries(
        {"path": st.text(), "edits": st.lists(st.fixed_dictionaries({"oldText": st.text(), "newText": st.text()}))}
    )
)
def test_valid_calls_pass(arguments: dict[str, Any]) -> None:
    for name, write in (("llama3", llama), ("gpt_oss", gpt_oss), ("qwen3", qwen)):
        call = write("edit", arguments)
        assume(call.count(CLOSES[name]) == 1 or name == "llama3")
        result = verify(call, {**PI, "format": name})
        assert result.status == "passed", result.feedback

"""Calls that the chat templates of models render are parsed back (TRL ships the templates)."""

# ruff: noqa: RUF001 (the bars of DeepSeek)

import json
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template
from trl import chat_template_utils

from rewards.verifiers.call_formats import find_format, read_calls
from rewards.verifiers.tool_calls import load_tools, verify

FAMILY_OF = {
    "gemma4": "gemma4",
    "gemma4_v5": "gemma4",
    "qwen2_5": "qwen3",
    "qwen3": "qwen3",
    "qwen3_instruct_2507": "qwen3",
    "qwen3_5_think": "qwen3_5",
    "qwen3_5_nothink": "qwen3_5",
    "qwen3_6": "qwen3_5",
    "qwen3_8": "qwen3_5",
    "glm4moe": "glm4",
    "gptoss": "gpt_oss",
    "llama3_1": "llama3",
    "llama3_2": "llama3",
    "deepseekv3": "deepseek",
}
NEW = '\tif ("x") {\n\n'
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("read", {"path": "a b/c.ts", "offset": 3}),
    ("edit", {"path": "src/a.ts", "edits": [{"oldText": "  if (a < b) {\n", "newText": NEW}]}),
    ("write", {"path": "x", "content": '  lead\n\n<b>{"a": 1}</b>\n'}),
]


def rendered(template: str, name: str, arguments: dict[str, Any]) -> str:
    """What the template writes for a call, after the prompt for it."""
    tools = [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": "A tool.",
                "parameters": {"type": "object", "properties": tool.schemas[0]["properties"]},
            },
        }
        for tool in load_tools("pi").values()
    ]
    as_text = template == chat_template_utils.deepseekv3_chat_template  # which cannot write an object
    function = {"name": name, "arguments": json.dumps(arguments) if as_text else arguments}
    call = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
    user = {"role": "user", "content": "Fix it."}
    options = {"chat_template": template, "tools": tools}
    prompt = render_jinja_template([[user]], add_generation_prompt=not as_text, **options)[0][0]
    whole = render_jinja_template([[user, call]], **options)[0][0]
    assert whole.startswith(prompt)
    return str(whole[len(prompt) :])


@pytest.mark.parametrize(("name", "arguments"), CALLS)
@pytest.mark.parametrize("model", FAMILY_OF)
def test_rendered_calls_are_parsed_back(model: str, name: str, arguments: dict[str, Any]) -> None:
    text = rendered(getattr(chat_template_utils, f"{model}_chat_template"), name, arguments)
    types = [tool.typed() for tool in load_tools("pi").values()]
    (call,) = read_calls(text, [FAMILY_OF[model]], types).calls
    assert (call.name, call.arguments) == (name, arguments)
    assert verify(text, {"tools": "pi"}).status == "passed"


@pytest.mark.parametrize(("name", "arguments"), CALLS[:2])
@pytest.mark.parametrize("model", ["gemma4", "qwen3", "gptoss", "llama3_1", "glm4moe"])
def test_the_response_template_of_a_tokenizer_is_used(model: str, name: str, arguments: dict[str, Any]) -> None:
    text = rendered(getattr(chat_template_utils, f"{model}_chat_template"), name, arguments)
    template = getattr(chat_template_utils, f"{model.removesuffix('_1')}_template")
    result = verify(text, {"tools": "pi", "response_template": template})
    assert (result.status, result.metrics) == ("passed", {"calls": 1, "strict": 1.0}), result.feedback


@pytest.mark.parametrize("model", FAMILY_OF)
def test_the_chat_template_determines_the_format(model: str) -> None:
    template = getattr(chat_template_utils, f"{model}_chat_template")
    assert find_format(template) == FAMILY_OF[model]
    assert find_format("{{ messages }}") is None


@pytest.mark.parametrize("before", ["", "<|python_start|>", "<|python_start|>I read it.<|python_end|>"])
@pytest.mark.parametrize("after", ["<|eot|>", "<|eom|>", "<|python_end|><|eot|>"])
def test_llama_4_writes_other_tokens_around_its_calls(before: str, after: str) -> None:
    asks = 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.'
    assert find_format(asks) == "llama3"
    text = before + '{"name": "read", "parameters": {"path": "a.ts"}}' + after
    assert verify(text, {"tools": "pi", "format": "llama3"}).status == "passed"


SECOND = {"path": "b.ts", "content": '}}{"name": "read", "parameters": {}}'}
FIRST_JSON, SECOND_JSON = '{"path": "a.ts"}', json.dumps(SECOND)


@pytest.mark.parametrize(
    ("sign", "family", "text"),
    [
        ('"parameters": dictionary', "llama3",
         f'<|python_start|><|python_end|>{{"name": "read", "parameters": {FIRST_JSON}}}'
         f'{{"name": "write", "parameters": {SECOND_JSON}}}<|eot|>'),
        ("'<｜tool▁call▁begin｜>'", "deepseek",
         f"</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>read<｜tool▁sep｜>{FIRST_JSON}<｜tool▁call▁end｜>"
         f"<｜tool▁call▁begin｜>write<｜tool▁sep｜>{SECOND_JSON}<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>"),
        ("<|tool_call_begin|>{{ formatted_id }}", "kimi",
         "<think></think><|tool_calls_section_begin|>"
         f"<|tool_call_begin|>functions.read:0<|tool_call_argument_begin|>{FIRST_JSON}<|tool_call_end|>"
         f"<|tool_call_begin|>functions.write:1<|tool_call_argument_begin|>{SECOND_JSON}<|tool_call_end|>"
         "<|tool_calls_section_end|><|im_end|>"),
        ("= '<minimax:tool_call>'", "minimax",
         '\n<minimax:tool_call>\n<invoke name="read">\n<parameter name="path">a.ts</parameter>\n</invoke>\n'
         f'<invoke name="write">\n<parameter name="path">b.ts</parameter>\n<parameter name="content">{SECOND["content"]}'
         "</parameter>\n</invoke>\n</minimax:tool_call>[e~[\n"),
        ("'[TOOL_CALLS]' + name + '[ARGS]'", "mistral",
         f"I look.[TOOL_CALLS]read[ARGS]{FIRST_JSON}[TOOL_CALLS]write[CALL_ID]a1b2c3d4e[ARGS]{SECOND_JSON}</s>"),
        ('"[TOOL_CALLS] ["', "mistral_list",
         f'[TOOL_CALLS] [{{"name": "read", "arguments": {FIRST_JSON}, "id": "a1b2c3d4e"}}, '
         f'{{"name": "write", "arguments": {SECOND_JSON}, "id": "a1b2c3d4f"}}]</s>'),
    ],
)  # fmt: skip
def test_several_calls_as_the_templates_on_the_hub_write_them(sign: str, family: str, text: str) -> None:
    assert find_format(f"{{{{- {sign} }}}}") == family
    calls = read_calls(text, [family], [tool.typed() for tool in load_tools("pi").values()]).calls
    assert calls == (("read", {"path": "a.ts"}), ("write", SECOND))
    assert verify(text, {"tools": "pi"}).metrics == {"calls": 2, "strict": 1.0}


def test_a_llama_with_python_calls_has_no_known_format() -> None:
    pythonic = (
        "{{- '<|start_header_id|>system<|end_header_id|>' }}{{- 'Return calls in the form "
        "[func_name1(params_name1=params_value1)], and nothing else.' }}{{- '<|eot_id|>' }}"
    )
    assert find_format(pythonic) is None
    assert find_format(chat_template_utils.muse_glimmer_chat_template) is None

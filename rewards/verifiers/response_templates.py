"""How models write tool calls: one transformers response template per model family.

The formats are those that the families' chat templates render and their tokenizers decode with the
special tokens kept. Reasoning and the end of the turn are cut off before a template is used.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True, slots=True)
class Family:
    """The format of one family of models.

    `marker` and `closes` frame a call, `begins` tells families with the same marker apart, `ends`
    are the tokens that end the turn, `thought` frames reasoning. `to_end`: a call is all there is.
    """

    marker: str
    closes: str
    begins: str
    ends: tuple[str, ...]
    thought: tuple[str, str]
    example: str
    template: dict[str, Any]
    to_end: bool = False


NAMED = {"function": {"name": "{name}", "arguments": "{content}"}}
WHOLE = {"function": "{content}"}


def _template(anchor: str, **calls: Any) -> dict[str, Any]:
    """Return a response template with the fields tool_calls and, for all else, content."""
    return {
        "defaults": {"role": "assistant"},
        "start_anchor": anchor,
        "fields": {"tool_calls": {"repeats": True, **calls}, "content": {"content": "text"}},
    }


def _tags(opens: str, closes: str) -> dict[str, Any]:
    # Without a closing tag the search goes on at the end, or many of them would cost hours.
    value = rf"(?:(?P<value>.*?){closes}|.*(*SKIP)(*FAIL))"
    text = {"name": "text", "args": {"strip": False}}
    return {"tag_pattern": opens + value, "value_parser": text}


FAMILIES = {
    "gemma4": Family(
        marker="<|tool_call>",
        closes="<tool_call|>",
        begins=r"<\|tool_call>",
        ends=("<turn|>", "<|tool_response>", "<eos>"),
        thought=("<|channel>", "<channel|>"),
        example='<|tool_call>call:NAME{KEY:<|"|>TEXT<|"|>}<tool_call|>',
        template=_template(
            "<|turn>model\n",
            open_pattern=r"<\|tool_call>call:(?P<name>[^\s{<]+)\s*(?=\{)",
            close="<tool_call|>",
            content="json",
            content_args={"string_delims": [['<|"|>', '<|"|>']], "unquoted_keys": True},
            transform=NAMED,
        ),
    ),
    "qwen3": Family(
        marker="<tool_call>",
        closes="</tool_call>",
        begins=r"<tool_call>\s*\{",
        ends=("<|im_end|>", "<|endoftext|>"),
        thought=("<think>", "</think>"),
        example='<tool_call>\n{"name": NAME, "arguments": {...}}\n</tool_call>',
        template=_template(
            "<|im_start|>assistant\n",
            open="<tool_call>",
            close="</tool_call>",
            content="json",
            transform=WHOLE,
        ),
    ),
    "qwen3_5": Family(
        marker="<tool_call>",
        closes="</tool_call>",
        begins=r"<tool_call>\s*<function=",
        ends=("<|im_end|>", "<|endoftext|>"),
        thought=("<think>", "</think>"),
        example="<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n"
        "</tool_call>",
        template=_template(
            "<|im_start|>assistant\n",
            open_pattern=r"<tool_call>\s*<function=(?P<name>[^\n>]+)>",
            close_pattern=r"</function>\s*</tool_call>",
            content="xml-inline",
            content_args=_tags(r"<parameter=(?P<key>[^>\n]{1,200})>\n?", r"\n?</parameter>"),
            transform=NAMED,
        ),
    ),
    "glm4": Family(
        marker="<tool_call>",
        closes="</tool_call>",
        begins=r"<tool_call>(?!\s*(?:\{|<function=))",
        ends=("<|user|>", "<|observation|>", "<|endoftext|>"),
        thought=("<think>", "</think>"),
        example="<tool_call>NAME\n<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n"
        "</tool_call>",
        template=_template(
            "<|assistant|>",
            open_pattern=r"<tool_call>\s*(?P<name>[^\s<{]+)",
            close="</tool_call>",
            content="xml-inline",
            content_args=_tags(
                r"<arg_key>(?P<key>[^<]{1,200})</arg_key>\s*<arg_value>", "</arg_value>"
            ),
            transform=NAMED,
        ),
    ),
    "gpt_oss": Family(
        marker="to=functions.",
        closes="<|call|>",
        begins=r"to=functions\.",
        ends=("<|return|>",),
        thought=("<|channel|>analysis<|message|>", "<|end|>"),
        example="<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>",
        template=_template(
            "<|start|>assistant",
            open_pattern=r"to=functions\.(?P<name>[^\s<]{1,200})(?:\s*<\|channel\|>commentary)?"
            r"(?:\s*<\|constrain\|>)?(?:\s*json)?\s*<\|message\|>",
            close="<|call|>",
            content="json",
            transform=NAMED,
        ),
    ),
    "llama3": Family(
        marker='"name"',
        closes="}",
        begins=r'\A\s*(?:<\|python_tag\|>\s*)?\{\s*"(?:type|name)"\s*:',
        ends=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
        thought=("<think>", "</think>"),
        example='{"name": NAME, "parameters": {...}}',
        template=_template(
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
            open_pattern=r'\A\s*(?:<\|python_tag\|>\s*)?(?=\{\s*"(?:type|name)"\s*:)',
            close_pattern=r"\Z",
            content="json",
            transform=WHOLE,
        ),
        to_end=True,
    ),
}


@cache
def compiled(family: str) -> Any:
    """Return the compiled `ResponseTemplate` of a family; needs transformers."""
    # Half a second that a filter without tool calls need not wait for.
    from transformers.utils.chat_parsing.response_templates import load_response_template

    return load_response_template(FAMILIES[family].template)

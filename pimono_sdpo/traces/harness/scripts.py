r"""Read the tool calls in a script of Codex's code mode, as far as their arguments are literals.

>>> read_calls('const p = "a\\n";\ntext(await tools.apply_patch(p)); tools.exec_command({cmd: `ls`, tty: false});')
[('apply_patch', 'a\n'), ('exec_command', {'cmd': 'ls', 'tty': False})]
>>> read_calls("for (const cmd of commands) await tools.exec_command({cmd});") is None
True
"""

import json
import re
from typing import Any

_TOKEN = re.compile(
    r"""(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\$]|\\.|\$(?!\{))*`)"""
    # A template with expressions.
    r"|(?P<template>`(?:[^`\\]|\\.)*`)"
    r"|(?P<call>\btools(?:\.(?P<name>[A-Za-z_$][\w$]*)|\[['\"](?P<key>[^'\"\n]{1,200})['\"]\])\s*\(\s*)"
    r"|(?P<constant>\b(?:const|let|var)\s+(?P<of>[A-Za-z_$][\w$]*)\s*=\s*(?=[\"'`\[{]))"
    r"|(?P<branch>\b(?:for|while|do|function|if|switch|catch)\b|=>|\?\??|&&|\|\|)"
    r"|(?P<word>[A-Za-z_$][\w$]*)|(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"
    r"|(?P<skip>\s+|//[^\n]*|/\*.*?\*/|(?<=[(,=:])\s*/(?:[^/\\\n]|\\.)+/[a-z]*)|(?P<other>.)",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:u\{([0-9a-fA-F]{1,6})\}|u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(\r?\n)|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "0": "\0"}
_WORDS = {"true": "true", "false": "false", "null": "null", "undefined": "null"}
# Calls in a loop or under a condition may not have run; the callbacks of these functions only receive results.
_AFTER = re.compile(
    r"\.(?:forEach|then|catch|finally|filter|find|some|every|join)\s*\(\s*(?:async\s*)?\(?[\w$,\s\[\]{}]*\)?\s*\Z"
)
_BACK = 200


def read_calls(script: str) -> list[tuple[str, Any]] | None:
    """Return the name and the argument of each call in order, None if they are not certain."""
    calls: list[tuple[str, Any]] = []
    constants: dict[str, str] = {}
    position, is_certain = 0, True
    while found := _TOKEN.match(script, position):
        position = found.end()
        if found["call"]:
            literal = "null" if script.startswith(")", position) else _read_literal(script, position, constants)
            if not is_certain or literal is None:
                return None
            calls.append((found["name"] or found["key"], json.loads(literal)))
        elif found["constant"]:
            if (literal := _read_literal(script, position, constants)) is not None:
                constants[found["of"]] = literal
        elif found["branch"]:
            is_certain &= found["branch"] == "=>" and bool(_AFTER.search(script[: position - 2][-_BACK:]))
        elif found["other"] in {'"', "'", "`"} or (found["template"] and not _is_balanced(found["template"])):
            # A text that does not end, or one template within another.
            return None
    return calls


def _is_balanced(template: str) -> bool:
    return all(part.count("{") < part.count("}") for part in template.split("${")[1:])


def _read_literal(script: str, position: int, constants: dict[str, str]) -> str | None:
    """Return the JSON of the JavaScript literal at a position, None for any other expression."""
    parts: list[str] = []
    depth = 0
    while found := _TOKEN.match(script, position):
        position = found.end()
        is_key = bool(depth) and parts[-1] in {"{", ","} and script[position:].lstrip()[:1] == ":"
        if found["text"]:
            parts.append(json.dumps(_unescape(found["text"])))
        elif found["word"]:
            word = found["word"]
            value = json.dumps(word) if is_key else _WORDS.get(word) or constants.get(word)
            if value is None:
                return None
            parts.append(value)
        elif found["number"]:
            parts.append(found["number"])
        elif found["other"]:
            if found["other"] in "]}" and parts[-1:] == [","]:
                parts.pop()
            if found["other"] not in "{}[],:":
                return None
            depth += (found["other"] in "{[") - (found["other"] in "]}")
            parts.append(found["other"])
        elif not found["skip"]:
            return None
        if not depth and parts:
            break
    # An expression goes on behind the literal.
    if not re.match(r"\s*(?:[,;)\n]|\Z|//|const\b|let\b|text\b)", script[position : position + 40]):
        return None
    text = "".join(parts)
    try:
        json.loads(text)
    except ValueError:
        # Braces that are a block of code rather than an object, or a shorthand property.
        return None
    return text


def _unescape(literal: str) -> str:
    def replace(found: re.Match[str]) -> str:
        code = found[1] or found[2] or found[3]
        return chr(min(int(code, 16), 0x10FFFF)) if code else "" if found[4] else _ESCAPED.get(found[5], found[5])

    return _ESCAPE.sub(replace, literal[1:-1])

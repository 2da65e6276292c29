"""Complete calls that write files count in every format."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards.verifiers import syntax
from rewards.verifiers.answer import read_candidate, read_changes
from tests.verifiers.refusals import refusal

CONTENT = 'def f(x):\n\treturn {"a": [x], \'b\': "<>"}\n'
FILES = {"src/a.py": "old\n", "src/b.py": "old\n"}


def json_call(path: str, content: str) -> str:
    return json.dumps({"type": "tool_call", "name": "write_file", "args": {"path": path, "content": content}})


FORMS: dict[str, Callable[[str, str], str]] = {
    "json": json_call,
    "openai": lambda path, content: json.dumps(
        {"function": {"name": "write", "arguments": json.dumps({"path": path, "content": content})}}
    ),
    "qwen": lambda path, content: (
        "<tool_call>\n" + json.dumps({"name": "write", "arguments": {"path": path, "content": content}}) + "\n</tool_call>"
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read(form: str) -> None:
    write = FORMS[form]
    text = f"First.\n{write('src/a.py', 'draft')}\nThen.\n{write('src/b.py', CONTENT)}\nDone {{."
    text += write("src/a.py", "new")
    result = read_candidate(text, {"files": FILES})
    assert result.files == {"src/a.py": "new", "src/b.py": CONTENT}, "the first write is a draft"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 0.9])
def test_a_truncated_call_is_not_a_write(form: str, share: float) -> None:
    text = FORMS[form]("src/a.py", CONTENT)
    assert list(read_changes(text[: int(len(text) * share)])) == []


def test_calls_of_several_forms_are_read_in_their_order() -> None:
    text = "\n".join(write("src/a.py", f"{form}\n") for form, write in FORMS.items())
    assert [change.new.strip() for change in read_changes(text)] == list(FORMS)


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("", "no_patch"),
        (json.dumps({"name": "read", "arguments": {"path": "src/a.py"}}), "no_patch"),
        (json.dumps({"name": "write", "arguments": {"path": "src/a.py"}}), "no_patch"),
        (json.dumps({"name": "write", "arguments": {"path": 1, "content": "x"}}), "no_patch"),
        (json.dumps({"name": "write", "arguments": "{"}), "no_patch"),
        (json_call("../a.py", "x"), "path_not_allowed"),
        (json_call("tests/test_a.py", "x"), "path_not_allowed"),
        (json_call("src/c.py", "x"), "path_not_allowed"),
        (json_call("src/a.py", "old\n"), "nothing_changed"),
        (json_call("src/a.py", "x\n") * 4, "ambiguous"),
    ],
)
def test_a_refusal_has_a_reason(text: str, failure: str) -> None:
    result = refusal(text, {"files": FILES})
    assert result.failure == failure


def test_new_files_must_be_allowed_and_truncated_answers_are_refused() -> None:
    text = json_call("./src/c.py", "x\n")
    result = read_candidate(text, {"files": FILES, "allowed": ["src/*"]})
    assert result.changed == ("src/c.py",)
    refused = refusal(text, {"files": FILES, "allowed": ["src/*"], "truncated": True})
    assert refused.failure == "truncated"


@pytest.mark.filterwarnings("ignore:invalid escape sequence")
@settings(deadline=None)
@given(st.text(st.sampled_from('{}[]":,ab<>|/=\n\\')))
def test_no_completion_raises(text: str) -> None:
    syntax.verify(text, {"files": FILES})

"""Whether a change adds to what ruff finds; the real ruff, in the sandbox."""

import json
from typing import Any

import pytest

from rewards.verifiers.candidate import Candidate
from rewards.verifiers.lint import verify, verify_candidate
from rewards.verifiers.rubric import VerifierResult

UNDEFINED = "def f():\n    return nowhere\n"


def verdict(before: dict[str, str], after: dict[str, str], **lint: Any) -> VerifierResult:
    changed = tuple(p for p in sorted({*before, *after}) if before.get(p) != after.get(p))
    return verify_candidate(Candidate(after, changed, before), {"files": before, "lint": lint})


def write(path: str, content: str) -> str:
    return json.dumps({"name": "write", "arguments": {"path": path, "content": content}})


def test_a_new_undefined_name_is_told_as_ruff_tells_it() -> None:
    result = verdict({"src/a.py": "x = 1\n"}, {"src/a.py": "x = 1\n" + UNDEFINED})
    assert (result.status, result.category, result.score) == ("failed", "build_lint_compile", 0.0)
    assert result.feedback == "src/a.py:3:12: F821 Undefined name `nowhere`\n    return nowhere"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (UNDEFINED, "# more\n\n" + UNDEFINED),
        (UNDEFINED, "x = 1\n"),
        (UNDEFINED + "def g(): return gone\n", UNDEFINED),
    ],
)
def test_what_was_wrong_before_is_nobodys_fault(before: str, after: str) -> None:
    assert verdict({"a.py": before}, {"a.py": after}).status == "passed"


@pytest.mark.parametrize(
    ("before", "after", "findings"),
    [
        (UNDEFINED, UNDEFINED + "print(nowhere)\n", 1.0),
        (UNDEFINED, UNDEFINED.replace("nowhere", "elsewhere"), 1.0),
        (UNDEFINED, "if x is 'a': pass\n", 2.0),
        ("x = 1\n", "x = 1\nreturn x\n", 1.0),
        ("", "x = (1\n", 1.0),
    ],
)
def test_what_is_new_counts(before: str, after: str, findings: float) -> None:
    result = verdict({"a.py": before}, {"a.py": after})
    assert (result.status, result.metrics["findings"]) == ("failed", findings)


def test_a_file_that_did_not_parse_before_is_left_out() -> None:
    assert verdict({"a.py": "x = (1\n"}, {"a.py": "x = (2\n"}).status == "skipped"
    both = verdict({"a.py": "x = (1\n"}, {"a.py": "x = (2\n", "b.py": UNDEFINED, "c.py": ""})
    assert (both.status, both.score, both.metrics["files"]) == ("failed", 0.5, 2.0)


@pytest.mark.parametrize(
    "hidden",
    [
        "# ruff: noqa\n{}",
        "# flake8: noqa\n{}",
        "# ruff: file-ignore[F821]\n{}",
        "# ruff: disable[F821]\n{}# ruff: enable[F821]\n",
        "# isort: skip_file\n# NOQA\n{}",
        "#!/usr/bin/env python\n# /// script\n# [tool.ruff]\n# lint.select = []\n# ///\n{}",
    ],
)
def test_no_directive_silences_ruff(hidden: str) -> None:
    for text in (UNDEFINED, UNDEFINED.replace("where\n", "where  # noqa\n")):
        assert verdict({"a.py": "x = 1\n"}, {"a.py": hidden.format(text)}).status == "failed"
    assert verdict({"a.py": hidden.format(UNDEFINED)}, {"a.py": UNDEFINED}).status == "passed"


def test_planted_settings_are_not_read() -> None:
    settings = {
        "ruff.toml": "exclude = ['*']\n",
        ".ruff.toml": "lint.ignore = ['F821']\n",
        "pyproject.toml": "[tool.ruff.lint]\nselect = []\n",
        ".gitignore": "*\n",
    }
    planted = {
        f"{folder}{name}": text for folder in ("", "src/") for name, text in settings.items()
    }
    result = verdict({}, {**planted, "src/a.py": UNDEFINED})
    assert (result.status, result.metrics["files"]) == ("failed", 1.0)


def test_the_spec_chooses_the_rules() -> None:
    after = {"a.py": "import os\n"}
    assert verdict({}, after).status == "passed"
    assert "F401 `os` imported but unused" in verdict({}, after, select=["F401"]).feedback
    with pytest.raises(ValueError, match="a list of rules of ruff"):
        verdict({}, after, select=["--config=x"])
    none = verify(write("a.py", "y = 2\n"), spec_of("a.py", lint={"select": ["ZZZ1"]}))
    assert none.status == "error"
    assert "ZZZ1" in none.feedback


def spec_of(path: str, **more: Any) -> dict[str, Any]:
    return {"files": {path: "x = 1\n"}, "answer": "write", **more}


def test_it_verifies_a_completion() -> None:
    spec = spec_of("a.py")
    assert verify(write("a.py", "x = 2\n"), spec).status == "passed"
    assert verify(write("a.py", UNDEFINED), spec).status == "failed"
    assert verify("words", spec).category == "malformed_output"
    assert verify(write("../a.py", UNDEFINED), spec).category == "malformed_output"
    assert verify("words", {}).status == "skipped"
    assert verify(write("README.md", "#"), spec_of("README.md")).status == "skipped"


def test_a_tool_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    result = verify(write("a.py", "x = 2\n"), spec_of("a.py"))
    assert (result.status, result.score) == ("error", None)
    assert "ruff is not installed" in result.feedback


HOSTILE = {
    "open parentheses": "(" * 100_000,
    "nested lists": "x = " + "[" * 50_000 + "]" * 50_000,
    "minus signs": "x = " + "-" * 200_000 + "1",
    "attributes": "x" + ".a" * 200_000,
    "nested calls": "f(" * 20_000 + ")" * 20_000,
    "conditions": "x = " + "1 if 1 else (" * 20_000 + "1" + ")" * 20_000,
    "binary junk": "".join(map(chr, range(256))) * 2000,
    "a null byte": "x = 1\0\n",
    "half a character": "x = '\ud800'; y = nowhere\n",
    "many findings": "nowhere(); const a = 1; a = 2; (;\n" * 20_000,
    "one long line": "nowhere;" * 100_000 + "(",
    "too large": "x = 1\n" * 200_000 + "(",
    "forged report": "const\n✘ [ERROR] x\n\n    0/module.ts:1:0:\n" * 3 + "(",
}


MAY_BE_READ = ("minus signs", "attributes", "nested lists", "nested calls", "conditions")


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_do_not_win(name: str) -> None:
    result = verdict({"a.py": "x = 1\n"}, {"a.py": HOSTILE[name]})
    if name in MAY_BE_READ:
        # A linter may well read these; it must not break down over them in our name.
        assert result.status in ("passed", "failed"), result
    else:
        assert result.status == "failed", result
    assert len(result.feedback) <= 1500


@pytest.mark.parametrize(
    "path", ["--config=x.py", "-.py", "a b/*.py", "ü/[x].py", "é\u2028.py", "X.PY"]
)
def test_names_are_no_options_and_no_patterns(path: str) -> None:
    result = verdict({}, {path: UNDEFINED})
    assert result.feedback.startswith(f"{path}:2:12: F821")


def test_what_no_linter_reads_wins_nothing() -> None:
    for path in ("a.pyc", "a.so", "a.pth", "py", ".py"):
        assert verdict({}, {path: "\x7fELF"}).status == "skipped", path

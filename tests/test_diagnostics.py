import pytest

from pimono_sdpo.failures import CATEGORIES, RULES, Rule, classify
from pimono_sdpo.trace import read_trace
from processors.diagnostics import find_diagnostics
from tests.traces import Entry, bash, call, result, trace, user


def categories(*entries: Entry) -> list[list[str]]:
    read = read_trace(trace(user("go"), *entries))
    return [item["categories"] for item in find_diagnostics(read.events)]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.example[:30])
def test_every_rule_matches_its_example(rule: Rule) -> None:
    assert rule.pattern.search(rule.example)
    assert rule.category in classify(rule.example)
    assert rule.category in CATEGORIES


@pytest.mark.parametrize(
    ("command", "output", "expected"),
    [
        ("npm test", "Tests  2 failed\n\nCommand exited with code 1", ["command_error", "test_or_assertion"]),
        ("python a.py", "Traceback (most recent call last):\n  x\nKeyError: 'a'\n\nCommand exited with code 1", ["command_error", "runtime_exception"]),
        ("tool", "something odd", ["other_marked_error"]),
        ("grep -n foo a.ts", "(no output)\n\nCommand exited with code 1", None),
        ("cd app && rg foo | grep bar", "Command exited with code 1", None),
        ("diff a b", "< x\n> y\n\nCommand exited with code 1", None),
        ("grep foo missing", "grep: missing: No such file or directory\n\nCommand exited with code 2", ["command_error", "missing_file_or_command"]),
        ("npm test", "Command aborted", None),
        ("npm test", "429 Too Many Requests", None),
        ("rm -rf x", "Blocked: command references protected directory", ["policy_block"]),
    ],
)  # fmt: skip
def test_marked_errors(command: str, output: str, expected: list[str] | None) -> None:
    assert categories(*bash(command, output, error=True)) == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("command", "output", "expected"),
    [
        ("npm test 2>&1 | tail -5", "ok 1\nTests  3 failed | 2 passed", ["test_or_assertion"]),
        ("npx tsc --noEmit; echo done", "a.ts(1,2): error TS2322: no\ndone", ["build_lint_compile"]),
        ("timeout 60 npm test | tail", "3 failed", ["test_or_assertion"]),
        ("npm test", "Tests  3 failed", None),
        ("cat log.txt | tail -5", "Tests  3 failed", None),
        ("cd app && grep -rn TS2322 . | head", "a.md: error TS2322", None),
        ("npm test | tail", "Tests  3 failed\n" + "ok\n" * 40, None),
        ("gh issue view 3 | cat", "TypeError: boom", None),
    ],
)  # fmt: skip
def test_hidden_failures(command: str, output: str, expected: list[str] | None) -> None:
    assert categories(*bash(command, output, error=False)) == ([expected] if expected else [])


def test_text_that_was_merely_read_is_no_failure() -> None:
    source = 'throw new Error("ENOENT");\n// 3 failed\nTraceback (most recent call last):'
    assert categories(call("read", path="a.ts"), result("read", source)) == []


def test_trailers_are_cut_and_positions_kept() -> None:
    output = "Tests  1 failed\n\n[Showing lines 1-9 of 900 (50.0KB limit). Full output: /tmp/x]\n\nCommand exited with code 1"
    read = read_trace(trace(user("go"), *bash("npm test", output, error=True)))
    (item,) = find_diagnostics(read.events)
    assert "Showing lines" not in item["text"]
    assert item["text"].endswith("Command exited with code 1")
    assert read.events[item["event_index"]].kind == "tool_result"
    assert item["tool_name"] == "bash"

"""The one table of failure patterns: what a piece of tool output says went wrong.

Categories are multi-label. Each rule carries an example; a test runs every example through
`classify`, so a pattern that stops matching fails there.
"""

import re
from dataclasses import dataclass

CATEGORIES = (
    "build_lint_compile",
    "command_error",
    "missing_file_or_command",
    "other_marked_error",
    "permission_auth",
    "policy_block",
    "runtime_exception",
    "test_or_assertion",
    "tool_schema_validation",
    "user_feedback",
)


@dataclass(frozen=True)
class Rule:
    """A category, what shows it, and an example that must match."""

    category: str
    pattern: re.Pattern[str]
    example: str


def _rule(category: str, pattern: str, example: str, flags: int = 0) -> Rule:
    return Rule(category, re.compile(pattern, flags | re.MULTILINE), example)


RULES = (
    _rule("command_error", r"Command exited with code [1-9-]\d*", "Command exited with code 2"),
    _rule("command_error", r"Command timed out after \d+", "Command timed out after 30 seconds"),
    _rule("command_error", r"npm (?:ERR!|error) (?:code|errno)\b", "npm ERR! code ELIFECYCLE"),
    _rule(
        "command_error",
        r"^fatal: |^make(?:\[\d+\])?: \*\*\* ",
        "fatal: not a git repository",
    ),
    _rule(
        "missing_file_or_command",
        r"\bENOENT\b|[Nn]o such file or directory|File not found\b",
        "ENOENT: no such file or directory, access 'a.ts'",
    ),
    _rule(
        "missing_file_or_command", r"command not found|: not found$", "bash: rg: command not found"
    ),
    _rule(
        "missing_file_or_command",
        r"Cannot find (?:module|package) |ModuleNotFoundError|ERR_MODULE_NOT_FOUND",
        "Error: Cannot find module './util'",
    ),
    _rule(
        "missing_file_or_command",
        r"\bEISDIR\b|exited with code 127\b",
        "EISDIR: illegal operation on a directory, read",
    ),
    _rule(
        "permission_auth",
        r"\bEACCES\b|\bEPERM\b|[Pp]ermission denied|[Oo]peration not permitted",
        "git@host: Permission denied (publickey).",
    ),
    _rule(
        "permission_auth",
        r"\b(?:HTTP(?:/[\d.]+)?|[Ee]rror|status|code)[ :]+40[13]\b"
        r"|\b40[13] (?:Unauthorized|Forbidden)",
        "HTTP 403 Forbidden",
    ),
    _rule(
        "permission_auth",
        r"[Aa]uthentication failed|[Bb]ad credentials|could not read Username",
        "remote: Authentication failed",
    ),
    _rule(
        "runtime_exception",
        r"^Traceback \(most recent call last\)|^panic: |thread '[^'\n]{0,200}' panicked at",
        "Traceback (most recent call last):",
    ),
    _rule(
        "runtime_exception",
        r"[Uu]ncaught(?:Exception| exception| \w*Error)|triggerUncaughtException"
        r"|Unhandled[A-Z ]\w*",
        "triggerUncaughtException(err, true /* fromPromise */);",
    ),
    _rule(
        "runtime_exception",
        r"^[ \t]{0,9}(?:\[\w+\] )?(?:Type|Reference|Range|Value|Key|Attribute|Index|Runtime|Name"
        r"|ZeroDivision|Recursion|OS|IO|Unbound\w*)Error\b[:\[ ]",
        "TypeError: Cannot read properties of undefined (reading 'id')",
    ),
    _rule(
        "runtime_exception",
        r"Segmentation fault|core dumped|\bSIG(?:SEGV|ABRT|BUS)\b|out of memory",
        "Segmentation fault (core dumped)",
    ),
    _rule(
        "runtime_exception",
        r"^[ \t]{1,40}at .+\(?(?:node:|file:|/|[A-Za-z]:\\)[^)\n]*:\d+:\d+\)?",
        "    at run (node:internal/main:12:5)",
    ),
    _rule("test_or_assertion", r"AssertionError|assertion .*failed", "AssertionError: expected 1"),
    _rule(
        "test_or_assertion",
        r"\b[1-9]\d* (?:tests? )?(?:failed|failing)\b|\bTests?:? +[1-9]\d* failed",
        "Tests  3 failed | 12 passed (15)",
    ),
    _rule(
        "test_or_assertion",
        r"^[ \t]{0,40}(?:FAIL(?:ED)?|--- FAIL:|not ok \d+|[✗✘]) ?",
        "FAIL test/parser.test.ts > parses",
    ),
    _rule(
        "test_or_assertion", r"test result: FAILED|# fail [1-9]", "test result: FAILED. 3 passed"
    ),
    _rule("build_lint_compile", r"\berror TS\d+|\bTS\d{4,5}:", "src/a.ts(4,7): error TS2322: no"),
    _rule(
        "build_lint_compile",
        r"^error\[E\d{4}\]|^error: .*\n +--> |could not compile"
        r"|^[^\s:]+:\d+:\d+: (?:fatal )?error:",
        "error[E0308]: mismatched types",
    ),
    _rule(
        "build_lint_compile",
        r"\bSyntaxError\b|IndentationError|Transform failed|ParseError|[Pp]arse error",
        "SyntaxError: Unexpected token '}'",
    ),
    _rule(
        "build_lint_compile",
        r"\b[1-9]\d* problems? \([1-9]|Found [1-9]\d* (?:errors?|diagnostics?|lint)|\blint/\w+",
        "Found 3 errors.",
    ),
    _rule(
        "build_lint_compile",
        r"[Bb]uild failed|[Cc]ompilation (?:failed|error)|undefined: \w+|undefined reference to",
        "ld: undefined reference to `main'",
    ),
    _rule("build_lint_compile", r"^\S+\.py:\d+:\d+: [EFWBCN]\d{3,4} ", "a.py:3:1: F401 unused"),
    _rule(
        "tool_schema_validation",
        r"Validation failed for tool|Invalid arguments for tool|^Tool \S+ not found",
        'Validation failed for tool "read":\n  - path: required',
    ),
    _rule(
        "tool_schema_validation",
        r"Could not find (?:the exact text|edits\[\d+\]) in |old ?[Tt]ext must match exactly",
        "Could not find the exact text in src/a.ts.",
    ),
    _rule(
        "tool_schema_validation",
        r"Found \d+ occurrences of |No changes made to |edits\[\d+\] and edits\[\d+\] overlap",
        "Found 2 occurrences of edits[1] in a.ts.",
    ),
    _rule(
        "tool_schema_validation",
        r"Offset \d+ is beyond end of file|was not executed: the response hit",
        "Offset 75 is beyond end of file (74 lines total)",
    ),
    _rule(
        "policy_block",
        r"^\W{0,8}(?:HARD BLOCK|Blocked\b|BLOCKED\b)|[Bb]locked (?:by|:)"
        r"|[Dd]enied by (?:policy|hook)",
        "Blocked: command references protected directory",
    ),
    _rule(
        "policy_block",
        r"is not allowed|are not allowed|not permitted by|(?:guard|hook|policy)[^\n]{0,40}reject"
        r"|phase boundary|before committing code changes",
        "Emoji are not allowed in generated content",
        re.IGNORECASE,
    ),
)

# A harness veto is about the rules of the house; the words it quotes are not what went wrong.
_VETO_HIDES = frozenset({"other_marked_error", "permission_auth"})

PROVIDER_ERROR = re.compile(
    r"^\W{0,8}(?:Connection error|Request timed out|[45]\d\d (?:Insufficient|Too Many|status"
    r"|Internal)|(?:terminated|fetch failed)\.?$|.*\b(?:rate.?limit|overloaded|quota|usage limit"
    r"|insufficient balance|credit balance)\b)",
    re.IGNORECASE,
)
INTERRUPT = re.compile(
    r"^\W{0,8}(?:(?:Command|Operation|Request|Tool call|Execution)(?: was)? (?:aborted|cancell?ed)"
    r"|Skipped due to queued user message|Aborted|Interrupted by user)\b|Command aborted\s*$",
    re.IGNORECASE,
)


def classify(text: str) -> list[str]:
    """Return the sorted categories whose patterns occur in an error's text; may be empty.

    >>> classify("src/a.ts(4,7): error TS2322: no\\n\\nCommand exited with code 2")
    ['build_lint_compile', 'command_error']
    """
    found = {rule.category for rule in RULES if rule.pattern.search(text)}
    if "policy_block" in found:
        found -= _VETO_HIDES
    return sorted(found)

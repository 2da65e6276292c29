"""The one table of failure patterns, and what a piece of tool output says went wrong.

Quantifiers are bounded, so that a long line costs no more than many short ones.
"""

import re
from dataclasses import dataclass

from pimono_sdpo.prefilter import Prefilter


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
    _rule(
        "command_error",
        r"^npm (?:ERR!|error) (?:code|errno|command|Lifecycle script)\b",
        "npm ERR! code ELIFECYCLE",
    ),
    _rule(
        "command_error",
        r"^fatal: |^make(?:\[\d+\])?: \*\*\* |^error: (?:failed to push|could not apply)"
        r"|^ ! \[(?:remote )?rejected\]|^CONFLICT \(|^ERROR: failed to \w|^error: unable to \w"
        r"|^Error from server\b",
        "fatal: not a git repository",
    ),
    _rule(
        "command_error",
        r"^[\w.-]{1,60}(?: [^\n:]{1,60})?: error: (?:unrecognized arguments|argument |the following"
        r"|invalid choice)|^error: (?:unknown|unexpected|unrecognized) (?:option|argument|flag"
        r"|command|subcommand)\b",
        "train.py: error: unrecognized arguments: --fast",
    ),
    _rule(
        "missing_file_or_command",
        r"\bENOENT\b|[Nn]o such file or directory|\bFile not found\b",
        "ENOENT: no such file or directory, access 'a.ts'",
    ),
    _rule(
        "missing_file_or_command",
        r"^(?:Error: )?(?:File|Path|Directory)\b[^\n]{0,300} (?:does not exist|not found)\b",
        "File does not exist.",
    ),
    _rule(
        "missing_file_or_command",
        r"command not found\b|: not found$|executable file not found|[Mm]issing script:"
        r"|is not recognized as an internal or external command",
        "bash: rg: command not found",
    ),
    _rule(
        "missing_file_or_command",
        r"Cannot find (?:module|package) |ModuleNotFoundError|ERR_MODULE_NOT_FOUND"
        r"|Module not found: |No module named ",
        "Error: Cannot find module './util'",
    ),
    _rule(
        "missing_file_or_command",
        r"\bEISDIR\b|exited with code 127\b",
        "EISDIR: illegal operation on a directory, read",
    ),
    _rule(
        "permission_auth",
        r"\bEACCES\b|\bEPERM\b|[Pp]ermission denied|[Oo]peration not permitted"
        r"|sudo: a (?:password|terminal) is required",
        "git@host: Permission denied (publickey).",
    ),
    _rule(
        "permission_auth",
        r"\bHTTP(?:/[\d.]{1,4})?[ :]{1,2}40[13]\b|\b[Ss]tatus(?: code)?[ :]{1,2}40[13]\b"
        r"|\b[Ee]rror[ :]{1,2}40[13]\b|\b40[13] (?:Unauthorized|Forbidden)|\bcode E40[13]\b",
        "HTTP 403 Forbidden",
    ),
    _rule(
        "permission_auth",
        r"[Aa]uthentication failed|[Bb]ad credentials|could not read Username"
        r"|Host key verification failed|Resource not accessible by|gh auth login",
        "remote: Authentication failed",
    ),
    _rule(
        "runtime_exception",
        r"^[^\S\n]{0,9}Traceback \(most recent call last\)|^panic: |^goroutine \d+ \[running\]"
        r"|thread '[^'\n]{0,200}'(?: \(\d+\))? panicked at|^thread \d+ panic: ",
        "Traceback (most recent call last):",
    ),
    _rule(
        "runtime_exception",
        r"[Uu]ncaught(?:Exception| exception| \w{0,40}Error)|triggerUncaughtException"
        r"|Unhandled[A-Z ]\w|^Node\.js v\d+|^Exception in thread |^Caused by: ",
        "triggerUncaughtException(err, true /* fromPromise */);",
    ),
    _rule(
        "runtime_exception",
        r"^[^\S\n]{0,9}(?:E +|\[\w{1,20}\] |error: )?"
        r"(?!\w{0,40}(?:Assertion|Syntax|Indentation|Tab|Parse|Validation)Error)"
        r"[A-Za-z_][\w.]{0,80}(?:Error|Exception)\b(?: \[\w{1,40}\])?: ",
        "TypeError: Cannot read properties of undefined (reading 'id')",
    ),
    _rule(
        "runtime_exception",
        r"^[^\S\n]{0,9}(?:Key|Attribute|Index|Name|Recursion|NotImplemented)Error(?::|$)"
        r"|SyntaxError: [^\n]{0,200}\bJSON\b",
        "SyntaxError: Unexpected end of JSON input",
    ),
    _rule(
        "runtime_exception",
        r"Segmentation fault|core dumped|\bSIG(?:SEGV|ABRT|BUS)\b|heap out of memory"
        r"|^Out of memory|\bOOMKilled\b",
        "Segmentation fault (core dumped)",
    ),
    _rule(
        "runtime_exception",
        r"^[^\S\n]{0,9}(?:Uncaught )?Error: [^\n]{0,400}\n(?:[^\n]{0,400}\n){0,3}?[ \t]{1,40}at ",
        "Error: boom\n    at run (/app/a.js:1:5)",
    ),
    _rule(
        "test_or_assertion",
        r"AssertionError|\bassertion [^\n]{0,200}failed|^E +assert |expect\(received\)",
        "AssertionError: expected 1",
    ),
    _rule(
        "test_or_assertion",
        r"\b[1-9]\d{0,5} (?:tests? |specs? |suites? )?(?:failed|failing)\b"
        r"(?! (?:to|with|because|attempts?|requests?|logins?|jobs?|downloads?))"
        r"|\b(?:tests?|examples?|runs?|assertions?), [^\n]{0,40}\b[1-9]\d{0,5} failures?\b"
        r"|\bFailures: [1-9]",
        "Tests  3 failed | 12 passed (15)",
    ),
    _rule(
        "test_or_assertion",
        r"^[^\S\n]{0,40}(?:FAIL(?:ED)?\b(?! ?[=_-])|--- FAIL:|not ok \d{1,6}\b|TEST FAILED)",
        "FAIL test/parser.test.ts > parses",
    ),
    _rule(
        "test_or_assertion",
        r"test result: FAILED|[#\u2139] fail [1-9]|^ ?[1-9]\d{0,5} fail$",
        "test result: FAILED. 3 passed",
    ),
    _rule("build_lint_compile", r"\berror TS\d+|\bTS\d{4,5}:", "src/a.ts(4,7): error TS2322: no"),
    _rule(
        "build_lint_compile",
        r"^error\[E\d{4}\]|^error: [^\n]{0,400}\n {1,8}--> |could not compile"
        r"|^[^\s:]{1,300}:\d+(?::\d+)?: (?:fatal )?error: |^[^\s:]{1,300}\.go:\d+:\d+: ",
        "error[E0308]: mismatched types",
    ),
    _rule(
        "build_lint_compile",
        r"\bSyntaxError\b(?![^\n]{0,200}JSON)|IndentationError|Transform failed|ParseError"
        r"|Parse error: |\bparse ━",
        "SyntaxError: Unexpected token '}'",
    ),
    _rule(
        "build_lint_compile",
        r"\b[1-9]\d{0,5} problems? \([1-9]|Found [1-9]\d{0,5} (?:errors?|diagnostics?|lint)"
        r"|\blint/\w{1,40}/\w|Code style issues found|would be reformatted",
        "Found 3 errors.",
    ),
    _rule(
        "build_lint_compile",
        r"[Bb]uild failed|BUILD FAILED|[Cc]ompilation (?:failed|error)|Failed to compile"
        r"|undefined reference to|Could not resolve \"|\berror (?:CS|MSB)\d{4}",
        "ld: undefined reference to `main'",
    ),
    _rule(
        "build_lint_compile",
        r"^\S{1,300}\.pyi?:\d+:\d+: [A-Z]{1,4}\d{3,4} |^[A-Z]{1,4}\d{3,4} [^\n]{0,300}\n *--> ",
        "a.py:3:1: F401 unused",
    ),
    _rule(
        "tool_schema_validation",
        r"Validation failed for tool|[Ii]nvalid arguments for tool|^Tool \S{1,100} not found"
        r"|InputValidationError|No such tool available|called with invalid arguments"
        r"|tool validation failures|must have required propert|\banchor\b[^\n]{0,80}\b(?:such as"
        r"|stale|mismatch|required|expected)",
        'Validation failed for tool "read":\n  - path: required',
    ),
    _rule(
        "tool_schema_validation",
        r"Could not find (?:the exact text|edits\[\d+\]) in |old ?[Tt]ext must match exactly"
        r"|[Ss]tring to replace (?:was )?not found|old_?[Ss]tr(?:ing)? (?:was )?not found"
        r"|[Cc]ould not find the string to replace|(?:text|content|block) (?:was )?not found in"
        r"|changed since (?:the )?last read|[Nn]o (?:exact )?match(?:es)? found",
        "Could not find the exact text in src/a.ts.",
    ),
    _rule(
        "tool_schema_validation",
        r"Found \d+ (?:occurrences of |matches of the string)|^No changes (?:made to |to make)"
        r"|edits\[\d+\] and edits\[\d+\] overlap|must be unique\b|Offset \d+ is beyond end of file"
        r"|was not executed: the response hit|exceeds maximum allowed (?:tokens|size)",
        "Found 2 occurrences of edits[1] in a.ts.",
    ),
    _rule(
        "tool_schema_validation",
        r"File has not been read yet|File has been (?:unexpectedly )?modified since"
        r"|apply_patch verification failed|Failed to find (?:expected lines|context)"
        r"|[Ii]nvalid patch|[Ii]nvalid hunk|must (?:first )?(?:be )?read\b"
        r"|\b(?:parameter|property|properties|arguments?) [^\n]{0,60}\b(?:must|missing|required"
        r"|invalid)\b|failed to parse function arguments",
        "File has not been read yet. Read it first before writing to it.",
    ),
    _rule(
        "policy_block",
        r"^\W{0,8}(?:HARD BLOCK|Blocked\b|BLOCKED\b)|[Bb]locked (?:by (?!CORS)|:)"
        r"|[Dd]enied by (?:policy|hook)|\bhook (?:blocking )?error\b|[Rr]ejected by user approval"
        r"|Permission to use \w{1,60} (?:with command )?[^\n]{0,200}denied"
        r"|requested permissions? to |[Pp]lan mode",
        "Blocked: command references protected directory",
    ),
    _rule(
        "policy_block",
        r"\b(?:is|are) not allowed|not permitted by|(?:guard|hook|policy)[^\n]{0,40}reject"
        r"|reject[^\n]{0,40}policy|sandbox\(?.?denied|phase boundary|before committing code",
        "Emoji are not allowed in generated content",
        re.IGNORECASE,
    ),
)


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


# A harness veto is about the rules of the house; the words it quotes are not what went wrong.
_VETO_HIDES = frozenset({"other_marked_error", "permission_auth"})

# How an extension says no; only where the tool itself has no such wording.
VETO_PROSE = re.compile(
    r"\b(?:must(?: not)?|should(?: not)?|do(?: not|n't)|not allowed|forbidden|prohibited"
    r"|disallowed|refus\w{1,4}|violat\w{1,6}|premature|over-implementation|instead|protected"
    r"|read-only|requires? approval|only (?:be )?(?:allowed|permitted)"
    r"|before (?:you|commit|edit|implement|writing)|no failing test)",
    re.IGNORECASE,
)
PROVIDER_ERROR = re.compile(
    r"^\W{0,8}(?:Connection error|Request timed out|[45]\d\d (?:Insufficient|Too Many|status"
    r"|Internal)|API Error: |(?:terminated|fetch failed)\.?$"
    r"|[^\n]{0,200}(?<![\w/.'-])(?:rate.?limit|overloaded|quota|usage limit|insufficient balance"
    r"|credit balance)\b(?![/'-]|\.\w))",
    re.IGNORECASE,
)
INTERRUPT = re.compile(
    r"^\W{0,8}(?:(?:Command|Operation|Request|Tool call|Tool execution|Execution)(?: was)?"
    r" (?:aborted|cancell?ed|interrupted)|Skipped due to queued user message|Aborted"
    r"|Interrupted by user|Cancelled by user)\b",
    re.IGNORECASE,
)
EVICTED = re.compile(
    r"\W{0,8}\[[^\]\n]{0,200}\b(?:evicted|cleared|compacted|omitted|pruned)\b[^\]\n]{0,200}\]\W{0,8}",
    re.IGNORECASE,
)
SAYS_PASSED = re.compile(
    r"\b[1-9]\d{0,5} (?:tests? )?pass(?:ed|ing)?\b|[#\u2139] fail 0|test result: ok|^(?:OK|PASS)\b"
    r"|^ok\s|\b0 (?:errors|failed|failures)\b|\bpass [1-9]|BUILD SUCCESS|[Bb]uild succeeded"
    r"|[Aa]ll (?:tests|checks) pass|\b[1-9]\d{0,5} match(?:es)?\b|No issues found",
    re.MULTILINE,
)
SOUNDS_BAD = re.compile(
    r"error|fail|fatal|exception|denied|not found|cannot|can't|missing|unknown|invalid|unable"
    r"|refused|usage:|conflict|killed|timed out|no such|not set|threshold",
    re.IGNORECASE,
)
# A test that passed may be named after the very failure it provokes; a frame quotes source.
_BESIDE_THE_POINT = re.compile(
    r"^[ \t]{0,40}(?:(?:\S{1,20} )?[✓✔√] |ok \d{1,6} |--- PASS: |=== RUN |[>→]?[ \t]{0,8}\d{1,6}"
    r" ?[|│]|[|│])[^\n]*",
    re.MULTILINE,
)


_PREFILTER = Prefilter([rule.pattern for rule in RULES])


def rules_for(text: str) -> list[Rule]:
    """Return the rules that may match a text; what cannot is ruled out in one pass."""
    return [RULES[number] for number in _PREFILTER.candidates(text)]


def may_fail(text: str, categories: frozenset[str]) -> bool:
    """Tell in one pass whether rules of some categories may match."""
    return any(rule.category in categories for rule in rules_for(text))


def classify(text: str) -> list[str]:
    """Return the sorted categories whose patterns occur in an error's text; may be empty.

    >>> classify("src/a.ts(4,7): error TS2322: no\\n\\nCommand exited with code 2")
    ['build_lint_compile', 'command_error']
    """
    rules = rules_for(text)
    if not rules:
        return []
    told = _BESIDE_THE_POINT.sub("", text)
    if told != text:
        rules = rules_for(told)
    found: set[str] = set()
    for rule in rules:
        if rule.category not in found and rule.pattern.search(told):
            found.add(rule.category)
    if "policy_block" in found:
        found -= _VETO_HIDES
    return sorted(found)

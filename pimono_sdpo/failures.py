"""Classify what tool output says went wrong; the categories and their patterns: failures.toml."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from pimono_sdpo.prefilter import Prefilter


@dataclass(frozen=True)
class Rule:
    """A pattern that shows a category, and an example that it must match."""

    category: str
    pattern: re.Pattern[str]
    example: str


@dataclass(frozen=True)
class Category:
    """One kind of failure: what it adds to a score, what it means, and what shows it."""

    name: str
    weight: float
    sentence: str
    example: str
    rules: tuple[Rule, ...]


def read_categories(toml: str) -> dict[str, Category]:
    """Read a table of categories; ValueError names what an entry lacks."""
    categories = {}
    for name, entry in tomllib.loads(toml).items():
        try:
            rules = tuple(
                Rule(
                    name,
                    re.compile(
                        "|".join(rule["patterns"]),
                        re.MULTILINE | (re.IGNORECASE if rule.get("ignore_case") else re.NOFLAG),
                    ),
                    rule["example"],
                )
                for rule in entry.get("rules", ())
            )
            example = rules[0].example if rules else entry["example"]
            categories[name] = Category(name, entry["weight"], entry["sentence"], example, rules)
        except KeyError as missing:
            raise ValueError(f"Category `{name}` has no `{missing.args[0]}`.") from missing
    return categories


CATEGORIES = read_categories(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
RULES = tuple(rule for category in CATEGORIES.values() for rule in category.rules)

# A refusal is about the user's rules; the words it quotes are not what went wrong.
_HIDDEN_BY_POLICY = frozenset({"other_marked_error", "permission_auth"})

# How an extension refuses a call; used only for tools that never speak like this themselves.
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
    r" (?:aborted|cancell?ed|interrupted)|Tool permission (?:request|stream)"
    r"|Skipped due to queued user message|Aborted|Interrupted by user|Cancelled by user)\b",
    re.IGNORECASE,
)
EVICTED = re.compile(
    r"\W{0,8}\[[^\]\n]{0,200}\b(?:evicted|cleared|compacted|omitted|pruned)\b[^\]\n]{0,200}\]\W{0,8}",
    re.IGNORECASE,
)
SAYS_PASSED = re.compile(
    r"\b[1-9]\d{0,5} (?:tests? )?pass(?:ed|ing)?\b|[#\u2139] fail 0|test result: ok|^(?:OK|PASS)\b"
    r"|^ok\s|\b0 (?:errors|failed|failures)\b|\bpass [1-9]|BUILD SUCCESS|[Bb]uild succeeded"
    r"|[Aa]ll (?:tests|checks) pass|^\W*[1-9]\d{0,5} match(?:es)? in \d|No issues found",
    re.MULTILINE,
)
PENDING = re.compile(r"\b(?:pending|queued|in[_ ]progress|waiting|running)\b", re.IGNORECASE)
SOUNDS_BAD = re.compile(
    r"error|fail|fatal|exception|denied|not found|cannot|can't|could not|couldn't|missing|unknown"
    r"|invalid|unable|accepts at most|refused|usage:|conflict|killed|timed out|no such|not set"
    r"|threshold|blank argument|try '[\w ./-]{1,40} --help'",
    re.IGNORECASE,
)
# A test that passed may be named after the very failure it provokes; a frame quotes source.
_BESIDE_THE_POINT = re.compile(
    r"^[ \t]{0,40}(?:(?:\S{1,20} )?[✓✔√] |ok \d{1,6} |--- PASS: |=== RUN |[>→]?[ \t]{0,8}\d{1,6}"
    r" ?[|│]|[|│])[^\n]*",
    re.MULTILINE,
)


# A line in which a program says who complains, and about what.
_COMPLAINT = re.compile(
    rf"^[\w./+()-]{{1,120}}[: ][^\n]{{0,400}}?(?:{SOUNDS_BAD.pattern})",
    re.MULTILINE | re.IGNORECASE,
)
_PREFILTER = Prefilter([*(rule.pattern for rule in RULES), _COMPLAINT])


def find_rules(text: str) -> list[Rule]:
    """Return the rules that may match a text; what cannot is ruled out in one pass."""
    return [RULES[number] for number in _PREFILTER.candidates(text) if number < len(RULES)]


def may_complain(text: str, categories: frozenset[str]) -> bool:
    """Check in one pass whether rules of some categories may match, or a complaint."""
    numbers = _PREFILTER.candidates(text)
    return any(n == len(RULES) or RULES[n].category in categories for n in numbers)


def classify(text: str) -> list[str]:
    """Return the sorted categories whose patterns occur in an error's text; may be empty.

    >>> classify("src/a.ts(4,7): error TS2322: no\\n\\nCommand exited with code 2")
    ['build_lint_compile', 'command_error']
    """
    rules = find_rules(text)
    if not rules:
        return []
    relevant = _BESIDE_THE_POINT.sub("", text)
    if relevant != text:
        rules = find_rules(relevant)
    found: set[str] = set()
    for rule in rules:
        if rule.category not in found and rule.pattern.search(relevant):
            found.add(rule.category)
    if "policy_block" in found:
        found -= _HIDDEN_BY_POLICY
    return sorted(found)

"""Classify errors in tool output by the categories and patterns of failures.toml."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from pimono_sdpo.prefilter import Guarded, Prefilter, lazy_pattern

Role = Literal["signature", "check", "call", "complaint", "harness", "refusal", "slip", "unclear"]


@dataclass(frozen=True)
class Rule:
    """A pattern of a category, and an example that it must match."""

    category: str
    pattern: re.Pattern[str]
    example: str


@dataclass(frozen=True)
class Category:
    """One kind of failure: its weight in the score, a sentence that explains it, an example, rules and roles."""

    name: str
    weight: float
    sentence: str
    example: str
    rules: tuple[Rule, ...]
    roles: frozenset[str]


def read_categories(toml: str) -> dict[str, Category]:
    """Read a table of categories; raises ValueError if an entry is incomplete or has an unknown role."""
    categories = {}
    for name, entry in tomllib.loads(toml).items():
        try:
            rules = tuple(
                Rule(
                    name,
                    lazy_pattern(
                        "|".join(rule["patterns"]),
                        re.MULTILINE | (re.IGNORECASE if rule.get("ignore_case") else re.NOFLAG),
                    ),
                    rule["example"],
                )
                for rule in entry.get("rules", ())
            )
            example = rules[0].example if rules else entry["example"]
            roles = frozenset(entry.get("roles", ("signature",)))
            if unknown := sorted(roles - {*get_args(Role)}):
                raise ValueError(f"Category `{name}` has the unknown role `{unknown[0]}`.")
            categories[name] = Category(name, entry["weight"], entry["sentence"], example, rules, roles)
        except KeyError as missing:
            raise ValueError(f"Category `{name}` has no `{missing.args[0]}`.") from missing
    return categories


CATEGORIES = read_categories(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
RULES = tuple(rule for category in CATEGORIES.values() for rule in category.rules)

# A refusal by a policy may quote these words, which do not describe the failure.
_HIDDEN_BY_POLICY = frozenset({"other_marked_error", "permission_auth"})

# Names of passed tests may mention the failure that they provoke; stack frames quote source code.
_IRRELEVANT = Guarded(
    re.compile(
        r"^[ \t]{0,40}(?:(?:\S{1,20} )?[✓✔√] |ok \d{1,6} |--- PASS: |=== RUN "
        r"|[>→]?[ \t]{0,8}\d{1,6} ?[|│]|[|│])[^\n]*",
        re.MULTILINE,
    )
)

_PREFILTER = Prefilter([rule.pattern for rule in RULES])


def with_role(role: Role) -> frozenset[str]:
    """Return the names of the categories with a role; failures.toml explains the roles.

    >>> sorted(with_role("check"))
    ['build_lint_compile', 'test_or_assertion']
    """
    return frozenset(category.name for category in CATEGORIES.values() if role in category.roles)


def find_rules(text: str) -> list[Rule]:
    """Return the rules that may match a text; all others are ruled out in one pass."""
    return [RULES[number] for number in _PREFILTER.candidates(text)]


def classify(text: str) -> list[str]:
    """Return the sorted categories whose patterns occur in an error's text; may be empty.

    >>> classify("src/a.ts(4,7): error TS2322: no\\n\\nCommand exited with code 2")
    ['build_lint_compile', 'command_error']
    """
    rules = find_rules(text)
    if not rules:
        return []
    relevant = _IRRELEVANT.sub("", text)
    if relevant != text:
        rules = find_rules(relevant)
    categories: set[str] = set()
    for rule in rules:
        if rule.category not in categories and rule.pattern.search(relevant):
            categories.add(rule.category)
    if "policy_block" in categories:
        categories -= _HIDDEN_BY_POLICY
    return sorted(categories)

"""Test that no pattern of the project matches where its widened form does not."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimono_sdpo.failures import RULES
from pimono_sdpo.prefilter import Prefilter, widen_pattern
from processors.corrections.features import SITUATION, read_cues
from processors.secrets import SECRETS

USED = [
    *(rule.pattern for rule in RULES),
    *(secret.pattern for secret in SECRETS),
    *(cue.pattern for cue in read_cues() if cue.pattern),
    *SITUATION.values(),
]


@pytest.mark.parametrize("examples", [5, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("pattern", USED, ids=lambda pattern: pattern.pattern[:30])
def test_a_matching_pattern_is_a_candidate(pattern: re.Pattern[str], examples: int) -> None:
    one, compiled = Prefilter([pattern]), re.compile(pattern.pattern, pattern.flags)

    @settings(max_examples=examples)
    @given(st.from_regex(compiled), st.text(max_size=3), st.text(max_size=3))
    def check(text: str, before: str, after: str) -> None:
        text = before + text + after
        if compiled.search(text):
            assert one.candidates(text) == [0]

    check()


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"(?<=a)b(?!c)", "ab"),
        (r"\bstop\b", "stöp stop"),
        (r"\w+\d", "é٣"),
        (r"a\sb", "a\u2003b"),
        (r"[\w.]{3,256}+-", "é.éx-"),
        (r"[^\w]é", "\u2014é"),
        (r"end\Z", "the end"),
        (r"end$", "the end\n"),
        (r"a.c", "a\u2028c"),
        (r"(?i:SIG)=", "Sig="),
        ("[\\u3040-\\u30ff]{2}", "ああ"),
        (r"(?P<one>x(?:y|z(?=\)))*?)\)", "xz)"),
    ],
)
def test_python_and_re2_differ_here(pattern: str, text: str) -> None:
    assert re.search(pattern, text)
    assert Prefilter([re.compile(pattern)]).candidates(text) == [0]


def test_several_patterns_are_found_in_one_pass() -> None:
    patterns = [re.compile(word) for word in ("fail", "pass", "skip")]
    assert Prefilter(patterns).candidates("1 skipped, 2 failed") == [0, 2]
    assert Prefilter(patterns).candidates("") == []


def test_a_group_within_a_lookahead_is_removed_with_it() -> None:
    assert widen_pattern(re.compile(r"a(?=(b|[)])c)d")) == "(?m)ad"

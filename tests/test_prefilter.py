"""Test that no pattern of the project matches where its widened form does not, with either engine."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimono_sdpo.failures import RULES
from pimono_sdpo.prefilter import Prefilter, Scan, compile_hyperscan, compile_re2, widen_pattern
from pimono_sdpo.samples import SAMPLE_SESSIONS
from processors.corrections.features import SITUATION, read_cues
from processors.secrets import SECRETS

USED = [
    *(rule.pattern for rule in RULES),
    *(secret.pattern for secret in SECRETS),
    *(cue.pattern for cue in read_cues() if cue.pattern),
    *SITUATION.values(),
]


def compile_engines(pattern: re.Pattern[str]) -> list[Scan]:
    """The engines that can run a pattern; a few cues of corrections are too large for Hyperscan."""
    fast = compile_hyperscan([widen_pattern(pattern)])
    return [compile_re2([widen_pattern(pattern)]), *([fast] if fast else [])]


@pytest.mark.parametrize("examples", [5, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("pattern", USED, ids=lambda pattern: pattern.pattern[:30])
def test_a_matching_pattern_is_a_candidate(pattern: re.Pattern[str], examples: int) -> None:
    engines, compiled = compile_engines(pattern), re.compile(pattern.pattern, pattern.flags)

    @settings(max_examples=examples)
    @given(st.from_regex(compiled), st.text(max_size=30), st.text(max_size=3))
    def check(text: str, before: str, after: str) -> None:
        text = before + text + after
        if compiled.search(text):
            assert all(scan(text.encode()) == [0] for scan in engines)

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
        # Hyperscan misses the first at the end of a text, and the others before a line break that ends it.
        (r"\.\.\.?(?:\s|$)|\u2026|\u3002\u3002", "0" * 17 + ".."),
        *(
            (
                r'(?s:(?:\A|.{0,600}?\n)(?:q: "(.{1,4000}?)"[ ]{0,4}(?:\n[ ]{0,4}\n|\Z)|<q>(.{1,20000}?)</q))',
                f'q: "{n * "0"}"',
            )
            for n in (1, 16, 17, 20)
        ),
        (r"a.c", "a\u2028c"),
        (r"(?i:SIG)=", "Sig="),
        ("[\\u3040-\\u30ff]{2}", "ああ"),
        (r"(?P<one>x(?:y|z(?=\)))*?)\)", "xz)"),
    ],
)
def test_python_and_the_engines_differ_here(pattern: str, text: str) -> None:
    assert re.search(pattern, text)
    assert [scan(text.encode()) for scan in compile_engines(re.compile(pattern))] == [[0], [0]]


def test_hyperscan_finds_the_candidates_of_re2_in_every_text_of_the_samples() -> None:
    patterns = [*(rule.pattern for rule in RULES), *(secret.pattern for secret in SECRETS)]
    widened = [widen_pattern(pattern) for pattern in patterns]
    slow, fast = compile_re2(widened), compile_hyperscan(widened)
    assert fast is not None
    found = 0
    for line in (line for file in sorted(SAMPLE_SESSIONS.glob("*.jsonl")) for line in file.read_bytes().splitlines()):
        candidates = sorted(slow(line))
        assert sorted(fast(line)) == candidates, line
        found += len(candidates)
    assert found


def test_automata_of_hyperscan_come_from_the_cache_unless_they_are_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = compile_hyperscan(["(?m)fail"])
    (kept,) = (path for path in tmp_path.rglob("*") if path.is_file())
    whole = kept.read_bytes()
    for stored in (whole, whole[:-9], b"", whole[: len(whole) // 2] + bytes(len(whole) - len(whole) // 2)):
        kept.write_bytes(stored)
        again = compile_hyperscan(["(?m)fail"])
        assert first is not None
        assert again is not None
        assert first(b"1 failed") == again(b"1 failed") == [0]
        assert kept.read_bytes() == whole
    for _ in ("compiled", "read"):
        assert compile_hyperscan([r"(?m)(a)\1"]) is None, "it has no back references"


def test_several_patterns_are_found_in_one_pass() -> None:
    patterns = [re.compile(word) for word in ("fail", "pass", "skip")]
    assert Prefilter(patterns).candidates("1 skipped, 2 failed") == [0, 2]
    assert Prefilter(patterns).candidates("") == []


def test_a_group_within_a_lookahead_is_removed_with_it() -> None:
    assert widen_pattern(re.compile(r"a(?=(b|[)])c)d")) == "(?m)ad"

"""Small helpers that cut, escape, name and count: a case of each."""

import re

import pytest

from cards.lint import is_repo_id, lint_card
from cards.render import escape_cell, escape_title, fence_text, format_figure
from cards.view import show_overrides
from cards.view.rows import name_sessions
from pimono_sdpo.prefilter import Prefilter
from pimono_sdpo.shell import _unquote
from pimono_sdpo.stats import cluster_interval, wilson_interval
from pimono_sdpo.text import (
    TRIMMED,
    describe_size,
    replace_surrogates,
    shorten,
    shorten_around,
    shorten_at_paragraphs,
    shorten_line,
)
from pimono_sdpo.training.token_budget import neutralise, shorten_to_budget


def test_texts_are_cut() -> None:
    assert shorten("a" * 60 + "b" * 60, 60) == "a" * 20 + TRIMMED + "b" * 19
    around = shorten_around("a\n" * 100 + "here it is\n" + "b\n" * 100, 120, 200)
    assert around.split(TRIMMED)[1].startswith("here it is")
    assert shorten_line("npm test\nnpm run build", 14) == "npm test npm…"
    assert shorten_at_paragraphs("one two\n\n" + "b " * 40 + "\n\nlast words", 60) == f"one two{TRIMMED}last words"
    assert len(shorten_to_budget("a" * 100, 40, len) or "") == 40


def test_texts_are_made_harmless() -> None:
    assert replace_surrogates("a\ud800b") == "a\ufffdb"
    assert escape_cell("a|b\n`c`") == "a\\|b 'c'"
    assert escape_title("<b>x") == "&lt;b>x"
    assert fence_text("x").splitlines() == ["```text", "x", "```"]
    assert show_overrides("a\u202eb") == "a⟨U+202E⟩b"
    assert neutralise("see <eos>", ("<eos>",))[1] == 1
    assert [_unquote("a\\ b"), _unquote("D:\\a\\.b")] == ["a b", "D:\\a\\.b"]


def test_numbers_and_names_are_short() -> None:
    assert [describe_size(120), describe_size(2_340_000)] == ["1 kB", "2.3 MB"]
    assert [format_figure(66.666, ".1f"), format_figure(0.5, ".0%"), format_figure(None, ".1f")] == [
        "66.7",
        "50 %",
        "-",
    ]
    long = "a/b/0190f3a2-7e1c-7000-8000-00000000c0de.jsonl"
    assert name_sessions([long, "a/b/x.jsonl"]) == {long: "0190f3a2…0000c0de", "a/b/x.jsonl": "x"}


def test_cards_and_ids_are_checked() -> None:
    assert lint_card("---\nlicense: mit\n---\n# A card") == []
    assert lint_card("# A card") == ["The card has no YAML front matter; start it with `---`."]
    assert [is_repo_id(one) for one in ("google/gemma-4-12B-it", "/home/ann/model", "a--b/c")] == [True, False, False]


def test_intervals() -> None:
    found = tuple(cluster_interval([[0, 1], [1, 1], [0, 0], [1, 0]]))
    assert found == pytest.approx((0.5, 0.12, 0.88), abs=0.006)
    assert tuple(wilson_interval(18, 40)) == pytest.approx((0.45, 0.307, 0.602), abs=0.0005)


def test_only_patterns_that_may_match_are_candidates() -> None:
    assert Prefilter([re.compile("a(?=b)"), re.compile("c"), re.compile("x")]).candidates("cab") == [0, 1]


@pytest.mark.parametrize("limit", range(30, 90))
def test_shortening_never_leaves_half_a_placeholder(limit: int) -> None:
    text = "\n".join(f"key{n} = [REDACTED:service_key] and more" for n in range(9))
    for shortened in (
        shorten(text, limit),
        shorten_around(text, 3 * limit, 150),
        shorten_at_paragraphs(text, limit),
        shorten_line(text, limit),
    ):
        assert "REDACTED" not in shortened.replace("[REDACTED:service_key]", "")
        assert "service_key]" not in shortened.replace("[REDACTED:service_key]", "")

"""What follows for a file when a formatter, or an edit that was broken off, may have changed it."""

import pytest

from pimono_sdpo.replay.commands import may_match
from pimono_sdpo.replay.files import Edit, File

BEFORE, AFTER = "let x=1\nlet yy = 2\n", "let x = 1;\nlet yy = 2\n"
OLD, NEW, SAME = "let x=1", "let x = 1;", "let yy = 2"


def test_an_edit_that_worked_tells_which_of_both_it_is() -> None:
    file = File(BEFORE, otherwise=AFTER)
    file.apply([Edit(NEW, "let x = 9;")])
    assert (file.whole, file.otherwise) == (AFTER.replace("1", "9"), None)
    file = File(BEFORE, otherwise=AFTER)
    file.apply([Edit(SAME, "q")])
    assert (file.whole, file.otherwise) == (BEFORE.replace(SAME, "q"), AFTER.replace(SAME, "q"))
    # Formatted once more, all that differs is in doubt.
    file.format()
    assert [file.predict([Edit(text, "z")]) for text in (OLD, NEW, "let z")] == [None, None, None]


def test_an_edit_that_was_broken_off_was_made_or_not() -> None:
    file = File(BEFORE)
    file.lose([Edit(OLD, "let x = 7")])
    assert [file.predict([Edit(text, "z")]) for text in (OLD, "let x = 7", SAME)] == [
        None,
        None,
        "ok",
    ]
    # It would not have worked, so that nothing has changed.
    file = File(BEFORE)
    file.lose([Edit("no such text", "z")])
    assert file.sure == BEFORE
    file = File(pieces=[BEFORE])
    file.lose([Edit(OLD, "z")])
    assert file.is_stale


@pytest.mark.parametrize(
    ("pattern", "path", "may"),
    [
        ("*.ts", "/w/src/a.ts", True),
        ("core/*.ts", "/w/src/core/a.ts", True),
        ("core/*.ts", "/w/src/cli/a.ts", False),
        ("theme/*", "/w/src/theme/dark/a.json", True),
        ("../a?.ts", "/w/ab.ts", True),
        ("/w/out-*.html", "/w/src/a.ts", False),
        ("$DIR/x", "/w/src/a.ts", True),
        ("{a,b}.md", "/w/src/a.ts", True),
        ("src/**/*.md", "/w/src/a.ts", True),
        ("*", "/w/src/a.ts", True),
    ],
)
def test_a_pattern_is_taken_for_what_it_may_match(pattern: str, path: str, may: bool) -> None:
    assert may_match(pattern, path) is may

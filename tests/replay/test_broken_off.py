"""What follows for a file when an edit that was broken off may have changed it."""

from pimono_sdpo.replay.files import Edit, File

BEFORE = "let x=1\nlet yy = 2\n"
OLD = "let x=1"


def test_an_edit_that_was_broken_off_may_have_been_made() -> None:
    for file in (File(BEFORE), File(pieces=[BEFORE])):
        file.lose([Edit(OLD, "let x = 7")])
        assert not file.is_known
    # It would not have worked, so that nothing has changed.
    file = File(BEFORE)
    file.lose([Edit("no such text", "z")])
    assert file.whole == BEFORE

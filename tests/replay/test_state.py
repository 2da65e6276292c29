from pimono_sdpo.replay.files import Edit
from pimono_sdpo.replay.workspace import Workspace, load_workspace
from tests.predictions import dump_workspace


def test_what_is_known_survives_json() -> None:
    workspace = Workspace("/w")
    workspace.file("a.ts").see("one\ntwo", is_whole=True)
    workspace.file("b.ts").see("three and a few more words", is_whole=False)
    workspace.file("/x/c.ts").see("one\nand two", is_whole=True)
    workspace.file("/x/c.ts").mark_stale()
    back = load_workspace(dump_workspace(workspace))
    assert dump_workspace(back) == dump_workspace(workspace)
    assert back.file("a.ts").predict([Edit("two", "2")]) == "ok"
    assert back.file("b.ts").predict([Edit("two", "2")]) is None
    # A stale file decides nothing.
    assert back.file("/x/c.ts").predict([Edit("gone", "2")]) is None
    assert back.file("/x/c.ts").predict([Edit("one\nand two", "2")]) is None

"""What follows for a file when a formatter, or an edit that was broken off, may have changed it."""

from collections.abc import Mapping
from typing import NamedTuple

import pytest

from pimono_sdpo.replay.commands import may_match
from pimono_sdpo.replay.files import Edit, File
from pimono_sdpo.replay.formatters import Reformatted
from pimono_sdpo.replay.scripts import scripts_in, steps_of
from pimono_sdpo.replay.workspace import Workspace
from pimono_sdpo.traces.events import Event

CWD = "/home/ann/app"
BEFORE, AFTER = "let x=1\nlet yy = 2\n", "let x = 1;\nlet yy = 2\n"
OLD, NEW, SAME = "let x=1", "let x = 1;", "let yy = 2"


class Semicolons(NamedTuple):
    """Formats as AFTER is formatted, and says of its run what it was given."""

    has_run: bool | None = None
    fixed: int | None = None

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset({"ts"})

    def __call__(
        self, texts: Mapping[str, str], command: str, output: str, cwd: str
    ) -> Reformatted:
        changed = {name: AFTER for name, text in texts.items() if text == BEFORE}
        return Reformatted(changed, self.has_run, self.fixed)


def known(output: str, reformat: Semicolons, command: str = "npm run check") -> Workspace:
    workspace = Workspace(CWD, reformat=reformat)
    workspace.file("a.ts").write(BEFORE)
    workspace.file("part.ts").see("let part = 3\nlet other = 4", is_whole=False)
    workspace.file("part.ts").apply([Edit("let part = 3", "let part=5")])
    workspace.file("notes.md").write("* a\n* b\n")
    workspace.ran(command, Event(1, "tool_result", output))
    return workspace


def outcomes(workspace: Workspace, name: str, *texts: str) -> list[str | None]:
    return [workspace.file(name).predict([Edit(text, "q")]) for text in texts]


def test_a_formatter_that_has_run_is_followed() -> None:
    told = "Checked 9 files in 3ms. Fixed 1 file."
    workspace = known(told, Semicolons())
    assert outcomes(workspace, "a.ts", OLD, NEW, SAME) == ["not_found", "ok", "ok"]
    # The one file it says it has fixed is found, so that it left the others alone.
    assert outcomes(workspace, "part.ts", "let part=5\nlet other = 4") == ["ok"]
    assert outcomes(workspace, "notes.md", "* a\n") == ["ok"]


def test_more_files_fixed_than_known_leave_the_rest_in_doubt() -> None:
    workspace = known("Checked 9 files in 3ms. Fixed 2 files.", Semicolons())
    assert outcomes(workspace, "a.ts", OLD, NEW) == ["not_found", "ok"]
    assert outcomes(workspace, "part.ts", "let part=5\nlet other = 4") == [None]


@pytest.mark.parametrize("told", ["Checked 9 files in 3ms. No fixes applied.", ""])
def test_what_was_said_is_believed(told: str) -> None:
    workspace = known(told, Semicolons(), "npm run check")
    assert outcomes(workspace, "a.ts", OLD, NEW) == ["ok", "not_found"]


def test_where_nobody_knows_whether_it_ran_both_have_to_agree() -> None:
    cut = "npm run check 2>&1 | grep error"
    workspace = known("", Semicolons(), cut)
    assert outcomes(workspace, "a.ts", OLD, NEW, SAME, "no such text") == [
        None,
        None,
        "ok",
        "not_found",
    ]
    assert outcomes(workspace, "notes.md", "* a\n") == ["ok"]
    # What is read next tells which of both it is.
    workspace.file("a.ts").see(NEW, is_whole=False)
    assert outcomes(workspace, "a.ts", OLD, NEW) == ["not_found", "ok"]
    assert outcomes(known("", Semicolons(has_run=True), cut), "a.ts", OLD, NEW) == [
        "not_found",
        "ok",
    ]
    assert outcomes(known("", Semicolons(has_run=False), cut), "a.ts", OLD, NEW) == [
        "ok",
        "not_found",
    ]
    fixed = known("", Semicolons(has_run=True, fixed=1), cut)
    assert outcomes(fixed, "part.ts", "let part=5\nlet other = 4") == ["ok"]


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


PACKAGES = {
    "package.json": '{"scripts": {"check": "biome check --write . && npm run types", "types": "tsc"}}',
    "web/package.json": '{"scripts": {"check": "tsc", "precheck": "gen", "bad": 3}}',
    "broken/package.json": "{",
}


@pytest.mark.parametrize(
    ("command", "programs"),
    [
        ("npm run check 2>&1 | head -3", ["biome", "tsc", "head"]),
        (f"cd {CWD} && npm run check", ["biome", "tsc"]),
        ("cd web && npm run check", ["gen", "tsc"]),
        ("cd web && cd .. && pnpm run types", ["tsc"]),
        ("npm run check -ws", ["npm"]),
        ("git status", ["git"]),
        ("npm run unknown", None),
        ("cd broken && npm run check", None),
        ("cd /elsewhere && npm run check", None),
        ("cd $DIR && npm run check", None),
    ],
)
def test_scripts_take_their_place(command: str, programs: list[str] | None) -> None:
    steps = steps_of(command, scripts_in(PACKAGES), CWD)
    found = None if steps is None else [step.stage.program for step in steps]
    assert found == programs


def test_a_script_that_calls_itself_ends() -> None:
    assert steps_of("npm run a", {"": {"a": "npm run a"}}, CWD) is None


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

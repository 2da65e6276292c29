"""Recorded commands, repeated on what a session knows of its files."""

import pytest

from pimono_sdpo.replay.workspace import Workspace
from pimono_sdpo.traces.events import Event
from rewards.verifiers.recorded import recorded
from rewards.verifiers.rerun import rerun

CWD = "/home/ann/app"


def ran(command: str, output: str = "(no output)", error: bool = False) -> Workspace:
    workspace = Workspace(CWD, rerun=rerun)
    workspace.file("a.ts").see("let x = 1\nlet y = x\n", is_whole=True)
    workspace.file("src/b.ts").see_lines("let x = 1\nlet z = x\nend", 40, is_end=False)
    workspace.file("c.ts").see("let x\n", is_whole=True)
    workspace.file("c.ts").is_stale = True
    workspace.ran(command, Event(1, "tool_result", output, is_error=error))
    return workspace


@pytest.mark.parametrize(
    ("command", "output", "whole", "pieces"),
    [
        ("sed -i 's/let x/let q/' a.ts", "", "let q = 1\nlet y = x\n", "let x = 1\nlet z = x\nend"),
        ("sed -i '' 's/let x/let q/' a.ts", "", "let q = 1\nlet y = x\n", "let x = 1\nlet z = x\nend"),
        ("sed -i s/x/q/g a.ts src/b.ts", "", "let q = 1\nlet y = q\n", "let q = 1\nlet z = q\nend"),
        (f"cd {CWD}/src && sed -i s/x/q/g b.ts unseen.ts", "", "let x = 1\nlet y = x\n", "let q = 1\nlet z = q\nend"),
        ("perl -pi -e 's/x/q/g' a.ts", "", "let q = 1\nlet y = q\n", "let x = 1\nlet z = x\nend"),
        ("echo 'last' >> a.ts", "", "let x = 1\nlet y = x\nlast\n", "let x = 1\nlet z = x\nend"),
        ("cat > a.ts <<'EOF'\nnew $x\nEOF", "", "new $x\n", "let x = 1\nlet z = x\nend"),
        ("python3 - <<'EOF'\nt = open('a.ts').read()\nopen('a.ts', 'w').write(t.upper())\nprint('ok')\nEOF", "ok", "LET X = 1\nLET Y = X\n", "let x = 1\nlet z = x\nend"),
        ("sed -i s/x/q/g a.ts && npm run build", "built", "let q = 1\nlet y = q\n", "let x = 1\nlet z = x\nend"),
    ],
)  # fmt: skip
def test_a_command_is_repeated(command: str, output: str, whole: str, pieces: str) -> None:
    workspace = ran(command, output)
    assert not workspace.file("a.ts").is_stale
    assert workspace.file("a.ts").whole == whole
    assert workspace.file("src/b.ts").pieces == [pieces]
    assert workspace.file("c.ts").is_stale


def test_files_are_moved_also_in_parts() -> None:
    workspace = ran("mkdir -p lib && mv a.ts lib/ && mv src/b.ts lib/d.ts")
    assert workspace.file("lib/a.ts").whole == "let x = 1\nlet y = x\n"
    assert workspace.file("lib/d.ts").pieces == ["let x = 1\nlet z = x\nend"]
    assert f"{CWD}/a.ts" not in workspace.files


@pytest.mark.parametrize(
    ("command", "output", "error"),
    [
        # It printed something else.
        ("python3 - <<'EOF'\nopen('a.ts', 'w').write('q')\nprint('two')\nEOF", "three", False),
        # It failed, or would have.
        ("sed -i s/x/q/ a.ts", "sed: no", True),
        ("sed -i 's/(/q/;s/\\(/q' a.ts", "", False),
        # It may look at what nobody has seen.
        ("python3 - <<'EOF'\nimport glob\nfor f in glob.glob('*'): open(f, 'w')\nEOF", "", False),
        ("python3 - <<'EOF'\nopen('a.ts', 'w').write(open('unseen').read())\nEOF", "", False),
        ("if [ -f unseen ]; then sed -i s/x/q/ a.ts; fi", "", False),
        ("cat unseen.ts > a.ts", "", False),
        ("cat /etc/hostname > a.ts", "", False),
        # macOS's expressions are others.
        ("sed -i '' 's/x\\+/q/' a.ts", "", False),
        # No sandbox has a network.
        ("curl -s https://example.org/a -o a.ts", "", False),
        ("npx prettier --write a.ts", "a.ts 20ms", False),
    ],
)
def test_what_cannot_be_repeated_makes_stale(command: str, output: str, error: bool) -> None:
    assert ran(command, output, error).file("a.ts").is_stale


def test_what_comes_behind_is_not_run() -> None:
    again = recorded("sed -i s/x/q/ a.ts && npm test", CWD)
    assert again is not None
    assert again.rest == "npm test"
    assert recorded("npm test && sed -i s/x/q/ a.ts", CWD) is None

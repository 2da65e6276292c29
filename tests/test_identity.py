"""The names of who recorded a session do not reach rows or rejects."""

import json
from pathlib import Path

import pytest

from pimono_sdpo.cli import steps
from pimono_sdpo.cli.view import render_view
from pimono_sdpo.filtering import FilterOptions, run_filter, write_recoveries
from pimono_sdpo.traces.sources import open_source
from processors.identity import find_identity, redact_identity
from tests.test_view import view_of
from tests.traces import HEADER, assistant, bash, call, result, trace, user


@pytest.mark.parametrize(
    ("shown", "user", "names"),
    [
        (r"core.bare=false\nuser.name=Zoë Álvarez\nuser.email=z@x.org", "", {"Zoë Álvarez", "Álvarez"}),
        (r"git config user.name \"Jörg Odermatt\"", "", {"Jörg Odermatt", "Jörg", "Odermatt"}),
        ("Author: Jo Odermatt <jo@x.org>", "jodermatt", {"Jo Odermatt", "Odermatt", "jodermatt"}),
        ("Author: Somebody Else <else@x.org>", "jodermatt", {"jodermatt"}),
        (r"[jod@tower app]$ ls\njod@tower:~/app$ jod@mail.example.org", "jod", {"jod", "tower"}),
        (r"root@9f8e7d:/# git clone git@github.com:a/b", "", {"9f8e7d"}),
        (r"uname -a\nLinux kronos 6.1.0-18-amd64 #1 SMP", "", {"kronos"}),
        (r"uname -a\nDarwin Zoes-Mini.local 23.1.0 Darwin Kernel", "", {"Zoes-Mini"}),
        (r"fatal: unable to auto-detect email address (got 'Zoes@RON-S003.(none)')\n", "", {"Zoes", "RON-S003"}),
        ("/Users/zalvarez/.ssh and /home/runner/work", "", {"zalvarez"}),
        (r"src/pages/Users/index.js app/home/page.tsx\n/home/zoe.a/x", "", {"zoe.a"}),
        ("app/home/page.tsx in /mnt/c/Users/zalvarez", "", {"zalvarez"}),
        (r"core.bare=false\nuser.name=Test User\n", "test", set()),
        (r"core.bare=false\nuser.name=Claude Code\n", "test", set()),
        (
            r"core.bare=false\nuser.name=Skill Odermatt\n write a skill, list the skills; this skill is new",
            "",
            {"Skill Odermatt", "Odermatt"},
        ),
        ('git config user.name \\"Your Name\\"', "test", set()),
        (r"if (user.name=== \"Peter\" || user.name=other) { }\nx.user.name=Rudolf\n", "", set()),
        ("Author: --- <a@b.org>", "jodermatt", {"jodermatt"}),
        ("node@localhost:~$ /home/node/app Author: Node <node@x.org>", "node", set()),
        (r"uname -a\nLinux version 5.10.0 #1", "ubuntu", set()),
        ("", "dev", set()),
        (r"cd /home/riskbot\npm2 start riskbot.js\n0|riskbot | up", "riskbot", {"riskbot"}),
        ("/home/jod/users/jod.json jod.smith jod.github.io", "jod", {"jod"}),
    ],
)
def test_names_are_found_where_something_says_whose_they_are(shown: str, user: str, names: set[str]) -> None:
    found = find_identity(shown, user)
    assert {one.partition("=")[2] for one in found} == names
    escaped = json.dumps(shown)[1:-1].replace("\\\\", "\\").replace('\\\\"', '\\"')
    if not shown.isascii():
        assert find_identity(escaped.encode(), user) == found


def test_git_and_uname_count_only_where_a_command_asked_them() -> None:
    shown = r"user.name=\"Jo\" \nuser.name=Rudolf\n Linux kronos 6.1.0-18-amd64 #1 SMP uname"
    assert find_identity(shown, "", commands=["cat notes.txt"]) == []
    asked = find_identity(shown, "", commands=["uname -a", "git -C app config -l"])
    assert asked == ["$HOST=kronos", "$USER=Rudolf"]


def test_only_whole_names_are_replaced() -> None:
    names = ["$USER=Jo Odermatt", "$USER=jod", "$HOST=tower"]
    text = "Jo Odermatt (Jod, @jod, jod_x) on tower: a job, the towers, jodel"
    cleaned, kinds = redact_identity(text, names)
    assert cleaned == "$USER ($USER, @$USER, $USER_x) on $HOST: a job, the towers, jodel"
    assert kinds == ["user_name"] * 4 + ["host_name"]
    assert redact_identity(cleaned, names) == (cleaned, [])


def write_session(folder: Path) -> None:
    log = "AssertionError: expected 1\nAuthor: Jo Odermatt <jo@x.org>\njodermatt@tower:~/app$"
    session = trace(
        {**HEADER, "cwd": "/home/jodermatt/app"},
        user("Fix the failing parser of Odermatt on tower, says jodermatt."),
        *bash("npm test # for jodermatt", log, error=True),
    )
    folder.mkdir()
    (folder / "one.jsonl").write_text(session)


def everything_in(out: Path) -> str:
    import pyarrow.parquet as pq

    tables = [pq.read_table(path).to_pylist() for path in sorted(out.rglob("*.parquet"))]
    return json.dumps(tables) + (out / "report.json").read_text() + (out / "README.md").read_text()


def test_rows_report_and_card_name_neither_user_nor_host(tmp_path: Path) -> None:
    write_session(tmp_path / "traces")
    report = run_filter(str(tmp_path / "traces"), tmp_path / "rows", FilterOptions(min_worth=0))
    text = everything_in(tmp_path / "rows")
    assert "parser of $USER on $HOST, says $USER." in text
    assert not any(name in text for name in ("dermatt", "tower"))
    assert report["secrets_redacted"]["user_name"] >= 2
    kept = tmp_path / "kept"
    run_filter(str(tmp_path / "traces"), kept, FilterOptions(keep_identity=True, min_worth=0))
    assert "parser of Odermatt on tower, says jodermatt." in everything_in(kept)


def test_steps_recoveries_and_the_page_name_neither_user_nor_host(tmp_path: Path) -> None:
    log = "AssertionError: expected 1\nAuthor: Jo Odermatt <jo@x.org>\njodermatt@tower:~/app$"
    call_1 = call("edit", "c1", path="a.ts", oldText="Odermatt", newText="x")
    call_2 = call("edit", "c2", path="a.ts", oldText="tower", newText="x")
    session = trace(
        {**HEADER, "cwd": "/home/jodermatt/app"},
        user("Fix the failing parser of Odermatt on tower."),
        call_1,
        result("edit", f"not found\n{log}", error=True, call_id="c1"),
        call_2,
        result("edit", "Edited a.ts", call_id="c2"),
        *bash("npm test # for jodermatt", log, error=True),
        assistant("The parser of Odermatt is fixed."),
    )
    source = tmp_path / "traces"
    source.mkdir()
    (source / "one.jsonl").write_text(session)
    for keep in (False, True):
        of_steps, of_recoveries = tmp_path / f"steps-{keep}", tmp_path / f"recoveries-{keep}"
        steps.write_steps(steps.StepOptions(source=[str(source)], out=of_steps, keep_identity=keep))
        write_recoveries(str(source), of_recoveries, FilterOptions(unit="recovery", keep_identity=keep))
        for out in (of_steps, of_recoveries):
            text = everything_in(out)
            assert ("dermatt" in text, "tower" in text) == (keep, keep)
    for keep in (False, True):
        rows = tmp_path / f"rows-{keep}"
        run_filter(str(source), rows, FilterOptions(keep_identity=keep, min_worth=0))
        page = json.dumps(view_of(render_view(rows, [], 10)))
        assert "were found and read again" in page
        assert ("dermatt" in page, "tower" in page) == (keep, keep)


@pytest.mark.parametrize("keep", [False, True])
def test_a_secret_that_the_user_states_is_taken_out_of_all_requests(tmp_path: Path, keep: bool) -> None:
    key = "FCcefW9iatHvYyp3XgSYVM1VhdmZMawjQ49Mzp97WPBF"
    change = call("edit", "c1", path="a.py", oldText="YOUR_KEY", newText=key)
    session = trace(
        {**HEADER, "cwd": "/home/jodermatt/app"},
        user(f"Write a client for the broker.\n\nsecret key\n\n{key}"),
        assistant("Done."),
        user("Now put that into the file a.py and run the tests of the client."),
        change,
        result(
            "edit", f"Could not find YOUR_KEY, to be replaced with {key[:17]}\r\n{key[17:]}", error=True, call_id="c1"
        ),
        *bash("npm test", f"AssertionError: expected {key}\n1 failed", error=True),
    )
    source = tmp_path / "one.jsonl"
    source.write_text(session)
    run_filter(str(source), tmp_path / "rows", FilterOptions(min_worth=0, keep_identity=keep))
    steps.write_steps(steps.StepOptions(source=[str(source)], out=tmp_path / "steps", keep_identity=keep))
    for out in ("rows", "steps"):
        text = everything_in(tmp_path / out)
        assert "AssertionError: expected [REDACTED:known_secret]" in text
        assert not any(part in text for part in (key[:17], key[17:]))


def test_names_of_this_machine_are_replaced_in_ones_own_sessions(tmp_path: Path) -> None:
    from dataclasses import replace

    write_session(tmp_path / "traces")
    source = replace(open_source(str(tmp_path / "traces")), recorder=("$USER=parser",))
    run_filter(source, tmp_path / "rows", FilterOptions(min_worth=0))
    assert "failing $USER of $USER on" in everything_in(tmp_path / "rows")

"""What tools report of their calls, and what became of a failure."""

import json
from typing import Any

import pytest

from pimono_sdpo.schema import Finding
from pimono_sdpo.traces.parse import read_trace
from processors.context import write_context
from processors.diagnostics import find_failures
from processors.evidence import gather_evidence
from processors.grade import grade
from processors.redact import redact
from processors.rows import write_verifier_spec
from processors.status import decode_status
from tests.traces import HEADER, Entry, assistant, bash, call, result, trace, user

ASKED = user("Fix the parser, it drops the last line of every file")


def rows(*entries: Entry, unit: Any = "episode") -> list[dict[str, Any]]:
    session = {"trace": trace(HEADER, *entries).encode(), "session_id": "", "source": ""}
    return gather_evidence({**session, "bytes_not_utf8": 0}, unit, 0)


def only(*entries: Entry) -> Finding:
    ((finding,),) = ([*row["findings"]] for row in rows(ASKED, *entries))
    found: Finding = finding
    return found


def exited(output: str, code: int = 1) -> str:
    return f"{output}\n\nCommand exited with code {code}"


@pytest.mark.parametrize(
    ("tool", "text", "code"),
    [
        ("bg_output", "job 3: exit=1", 1),
        ("process", "building\n\nProcess exited with code 2.", 2),
        ("run_tests", '{"exit_code": 101, "stdout": ""}', 101),
        ("run_tests", '{"output": "", "metadata": {"exit_code": 3}}', 3),
        ("TaskOutput", "<status>failed</status>\n<exit_code>1</exit_code>", 1),
        ("job_status", "job 3\nstatus: crashed", None),
        ("mcp__db__query", "MCP error -32602: invalid", None),
        ("mcp__db__query", '{"error": "relation missing", "rows": []}', None),
        ("browser", '{"status": "error", "tool": "browser", "error": "tab not found"}', None),
        ("deploy", '{"success": false}', None),
        ("js", '[{"type": "text", "text": "Timed out running CDP command"}]', None),
        ("read", '{"status": "error", "tool": "read", "error": "ENOENT: gone"}', None),
        ("edit", "EPERM: operation not permitted, open 'a.ts'", None),
        ("browser_evaluate", "Evaluation failed: SecurityError", None),
        ("process", "No active session found for keen-zephyr", None),
        ("process", "No session found for tide-dune", None),
        ("process", "sessionId is required for this action.", None),
        ("browser_fill_form", "browser_fill_form failed: fields is not iterable", None),
        ("validate_flow", '{"success": true, "data": {"valid": false, "errors": []}}', None),
        ("call_hook", '{"success": true, "data": {"status": 404, "data": {}}}', None),
        ("request_user_input", "request_user_input is unavailable in Code mode", None),
        ("WebSearch", "There's an issue with the selected model (a/b). It may not exist", None),
        ("WebSearch", 'Web search results for query: "x"\n\nThere\'s an issue with the selected model (a/b).', None),
        ("edit", "Replaced 1 block.\n\nSTOP - 3 issue(s) must be fixed:\n  L24: role", None),
    ],
)
def test_unmarked_results_that_report_a_failure(tool: str, text: str, code: int | None) -> None:
    status = decode_status(tool, text)
    assert (status.failed, status.exit_code) == (True, code)


@pytest.mark.parametrize(
    ("tool", "text"),
    [
        ("bg_output", "job 3: exit=0"),
        ("process", "the script has to exit with code 1 when nothing was found there, says the doc"),
        ("exec", "Compiling insta v0.11.0-rc.6"),
        ("exec", "a.sh:9: test -f x || exit 1\n+  exit 1\nexit 1\n@@ -1 +1 @@ exit 1"),
        ("call_hook", '{"success": true, "data": {"status": 200, "valid": true}}'),
        ("get_docs", "### Error Handling: Catching exceptions"),
        ("get_docs", "The bar is unavailable in compact mode, see the table of modes"),
        ("get_docs", "How to retry\n" + "words " * 100 + "\nstatus: failed"),
        ("read", "Error: x\n" * 400),
        ("read", '{"error": "a fixture", "status": "error"}'),
        ("list_jobs", '{"jobs": [{"status": "failed"}], "error": null}'),
        ("list_jobs", '[{"type": ["text"], "text": "done"}, {"type": {}}]'),
        ("edit", "Replaced 1 block.\n\nAuto-fixed 1 issue(s) (biome:1)"),
        ("edit", "Edited a.md:\n  12\t3 errors found:\n  13\tnone"),
    ],
)
def test_unmarked_results_that_report_none(tool: str, text: str) -> None:
    assert not decode_status(tool, text).failed


@pytest.mark.parametrize(
    ("output", "kinds"),
    [
        ("collected 300 items / 1 error\nERROR tests/test_bits.py\n=== 1 error in 0.42s ===", ["failure"]),
        ("300 passed in 2.10s", []),
    ],
)
def test_a_job_that_has_ended_may_have_failed(output: str, kinds: list[str]) -> None:
    job = f"### bg_3b8b \u2014 pytest full suite (completed, 2.5s)\n\n{output}"
    (row,) = rows(ASKED, call("await_job", jobs=["bg_3b8b"]), result("await_job", job))
    assert [item["kind"] for item in row["findings"]] == kinds


def test_a_shell_by_another_name_is_a_shell() -> None:
    found = [
        *[call("exec", command="npm test | tail -2"), result("exec", "Tests  1 failed")],
        *[call("exec", command="grep x a"), result("exec", "", details={"exitCode": 1})],
        *[call("exec", command="make"), result("exec", "no rule", details={"exitCode": 2})],
    ]
    failures = find_failures(read_trace(trace(ASKED, *found)).events)
    assert [(item["status"], item["target"]) for item in failures] == [
        ("text", "npm test | tail -2"),
        ("exit_code", "make"),
    ]


def test_a_failure_says_what_followed_and_what_resolved_it() -> None:
    item = only(
        *bash("npm test", exited("Tests  1 failed"), error=True),
        *[call("read", path="src/a.ts"), result("read", "let a = 1")],
        *[call("edit", path="src/a.ts"), result("edit", "done")],
        *bash("npm test", "Tests  3 passed"),
    )
    assert (item["tool"], item["target"], item["status"]) == ("bash", "npm test", "exit_code")
    assert item["next"] == "read src/a.ts"
    assert item["resolved_by"] == "edit src/a.ts"
    assert item["resolved_at"] is not None
    assert item["excuse"] == ""


def test_what_fails_again_or_is_dropped_is_not_resolved() -> None:
    failing = bash("npm test", exited("Tests  1 failed"), error=True)
    row = rows(ASKED, *failing, *failing, assistant("I leave it at that."))[0]
    assert [item["resolved_at"] for item in row["findings"]] == [None, None]
    assert row["findings"][-1]["next"] == "I leave it at that."


SCRIPT = "python - <<'PY'\nfrom pathlib import Path\ntext = Path('plan.md').read_text()\nprint(text[:400])\nPY"
LISTING = (
    "python - <<'PY'\nimport os\nfor name in sorted(os.listdir('src')):\n    print(name, os.stat(name).st_size)\nPY"
)


@pytest.mark.parametrize(
    ("failing", "output", "working", "is_resolved"),
    [
        ('rg -il "timeout" src/server', "bash: rg: command not found", 'grep -ril "timeout" src/server', True),
        ("shellcheck a.sh", "shellcheck: command not found", "apt-get install -y shellcheck", True),
        ("shellcheck a.sh", "shellcheck: command not found", "cat a.sh.txt", False),
        ("python fit.py", "ModuleNotFoundError: No module named 'pandas'", ".venv/bin/python3 fit.py", True),
        ("python fit.py", "ModuleNotFoundError: No module named 'pandas'", "python --version", False),
        ("git push", "fatal: the remote end hung up", "git push && npm publish", True),
        ("git push", "fatal: the remote end hung up", "git push origin", True),
        ("npm run dev", "EADDRINUSE: the port is taken", "npm run build", False),
        ("npm run lint", "2 errors found", "npm run lint:fix", True),
        ("npx --yes tsc --pretty false", "a.ts(1,2): error TS2322: no", "npx tsc --noEmit", True),
        ("shop gateway restart", "no such service is known", "shop gateway status", False),
        (SCRIPT, "UnicodeDecodeError: byte 0x96", SCRIPT.replace("_text()", "_text('latin-1')"), True),
        (SCRIPT, "UnicodeDecodeError: byte 0x96", LISTING, False),
        ("npm test", "Tests  1 failed", "npm run lint", False),
        ("gog sheets add a", "unexpected argument add", "gog sheets --help", False),
        ("npm install left", "E404", "npm help install", False),
    ],
)  # fmt: skip
def test_a_failure_is_resolved_by_what_does_the_same_or_has_what_was_missing(
    failing: str, output: str, working: str, is_resolved: bool
) -> None:
    item = only(*bash(failing, exited(output), error=True), *bash(working, "fine"))
    assert item["resolved_by"] == (f"bash {working}" if is_resolved else "")
    assert item["next"] == f"bash {working}"


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (["src/a.ts", "tailwind.config.ts"], "edit src/a.ts"),
        (["src/b.ts"], "edit src/b.ts"),
        (["src/b.ts", "src/c.ts"], "bash npm test"),
        (["src/a.ts", "lib/a.ts"], "edit src/a.ts"),
        (["*** Begin Patch\n*** Update File: src/b.ts\n*** Update File: src/a.ts\n", "src/c.ts"], "edit *** Begin"),
    ],
)
def test_what_resolved_a_failure_is_named_only_if_the_records_show_it(changed: list[str], named: str) -> None:
    edits = [entry for path in changed for entry in (call("edit", path=path), result("edit", "done"))]
    failing = bash("npm test", exited("src/a.ts:3 Tests  1 failed"), error=True)
    item = only(*failing, *edits, *bash("ls", "a"), *bash("npm test", "Tests  3 passed"))
    assert item["resolved_by"].startswith(named)


@pytest.mark.parametrize(
    ("failing", "working", "is_resolved"),
    [
        ({"action": "open", "targetUrl": "https://a.org/x"}, {"action": "status"}, False),
        ({"action": "open", "targetUrl": "https://a.org/x"}, {"action": "open", "targetUrl": "https://a.org/"}, False),
        ({"action": "click", "ref": "e39"}, {"action": "act", "request": {"kind": "click", "ref": "e39"}}, True),
        ({"action": "send", "message": "a"}, {"action": "send", "to": "me", "message": "a"}, True),
    ],
)
def test_a_tool_of_many_actions_is_resolved_by_the_same_action(
    failing: dict[str, Any], working: dict[str, Any], is_resolved: bool
) -> None:
    found = [call("browser", **failing), result("browser", "Error: timed out on it", error=True)]
    item = only(*found, call("browser", **working), result("browser", "fine"))
    assert (item["resolved_at"] is not None) is is_resolved


def test_a_correction_belongs_to_the_request_whose_file_is_changed_again() -> None:
    change = [call("edit", path="src/parse.ts"), result("edit", "done")]
    asked = user("Which colour has the title of the page now?")
    wrong = user("No, that is wrong: the last line is still missing, repair it")
    look = [*bash("cat title", "blue"), assistant("It is blue.")]
    first, second, *_ = rows(ASKED, *change, assistant("Done."), asked, *look, wrong, *change)
    assert [item["kind"] for item in first["findings"]] == ["correction"]
    assert second["findings"] == []
    elsewhere = [call("edit", path="src/title.ts"), result("edit", "done")]
    first, second, *_ = rows(ASKED, *change, assistant("Done."), asked, *look, wrong, *elsewhere)
    assert [len(row["findings"]) for row in (first, second)] == [0, 1]


def test_what_only_looked_resolved_nothing() -> None:
    failing = bash("make", exited("make: *** [all] Error 2", 2), error=True)
    assert only(*failing, *bash("ls", "a"), *bash("make", "built"))["resolved_by"] == "bash make"
    assert only(*failing, *bash("./configure", "ok"), *bash("make", "built"))["resolved_by"] == "bash ./configure"


TOKEN = "123456789:" + "AAF" + "x9Kd0" * 6 + "qT"


@pytest.mark.parametrize("before", range(120, 205, 12))
def test_no_part_of_a_secret_is_left_where_a_call_is_cut(before: int) -> None:
    sent = f"curl {'-v ' * (before // 3)}https://api.telegram.org/bot{TOKEN}/sendMessage"
    row, *_ = rows(
        ASKED,
        *bash("npm test", exited("Tests  1 failed"), error=True),
        *bash(sent, "ok"),
        *bash("npm test", "Tests  3 passed"),
        *[call("send", text="x " * 990 + sent), result("send", "Error: no", error=True)],
        *bash(sent, exited("curl: (7) Failed to connect", 7), error=True),
        assistant(f"I used {'y ' * (before // 2)}{TOKEN} for it."),
        user(f"No, that's wrong, {'never ' * (before // 30)}use the token {TOKEN}, undo it"),
    )
    row |= redact(row)
    assert {item["kind"] for item in row["findings"]} == {"failure", "correction"}
    written = [write_context(row), write_verifier_spec(row), grade(row)]
    kept = json.dumps([*written, row["findings"]])
    assert "[REDACTED" in kept
    assert TOKEN[:6] not in kept
    assert TOKEN[11:17] not in kept


MISSING = [call("read", path="a.md"), result("read", "ENOENT: no such file, 'a.md'", error=True)]
READ = [call("read", path="docs/a.md"), result("read", "text")]
OUTAGE = [call("fetch", url="u"), result("fetch", "Fetch failed (503)", error=True)]
REFUSED = bash("cat .env", "Blocked: command references a protected file", error=True)
NO_TOOL = "Error: No such tool available: WebGet"
NOT_GRANTED = "Claude requested permissions to write to /a, but you haven't granted it yet."
RED = [
    *[call("write", path="tests/test_a.py"), result("write", "done")],
    assistant("Now I watch it fail:"),
    *bash("pytest", exited("1 failed"), error=True),
]


PATCH = "apply_patch <<'E'\n*** Begin Patch\n*** Update File: a.ts\n@@\n-old\n+new\n*** End Patch\nE"
MISQUOTED = bash(PATCH, "apply_patch verification failed: Failed to find expected lines in a.ts", error=True)


@pytest.mark.parametrize(
    ("entries", "excuse"),
    [
        ([*MISQUOTED, *bash(PATCH.replace("old", "odd"), "Success")], "slip"),
        ([*MISSING, *READ], "slip"),
        (bash("cd app && bun lint", "(eval):cd:1: no such file or directory: app", error=True), "slip"),
        (
            bash("uvx a", "Traceback\nValueError: A_API_KEY environment variable is required", error=True),
            "not_granted",
        ),
        (bash("cat a.md", exited("cat: a.md: No such file or directory"), error=True), "slip"),
        (REFUSED, "slip"),
        ([call("WebGet"), result("WebGet", NO_TOOL, error=True), *bash("ls", "a")], "slip"),
        ([call("write", path="a"), result("write", NOT_GRANTED, error=True)], "not_granted"),
        (OUTAGE, "outside"),
        ([call("search"), result("search", "missing_brave_api_key", error=True)], "not_granted"),
        (bash("./deploy.sh", exited("", 2), error=True), "no_information"),
        (bash("curl -f x", exited("HTTP 000", 22), error=True), "no_information"),
        (RED, "expected"),
        # The code was changed before the test was written, so the failure may be its own.
        ([call("edit", path="src/a.py"), result("edit", "done"), *RED], ""),
        ([call("edit", path="src/a.py"), result("edit", "done"), *RED, assistant("RED. Now the code:")], "expected"),
        (bash("wc -l a", exited("wc: command not found", 127), error=True), ""),
        (bash("pytest", exited("1 failed"), error=True), ""),
    ],
)
def test_failures_that_teach_nothing(entries: list[Entry], excuse: str) -> None:
    assert only(*entries)["excuse"] == excuse


def test_a_test_is_the_agents_own_work_once_it_has_changed_a_file() -> None:
    failing = bash("npm test", exited("Tests  1 failed"), error=True)
    assert only(*failing)["fault"] == ""
    assert only(*bash(PATCH, "Success"), *failing)["fault"] == "work"


def test_the_usage_that_a_gateway_appends_shows_no_fault() -> None:
    said = "Error: no browser\n\nExpected parameters:\n  url (string) *required*"
    assert only(call("mcp", tool="open"), result("mcp", said, error=True))["fault"] == ""
    assert only(call("mcp", tool="open"), result("mcp", f"missing required url {said}", error=True))["fault"] == "call"


EATEN = bash(r"ls C:\code\app", exited("ls: cannot access 'C:codeapp': No such file"), error=True)


@pytest.mark.parametrize("entries", [[*REFUSED * 2], [*OUTAGE * 3], [*MISSING * 3], [*EATEN * 2]])
def test_what_is_done_wrong_again_and_again_teaches(entries: list[Entry]) -> None:
    (row,) = rows(ASKED, *entries)
    assert {item["excuse"] for item in row["findings"]} == {""}


def test_evidence_belongs_to_its_request() -> None:
    entries = [
        ASKED,
        *bash("npm test", exited("Tests  1 failed"), error=True),
        assistant("Fixed."),
        user("What about src/b.ts?"),
        *bash("npx tsc", exited("a.ts(1,2): error TS2322: no", 2), error=True),
        *bash("npm test", exited("AssertionError\nTypeError: x is no function"), error=True),
    ]
    first, second = rows(*entries)
    assert [item["categories"] for item in first["findings"]] == [["command_error", "test_or_assertion"]]
    assert {item["request"] for item in second["findings"]} == {second["request"]}
    assert first["history"] == []
    assert [turn["content"] for turn in second["history"]] == [
        "Fix the parser, it drops the last line of every file",
        "Fixed.",
    ]
    (whole,) = rows(*entries, unit="session")
    assert whole["prompt"] == "What about src/b.ts?"
    assert len(whole["findings"]) == 3


@pytest.mark.parametrize(
    ("said", "goes_on"),
    [
        ("y", True),
        ("D", True),
        ("C+2", True),
        ("ok", True),
        ("продовжи", True),
        ("are you back?", True),
        ("<@1472432512599855295> Ok- please continue on with our task", True),
        ("ok i already installed it sooner. continue", True),
        ("i installed.", True),
        ("<uploaded_files>\n<file>/mnt/a.pdf</file>\n</uploaded_files>", True),
        ("在吗", True),
        ("[media attached: /data/a.ogg (audio/ogg)]\n\n<media:audio>", True),
        ("System: [2026-03-19 12:10 GMT+8] WhatsApp gateway connected.", True),
        ("[Wed 2026-06-17 13:06 UTC] <<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nA task of a subagent has ended.", True),
        ("Pre-compaction memory flush. Store durable memories now (use memory/2026-03-02.md).", False),
        ("System: [2026-03-19 12:10 GMT+8] connected.\n\nRead HEARTBEAT.md if it exists", False),
        ("A new session was started via /new or /reset. Greet the user.", False),
        ("<ci-monitor-event>a/b PR #3 has 1 new review</ci-monitor-event>", False),
    ],
)
def test_what_is_no_request_goes_on_with_the_one_before(said: str, goes_on: bool) -> None:
    asking = assistant("Shall I go on? A, C or D?")
    failing = bash("npm test", exited("TypeError: x is no function"), error=True)
    (row,) = rows(ASKED, asking, user(said), *failing)
    assert [item["kind"] for item in row["findings"]] == ["failure"] * goes_on


def test_what_a_channel_or_a_harness_adds_is_no_request() -> None:
    sender = 'Sender (untrusted metadata):\n```json\n{"label": "tui"}\n```\n\n'
    day = "[Fri 2026-04-10 10:08 GMT+2] "
    found = rows(
        ASKED,
        user(f"{day}[System Message] A cron job has completed successfully."),
        user(f"{sender}{day}ja"),
        user(f"{sender}{day}Now write the changelog of this release"),
    )
    assert [row["prompt"] for row in found] == [
        "Fix the parser, it drops the last line of every file",
        "Now write the changelog of this release",
    ]


@pytest.mark.parametrize(
    ("said", "prompt"),
    [
        ("how can i fix these issues?", ""),
        (".agents/skills/speckit-implement", ""),
        ("please check it again", ""),
        ("@src/app.py", ""),
        ("https://github.com/ann/app/issues/288", ""),
        ("implement the plan", ""),
        ("What do you think?", ""),
        ("run the tests", "run the tests"),
        ("implement the parser", "implement the parser"),
        ("修复登录页面的错误", "修复登录页面的错误"),
        ("make the page faster and test it", "make the page faster and test it"),
        ("fix this bug: `npm test` ends with an error", "fix this bug: `npm test` ends with an error"),
    ],
)
def test_a_request_that_points_at_what_nobody_has_shown_says_nothing(said: str, prompt: str) -> None:
    failing = bash("npm test", exited("TypeError: x is no function"), error=True)
    (first,) = rows(user(said), *failing)
    assert (first["prompt"], len(first["findings"])) == (prompt, 1)
    assert rows(ASKED, assistant("It works."), user(said), *failing)[-1]["prompt"] == said


def test_a_request_holds_the_text_of_the_command_whose_arguments_it_is() -> None:
    typed = "<command-name>/story</command-name><command-args>docs/a.json US-2</command-args>"
    said = [typed, [{"type": "text", "text": "# Story\n\nDo one story of the file."}]]
    lines: list[Entry] = [
        {"type": "user", "uuid": "1", "parentUuid": None, "message": {"content": said[0]}},
        {"type": "user", "uuid": "2", "parentUuid": "1", "isMeta": True,
         "message": {"content": said[1]}},
    ]  # fmt: skip
    session = {"trace": trace(*lines).encode(), "session_id": "", "source": ""}
    (row,) = gather_evidence({**session, "bytes_not_utf8": 0}, "episode", 0)
    assert row["prompt"] == "docs/a.json US-2\n\n# Story\n\nDo one story of the file."

import json
from collections.abc import Callable

import pytest

from pimono_sdpo.failures import CATEGORIES, RULES, Rule, classify
from pimono_sdpo.shell import parse_command
from pimono_sdpo.traces.events import Event
from pimono_sdpo.traces.parse import read_trace
from processors.diagnostics import find_failures, looks_failed
from tests.traces import Entry, assistant, bash, call, result, trace, user

TRACEBACK = "Traceback (most recent call last):\n  File 'a.py', line 3\nKeyError: 'a'"
TSC = "a.ts(1,2): error TS2322: no"
FAILED = "ok 1\nTests  3 failed | 2 passed"


def categories(*entries: Entry) -> list[list[str]]:
    read = read_trace(trace(user("go"), *entries))
    return [item["categories"] for item in find_failures(read.events)]


def exited(output: str, code: int = 1) -> str:
    return f"{output}\n\nCommand exited with code {code}"


NATIVE = "pip : [notice] a new release\n+ pip install x 2>&1\n    + CategoryInfo : NotSpecified: (:String) [], RemoteException\n    + FullyQualifiedErrorId : NativeCommandError"  # fmt: skip
DENIED = (
    "failed in sandbox LinuxSeccomp with execution error: Denied { output: ExecToolCallOutput { exit_code: %d, stdout: "
    'StreamOutput { text: "", truncated_after_lines: None }, stderr: StreamOutput { text: "%s", truncated_after_lines: '
    "None }, duration: 60.2ms, timed_out: false } }"
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.example[:30])
def test_every_rule_matches_its_example(rule: Rule) -> None:
    assert rule.pattern.search(rule.example)
    assert rule.category in classify(rule.example)
    assert rule.category in CATEGORIES


@pytest.mark.parametrize(
    ("runner", "failing", "passing"),
    [
        ("prove", "Failed 1/3 subtests\nFiles=2, Tests=6\nResult: FAIL", "Files=2, Tests=6\nResult: PASS"),
        ("tox", "  py311: FAIL code 1 (1.2 seconds)", "  py311: OK (1.2 seconds)"),
        ("bazel test //...", "//a:b        FAILED in 0.3s", "//a:b        PASSED in 0.3s"),
        ("cabal test", "Test suite spec: FAIL", "Test suite spec: PASS"),
        ("flutter test", "00:01 +2 -1: Some tests failed.", "00:01 +3: All tests passed!"),
        ("meson test", "Ok:      1\nFail:    1", "Ok:      2\nExpected Fail: 1\nFail:    0"),
        ("nox", "nox > Session tests failed.", "nox > Session tests was successful."),
        ("busted", "2 successes / 1 failure / 0 errors", "3 successes / 0 failures / 0 errors"),
        ("Rscript tests.R", "[ FAIL 1 | WARN 0 | SKIP 0 | PASS 2 ]", "[ FAIL 0 | WARN 0 | SKIP 0 | PASS 3 ]"),
        ("clj -M:test", "1 failures, 0 errors.", "0 failures, 0 errors."),
        ("cmake --build .", "gmake: *** [Makefile:136: all] Error 2", "[100%] Built target a"),
        ("pre-commit run", "ruff............Failed\n- hook id: ruff", "ruff............Passed"),
    ],
)  # fmt: skip
def test_the_end_of_a_runner_that_a_pipe_hides(runner: str, failing: str, passing: str) -> None:
    (found,) = categories(*bash(f"{runner} 2>&1 | tail -5", failing))
    assert {*found} & {"test_or_assertion", "build_lint_compile", "command_error"}
    assert categories(*bash(f"{runner} 2>&1 | tail -5", passing)) == []


@pytest.mark.parametrize(
    ("command", "output", "expected"),
    [
        ("npm test", exited("Tests  2 failed"), ["command_error", "test_or_assertion"]),
        ("python a.py", exited(TRACEBACK), ["command_error", "runtime_exception"]),
        ("tool", "something odd", ["other_marked_error"]),
        ("npm test", "  cart should\n    1) add totals\n\n  1 passing\n  1 failing", ["test_or_assertion"]),
        ("tool --fast", exited("no such thing: --fast"), ["command_error"]),
        ("rm -rf x", "Blocked: command references protected directory", ["policy_block"]),
        ("rm -rf x", "Run /review first, do not push before that.", ["policy_block"]),
        ("npm test", "Command timed out after 30 seconds", ["command_error"]),
        ("./deploy.sh", exited("deploying to host is not allowed"), ["command_error"]),
        ("node a.js", exited("SyntaxError: Unexpected end of JSON input"), ["command_error", "runtime_exception"]),
        ("npm test", exited("  ✓ reports ENOENT when Permission denied\nTests  1 failed"), ["command_error", "test_or_assertion"]),
        ("make", exited("cc a.c\nmake: *** [a.o] Error 1", 2), ["command_error"]),
        ("grep foo missing", exited("grep: missing: No such file or directory", 2), ["command_error", "missing_file_or_command"]),
        ("ls src; cat missing", exited("a.ts\ncat: missing: No such file or directory"), ["command_error", "missing_file_or_command"]),
        ("grep -rn 'error TS' src gone", exited("src/a.md: error TS2322\ngrep: gone: No such file or directory", 2), ["command_error", "missing_file_or_command"]),
        ("rg -n '(' src", exited("rg: regex parse error:\n    (\n    ^", 2), ["command_error"]),
        ("curl -sf localhost:1", exited("", 7), ["command_error"]),
        ("ssh box cat /etc/shadow", exited("cat: /etc/shadow: Permission denied"), ["command_error", "permission_auth"]),
        ("cat a.test.ts && npm test", exited("throw new TypeError('x')\nTypeError: in a comment\n" + "ok\n" * 40 + "FAIL a.test.ts"), ["command_error", "test_or_assertion"]),
        ("git checkout gone", exited("error: pathspec 'gone' did not match any file(s)"), ["command_error"]),
        ("cat > t.py <<'EOF'\nprint(1)\nEOF\npython t.py", exited(TRACEBACK), ["command_error", "runtime_exception"]),
        ("timeout 60 npm test", exited("running", 124), ["command_error"]),
        ("psql -h db", exited("psql: error: server at db, port 5432 failed: Connection refused"), ["command_error"]),
        ("pip install x 2>&1", exited(f"{NATIVE}\nERROR: No matching distribution"), ["command_error"]),
    ],
)  # fmt: skip
def test_marked_errors(command: str, output: str, expected: list[str]) -> None:
    assert categories(*bash(command, output, error=True)) == [expected]


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("grep -n foo a.ts", exited("(no output)")),
        (r'grep -n "maxHeight\|height\|scroll" a.ts', exited("(no output)")),
        ("cd app && rg foo | grep bar", exited("")),
        ("rg -n -- '--worktree|worktree' docs", exited("")),
        ("bash -lc 'grep -q foo a.ts'", exited("")),
        ("ssh -p 22 ann@box 'grep foo /var/log/x'", exited("")),
        ("timeout 30 grep -r foo .", exited("")),
        ("LC_ALL=C grep foo a && echo yes", exited("")),
        ("grep error log.txt; grep fatal log.txt", exited("3: error: disk full\n9: TypeError: x")),
        ("diff a b", exited("< x\n> y")),
        ("git diff --exit-code", exited("-FAIL\n+TypeError: x")),
        ("git show HEAD:a | cmp - a", exited("")),
        ("test -f x && echo there", exited("")),
        ("[ -d x ]", exited("")),
        ("[[ -n $X || -n $Y ]]", exited("")),
        ("command -v rg", exited("")),
        ("which adb gradle", exited("/usr/bin/adb")),
        ("where lark", exited("INFO: Could not find files for the given pattern(s).")),
        ("ls x 2>/dev/null", exited("", 2)),
        ("npm run list && ls gone 2>/dev/null", exited("a b c", 2)),
        ("find . -name a | head; head -5 gone 2>/dev/null", exited("./a")),
        ("npm test | grep -i timeout", exited("")),
        ("for f in a b; do grep -l foo $f; done", exited("")),
        ("set -o pipefail; seq 9 | node a.js | head -1", exited("1", 141)),
        ("timeout 5 npm start", exited("listening on 3000", 124)),
        ("npm test", "Command aborted"),
        ("npm test", "3 failed\n\nCommand aborted"),
        ("npm test", exited("^C", 130)),
        ("npm test", "429 Too Many Requests"),
        ("npm test", "[Compacted history content evicted to cold storage]"),
        ("npm test", "[Old tool result content cleared]"),
        ("pip install x 2>&1", exited("done\n" + NATIVE)),
        ("npm test", "[... 1448 more characters truncat"),
        ("npm test", "Test Results: 12 passed"),
        ("grep -rn foo .", "502 matches in 31 files"),
        ("npm test", ""),
    ],
)  # fmt: skip
def test_marked_errors_that_are_none(command: str, output: str) -> None:
    assert categories(*bash(command, output, error=True)) == []


@pytest.mark.parametrize(
    ("tool", "text", "expected"),
    [
        ("read", "ENOENT: no such file or directory, access 'a.ts'", ["missing_file_or_command"]),
        ("read", "File does not exist.", ["missing_file_or_command"]),
        ("ls", "Path not found: /home/ann/gone", ["missing_file_or_command"]),
        ("edit", "String to replace not found in file.\nString: throw new TypeError('EACCES');\nTypeError: x", ["tool_schema_validation"]),
        ("edit", "Could not find the exact text in src/rate-limit.ts. The old text must match exactly.", ["tool_schema_validation"]),
        ("edit", 'Validation failed for tool "edit":\n  - path: must be string\n\nReceived arguments:\n{"newText": "\n3 failed\n"}', ["tool_schema_validation"]),
        ("edit", "apply_patch verification failed: Failed to find expected lines in a.py:\nraise PermissionError\nKeyError: 1", ["tool_schema_validation"]),
        ("edit", "File has not been read yet. Read it first before writing to it.", ["tool_schema_validation"]),
        ("write", "Emoji are not allowed in generated content", ["policy_block"]),
        ("edit", "Premature implementation: the spec fails with TypeError, so only a stub is due. You must watch it fail.", ["policy_block"]),
        ("write", "PreToolUse:Write hook error: keep out of dist/", ["policy_block"]),
        ("browser", "The tab was closed.", ["other_marked_error"]),
        ("task", "API Error: 529 overloaded", None),
        ("edit", "Operation aborted", None),
        ("exec", "Command aborted by signal SIGTERM", ["other_marked_error"]),
        ("web_fetch", "fetch failed", ["other_marked_error"]),
        ("edit", "Skipped due to queued user message.", None),
    ],
)  # fmt: skip
def test_calls_that_failed(tool: str, text: str, expected: list[str] | None) -> None:
    found = categories(call(tool, path="a.ts"), result(tool, text, error=True))
    assert found == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("command", "output", "expected"),
    [
        ("npm test 2>&1 | tail -5", FAILED, ["test_or_assertion"]),
        ("npx tsc --noEmit; echo done", f"{TSC}\ndone", ["build_lint_compile"]),
        ("timeout 60 npm test | tail", "3 failed", ["test_or_assertion"]),
        ("cd app && npm run check 2>&1 | grep -E 'error|warn' | head", TSC, ["build_lint_compile"]),
        ("bash -lc 'cd app && npm test | tail -3'", FAILED, ["test_or_assertion"]),
        ("ssh box 'cd app; make test 2>&1 | tail -3'", FAILED, ["test_or_assertion"]),
        ("docker compose exec app npm test || true", FAILED, ["test_or_assertion"]),
        ("(cd app && CI=1 npm test) 2>&1 | tail -4", FAILED, ["test_or_assertion"]),
        ("for d in a b; do\n  (cd $d; npm test)\ndone 2>&1 | tail", FAILED, ["test_or_assertion"]),
        ("npm test > out.log 2>&1; tail -20 out.log", FAILED, ["test_or_assertion"]),
        ("npm test | tee out.log", FAILED, ["test_or_assertion"]),
        ("npm test || echo '3 failed as known'", FAILED, ["test_or_assertion"]),
        ("git stash; npm test | tail -3; git stash pop", FAILED, ["test_or_assertion"]),
        ("python a.py 2>&1 | tail -3", TRACEBACK, ["runtime_exception"]),
        ("pytest -q | tail -3; echo \"exit: $?\"", "no tests ran\nexit: 5", ["command_error"]),
        ("npm run build 2>&1 | tail -2", "npm error command failed\nnpm error command sh -c tsc", ["command_error"]),
        ("git push 2>&1 | tail -2", "fatal: not a git repository", ["command_error"]),
        ("pwd && rg --files | head", "/app\n/bin/bash: line 1: rg: command not found", ["missing_file_or_command"]),
        ("cat <<'EOF' > a.py\nprint('x')\nEOF\npython a.py | tail -3", TRACEBACK, ["runtime_exception"]),
        ("cp a b 2>&1 | tail -3", "cp: a: No such file or directory", ["missing_file_or_command"]),
        ('mv a /etc; echo "EXIT=$?"', "mv: cannot move 'a' to '/etc/a': Permission denied\nEXIT=1", ["permission_auth"]),
        ("./run.sh; echo done", "./run.sh: line 3: foo: command not found\ndone", ["missing_file_or_command"]),
        ("docker build . 2>&1 | tail -3", "ERROR: failed to solve: process \"make\" did not complete", ["command_error"]),
        ("docker build . 2>&1 | tail -3", "Step 2/9 : COPY a /\nCOPY failed: file not found in build context", ["command_error"]),
        ("docker build . 2>&1 | tail -3", "The command '/bin/sh -c make' returned a non-zero code: 2", ["command_error"]),
        ("pip3 install x 2>&1 | tail -2", "hint: See PEP 668 for the detailed specification.", ["command_error"]),
        ("git diff --stat $(git merge-base HEAD main)", "fatal: Not a valid object name main", ["command_error"]),
        ("python a.py 2>&1 | tail -3", "[rank0]:     raise\n[rank0]: ValueError: no memory", ["runtime_exception"]),
        ("kubectl apply -f x 2>&1 | tail", 'error: unable to recognize "x": no matches', ["command_error"]),
        ("node -c a.js 2>&1\nls -la", "/w/a.js:65\n  x = true or\n           ^^\n\nSyntaxError: Unexpected\n---\n" + "total 4\n" * 20, ["build_lint_compile"]),
        ("python -c 'import traceback, a\ntry: a.b()\nexcept E: traceback.print_exc()'", TRACEBACK, ["runtime_exception"]),
        ("python send.py", "ERROR:mail.send:Sending failed: no password\nFalse", ["command_error"]),
        ("curl -s -X POST '' | head -c 500", "curl: option : blank argument where content is expected", ["command_error"]),
        ("curl -s localhost:80/hook", '{"code":404,"message":"The webhook is not registered."}', ["command_error"]),
        ("curl -so x -w 'page: %{http_code}\\n' localhost", "page: 502", ["command_error"]),
        ("apt-get install -y npm 2>&1 | tail -2", "E: Unable to correct problems, you have held broken packages.", ["command_error"]),
        ("hk test || true", "thread 'main' panicked\n" + "at x\n" * 20 + "note: run with `RUST_BACKTRACE=1` to display", ["runtime_exception"]),
        ("nohup python3 -m a > a.log 2>&1 &\ncat a.log", "nohup: failed to run command 'python3': No such file or directory", ["missing_file_or_command"]),
        ("tail -9 /tmp/claude-1/x/tasks/b1f.output", TRACEBACK, ["runtime_exception"]),
        ("timeout 9 node a.mjs 2>&1 | tail", "(eval):1: command not found: timeout", ["missing_file_or_command"]),
        ("sed -n 1,5p a | cat -A | head", "cat: illegal option -- A\nusage: cat [-b]", ["command_error"]),
        ("bd show | head", "Note: no repository\nError: no daemon is running", ["command_error"]),
        ("rtk test bun test | tail && bun run lint | tail -3", 'x\n\nerror: script "lint" exited with code 1', ["command_error"]),
        ("bun run lint | head -30", " a.tsx format\n  \u00d7 Formatter would have printed this:\n" + "  | a\n" * 50, ["build_lint_compile"]),
        ("rtk git commit -m a", "ok\nFAILED: git commit\n 24 fail\nhusky - pre-commit script failed (code 1)", ["command_error", "test_or_assertion"]),
        ("./server.sh &", "npm ERR! code EPERM", ["command_error", "permission_auth"]),
        ("python mail.py", "2026-04-22 15:57:37,671 [INFO] mail: start\n2026-04-22 15:57:37,671 [ERROR] mail: no address", ["command_error"]),
        ("pytest -q", "failed in sandbox LinuxSeccomp with execution error: sandbox denied exec error, exit code: 1, stdout: 5 failed", ["command_error", "test_or_assertion"]),
        ("Copy-Item a b -First 1 ; Get-ChildItem b", "Copy-Item : Parameter fehlt\r\n+ Copy-Item a b -First 1\r\n    + FullyQualifiedErrorId : NamedParameterNotFound", ["command_error"]),
        ("$a = Get-Content a -Raw; $a -replace 1, 2, 3", "InvalidOperation: \r\nLine |\r\n   1 |  $a -replace 1, 2, 3\r\n     | allows only two elements", ["command_error"]),
        ("echo == keys; curl -s https://api.example.org/v1/keys | jq", '== keys\n{\n  "type": "error",\n  "error": {\n    "type": "not_found_error"\n  }\n}', ["command_error"]),
        ("python drive.py forward", '{\n  "success": false,\n  "error": "no answer"\n}', ["command_error"]),
        ("qmd list 2>&1 || echo no qmd", "Unknown command: list\nRun 'qmd --help' for usage.\nno qmd", ["command_error"]),
        ("vercel inspect --yes 2>&1 | head -40", "Vercel CLI 48\nError: unknown or unexpected option: --yes", ["command_error"]),
        ("node search.mjs x 2>&1 | head", "Missing TAVILY_API_KEY", ["command_error"]),
        ("git show 8dd1:a.sql | head -50", "fatal: path 'a.sql' does not exist in '8dd1'", ["command_error"]),
        ("sleep 3 && docker exec web ps aux | grep a", "Error response from daemon: No such container: web", ["command_error"]),
        ("python a.py", TRACEBACK + "\nShell cwd was reset to /work", ["runtime_exception"]),
        ("python a.py > /tmp/a.log 2>&1 & sleep 9; tail /tmp/a.log", "Exception: start first", ["runtime_exception"]),
        ("node debug.js", "loading\n\u274c Failed to load page: x is not a function", ["command_error"]),
        ("store remove a; store list", "Collection not found: a\nb c d", ["command_error"]),
        ("python -m pytest -v 2>&1 | head -9", "a.py::test_b FAILED  [  1%]\n=== FAILURES ===\n> x", ["test_or_assertion"]),
        ("python -m py_compile a.py 2>&1; echo \"exit:$?\"", "[Errno 2] No such file or directory: 'a.py'exit:1", ["command_error"]),
        ("pytest a.py -v 2>&1 | tail -5", "collecting ... ERROR: file or directory not found: a.py\n\ncollected 0 items\n\n===== no tests ran in 0.01s =====", ["test_or_assertion"]),
        ("python -m pytest -v | head -5", "/usr/bin/python: No module named pytest", ["missing_file_or_command"]),
        ("echo == a && grep -oP x a | sort && echo == b", "== a\ngrep: -P supports only unibyte and UTF-8 locales\n== b", ["command_error"]),
        ("ls -R a b | head -n 100", "ls: b: No such file or directory\na:\n" + "x.md\n" * 60, ["missing_file_or_command"]),
        ("rg x | head; rg x b 2>&1 | head -2", "rg: b: \u8981 (os error 2)", ["missing_file_or_command"]),
        ("rg x", DENIED % (2, r"rg: b: No such file or directory\n"), ["command_error", "missing_file_or_command"]),
    ],
)  # fmt: skip
def test_hidden_failures(command: str, output: str, expected: list[str]) -> None:
    assert categories(*bash(command, output, error=False)) == [expected]


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("npm test", FAILED),
        ("cd app && npm test", FAILED),
        ("set -euo pipefail\nnpm test | tail -3", FAILED),
        ("cat log.txt | tail -5", FAILED),
        ("npm run build; cat src/a.test.ts", FAILED),
        ("npm run build && sed -n 1,9p a.ts && git diff", TSC),
        ("cd app && grep -rn TS2322 . | head", "a.md: error TS2322"),
        ("grep -rln foo . | xargs cat; echo done", TSC),
        ("bash -lc \"sed -n '1,80p' a.ts; nl b.ts\"", TRACEBACK),
        ("ssh box 'tail -50 app.log' | tail", TRACEBACK),
        ("docker logs app 2>&1 | tail -9", TRACEBACK),
        ("curl -s example.org | python -c 'print(input())' | head", "3 failed\nTS2322: x"),
        ("python report.py | head", "TS2322: what people asked\n3 failed attempts"),
        ("python - <<'EOF'\nimport a; print(a.log)\nEOF", TRACEBACK),
        ("./read.sh https://example.org | head -9", FAILED),
        ("gh issue view 3 | cat", "TypeError: boom"),
        ("git log --oneline; git show HEAD", TSC),
        ("npm test | tail", FAILED + "\nok" * 40),
        ("npm test 2>&1 | tail", "TypeError: provoked\n12 passed (12)"),
        ("npm test; echo '=== FAIL cases ==='", "=== FAIL cases ==="),
        ("npm test; echo $?", "fine\n0"),
        ("cat a.md; echo \"exit: $?\"", "exit: 1"),
        ("find / -name a | head", "find: /root: Permission denied"),
        ("npm run build | tail -3", "built in 3s"),
        ("cat notes.md; ls", "cp: a: No such file or directory"),
        ("cp a b", "cp: a: No such file or directory"),
        ("curl -s localhost/invalid-code", '{"error":"Not found"}'),
        ("curl -so x -w 'page: %{http_code}\\n' localhost", "page: 200"),
        ("for u in a b; do curl -so x -w '%{http_code}\\n' $u; done", "404\n200"),
        ("docker logs app", "2026-04-22 15:57:37 ERROR app: no address"),
        ("echo a | grep found", "(eval):1: command not found: timeout"),
        ("curl -s example.org | head -9", "<p>\ncurl: (56) Failure writing output to destination"),
        ("ls -t logs | head -1", "a.log\nls: write error: Broken pipe"),
        ("curl -s localhost:3000/api/users", '{"error":"Unauthorized"}'),
        ("curl -sI example.org", "HTTP/1.1 200 OK\r\nContent-Type: text/html"),
        ("git log -1 | tail -1", "Entire-Checkpoint: b7dd9d7616ea"),
        ("rg x", DENIED % (1, "")),
        ("rg x", "failed in sandbox:"),
        ("./install.sh --dry-run", "Installed: 2\nFailed:            0"),
    ],
)  # fmt: skip
def test_success_is_success(command: str, output: str) -> None:
    assert categories(*bash(command, output, error=False)) == []


@pytest.mark.parametrize(
    "output",
    [
        DENIED % (1, r"x a \"b\"\n3 failed\n"),
        "exec_command failed: CreateProcess { message: " + (DENIED[18:] % (1, r"x a \"b\"\n3 failed\n")).replace("\\", "\\\\").replace('"', '\\"'),
        "failed in sandbox LinuxSeccomp with execution error: sandbox denied exec error, exit code: 1, stdout: , stderr: x a \"b\"\n3 failed",
    ],
)  # fmt: skip
def test_what_a_sandbox_wraps_is_unwrapped(output: str) -> None:
    is_flagged = output.startswith("exec_command")
    (item,) = find_failures(read_trace(trace(user("go"), *bash("npm test", output, is_flagged))).events)
    assert (item["text"], item["categories"]) == ('x a "b"\n3 failed', ["command_error", "test_or_assertion"])


def test_a_sandbox_may_refuse() -> None:
    output = "exec_command failed: SandboxDenied { " + DENIED[18:] % (1, "a: Operation not permitted")
    assert categories(*bash("./a", output, error=True)) == [["command_error", "permission_auth", "policy_block"]]


def test_a_flag_does_not_make_a_failure_of_tests_that_passed() -> None:
    output = "warning: ENOENT: no such file or directory, '.status'\n%d examples, 0 failures"
    assert categories(*bash("rspec", output % 41, error=True)) == []
    assert categories(*bash("rspec", output % 0, error=True)) == [["missing_file_or_command"]]


@pytest.mark.parametrize("wrap", [str, lambda fields: json.dumps({"result": fields})])
def test_a_shell_of_another_server_reports_codes_in_json(wrap: Callable[[str], str]) -> None:
    for command, code, found in (
        ("tsc", 2, [["build_lint_compile", "command_error"]]),
        ("tsc", 0, []),
        ("rg x", 1, []),
    ):
        output = "a.ts(1,2): error TS2322: no" if code == 2 else ""
        text = wrap(json.dumps({"stdout": output, "return_code": code, "stderr": None}))
        entries = [
            call("serena__execute_shell_command", command=command),
            result("serena__execute_shell_command", text),
        ]
        assert categories(*entries) == found
        assert [item["text"] for item in find_failures(read_trace(trace(*entries)).events)] == [output] * len(found)


SCRIPT = "Script completed\nWall time 0.1 seconds\nOutput:\n\n"


@pytest.mark.parametrize(
    ("commands", "output", "expected"),
    [
        (["git status && hk install"], " M a.rs\nzsh:1: command not found: hk\n", "missing_file_or_command"),
        (["gh pr view", "python \\\"a b\\\".py"], "---1---\n{}\n---2---\nzsh:1: command not found: python", "missing_file_or_command"),
        (["sed -n 1,9p a.rs", "cargo test"], "use a;\nerror: could not compile `hk` (bin) due to 6 errors", "build_lint_compile"),
        (["sed -n 1,9p a.go && nl b.go"], "exit status 1\nexit code: 2\n", ""),
        (["cat run.sh"], "#!/bin/sh\ntest -f a || exit 1\n\nexit 1\n", ""),
        (["git diff"], "-TypeError: a\n+  TypeError: boom", ""),
        (["cargo build"], "   Compiling insta v0.11.0-rc.6\n   Compiling sys-rc v1\n", ""),
    ],
)  # fmt: skip
def test_scripts_that_run_commands_tell_no_codes(commands: list[str], output: str, expected: str) -> None:
    script = "; ".join(f'await tools.exec_command({{cmd:"{command}"}})' for command in commands)
    payloads: list[Entry] = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
        {"type": "custom_tool_call", "name": "exec", "call_id": "c", "input": script},
        {"type": "custom_tool_call_output", "call_id": "c", "output": SCRIPT + output},
    ]
    read = read_trace(trace(*({"type": "response_item", "payload": payload} for payload in payloads)))
    assert [item["categories"] for item in find_failures(read.events)] == ([[expected]] if expected else [])


@pytest.mark.parametrize(
    ("tool", "command", "output", "has_failed"),
    [
        ("bash", "pytest", "E   assert 4 == 3\n=== 1 failed, 2 passed in 0.03s ===", True),
        ("execute_bash", "pytest -q", "FAILED a.py::test_b - assert 4 == 3\n1 failed, 2 passed in 0.03s", True),
        ("terminal", "npm test", "  cart\n    1) adds totals\n\n  1 passing (5ms)\n  1 failing", True),
        ("bash", "python -m pytest tests", "/usr/bin/python: No module named pytest", True),
        ("bash", "pytest", "=== 3 passed in 0.03s ===", False),
        ("bash", "python3 list.py", "错误: {'errno': -6}", True),
        ("bash", "app --help | head", "[35981:0209/003339.709:FATAL:sandbox.cc(158)] No sandbox.", True),
        ("skill_run", "explore", "Skill run error: fields must be a non-empty object", True),
        ("skill_run", "explore", "The query found no fields.", False),
        ("bash", "cat run.sh", "set -e\nrun\nexit 1", False),
        ("bash", "grep -rn 错误 logs", "错误: {'errno': -6}", False),
        ("bash", "cat gone.py", "cat: gone.py: No such file or directory", True),
        ("bash", "grep -rn failed logs", "logs/a:9: 1 failed, 2 passed in 0.03s", False),
    ],
)
def test_results_without_flag_and_exit_code(tool: str, command: str, output: str, has_failed: bool) -> None:
    assert looks_failed(tool, json.dumps({"command": command}), output) == has_failed


def test_text_that_was_merely_read_is_no_failure() -> None:
    source = 'throw new Error("ENOENT");\n// 3 failed\nTraceback (most recent call last):'
    assert categories(call("read", path="a.ts"), result("read", source)) == []


def test_an_exit_code_says_what_the_mark_does_not() -> None:
    details = {"exitCode": 2}
    entries = [call("bash", command="make"), result("bash", "stop", details=details)]
    assert categories(*entries) == [["command_error"]]


def test_how_long_a_result_was_waited_for_is_no_limit_of_the_job() -> None:
    ended = result("TaskOutput", "<status>failed</status>\n\n<exit_code>124</exit_code>\n\nPage crashed")
    assert categories(call("TaskOutput", task_id="b1", timeout=120000), ended) == [["command_error"]]


def test_bash_executions_of_the_user_count() -> None:
    told = {"role": "bashExecution", "command": "npm test", "output": "3 failed", "exitCode": 1}
    stopped = {**told, "cancelled": True}
    entries = [{"type": "message", "message": message} for message in (told, stopped)]
    assert categories(*entries) == [["command_error", "test_or_assertion"]]


def test_a_turn_that_broke_off_is_the_providers_unless_the_harness_gave_up() -> None:
    overload = "Schema overload: consecutive tool validation failures exceeded cap"
    assert categories(assistant(overload, stop="error")) == [["tool_schema_validation"]]
    assert categories(assistant(overload)) == []
    assert categories(assistant("402 Insufficient Balance", stop="error")) == []
    assert categories(assistant("Request was aborted.", stop="aborted")) == []


@pytest.mark.parametrize(
    "trailer",
    [
        "[Showing lines 1-9 of 900 (50.0KB limit). Full output: /tmp/x]",
        "[Showing last 50.0KB of line 3. Full output: /tmp/x]",
        "[Output truncated: 900 lines]",
    ],
)
def test_trailers_and_colours_are_cut_and_positions_kept(trailer: str) -> None:
    output = f"Total output lines: 900\n\n\x1b[31mTests  1 failed\x1b[0m\n\n{trailer}"
    read = read_trace(trace(user("go"), *bash("npm test", exited(output), error=True)))
    (item,) = find_failures(read.events)
    assert item["text"] == "Tests  1 failed\nCommand exited with code 1"
    assert read.events[item["event_index"]].kind == "tool_result"
    assert item["tool"] == "bash"


@pytest.mark.parametrize(
    ("command", "programs"),
    [
        ("cd a && B=1 npm test 2>&1 | tail -5", [["cd"], ["npm", "tail"]]),
        ("sudo -u ann env A=1 timeout 9 /bin/cat x", [["cat"]]),
        ("bash -c \"a 'x;y' | b\" | c; d", [["a", "b", "c"], ["d"]]),
        ('echo $(a | b; c) `d; e` "f; g" h\\;i', [["echo"]]),
        ("a <<'X' | b\nc; d\nX\ne # f; g", [["a", "b"], ["e"]]),
        ("uv run --with x pytest -q", [["x"]]),
        ("if a; then b; fi", [["a"], ["b"], ["fi"]]),
        ("a 'never closed; b", [["a"]]),
        ("", []),
    ],
)
def test_command_lines_are_read(command: str, programs: list[list[str]]) -> None:
    assert [[stage.program for stage in p.stages] for p in parse_command(command)] == programs


@pytest.mark.parametrize("bit", ["-", "\n", "[Showing lines ", "assertion ", "'", "$(", "uv run ", "a|"])
def test_huge_texts_and_commands_are_read(bit: str) -> None:
    huge = bit * 100_000
    entries = [*bash(huge, huge, error=True), *bash(huge, exited(huge)), *bash("npm test | cat", huge)]
    assert len(categories(*entries)) <= 3
    event = Event(0, "tool_result", huge, tool_name="bash", arguments="[" * 9, is_error=True)
    assert len(find_failures([event])) <= 1


def test_what_changed_or_found_nothing_has_not_failed() -> None:
    noise = "/opt/tools/shellenv.sh: line 18: /bin/ps: Operation not permitted"
    shown = f"{noise}\n\nCommand exited with code 1"
    assert categories(*bash("cd app && rg --files -g 'a.*'", shown, error=True)) == []
    counted = "a.c:0\nb.c:0\n\nCommand exited with code 1"
    assert categories(*bash("cd app && grep -c TODO a.c b.c", counted, error=True)) == []
    clean = "On branch main\nnothing to commit, working tree clean\n\nCommand exited with code 1"
    assert categories(*bash("git add -A && git commit -m a", clean, error=True)) == []
    missing = "/bin/bash: line 1: rg: command not found\n\nCommand exited with code 127"
    assert categories(*bash("rg a", missing, error=True)) != []

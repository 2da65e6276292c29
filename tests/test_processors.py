import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.worth import measure, read_labels, write_bands
from pimono_sdpo.report import WORTH_BANDS
from pimono_sdpo.text import TRIMMED, shorten, shorten_at_paragraphs
from pimono_sdpo.traces.parse import read_trace
from processors.context import write_context
from processors.diagnostics import NOTHING_KNOWN
from processors.evidence import find_evidence, is_substantive
from processors.grade import WEIGHTS, grade
from processors.keep import SHORT_LEAD_IN, keep, rate
from processors.rows import write_verifier_spec
from processors.salient_tokens import KINDS, Kind, find_salient_tokens, find_tokens
from processors.threshold import check_score
from tests.traces import HEADER, assistant, bash, call, result, user
from tests.traces import trace as write_trace

SIX = ["build_lint_compile", "command_error", "missing_file_or_command", "runtime_exception", "test_or_assertion"]


def failure(categories: list[str], text: str, index: int = 1, **more: Any) -> dict[str, Any]:
    known = {"event_index": index, "request": 0, "tool": "bash", "target": "npm test"}
    return {**NOTHING_KNOWN, **known, "categories": categories, "text": text, **more}


def correction(text: str, index: int) -> dict[str, Any]:
    return failure(["user_feedback"], text, index, kind="correction", tool="", target="")


def row_of(*findings: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"request": 0, "findings": list(findings), "continued": True, "tools": ["read"], **more}


def test_the_scale_is_the_reference_cards() -> None:
    row = row_of(failure(SIX, "x"), correction("no, not that", 9))
    graded = grade(row)
    assert graded["score"] == 19.5
    assert graded["categories"] == sorted([*SIX, "user_feedback"])
    assert grade({**row, "continued": False})["score"] == 18.0


@given(st.lists(st.sampled_from(sorted(set(WEIGHTS) - {"continued", "user_feedback"}))))
def test_the_terms_of_a_score_add_up(names: list[str]) -> None:
    graded = grade(row_of(*(failure([name], "x") for name in names)))
    assert graded["score"] == pytest.approx(sum(t["value"] for t in graded["score_terms"]))
    assert graded["categories"] == sorted(set(names))
    assert ("continued" in {t["term"] for t in graded["score_terms"]}) == bool(names)


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("FAILED tests/a.py::test_b - PermissionErro...", ["tests/a.py", "test_b"]),
        ("error: unknown command or flag", []),
        ("open path/to/resolved-file.go for you@example.com", []),
        ("src/app/lessons/[lessonId]/x and /users/:userId/posts", []),
        ("write_stdin failed: rerun exec_command", []),
        ("C:\\Windows\\WindowsPowerShell and $gitOk -PathType Get-ChildItem", []),
        ("backup.ps1 m:1 net:1986 'terminating' 'oauth-first' errorC2065syntax", []),
        (
            "save\t@\tpage.tsx:360\ncallCallback\t@\treact-dom.development.js:20565\n"
            "    at renderWithHooks (react-dom.production.min.js:15486:18)",
            ["page.tsx:360", "page.tsx"],
        ),
        (
            "[145962:0429/215617.92:ERROR:dbus/object_proxy.cc:573] StartTransientUnit: UnitExists\nno salary_flow\n"
            "[pid=43][err] [0228/134638.97:ERROR:net/dns/dns_config.cc:138] DNS config watch failed",
            ["salary_flow"],
        ),
        (
            "    at 64894 (/srv/.next/server/chunks/911.js:5:35067)\n       (phoenix 1.8.3) lib/phoenix/token.ex:266: x\n"
            "\t/x/go/pkg/mod/github.com/a/testify@v1.10.0/mock/mock.go:349 +0x148\n       (shop 0.1.0) lib/shop.ex:5: y",
            ["lib/shop.ex:5"],
        ),
        ('    at 529 (.next/server/chunks/529.js:114:9)\n  File "index.pyx", line 7, in x_engine.get_loc', []),
        ('Element "e33" not found, nor "e480"; unknown command \'run\'', []),
        (
            'File "C:\\Python312\\Lib\\pathlib.py", line 8, in stat\n    return os.st_mode\nTypeError: readConfig',
            ["typeerror", "readconfig"],
        ),
        (
            "tests/test_a.py:6: in <module>\n    from shop import b\nshop/b.py:2: in <module>\n    import yaml2\n"
            "E   ModuleNotFoundError: No module named 'yaml2'",
            ["yaml2", "shop/b.py:2", "modulenotfounderror", "shop/b.py"],
        ),
        ("a.rb:1 a.rb:2 a.rb:3 a.rb:4 b.rb:5", ["a.rb:1", "a.rb:2", "a.rb:3", "b.rb:5", "a.rb", "b.rb"]),
        ("cannot open ./.github/workflows/ci.yml", [".github/workflows/ci.yml"]),
        ("NameError: '__name__' in ?vue&type=style&lang.css", ["nameerror"]),
        ("make[2]: *** [CMakeFiles/a.dir/build.make:76]\nIn file included from /usr/include/c++/13/bits/a.h:47", []),
    ],
)
def test_cut_words_placeholders_and_import_chains_are_not_terms(text: str, terms: list[str]) -> None:
    assert find_salient_tokens([text]) == terms


def test_what_a_warning_or_a_wrapped_record_names_is_no_term() -> None:
    text = (
        "npm warn deprecated lodash.isequal@4.5.0: Use isDeepStrictEqual instead of it, it must go\n"
        "warning: in the working copy of 'conf/a.yaml', LF will not be replaced\n"
        "    + CategoryInfo          : CloseError: (x:ServiceController) [Stop-Service]S\n    erviceCommandException\n"
        "    + FullyQualifiedErrorId : CouldNotStop\nerror: no export named readConfig"
    )
    assert grade(row_of(failure(["command_error"], text)))["reward_terms"] == ["readconfig"]


def test_reward_terms_are_concrete_tokens_of_the_requests_own_evidence() -> None:
    text = (
        "node:internal/process/promises:332\n  triggerUncaughtException(err);\n"
        "src/cli.ts(3,1): error TS2304\nC:\\npm\\node_modules\\x.js"
    )
    row = row_of(
        failure(["runtime_exception"], text),
        failure(["runtime_exception"], "at src/slip.ts:3", excuse="slip"),
        failure(["runtime_exception"], "at src/other.ts:3", request=7),
    )
    assert grade(row)["reward_terms"] == ["ts2304", "src/cli.ts"]
    found = failure(["command_error"], "zsh: command not found: rg") | {"resolved_by": "bash x --all"}
    assert grade(row_of(found))["reward_terms"] == ["rg"]
    stopped = failure(["command_error"], "Command timed out") | {"target": "npx @acme/cli --fast"}
    assert grade(row_of(stopped))["reward_terms"] == ["@acme/cli"]
    assert grade(row_of(failure(["command_error"], "at 3f2a9c1d\n$HOME\\npm\\notes.txt")))["reward_terms"] == []
    reference = grade(row, reference_terms=True)["reward_terms"]
    assert reference[0] == "runtime_exception"
    assert {"src/slip.ts:3", "src/other.ts:3"} < set(reference)


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ('failed: Denied(Output { exit_code: 1, stdout: StreamOutput { text: "rg: command not found" } })', ["rg"]),
        ("  + ... $f.fullName -match appInVi ...\nCannot index into readAll", ["readall"]),
        ("import { MapPin, ArrowUp } from 'icons/list-all'\nerror: ArrowDown is not exported", ["arrowdown"]),
        ("\u2713 tests/a.test.ts\n\u276f tests/b.test.ts:3\n 3 | sumOf(x)", ["tests/b.test.ts:3", "tests/b.test.ts"]),
        ("from : The term 'from' is not recognized", []),
        ("error: unknown option '--tail=50'", ["--tail"]),
        ("\u276f Context._formatError node_modules/vite/a.js:3\nfailed in src/a.ts", ["src/a.ts"]),
        ('Failed to find expected lines ["const nowTimer = setInterval("]', []),
    ],
)  # fmt: skip
def test_terms_are_of_the_lines_that_say_what_went_wrong(text: str, terms: list[str]) -> None:
    assert grade(row_of(failure(["command_error"], text)))["reward_terms"] == terms


@given(st.text(max_size=400))
def test_terms_are_lower_cased_distinct_and_capped(text: str) -> None:
    terms = find_salient_tokens([text, text], limit=5)
    assert terms == [term.lower() for term in terms]
    assert len(terms) == len(set(terms)) <= 5


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.pattern.pattern[:30])
def test_words_without_the_needle_hold_no_token(kind: Kind) -> None:
    token = st.from_regex(kind.pattern)
    between = st.sampled_from([" ", "\n", "", "'", "/", ":", "\t", "\u00e9", "a", "7", ".ts", "_"])

    @given(st.lists(token | between, max_size=6).map("".join))
    def check(text: str) -> None:
        assert list(find_tokens(kind, text)) == kind.pattern.findall(text)

    check()


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"problem": "no_messages", "prompt": "", "findings": []}, "no_messages"),
        ({"problem": None, "prompt": "", "findings": [{"excuse": ""}]}, "no_prompt"),
        ({"problem": None, "prompt": "p", "findings": []}, "no_evidence"),
        ({"problem": None, "prompt": "p", "findings": [{"excuse": "slip"}]}, "only_a_slip"),
        (
            {"problem": None, "prompt": "p", "findings": [{"excuse": "slip"}, {"excuse": "expected"}]},
            "expected_failure",
        ),
        ({"problem": None, "prompt": "p", "findings": [{"excuse": "slip"}, {"excuse": ""}]}, None),
    ],
)
def test_keep_says_why(row: dict[str, object], reason: str | None) -> None:
    assert keep({**row, "worth": 0.0}) == reason


def test_worth_counts_own_failures_and_the_likeliest_correction() -> None:
    message = "AssertionError: the parser returned three columns, expected four"
    failed = failure(["test_or_assertion"], message, tool="bash")
    own = [{**failed, "text": word + message, "fault": "work"} for word in "abc"]
    corrections = [
        {**NOTHING_KNOWN, "kind": "correction", "probability": probability, "text": "keep the old name"}
        for probability in (0.5, 0.9)
    ]

    def find_worth(*findings: Any, is_clear: bool = True) -> float:
        return rate({"findings": findings}, is_clear)

    assert find_worth() == find_worth(failed, failed) == 0.0
    assert (
        find_worth(*({**own[0], "text": f"{number} {message}"} for number in (1, 2)), failed)
        == find_worth(own[0])
        == 1.0
    )
    assert find_worth(*own) == 2.0
    assert find_worth(own[0], *corrections) == 1.0 + 1.8
    assert find_worth({**own[0], "excuse": "slip"}, corrections[0]) == 1.0
    assert find_worth(own[0], is_clear=False) == 1.0 - SHORT_LEAD_IN


def test_a_least_worth_is_only_asked_for_on_request() -> None:
    row: dict[str, Any] = {"problem": None, "prompt": "p", "findings": [{"excuse": ""}], "worth": 0.75}
    assert (keep(row), keep(row, 0.75), keep(row, 1.0)) == (None, None, "hardly_worth_it")


def test_worth_agrees_with_readers_as_the_card_says() -> None:
    worth, is_good, repositories = read_labels()
    auc, precision = measure(worth, is_good)
    assert auc >= 0.77
    assert precision >= 0.62
    assert WORTH_BANDS.read_text() == write_bands(worth, is_good, len(set(repositories)))


@pytest.mark.parametrize(
    ("harness", "named"),
    [("pi", "pi"), ("claude_code", "claude_code"), ("codex", "codex"), ("droid", None), ("x", None)],
)
def test_the_spec_names_the_harness_and_the_call_that_failed(harness: str, named: str | None) -> None:
    slip = failure(["missing_file_or_command"], "ENOENT", tool="read", excuse="slip")
    row = {"harness": harness, "findings": [slip, failure(["test_or_assertion"], "1 failed")]}
    expected = {"failed_call": {"tool": "bash", "command": "npm test"}} | ({"harness": named} if named else {})
    assert json.loads(write_verifier_spec(row)) == expected
    assert "failed_call" not in json.loads(write_verifier_spec({**row, "findings": []}))


@pytest.mark.parametrize(("score", "reason"), [(1.9, "below_min_score"), (2.0, None)])
def test_the_threshold_itself_is_enough(score: float, reason: str | None) -> None:
    assert check_score({"score": score}, min_score=2.0) == reason


@pytest.mark.parametrize(
    ("text", "substantive"),
    [
        ("Fix the failing parser test in src/parser.ts", True),
        ("设置页面的保存按钮没有反应", True),
        ("[Subagent Context] You are a subagent.\n\n[Subagent Task]: Check that the fix was written", True),
        ("[Subagent Context] You are a subagent. Announce your results.", False),
        ("hi", False),
        ("continue", False),
        ("/compact", False),
        ("ok thanks", False),
        ("Full transcript available at: tasks/b42.output", False),
        ("OpenClaw runtime context (internal):\nThis context is runtime-generated, not user-authored.", False),
        ("$(cat /tmp/instructions.txt)", False),
        ("Provide a concise, 5-word-or-less title for the conversation, using title case.", False),
        ("Write a short title for the settings page", True),
        ("", False),
    ],
)
def test_prompts(text: str, substantive: bool) -> None:
    assert is_substantive(text) == substantive


@given(st.text(max_size=300), st.integers(min_value=40, max_value=200))
def test_shorten_keeps_both_ends(text: str, limit: int) -> None:
    short = shorten(text, limit)
    assert len(short) <= limit
    assert short == text or (TRIMMED in short and text.startswith(short.partition(TRIMMED)[0]))


def test_the_context_says_what_was_called_what_failed_and_what_resolved_it() -> None:
    row = row_of(
        failure(["command_error", "test_or_assertion"], "2 failed", 3, next="read a.ts"),
        failure(
            ["missing_file_or_command"], "File not found", 4,
            tool="read", target="b.ts", resolved_at=9, resolved_by="read src/b.ts",
        ),
        failure(["command_error"], "Aborted", 6, next="I give up."),
        correction("not the api test", 7),
    )  # fmt: skip
    assert write_context(row)["privileged_context"] == (
        "Tool/environment diagnostic 1 (test_or_assertion, command_error):\n"
        "A test or an assertion failed.\n`npm test` reported:\n2 failed\nNext: read a.ts\n\n"
        "Tool/environment diagnostic 2 (missing_file_or_command):\n"
        "A file, a folder, a module or a command does not exist.\n"
        "A call of `read` of b.ts reported:\nFile not found\nResolved by: read src/b.ts\n\n"
        "Tool/environment diagnostic 3 (command_error):\n"
        "A command failed or timed out.\n`npm test` reported:\nAborted\nNext: I give up.\nNothing after it resolved this.\n\n"
        "Later user correction 1:\nnot the api test"
    )


def test_what_says_what_failed_is_never_trimmed_away() -> None:
    noise = "x=function(){return 1};" * 60
    text = f"$ npm start\n{noise}\n" + "log line\n" * 300 + "Error: Cannot find module './keys.js'\n"
    text += "    at run (node:internal/main:1:2)\n" * 40 + noise
    row = row_of(failure(["missing_file_or_command"], text))
    written = write_context(row)["privileged_context"]
    assert "Error: Cannot find module './keys.js'" in written
    assert "`npm start` reported:" in written or "`npm test` reported:" in written
    assert len(written) < 1900
    assert written.count("function") < 30


def test_the_same_failure_again_is_told_once_as_it_ended() -> None:
    texts = ("1 failed in 1.2s at 0x7f1", "1 failed in 2.2s at 0x7f2")
    first, last = (failure(["test_or_assertion"], text) for text in texts)
    last |= {"resolved_at": 9, "resolved_by": "edit a.ts"}
    written = write_context(row_of(first, last))["privileged_context"]
    assert written.count("diagnostic") == 1
    assert "Resolved by: edit a.ts" in written


@given(st.text("ab \n", max_size=400), st.integers(min_value=60, max_value=200))
def test_long_prompts_are_cut_between_words(text: str, limit: int) -> None:
    short = shorten_at_paragraphs(text, limit)
    assert len(short) <= limit
    if short != text:
        head, tail = short.split(TRIMMED)
        assert text.startswith(head)
        assert text.endswith(tail)
        words = text.split()
        if max(map(len, words), default=0) < 20:
            assert set(head.split()) | set(tail.split()) <= set(words)


def test_a_correction_after_a_further_request_has_the_answer_and_what_came_next() -> None:
    session = [
        HEADER,
        user("Rename the column total in the table of orders, please"),
        *bash("sed -i s/total/sum/ orders.sql", ""),
        call("edit", "c2", path="orders.sql", oldText="total", newText="sum"),
        result("edit", "ok", call_id="c2"),
        assistant("I have renamed it."),
        user("commit and push"),
        *bash("git push", "done"),
        assistant("Pushed."),
        user("No, that is wrong: you renamed the wrong column, it is still called total"),
        call("edit", "c3", path="orders.sql", oldText="amount", newText="sum"),
        result("edit", "ok", call_id="c3"),
    ]
    (found,) = find_evidence(read_trace(write_trace(*session)).events, None).described.values()
    assert [(item["kind"], item["target"], item["next"]) for item in found] == [
        ("correction", "Pushed.", "edit orders.sql")
    ]

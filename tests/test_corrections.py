import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import fit_corrections
from benchmarks.corrections import evaluate_corrections, main, measure, read_examples, render
from benchmarks.fetch_corrections import LABELS, expand_labels, read_sessions, write_as_pi
from benchmarks.fit_corrections import fit, replace_weights
from pimono_sdpo.traces.events import Event
from pimono_sdpo.traces.parse import read_trace
from processors.corrections import features
from processors.corrections.decide import SPAN_CHARS, decide, find_corrections, read_model
from processors.corrections.features import Turn, describe, read_cues, read_later_turns
from tests.linear import is_linear
from tests.traces import HEADER, assistant, bash, call, result, trace, user

TRACES = Path(os.environ.get("PIMONO_TRACES", ""))
needs_traces = pytest.mark.skipif(not os.environ.get("PIMONO_TRACES"), reason="PIMONO_TRACES is not set")

CORRECTIONS = [
    "不用这个库 换一个",
    "no, keep the old file name",
    "nope. I asked for a table, not a list",
    "that's wrong, the array is append only",
    "the tests still fail on windows",
    "You forgot to update the imports",
    "please don't touch the lockfile",
    "why did you rewrite the whole file?!",
    "Hmm, this broke the login page",
    "wtf are you doing, stop",
    "> cache: per process\n\nthat's not how it works",
    "/tmp/shots/2026/a.png\n\nthe header is still missing",
    "nein, das stimmt nicht, nimm die andere Datei",
    "das funktioniert immer noch nicht",
    "non, ce n'est pas ça",
    "ça ne marche toujours pas",
    "no, eso está mal",
    "sigue sin funcionar el botón",
    "não, eu pedi em português",
    "non funziona, hai rotto la build",
    "я же просил не трогать тесты",
    "всё ещё не работает",
    "nie działa, nadal ten sam błąd",
    "不对,应该是按日期排序",
    "还是报错,你根本没改",
    "違います。元のファイルを残してください",
    "まだ動かないです",
    "아니 그게 아니라 기존 파일을 수정하라고",
    "여전히 안 돼요",
]
OTHERS = [
    "ok, commit and push",
    "continue",
    "yes please",
    "no problem, go ahead",
    "Không sao, tôi có quyền cao nhất",
    "能不能帮我去掉所有的日志",
    "is this code used twice? the other file is not used any more, I think",
    "2",
    "now add a changelog entry for this",
    "looks good, merge it",
    "What does this function do?",
    "can you add a dark mode?",
    "use postgres for this project",
    "/model gpt-5",
    "Task: read the parser and report",
    "danke, sieht gut aus",
    "merci, maintenant ajoute la doc",
    "¿puedes añadir un test?",
    "спасибо, теперь добавь тесты",
    "好的,继续",
    "请帮我加一个登录页面",
    "次にテストを書いてください",
    "続けて",
    "좋아요 커밋해줘",
    "",
]


@pytest.mark.parametrize("text", CORRECTIONS)
def test_corrections_are_found_without_any_failure(text: str) -> None:
    decision = decide(Turn(3, text, tool_calls=2, edited=True))
    assert decision.is_correction, decision
    assert decision.span
    assert decision.span in text
    assert decision.probability >= read_model().threshold


@pytest.mark.parametrize("text", OTHERS)
def test_a_failure_makes_no_correction_of_a_follow_up(text: str) -> None:
    for errors in (0, 3):
        assert not decide(Turn(3, text, tool_errors=errors, tool_calls=3, edited=True)).is_correction
    if text in {"continue", "ok, commit and push", "/model gpt-5"}:
        assert not decide(Turn(3, text, aborted=True, tool_calls=3)).is_correction


@pytest.mark.parametrize(
    "text",
    ["You are right. My bad.", "sorry, my mistake: I used the wrong name", "du hast recht", "你说得对 是我搞错了"],
)
def test_who_agrees_corrects_nobody_however_the_agent_answers(text: str) -> None:
    turn = Turn(3, text, tool_calls=2, edited=True, reply="No problem, you're right about the rest")
    assert not decide(turn).is_correction
    assert "concedes_too" in describe(turn).cues


def test_a_bare_no_may_answer_a_question() -> None:
    told, answered = (decide(Turn(3, "nope", tool_calls=2, asked=asked)).probability for asked in (False, True))
    assert answered < told - 0.1


def test_an_abort_at_work_makes_a_correction_of_a_remark() -> None:
    text = "the footer should keep the accent colour"
    plain, aborted = (decide(Turn(3, text, aborted=a, tool_calls=4, edited=True)) for a in (False, True))
    assert not plain.is_correction
    assert aborted.is_correction
    alone = decide(Turn(3, "we wanted the accent colour", aborted=True, tool_calls=4))
    assert (alone.rule, alone.span) == ("after_abort", "we wanted the accent colour")


@pytest.mark.parametrize(
    ("text", "rule", "span"),
    [
        ("Well, NO, not there", "no", "Well, NO"),
        ("I said the other folder", "i_said", "I said"),
        ("the page shows the same error", "still_broken", "same error"),
        ("you\u2019ve got it, but this is not it", "wrong", "this is not"),
        ("plase don't rewrite the changelog", "negation", "plase don't rewrite the changelog"),
        ("keep it, don't modify the theme", "negation", "keep it, don't modify the theme"),
        ("and please don't re-use sk-a+b/c.", "negation", "and please don't re-use sk-a+b/c."),
        ("设置错了.而且don't改", "wrong", "错了"),
    ],
)
def test_a_decision_quotes_the_words_of_its_strongest_cue(text: str, rule: str, span: str) -> None:
    decision = decide(Turn(3, text))
    assert (decision.rule, decision.span) == (rule, span)


@pytest.mark.parametrize(
    ("text", "rule", "span"),
    [
        ("The footer is never dimmed", "negation", "The footer is never dimmed"),
        ("The footer is dimmed", "about_it", "The footer is dimmed"),
        ("Fine. An offer: the timer is off by one! More", "broken", "An offer: the timer is off by one!"),
        ("x " * 60 + "and the timer is off", "broken", "x x x x x x x x x x x and the timer is off"),
    ],
)  # fmt: skip
def test_a_lone_weak_word_is_quoted_with_its_sentence(text: str, rule: str, span: str) -> None:
    decision = decide(Turn(3, text))
    assert (decision.rule, decision.span) == (rule, span)


@pytest.mark.parametrize(
    "text",
    [
        "其他没有问题。",
        "dont change anything just yet",
        "不用",
        "不用\uff0c你检测一下",
        "Không cần đâu em",
        "System (untrusted): [2026-04-20 15:17:04 GMT+7] Exec failed (dawn-ced, signal SIGKILL)\n\nAn error. Do not relay it.",
        '"name":"Algebra","course_code":"MATH2050","created_at":"2024-06-21","is_public":false,"wrong":"no"',
        '## Checklist Purpose: "Unit Tests for English"\n\nNEVER test whether the code works: that is WRONG',
        "Tool call error:\n\n<error>\nNo tool calls found\n</error>",
        "```\nSTOP. This is wrong.\n```\nwhat does this output mean?",
        "[media attached: /in/a.jpg (image/jpeg)]\nTo send an image back, use the message tool.\n"
        'Sender (untrusted metadata):\n```json\n{"name": "no, wrong"}\n```\n\nol\u00e1',
    ],
)
def test_what_only_looks_like_an_objection_is_none(text: str) -> None:
    (turn,) = read_later_turns([Event(0, "user", "go"), Event(1, "assistant", "Done."), Event(2, "user", text)])
    assert not decide(turn).is_correction


def test_a_gateways_words_around_a_message_do_not_count() -> None:
    written = (
        "[message_id: om_x1]\nou_77: 还是报错\n\n[System: The bot lacks a permission: https://x.y]",
        "[Chat messages since your last reply - for context]\nUser: hi\n\n"
        "[Current message - respond to this]\nUser: 还是报错",
        "还是报错\n[message_id: 0ca2a7c0-d5f7]",
        "System: [2026-02-22 10:12 GMT+8] connected.\nSystem: [2026-02-22 10:13 GMT+8] Feishu[main] DM from ou_9: "
        "还是报错\n\n还是报错",
    )
    assert {features.strip_wrapper(text) for text in written} == {"还是报错"}


def test_what_the_agent_answers_speaks_for_or_against() -> None:
    text = "the total is that of last month"
    said = [
        decide(Turn(3, text, tool_calls=2, reply=reply)).probability
        for reply in ("Great, next is the chart.", "", "You're right, I took the wrong month.")
    ]
    assert said == sorted(set(said))


def test_a_veto_is_judged_like_any_message_and_speaks_for_a_correction() -> None:
    words = "use the other folder, as I said"
    plain, veto = (decide(Turn(3, words, is_veto=veto)) for veto in (False, True))
    assert plain.probability < veto.probability < 1.0
    assert not decide(Turn(3, "great, add these as well", is_veto=True)).is_correction


def test_a_veto_counts_before_the_first_request() -> None:
    veto = Event(3, "user", "no, don't rename it", is_veto=True)
    (found,) = find_corrections([veto])
    assert found["text"] == "no, don't rename it"
    later = [veto, Event(4, "user", "no, that's wrong"), Event(5, "user", "no, wrong")]
    # The message after it may still be the first request.
    assert [item["event_index"] for item in find_corrections(later)] == [3, 5]
    said_before = [Event(2, "user", "Build it"), *later]
    assert [item["event_index"] for item in find_corrections(said_before)] == [3, 4, 5]


def test_a_span_cut_short_ends_with_a_whole_word() -> None:
    text = "needs 6 for the footer, " + "colour " * 7 + "x" * 60 + " end"
    decision = decide(Turn(3, text, aborted=True, tool_calls=4))
    assert decision.span
    assert set(decision.span.split()) <= set(text.split())


@given(st.text(max_size=300), st.booleans(), st.integers(0, 5))
def test_any_text_is_decided(text: str, aborted: bool, calls: int) -> None:
    decision = decide(Turn(3, text.strip(), aborted=aborted, tool_calls=calls))
    assert 0.0 <= decision.probability <= 1.0
    assert len(decision.span) <= SPAN_CHARS
    assert decision == decide(Turn(3, text.strip(), aborted=aborted, tool_calls=calls))


@pytest.mark.parametrize(
    "piece", ["a", " ", "no ", "- 11\n", "/a/b", "`", "``` ", "you ", "not a ", "\n\n", "!", "không", "不", "du hast "]
)
def test_a_turn_is_decided_in_linear_time(piece: str) -> None:
    assert is_linear(lambda size: decide(Turn(3, piece * (size // len(piece)))), 1_000_000)


def test_a_turn_knows_what_the_agent_did_before_it() -> None:
    text = trace(
        HEADER,
        user("build the page"),
        call("edit", path="a"),
        result("edit", "done"),
        *bash("npm test", "1 failed", error=True, call_id="c2"),
        assistant("Shall I go on?"),
        user("first"),
        assistant("", stop="aborted"),
        user("second"),
    )
    events = read_trace(text).events
    first, second = read_later_turns(events)
    assert (first.text, first.tool_calls, first.tool_errors) == ("first", 2, 1)
    assert (first.edited, first.asked, first.aborted) == (True, True, False)
    assert (second.tool_calls, second.tool_errors, second.aborted) == (0, 0, True)


def test_a_found_correction_says_where_why_and_how_sure() -> None:
    text = trace(
        HEADER,
        user("no, build the page"),
        assistant("Done."),
        user("ok thanks"),
        assistant("Fine."),
        user("no, that's not what I wanted"),
    )
    events = read_trace(text).events
    (found,) = find_corrections(events)
    assert events[found["event_index"]].text == found["text"] == "no, that's not what I wanted"
    assert found["rule"] in {cue.name for cue in read_cues()}
    assert found["span"] in found["text"]
    assert found["probability"] > 0.8


SITUATIONS = [
    {},
    {"aborted": True, "tool_calls": 2, "edited": True},
    {"said": "Done, all tests pass.", "before": "build the page", "tool_calls": 1, "reply": "You're right, sorry."},
    {"said": "Shall I try it?", "asked": True, "edits_first": True, "reply": "I'll fix that now."},
    {"provider_error": True, "is_veto": True, "said": "Try it again, please.", "tool_calls": 1, "edited": True},
]


@pytest.mark.parametrize("situation", SITUATIONS)
def test_what_is_ruled_out_by_what_it_may_show_at_most_is_no_correction(situation: dict[str, Any]) -> None:
    ruled_out = 0
    for text in (*CORRECTIONS, *OTHERS, "no", "but wait, is it broken?", "error: 3 failed\n" * 3):
        turn = Turn(3, text, **situation)
        exact, fast = decide(turn), decide(turn, exact=False)
        assert fast == exact if exact.is_correction else not fast.is_correction
        ruled_out += fast != exact
    assert ruled_out


def labelled(folder: Path, said: list[tuple[str, str]]) -> tuple[Path, Path]:
    entries = [HEADER, user("build the page")]
    for text, _ in said:
        entries += [assistant("Done."), user(text)]
    (folder / "someone__project__s.jsonl").write_text(trace(*entries))
    rows = [f"someone__project__s.jsonl,{n},{label},{json.dumps(text)}" for n, (text, label) in enumerate(said, 1)]
    labels = folder / "labels.csv"
    labels.write_text("\n".join(["file,user_ordinal,label,text", *rows]) + "\n")
    return labels, folder


SAID = [("no not there", "correction"), ("go on", "other"), ("it crashes now", "bug_report"), ("no blue one", "steer")]


def test_labels_find_their_messages_and_authors(tmp_path: Path) -> None:
    examples = read_examples(*labelled(tmp_path, SAID))
    assert [(e.turn and e.turn.text, e.label) for e in examples] == SAID
    assert [e.positive for e in examples] == [True, False, True, False]
    assert {e.person for e in examples} == {"ann"}
    assert {e.harness for e in examples} == {"pi"}
    score = measure("x", examples, [True, True, False, False])
    assert (score.precision, score.recall, score.f1) == (0.5, 0.5, 0.5)


def test_a_label_without_its_message_counts_as_answered_with_no(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels, folder = labelled(tmp_path, SAID)
    labels.write_text(labels.read_text().replace("no not there", "said on another branch"))
    examples = read_examples(labels, folder)
    assert [example.turn is None for example in examples] == [True, False, False, False]
    assert main([str(labels), str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "1 label has no message on the path that the user kept" in shown
    assert evaluate_corrections(examples).groups["weights as shipped"][0].positives == 2


def test_labels_may_go_without_their_text_and_name_people(tmp_path: Path) -> None:
    labels, folder = labelled(tmp_path, SAID)
    rows = [line.split(",") for line in labels.read_text().splitlines()[1:]]
    lines = ["file,user_ordinal,label,person,harness", *(",".join([*r[:3], "bo", "own"]) for r in rows)]
    labels.write_text("\n".join(lines) + "\n")
    examples = read_examples(labels, folder)
    assert [e.turn and e.turn.text for e in examples] == [text for text, _ in SAID]
    assert {(e.person, e.harness) for e in examples} == {("bo", "own")}


HEAD = b"file,user_ordinal,label,text\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (HEAD, "holds no labels"),
        (b"some notes\nof mine\n", "has no `file`"),
        (HEAD + b"s.jsonl,1,wrong,hi\n", "is 'wrong'; use one of bug_report, correction"),
        (HEAD + b"s.jsonl,9,other,hi\n", "No label of `labels.csv` has its message"),
        (HEAD + b"s.jsonl,1\n", "Label 1 of `labels.csv` has no `label`"),
        (HEAD + b"s.jsonl,abc,other,hi\n", "is 'abc'; give the number"),
        (HEAD + b"gone.jsonl,1,other,hi\n", "`traces/gone.jsonl` cannot be read"),
        (HEAD + b"s.jsonl,1,other,caf\xe9\n", "CSV in UTF-8"),
        (None, "(Is a directory)"),
    ],
)
def test_labels_that_cannot_be_used_are_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: bytes | None,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "traces" / "below").mkdir(parents=True)
    (tmp_path / "traces" / "s.jsonl").write_text(trace(HEADER, user("build it")))
    if content is None:
        Path("labels.csv").mkdir()
    else:
        Path("labels.csv").write_bytes(content)
    assert main(["labels.csv", "traces"]) == 2
    shown = capsys.readouterr().err
    assert words in shown
    assert shown.count("\n") == 1


def test_the_table_is_printed_and_the_weights_are_written_where_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    labels, folder = labelled(tmp_path, SAID)
    labels.write_text(labels.read_text(), encoding="utf-8-sig")
    given = [str(labels), str(folder)]
    assert main([*given, *given, "--refit"]) == 0
    shown = capsys.readouterr().out
    assert all(words in shown for words in ("fitted without each person", "bag of negation words"))
    monkeypatch.setattr(fit_corrections, "CUES", tmp_path / "cues.toml")
    before = features.CUES.read_text("utf-8")
    (tmp_path / "cues.toml").write_text(before, encoding="utf-8")
    assert fit_corrections.main(given) == 0
    written = tomllib.loads((tmp_path / "cues.toml").read_text("utf-8"))
    model = fit(read_examples(labels, folder))
    assert {name: cue["weight"] for name, cue in written.items() if isinstance(cue, dict)} == model.cues
    assert written["intercept"] == model.intercept
    assert replace_weights(before, read_model()) == before


@needs_traces
def test_the_shipped_weights_beat_the_baselines_on_the_shared_labels() -> None:
    examples = read_examples(TRACES / "labels_user_messages.csv", TRACES)
    report = evaluate_corrections(examples)
    (whole,) = report.groups["weights as shipped"]
    assert (whole.messages, whole.positives) == (391, 91)
    assert all(whole.f1 > baseline.f1 + 0.15 for baseline in report.groups["baselines"])
    assert "precision" in render(report)


@pytest.mark.parametrize(
    ("text", "rule"), [("nein, das ist falsch — schau nach", "wrong"), ("Нет, не так", "no"), ("不对 改回去", "wrong")]
)
def test_words_are_found_in_any_script(text: str, rule: str) -> None:
    assert rule in features.describe(Turn(5, text)).cues


def test_the_committed_labels_name_sessions_and_hold_no_text() -> None:
    for path in LABELS.glob("*.csv"):
        sessions = read_sessions(path)
        assert list(sessions[0]) == ["repository", "commit", "path", "licence", "harness", "labels"]
        rows = [row for session in sessions for row in expand_labels(session)]
        assert {row["label"] for row in rows} <= {"correction", "bug_report", "steer", "other"}
        assert all(re.fullmatch(r"[0-9a-f]{40}|HEAD", session["commit"]) for session in sessions)


def test_a_specstory_history_is_read_as_a_session() -> None:
    markdown = "_**User**_\n\nbuild it\n\n---\n\n_**Assistant**_\n\nRead file: a\nDone.\n\n---\n"
    text = write_as_pi(markdown + "\n_**User (2026-01-29)**_\n\nno, wrong\n")
    (turn,) = read_later_turns(read_trace(text).events)
    assert (turn.text, turn.tool_calls, turn.said[-5:]) == ("no, wrong", 1, "Done.")

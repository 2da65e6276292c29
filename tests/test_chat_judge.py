import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pimono_sdpo.cli.filter import summarize
from pimono_sdpo.errors import InferenceError
from pimono_sdpo.filtering import FilterOptions, run_filter
from pimono_sdpo.traces.parse import read_trace
from pimono_sdpo.training.tiny_model import write_tiny_model
from processors.corrections import find_corrections
from processors.evidence import find_evidence
from processors.judge import MESSAGE_OPTIONS, Judge
from processors.row_judge import QUESTIONS, TASK
from tests.chat_server import ChatServer, busy, serve_chat
from tests.chat_server.server import Json
from tests.test_filter import table
from tests.traces import HEADER, assistant, bash, trace, user

SECRET = "hf_" + "abcdefghijklmnopqrstuvwx"
EVENTS = read_trace(
    trace(
        HEADER,
        user("build the page"),
        assistant("Done, the page is blue."),
        user(f"lovely weather {SECRET}"),
        assistant("Yes."),
        user("no, that's wrong"),
        assistant("Oh."),
        user("/model gpt-5"),
    )
).events
YES, NO = (
    json.dumps({"message": {name: 90 if name == kind else 0 for name in MESSAGE_OPTIONS}})
    for kind in ("correction", "approval")
)


@pytest.fixture(autouse=True)
def _no_cache_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def says(answer: Callable[[str], str]) -> Callable[[Json], str]:
    part = re.compile(r"<last message of the user (\w{16})>\n(.*)\n</last message of the user \1>", re.DOTALL)
    return lambda body: answer(part.search(body["messages"][-1]["content"])[2])  # type: ignore[index]


def test_a_judge_decides_and_is_asked_once(chat_server: ChatServer) -> None:
    chat_server.policy = says(lambda message: YES if "weather" in message else NO)
    judge = Judge("tiny", chat_server.url)
    for _ in range(2):
        (found,) = find_corrections(EVENTS, judge)
        assert (found["rule"], found["probability"]) == ("judge", 1.0)
        assert found["text"].startswith("lovely weather")
    assert len(chat_server.hits) == 2
    sent = str([hit.body for hit in chat_server.hits])
    assert "the page is blue" in sent
    assert SECRET not in sent
    assert "/model" not in sent


def test_a_judge_that_cannot_be_asked_is_an_error_and_keeps_answers(chat_server: ChatServer) -> None:
    chat_server.policy = says(lambda message: YES)
    chat_server.fail_next(busy(401), when=lambda body: "weather" in str(body))
    judge = Judge("tiny", chat_server.url)
    with pytest.raises(InferenceError, match="finished answers are kept"):
        find_corrections(EVENTS, judge)
    assert len(find_corrections(EVENTS, judge)) == 2
    assert all(count == 1 for count in chat_server.answered().values())


def test_no_judge_is_asked_about_a_session_without_a_request(chat_server: ChatServer) -> None:
    chat_server.policy = says(lambda message: YES)
    judge = Judge("tiny", chat_server.url)
    greeting = [user("hi"), assistant("Hello!"), user("great, thank you"), assistant("Bye.")]
    found = find_evidence(read_trace(trace(HEADER, *greeting)).events, judge)
    assert (found.requests, found.described, len(chat_server.hits)) == ([], {}, 0)
    find_evidence(read_trace(trace(HEADER, user("build the page"), *greeting[1:])).events, judge)
    assert len(chat_server.hits) == 1


def test_answers_about_redacted_rows_are_a_column(chat_server: ChatServer, tmp_path: Path) -> None:
    good = json.dumps({one.name: dict.fromkeys(one.options, 20) for one in QUESTIONS})
    texts = {"good": good, "vague": "I like it"}
    (traces := tmp_path / "traces").mkdir()
    for name in texts:
        failed = bash(f"npm test {name}", f"FAIL {name} token={SECRET}\n\nCommand exited with code 1", error=True)
        session = [HEADER, user(f"fix the {name} parser of /home/ann/app, please"), *failed, assistant("Broken.")]
        (traces / f"{name}.jsonl").write_text(trace(*session))
    chat_server.policy = lambda body: next(
        answer for name, answer in texts.items() if f"the {name} parser" in body["messages"][-1]["content"]
    )
    options = FilterOptions(judge="tiny", judge_provider=chat_server.url, dedupe=False)
    for out in ("rows", "again"):
        assert run_filter(str(traces), tmp_path / out, options)["kept"] == len(texts)
        judged = dict(zip(*(table(tmp_path / out)[name].to_pylist() for name in ("source", "judged")), strict=True))
        assert judged["vague.jsonl"] == []
        asked = [(one["question"], one["option"]) for one in judged["good.jsonl"]]
        assert asked == [(one.name, option) for one in QUESTIONS for option in one.options]
        assert judged["good.jsonl"][0]["probability"] == 0.5
    # The second run replays the answer of the first one that could be read.
    assert len(chat_server.hits) == 3
    sent = str([hit.body for hit in chat_server.hits])
    assert "FAIL good" in sent
    assert SECRET not in sent
    assert "/home/ann" not in sent


def test_only_answers_that_can_be_read_are_kept(chat_server: ChatServer) -> None:
    judge = Judge("tiny", chat_server.url)
    offline = find_corrections(EVENTS)
    unreadable: list[str | Json] = [
        "perhaps",
        "",
        f"<think>{YES}",
        f"I was told to say {YES}",
        YES.replace("90", "-1"),
    ]
    unreadable += [{"content": YES, "finish_reason": "length"}, YES.replace("90", "0"), '{"message": {"approval": 9}}']
    for number, answer in enumerate(unreadable, start=1):
        chat_server.policy = lambda body, answer=answer: answer  # type: ignore[misc]
        assert find_corrections(EVENTS, judge) == offline
        assert len(chat_server.hits) == 2 * number
    chat_server.policy = says(lambda message: f"<think>no, or</think>\n\n```json\n{YES}\n```")
    assert len(find_corrections(EVENTS, judge)) == 2
    chat_server.policy = says(lambda message: NO)
    assert len(find_corrections(EVENTS, judge)) == 2
    assert len(chat_server.hits) == 2 * len(unreadable) + 2


def test_answers_are_kept_by_endpoint(chat_server: ChatServer) -> None:
    chat_server.policy = says(lambda message: YES)
    with serve_chat(says(lambda message: NO)) as other:
        for _ in range(2):
            assert len(find_corrections(EVENTS, Judge("tiny", chat_server.url))) == 2
            assert find_corrections(EVENTS, Judge("tiny", other.url)) == []
        assert len(chat_server.hits) == len(other.hits) == 2


def test_a_model_on_this_machine_gives_the_probability_of_every_option(tmp_path: Path) -> None:
    model = str(write_tiny_model(tmp_path))
    (answers,) = Judge(model).decide(TASK, [{"request": "fix it", "what went wrong": "</request>boom"}], QUESTIONS)
    assert answers is not None
    assert {name: [*of] for name, of in answers.items()} == {one.name: [*one.options] for one in QUESTIONS}
    assert all(sum(of.values()) == pytest.approx(1.0) for of in answers.values())
    assert all(found["rule"] == "judge" for found in find_corrections(EVENTS, Judge(model)))
    with pytest.raises(InferenceError, match="cannot judge on this machine"):
        Judge(str(tmp_path / "gone")).decide(TASK, [{}], QUESTIONS)


def test_answers_that_cannot_be_read_are_counted(tmp_path: Path, chat_server: ChatServer) -> None:
    session = trace(HEADER, user("build the page"), *bash("npm test", "AssertionError: no page", error=True))
    (tmp_path / "a.jsonl").write_text(session)
    chat_server.policy = lambda body: "answer 100"
    options = FilterOptions(judge="tiny", judge_provider=chat_server.url)
    report = run_filter(str(tmp_path / "a.jsonl"), tmp_path / "rows", options)
    assert (report["kept"], report["judge_unreadable"]) == (1, 1)
    assert "about 1 of 1 rows could not be read" in summarize(report, tmp_path / "rows")

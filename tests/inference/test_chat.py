"""The chat client against a local server: answers, faults, limits, and replay from the journal."""

import asyncio
import gc
import socket
import struct
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from threading import Thread
from typing import Any
from weakref import WeakSet

import pytest

from pimono_sdpo.llm.calls import Journal, Reply, Request
from pimono_sdpo.llm.chat import Chat
from pimono_sdpo.llm.settings import Endpoint, Limits, Price
from tests.chat_server import ChatServer, busy, drop, garbage, hang, tool_call, trickle, truncated
from tests.chat_server.server import LATE

KEY = "sk-secret-0123456789"
FAST = Limits(concurrency=4, timeout=60, attempts=3)


def question(text: str = "ping", **fields: Any) -> Request:
    return Request(model="m", messages=[{"role": "user", "content": text}], **fields)


def chat_of(server: ChatServer, journal: Path | None = None, limits: Limits = FAST) -> Chat:
    held = Journal(journal) if journal else None
    return Chat(Endpoint("test", server.url, KEY), held, limits=limits)


def ask_all(chat: Chat, *requests: Request) -> list[Reply]:
    async def all_of_them() -> list[Reply]:
        try:
            return await asyncio.gather(*map(chat.ask, requests))
        finally:
            await chat.close()

    return asyncio.run(all_of_them())


def test_an_answer_has_text_calls_tokens_and_cost(chat_server: ChatServer) -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 10}
    details = {"prompt_tokens_details": {"cached_tokens": 40}}
    chat_server.policy = lambda body: {**tool_call("grep", pattern="x"), "content": "look", "usage": usage | details}
    chat = chat_of(chat_server)
    chat.prices = {"m": Price(input=1.0, output=10.0, cached=0.5)}
    (reply,) = ask_all(chat, question(seed=7, temperature=0.5, max_tokens=9))
    assert (reply.text, reply.finish_reason, reply.error) == ("look", "tool_calls", None)
    (call,) = reply.tool_calls
    assert call["function"] == {"name": "grep", "arguments": '{"pattern": "x"}'}
    assert (reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens) == (100, 10, 40)
    assert reply.cost == pytest.approx((60 * 1.0 + 40 * 0.5 + 10 * 10.0) / 1e6)
    (hit,) = chat_server.hits
    assert hit.headers["authorization"] == f"Bearer {KEY}"
    assert {**hit.body, "messages": None} == {
        "model": "m",
        "messages": None,
        "seed": 7,
        "temperature": 0.5,
        "max_tokens": 9,
    }


@pytest.mark.parametrize(
    "fault",
    [
        busy(429, retry_after=0.01),
        busy(429, retry_after=3600),
        busy(429, retry_after=format_datetime(datetime.now(UTC) + timedelta(hours=1))),
        busy(503, retry_after="soon"),
        busy(502),
        drop(),
    ],
    ids=["429", "429 for an hour", "429 until a date", "503 soon", "502", "drop"],
)
def test_a_transient_failure_is_tried_again(
    chat_server: ChatServer, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pimono_sdpo.llm.chat.LONGEST_WAIT", 0.05)
    chat_server.fail_next(fault, times=2)
    (reply,) = ask_all(chat_of(chat_server), question())
    assert (reply.text, reply.error) == ("ping", None)
    assert len(chat_server.hits) == 3


@pytest.mark.parametrize(
    ("fault", "message", "tries"),
    [
        (busy(429), "`test` answered 429: Injected fault", 3),
        (busy(500, body={"message": "no"}), "`test` answered 500: no", 3),
        (busy(400, body={"detail": {"message": "bad"}}), "`test` answered 400: bad", 1),
        (busy(404, body=[1]), "`test` answered 404: [1]", 1),
        (busy(401, body={"error": f"wrong key {KEY}"}), "`test` answered 401: wrong key [key]", 1),
        (garbage(b"\n<html>It works!</html>"), "gave no usable answer (DecodingError: the answer is a web page)", 3),
        (garbage(b"\xff\xfe"), "gave no usable answer", 1),
        (garbage(b"[" * 200_000), "gave no usable answer", 1),
        (garbage(), "gave no usable answer (the answer has no choices)", 1),
        (garbage(b'{"choices": []}'), "gave no usable answer (the answer has no choices)", 1),
        (garbage(b'{"choices": [{"message": "hi"}]}'), "gave no usable answer", 1),
        (garbage(b'{"choices": [{"message": {"tool_calls": [{"id": 1}]}}]}'), "gave no usable answer", 1),
        (truncated(), "gave no usable answer", 1),
        (drop(), "gave no usable answer", 3),
        (hang(1.5), "`test` did not answer in time", 3),
        (trickle(1.5), "`test` did not answer in time", 3),
    ],
    ids=lambda value: value.name if hasattr(value, "name") else str(value),
)
def test_a_lasting_failure_is_an_error_and_tried_again_by_the_next_run(
    chat_server: ChatServer, tmp_path: Path, fault: Any, message: str, tries: int
) -> None:
    # Only what never answers is waited for.
    timeout = 0.3 if fault.name in LATE else 60
    limits = Limits(timeout=timeout, attempts=3)
    chat_server.fail_next(fault, times=tries)
    (reply,) = ask_all(chat_of(chat_server, tmp_path / "calls.sqlite", limits), question())
    assert reply.error is not None
    assert message in reply.error
    assert (reply.text, len(chat_server.hits)) == ("", tries)
    (again,) = ask_all(chat_of(chat_server, tmp_path / "calls.sqlite"), question())
    assert (again.text, again.error, again.from_journal) == ("ping", None, False)


def test_an_answer_with_odd_parts_is_still_an_answer(chat_server: ChatServer) -> None:
    body = b'{"choices": [{"message": {"content": "\\ud800ok"}, "finish_reason": 3}], "usage": 7}'
    chat_server.fail_next(garbage(body))
    (reply,) = ask_all(chat_of(chat_server), question("half a pair \ud83d"))
    assert (reply.text, reply.error, reply.finish_reason) == ("\ufffdok", None, None)
    assert chat_server.hits[0].body["messages"][0]["content"] == "half a pair ?"


def test_the_journal_answers_without_the_server(chat_server: ChatServer, tmp_path: Path) -> None:
    journal = tmp_path / "calls.sqlite"
    chat_server.policy = lambda body: tool_call("read_file", rel_path=f"{body['seed']}.py")
    requests = [question(seed=seed) for seed in range(6)]
    first = ask_all(chat_of(chat_server, journal), *requests)
    second = ask_all(chat_of(chat_server, journal), *requests)
    assert len(chat_server.hits) == 6
    assert [reply.from_journal for reply in second] == [True] * 6
    assert [reply.tool_calls for reply in second] == [reply.tool_calls for reply in first]
    assert KEY not in journal.read_bytes().decode("utf-8", "replace")


def test_equal_questions_are_paid_once_and_samples_are_not_equal(chat_server: ChatServer, tmp_path: Path) -> None:
    chat = chat_of(chat_server, tmp_path / "calls.sqlite")
    ask_all(chat, question(), question(), question(sample=1), question(sample=1))
    assert len(chat_server.hits) == 2
    assert chat_server.hits[0].body == chat_server.hits[1].body


def test_no_more_calls_at_once_than_allowed(chat_server: ChatServer) -> None:
    chat_server.choose_fault = lambda body, before: hang(0.1)
    replies = ask_all(chat_of(chat_server), *[question(seed=seed) for seed in range(24)])
    assert all(reply.error is None for reply in replies)
    assert 1 < chat_server.most_under_way <= FAST.concurrency


@pytest.mark.parametrize(("status", "most"), [(401, 4), (404, 4), (500, 12)])
def test_an_endpoint_that_always_fails_is_not_called_any_more(chat_server: ChatServer, status: int, most: int) -> None:
    chat_server.choose_fault = lambda body, before: busy(status)
    limits = Limits(concurrency=4, attempts=1, give_up=9)
    chat = chat_of(chat_server, limits=limits)
    replies = ask_all(chat, *[question(seed=seed) for seed in range(50)])
    assert all(reply.error == f"`test` answered {status}: Injected fault" for reply in replies)
    assert chat.stopped
    assert len(chat_server.hits) <= most


def test_the_key_of_a_request_sees_what_is_sent_and_nothing_else() -> None:
    with_nulls = {"role": "user", "content": "ping", "tool_calls": None, "name": None}
    same = [question(), Request(model="m", messages=[with_nulls], tools=[])]
    other = [question("pong"), question(seed=0), question(sample=1)]
    keys = [request.key for request in [*same, *other]]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4


def test_one_chat_serves_several_event_loops(chat_server: ChatServer) -> None:
    chat = chat_of(chat_server)
    several: Callable[[], Awaitable[list[Reply]]] = lambda: asyncio.gather(  # noqa: E731
        *[chat.ask(question(seed=seed)) for seed in range(9)]
    )

    loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()

    async def one() -> list[Reply]:
        loops.add(asyncio.get_running_loop())
        return list(await several())

    assert all(reply.error is None for _ in range(5) for reply in asyncio.run(one()))
    # A long run has many, each with a client; of ended ones at most the last is kept.
    gc.collect()
    assert len(loops) <= 1


def test_an_own_server_is_called_in_offline_mode(chat_server: ChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (reply,) = ask_all(chat_of(chat_server), question())
    assert (reply.text, reply.error) == ("ping", None)


def test_a_reset_connection_is_called_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def reset() -> None:
            for _ in range(2):
                connection, _ = listener.accept()
                connection.recv(1 << 16)
                # Closed with no time to linger, a connection is reset.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()

        server = Thread(target=reset)
        server.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        (reply,) = ask_all(Chat(Endpoint("test", url, KEY), limits=Limits(attempts=2)), question())
        server.join()
    assert reply.error == "`test` gave no usable answer (the connection was reset)"


def test_a_server_that_is_down_ends_all_calls() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
    chat = Chat(Endpoint("test", url, KEY), limits=Limits(concurrency=2, attempts=2))
    replies = ask_all(chat, *[question(seed=seed) for seed in range(6)])
    assert all("gave no usable answer (ConnectError" in (reply.error or "") for reply in replies)
    assert chat.stopped

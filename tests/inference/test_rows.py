"""Rows mapped through a chat: order, concurrency, columns; several processes and one journal."""

import asyncio
import multiprocessing
import os
import signal
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, Features, Value

from pimono_sdpo.errors import InferenceError
from pimono_sdpo.llm.calls import Journal, Reply, Request
from pimono_sdpo.llm.chat import Chat, map_rows
from pimono_sdpo.llm.settings import Endpoint, Limits
from tests.chat_server import ChatServer, busy, hang

ANSWER = Features({"n": Value("int32"), "text": Value("string"), "error": Value("string")})


class Asker:
    def __init__(self, chat: Chat) -> None:
        self.chat = chat

    async def one(self, row: dict[str, Any]) -> dict[str, Any]:
        turn = {"role": "user", "content": f"question {row['n']}"}
        reply = await self.chat.ask(Request("m", [turn]))
        return {"n": row["n"], "text": reply.text or None, "error": reply.error}


def chat_of(url: str, journal: Path) -> Chat:
    limits = Limits(concurrency=32, attempts=2)
    return Chat(Endpoint("test", url, "key"), Journal(journal), limits=limits)


def rows(count: int) -> Dataset:
    return Dataset.from_list([{"n": n, "unused": "x"} for n in range(count)])


def test_results_come_in_order_and_a_failure_is_a_row(
    chat_server: ChatServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # Later questions are answered first, and one never.
    def trouble(body: dict[str, Any], before: int) -> Any:
        number = int(body["messages"][0]["content"].split()[1])
        return busy() if number == 7 else hang((20 - number) / 200)

    chat_server.choose_fault = trouble
    asker = Asker(chat_of(chat_server.url, tmp_path / "calls.sqlite"))
    result = map_rows(rows(20), asker.one, ANSWER, in_flight=5, desc="ask")
    assert result.features == ANSWER
    assert result["n"] == list(range(20))
    assert [n for n, error in enumerate(result["error"]) if error] == [7]
    assert result["text"][:2] == ["question 0", "question 1"]
    assert chat_server.most_under_way <= 5
    assert "ask" not in capfd.readouterr().err


def test_a_bug_ends_all_and_is_raised_as_it_is(chat_server: ChatServer, tmp_path: Path) -> None:
    async def broken(row: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(0)
        raise ZeroDivisionError(row["n"])

    with pytest.raises(ZeroDivisionError):
        map_rows(rows(9), broken, ANSWER, in_flight=3, desc="ask")


def ask_some(url: str, journal: Path, numbers: range) -> None:
    asker = Asker(chat_of(url, journal))
    some = Dataset.from_list([{"n": n} for n in numbers])
    result = map_rows(some, asker.one, ANSWER, in_flight=8, desc="ask")
    assert result["error"] == [None] * len(numbers)


def test_processes_share_a_journal(chat_server: ChatServer, tmp_path: Path) -> None:
    journal = tmp_path / "calls.sqlite"
    spawn = multiprocessing.get_context("spawn")
    spans = (range(0, 30), range(20, 50))
    workers = [spawn.Process(target=ask_some, args=(chat_server.url, journal, s)) for s in spans]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert sum(used.calls for used in Journal(journal).usage().values()) == 50
    hits = len(chat_server.hits)
    ask_some(chat_server.url, journal, range(50))
    assert len(chat_server.hits) == hits


def test_of_two_answers_the_first_is_kept(tmp_path: Path) -> None:
    one, other = Journal(tmp_path / "calls.sqlite"), Journal(tmp_path / "calls.sqlite")
    request = Request("m", [{"role": "user", "content": "ping"}])
    one.put(request, Reply(text="first", tool_calls=[{"id": "1"}]), "test")
    other.put(request, Reply(text="second"), "test")
    kept = other.get(request)
    assert kept == Reply(text="first", tool_calls=[{"id": "1"}], from_journal=True)


def test_an_invalid_journal_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "calls.sqlite").write_text("not a database at all, only a text " * 9)
    (tmp_path / "file").touch()
    other = sqlite3.connect(tmp_path / "other.sqlite")
    other.execute("create table calls (id integer)")
    other.close()
    for path in ("calls.sqlite", "file/calls.sqlite", "other.sqlite"):
        with pytest.raises(InferenceError, match=r"^Cannot use the journal [^\n]+\.$"):
            Journal(tmp_path / path).usage()


@pytest.mark.parametrize("at", [0, 3, 9])
def test_ctrl_c_ends_all_rows_whichever_it_meets(at: int) -> None:
    begun: list[int] = []
    cleaned: list[int] = []

    async def one(row: dict[str, Any]) -> dict[str, Any]:
        begun.append(row["n"])
        try:
            if row["n"] == at:
                os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(600 if row["n"] >= min(at, 3) else 0)
        finally:
            cleaned.append(row["n"])
        return {"n": row["n"], "text": None, "error": None}

    # A test run in the background of a shell ignores the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            map_rows(rows(12), one, ANSWER, in_flight=12, desc="ctrl-c")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert at in begun
    assert sorted(cleaned) == sorted(begun)


def test_a_new_journal_may_be_opened_by_many_at_once(tmp_path: Path) -> None:
    together = threading.Barrier(4)

    def open_all(worker: int) -> None:
        for number in range(60):
            together.wait(60)
            Journal(tmp_path / f"{number}.sqlite").usage()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(open_all, range(4)))

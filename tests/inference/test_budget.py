"""Costs: the limit holds with concurrent calls, estimates scale, missing prices are refused."""

import asyncio
from pathlib import Path

import pytest

from pimono_sdpo.errors import InferenceError
from pimono_sdpo.llm.calls import Budget, Journal, Reply, Request, Tally, Usage, cost
from pimono_sdpo.llm.chat import Chat
from pimono_sdpo.llm.settings import Endpoint, Limits, Price
from tests.chat_server import ChatServer, hang

PRICES = {"m": Price(input=1.0, output=100.0)}
# What a call really costs: 10 and 20 tokens; with at most 40 tokens out, twice that is set aside.
REAL = cost(PRICES, "m", Usage(prompt_tokens=10, completion_tokens=20)) or 0.0


def questions(count: int) -> list[Request]:
    turn = {"role": "user", "content": "ping"}
    return [Request("m", [turn], seed=seed, max_tokens=40) for seed in range(count)]


def run(server: ChatServer, journal: Path, most: float, count: int) -> tuple[Chat, list[Reply]]:
    server.policy = lambda body: {"content": "pong", "usage": {"prompt_tokens": 10, "completion_tokens": 20}}
    server.choose_fault = lambda body, before: hang(0.01)
    book = Journal(journal)
    budget = Budget(most, ["m"], PRICES, book)
    limits = Limits(concurrency=8)
    chat = Chat(Endpoint("test", server.url, "key"), book, prices=PRICES, limits=limits, budget=budget)

    async def ask() -> list[Reply]:
        replies = await asyncio.gather(*map(chat.ask, questions(count)))
        await chat.close()
        return replies

    return chat, asyncio.run(ask())


def test_the_limit_holds_and_a_higher_one_goes_on_without_repeating(chat_server: ChatServer, tmp_path: Path) -> None:
    journal = tmp_path / "calls.sqlite"
    most = REAL * 10.5
    chat, replies = run(chat_server, journal, most, 40)
    n_calls = len(chat_server.hits)
    assert 8 <= n_calls <= 10
    assert chat.budget is not None
    assert chat.budget.spent == pytest.approx(n_calls * REAL)
    refused = [reply for reply in replies if reply.error]
    assert len(refused) == 40 - n_calls
    assert "The limit of $" in (refused[0].error or "")
    # The same limit again spends nothing: it is of the journal, not of the run.
    run(chat_server, journal, most, 40)
    assert len(chat_server.hits) <= 10
    _, replies = run(chat_server, journal, 1.0, 40)
    assert all(reply.error is None for reply in replies)
    assert sum(chat_server.answered().values()) == 40
    assert set(chat_server.answered().values()) == {1}


def test_a_limit_needs_prices(tmp_path: Path) -> None:
    with pytest.raises(InferenceError, match=r'\[prices\."a/b"\]'):
        Budget(1.0, ["m", "a/b"], PRICES, Journal(tmp_path / "calls.sqlite"))


def test_an_estimate_scales_what_was_used() -> None:
    tally = Tally()
    reply = Reply(prompt_tokens=1000, completion_tokens=100, cached_tokens=200, latency=4.0)
    for _ in range(2):
        tally.add("m", reply)
        tally.add("free/model", reply)
    tally.add("m", Reply(error="busy"))
    told = tally.estimate(PRICES, done=2, rows=2000, concurrency=16)
    assert "m: 2,000 calls, 2,000,000 tokens in (400,000 cached), 200,000 out, $22.00" in told
    assert "free/model: 2,000 calls, 2,000,000 tokens in (400,000 cached), 200,000 out\n" in told
    assert "no USD without [prices.MODEL] in chain.toml, 17 min at 16 calls at once" in told
    assert "1 calls failed" in told
    assert "in all: $22.00" in tally.estimate({**PRICES, "free/model": Price(0, 0)}, 2, 2000, 16)


@pytest.mark.parametrize(
    ("price", "expected"), [(Price(1, 2), 0.0012), (Price(1, 2, cached=0), 0.0008), (Price(0, 0), 0.0), (None, None)]
)
def test_cached_tokens_are_a_part_of_the_prompt(price: Price | None, expected: float | None) -> None:
    prices = {} if price is None else {"m": price}
    found = cost(prices, "m", Usage(prompt_tokens=1000, completion_tokens=100, cached_tokens=400))
    assert found == (None if expected is None else pytest.approx(expected))

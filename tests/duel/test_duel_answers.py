"""Answers of king and challenger: prompts, form, leaks and errors."""

import asyncio
from typing import Any

import pytest

from pimono_sdpo.llm.chat import Chat
from pimono_sdpo.llm.settings import Duel, Endpoint, Limits
from pimono_sdpo.schema import ANSWER
from processors.duel.answers import AnswerStage, find_leaks, render_hidden
from processors.duel.turns import make_record
from tests.chat_server import ChatServer, busy
from tests.duel.players import is_informed, play
from tests.duel.trajectories import pull_request, step, trajectory

Json = dict[str, Any]


def turn() -> Json:
    messages = trajectory("proj1-1")["messages"]
    return {
        "turn_id": "turns-00000_1",
        "instance_id": "proj1-1",
        "repo": "acme/proj1",
        "messages": messages[:4],
        "assistant": messages[4]["content"],
        "turn": 2,
        "action_style": "search",
    }


def answer(server: ChatServer, row: Json | None = None, **options: Any) -> Json:
    limits = Limits(attempts=2)
    chat = Chat(Endpoint("test", server.url, "key"), limits=limits)
    record = {"instance_id": "proj1-1", **make_record(pull_request("proj1-1"))}
    players = Duel(model="k", challenger="c")
    answering = AnswerStage(chat, players, {"proj1-1": record}, **options)
    (answered,) = asyncio.run(answering.run(row or turn()))
    assert set(answered) == set(ANSWER)
    return answered


def test_the_king_is_blind_and_the_challenger_is_not(chat_server: ChatServer) -> None:
    chat_server.policy = play
    answered = answer(chat_server)
    assert (answered["drop_reason"], answered["error"], answered["leaked_terms"]) == (None, None, [])
    assert ("quickly" in answered["king"], "carefully" in answered["challenger"]) == (True, True)
    requests = {hit.body["model"]: hit.body for hit in chat_server.hits}
    assert "flush_guard" not in str(requests["k"])
    assert "flush_guard" in requests["c"]["messages"][-1]["content"]
    # All but the end is the same, so that a provider's cache knows it.
    assert requests["k"]["messages"][:-1] == requests["c"]["messages"][:-1]
    assert requests["c"]["messages"][-1]["content"].startswith(requests["k"]["messages"][-1]["content"])
    assert "blind" in requests["c"]["messages"][-1]["content"]
    assert requests["k"]["messages"][0]["content"].startswith("You are an agent that works in a shell")
    assert answered["privileged_context"].startswith("Problem:\nThe parser drops the last row.")
    assert answered["usage"]["prompt_tokens"] > 0
    assert answered["usage"]["cost"] is None


def test_terms_of_the_pull_request_alone_are_leaks(chat_server: ChatServer) -> None:
    chat_server.policy = lambda body: (
        step("It is flush_pending_rows, in src/parser.py", "cat src/flush_guard.py")
        if is_informed(body)
        else step("look", "ls src")
    )
    answered = answer(chat_server)
    assert answered["leaked_terms"] == ["flush_pending_rows", "src/flush_guard.py"]
    assert answered["drop_reason"] is None


@pytest.mark.parametrize(
    ("content", "reason", "calls"),
    [
        ("I am done.", "king_no_action", 4),
        ("", "king_empty", 4),
        (step("x", "ls") + "<|tool_calls_section_begin|>", "king_special_tokens", 4),
        ({"tool_calls": [{"function": {"name": "x", "arguments": "{}"}}]}, "king_tool_call", 4),
        ("<think>\n```bash\nrm -rf /\n```\n</think>\n" + step("x", "ls"), None, 2),
    ],
)
def test_a_malformed_answer_is_drawn_again_up_to_a_limit(
    chat_server: ChatServer, content: Any, reason: str | None, calls: int
) -> None:
    chat_server.policy = lambda body: content
    answered = answer(chat_server)
    assert answered["drop_reason"] == reason
    assert answered["king_ok"] is (reason is None)
    assert len(chat_server.hits) == calls
    assert "rm -rf" not in answered["king"]


def test_a_failed_call_is_an_error(chat_server: ChatServer) -> None:
    chat_server.policy = play
    chat_server.choose_fault = lambda body, before: busy(400) if body["model"] == "c" else None
    answered = answer(chat_server)
    assert (answered["drop_reason"], answered["king_ok"], answered["challenger_ok"]) == ("error", True, False)
    assert "answered 400" in answered["error"]


def test_equals_are_the_king_twice_and_not_the_same_draw(chat_server: ChatServer) -> None:
    chat_server.policy = play
    answered = answer(chat_server, aa_test=True)
    assert answered["king"] != answered["challenger"]
    assert (answered["king_model"], answered["challenger_model"]) == ("k", "k")
    assert not any(is_informed(hit.body) for hit in chat_server.hits)
    assert answered["privileged_context"] == ""


def test_the_hidden_part_has_a_bound() -> None:
    record = {**make_record(pull_request("a-1")), "patch": "+x = 1\n" * 50_000}
    record["problem_statement"] = record["description"] = "words " * 50_000
    record["files"] = [f"src/file_{number}.py" for number in range(3_000)]
    assert len(render_hidden(record)) < 6_500


def test_the_search_for_leaks_takes_linear_time() -> None:
    hidden = "def flush_rows(a): pass\n" * 20_000
    answer_ = "flush_rows or_flush flushRows src/a/b.py:12 E123 " * 2_000
    assert "flush_rows" in find_leaks(answer_, hidden, ["nothing " * 100_000])
    assert find_leaks("a" * 100_000 + "_b" * 50_000 + "/" * 50_000, hidden, [""]) == []


def test_a_leak_in_letters_of_another_form_is_a_leak(chat_server: ChatServer) -> None:
    wide = "".join(chr(ord(letter) + 0xFEE0) for letter in "flush_pending_rows")
    chat_server.policy = lambda body: step(f"The fix is in {wide}", "ls") if is_informed(body) else play(body)
    assert answer(chat_server)["leaked_terms"] == ["flush_pending_rows"]

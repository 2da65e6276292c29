"""An OpenAI-compatible server on 127.0.0.1 whose answers are a pure function of the request.

    server.py    the server, the thread, and what a test holds: `ChatServer`
    faults.py    what can go wrong: busy, garbage, truncated, hang, trickle, drop
    fixture.py   the pytest fixture `chat_server`

A policy takes the body of a request and returns the assistant's message: a text, or a dict with
`content`, `tool_calls`, `finish_reason` or `usage`. The same body always gets the same answer, so
that a test can stop anywhere, start again, and compare.

    def policy(body):
        return "pong" if body["messages"][-1]["content"] == "ping" else tool_call("grep", pattern="x")

    chat_server.policy = policy
    chat_server.fail_next(busy(429, retry_after=1), times=2)
    chat = Chat(Endpoint("test", chat_server.url, "key"))
    assert [hit.fault for hit in chat_server.hits] == ["busy", "busy", None]

`chat_server.choose_fault` decides about faults as a function of the body and of how often this body came
before: `lambda body, before: drop() if before == 0 else None` breaks every first try.
"""

from tests.chat_server.faults import busy, drop, garbage, hang, trickle, truncated
from tests.chat_server.server import ChatServer, Hit, serve_chat, tool_call

__all__ = ["ChatServer", "Hit", "busy", "drop", "garbage", "hang", "serve_chat", "tool_call", "trickle", "truncated"]

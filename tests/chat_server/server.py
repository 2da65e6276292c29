"""The running server: a policy behind `/v1/chat/completions`, served from a thread.

What the policy returns for `/v1/systemone`, typed decisions, is sent as it is.
"""

import json
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.chat_server.faults import Fault

Json = dict[str, Any]
LATE = ("hang", "trickle")
Policy = Callable[[Json], "str | Json"]


@dataclass(frozen=True)
class Hit:
    """A request that arrived, and the fault it met with."""

    body: Json
    authorization: str | None
    fault: str | None


def echo(body: Json) -> str:
    """The policy of a server that was given none: repeat the last turn."""
    return str(body["messages"][-1]["content"])


@dataclass
class ChatServer:
    """A server; `url` is its base URL as clients take it."""

    url: str
    policy: Policy = echo
    choose_fault: Callable[[Json, int], Fault | None] = lambda body, before: None
    hits: list[Hit] = field(default_factory=list)
    # Requests under way now, and the most there ever were.
    under_way: int = 0
    most_under_way: int = 0
    queued: list[tuple[Fault, Callable[[Json], bool]]] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)

    def fail_next(self, fault: Fault, times: int = 1, when: Callable[[Json], bool] = lambda body: True) -> None:
        """Answer the next requests for which `when` holds with a fault."""
        self.queued += [(fault, when)] * times

    def answered(self) -> Counter[str]:
        """How often each body got its answer, if only late; more than 1 is a repeated call."""
        good = [hit.body for hit in self.hits if hit.fault in (None, *LATE)]
        return Counter(json.dumps(body, sort_keys=True) for body in good)

    async def handle(self, request: Request) -> Response:
        body = json.loads(await request.body())
        fault = self._fault(body)
        given = request.headers.get("authorization")
        self.hits.append(Hit(body, given, fault.name if fault else None))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            said = self.policy(body)
            is_chat = request.url.path.endswith("/chat/completions")
            good = json.dumps(completion(body, said) if is_chat else said).encode()
            if fault is not None:
                return await fault.answer(good)
            return Response(good, media_type="application/json")
        finally:
            self.under_way -= 1

    def _fault(self, body: Json) -> Fault | None:
        text = json.dumps(body, sort_keys=True)
        before = self.seen[text]
        self.seen[text] += 1
        for queued in self.queued:
            if queued[1](body):
                self.queued.remove(queued)
                return queued[0]
        return self.choose_fault(body, before)


def completion(body: Json, said: str | Json) -> Json:
    """The answer around a message. Tokens are words, unless the policy gives its `usage`."""
    message: Json = {"content": said} if isinstance(said, str) else dict(said)
    finish = message.pop("finish_reason", "tool_calls" if message.get("tool_calls") else "stop")
    counted: Json = {
        "prompt_tokens": len(json.dumps(body["messages"]).split()),
        "completion_tokens": len(json.dumps(message).split()),
    }
    usage: Json = counted | message.pop("usage", {})
    turn = {"role": "assistant", "content": None, **message}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "choices": [{"index": 0, "finish_reason": finish, "message": turn}],
        "usage": {**usage, "total_tokens": usage["prompt_tokens"] + usage["completion_tokens"]},
    }


def tool_call(name: str, **arguments: object) -> Json:
    """The message of a policy that calls a tool in the native protocol."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"tool_calls": [{"id": "call_0", "type": "function", "function": function}]}


@contextmanager
def serve_chat(policy: Policy = echo) -> Iterator[ChatServer]:
    """A fresh server for as long as the block runs."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = ChatServer(f"http://127.0.0.1:{listening.getsockname()[1]}/v1", policy)
    paths = ("/v1/chat/completions", "/v1/systemone")
    app = Starlette(routes=[Route(path, server.handle, methods=["POST"]) for path in paths])
    config = uvicorn.Config(app, lifespan="off", loop="asyncio", http="h11", ws="none", log_level="critical")
    config.timeout_graceful_shutdown = 1
    runner = uvicorn.Server(config)
    thread = Thread(target=runner.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        runner.should_exit = True
        thread.join()
        listening.close()

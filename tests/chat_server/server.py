"""The running server: a policy behind `/v1/chat/completions`, served from a thread.

It refuses what a real server refuses: no key (401), another path (404), a request that does not have the form of
the API (400). It ends an answer after `max_tokens` words. What the policy returns for `/v1/systemone`, typed decisions,
is sent as it is.
"""

import json
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

import uvicorn
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.chat_server.faults import Fault

Json = dict[str, Any]
LATE = ("hang", "trickle")
REQUEST = TypeAdapter(with_config(ConfigDict(extra="forbid"))(CompletionCreateParamsNonStreaming))
Policy = Callable[[Json], "str | Json"]


@dataclass(frozen=True)
class Hit:
    """A request that arrived, and the fault it met with."""

    body: Json
    headers: dict[str, str]
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
    # Why requests were refused, and the paths asked for that are not there.
    refused: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
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
        is_chat = request.url.path.endswith("/chat/completions")
        if not re.fullmatch(r"Bearer \S+", request.headers.get("authorization", "")):
            return self._refuse(401, "You didn't provide an API key.")
        if is_chat and (problem := find_problem(body)):
            return self._refuse(400, problem)
        fault = self._fault(body)
        self.hits.append(Hit(body, dict(request.headers), fault.name if fault else None))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            said = self.policy(body)
            good = json.dumps(completion(body, said) if is_chat else said).encode()
            if fault is not None:
                return await fault.answer(good)
            return Response(good, media_type="application/json")
        finally:
            self.under_way -= 1

    async def miss(self, request: Request) -> Response:
        self.missing.append(request.url.path)
        return JSONResponse({"error": {"message": "Not found"}}, 404)

    def _refuse(self, status: int, problem: str) -> Response:
        self.refused.append(problem)
        return JSONResponse({"error": {"message": problem}}, status)

    def _fault(self, body: Json) -> Fault | None:
        text = json.dumps(body, sort_keys=True)
        before = self.seen[text]
        self.seen[text] += 1
        for queued in self.queued:
            if queued[1](body):
                self.queued.remove(queued)
                return queued[0]
        return self.choose_fault(body, before)


def find_problem(body: Json) -> str | None:
    """Return why a chat server refuses a request, None if it does not."""
    try:
        # The types of the API say nothing about values; their lists are checked as they are read.
        for message in REQUEST.validate_python(body)["messages"]:
            if message["role"] == "assistant":
                list(message.get("tool_calls", ()))
    except ValidationError as error:
        return str(error)
    if not body["model"] or not body["messages"]:
        return "a model and messages are required"
    if not 0 <= body.get("temperature", 0) <= 2 or body.get("max_tokens", 1) < 1:
        return "a parameter is out of range"
    calls: list[str] = []
    for message in body["messages"]:
        if message["role"] == "tool":
            if message["tool_call_id"] not in calls:
                return "a message of the role `tool` must answer a call"
            calls.remove(message["tool_call_id"])
        elif calls:
            return "a call must be followed by its result"
        elif message["content"] is None and not message.get("tool_calls"):
            return "a message without calls needs content"
        calls += [call["id"] for call in message.get("tool_calls", ())]
    return None


def completion(body: Json, said: str | Json) -> Json:
    """The answer around a message. Tokens are words, unless the policy gives its `usage`."""
    message: Json = {"content": said} if isinstance(said, str) else dict(said)
    finish = message.pop("finish_reason", "tool_calls" if message.get("tool_calls") else "stop")
    words = list(re.finditer(r"\S+\s*", message.get("content") or ""))
    if len(words) > (most := body.get("max_tokens", len(words))):
        message["content"], finish = message["content"][: words[most].start()], "length"
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
    routes = [Route(path, server.handle, methods=["POST"]) for path in paths]
    app = Starlette(routes=[*routes, Route("/{path:path}", server.miss, methods=["GET", "HEAD", "POST"])])
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

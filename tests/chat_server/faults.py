"""What can go wrong with an answer: each makes, of the bytes of a good one, what is sent."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from starlette.responses import JSONResponse, Response, StreamingResponse


@dataclass(frozen=True)
class Fault:
    """A fault and the name under which a hit records it."""

    name: str
    answer: Callable[[bytes], Awaitable[Response]]


def busy(
    status: int = 503,
    retry_after: float | str | None = None,
    body: object = None,
    headers: dict[str, str] | None = None,
) -> Fault:
    """Any status that is no answer, with Retry-After in seconds or as a date."""
    headers = dict(headers or {})
    if retry_after is not None:
        headers["Retry-After"] = str(retry_after)

    async def answer(_: bytes) -> Response:
        told = {"error": {"message": "Injected fault"}} if body is None else body
        return JSONResponse(told, status, headers)

    return Fault("busy", answer)


def garbage(body: bytes = b"{}") -> Fault:
    """Status 200 and something that is no answer."""

    async def answer(_: bytes) -> Response:
        return Response(body, media_type="application/json")

    return Fault("garbage", answer)


def truncated() -> Fault:
    """The first half of the JSON, as a whole response."""

    async def answer(good: bytes) -> Response:
        return Response(good[: len(good) // 2], media_type="application/json")

    return Fault("truncated", answer)


def hang(seconds: float) -> Fault:
    """The answer, but late."""

    async def answer(good: bytes) -> Response:
        await asyncio.sleep(seconds)
        return Response(good, media_type="application/json")

    return Fault("hang", answer)


def trickle(seconds: float) -> Fault:
    """A space every 50 ms, which no timeout of single reads notices; then the answer."""

    async def drops(good: bytes) -> AsyncIterator[bytes]:
        for _ in range(int(seconds / 0.05)):
            yield b" "
            await asyncio.sleep(0.05)
        yield good

    async def answer(good: bytes) -> Response:
        return StreamingResponse(drops(good), media_type="application/json")

    return Fault("trickle", answer)


def drop() -> Fault:
    """The connection breaks in the middle of the answer."""

    async def half(good: bytes) -> AsyncIterator[bytes]:
        yield good[: len(good) // 2]
        raise ConnectionAbortedError("Injected fault")

    async def answer(good: bytes) -> Response:
        headers = {"Content-Length": str(len(good))}
        return StreamingResponse(half(good), headers=headers, media_type="application/json")

    return Fault("drop", answer)

"""What goes wrong on purpose: answers that are errors, connections that drop, answers that wait."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from starlette.responses import Response, StreamingResponse


@dataclass
class Fault:
    """The next request whose percent-encoded path holds `path_part` is answered otherwise.

    `status` is an error to answer with. `cut_after` are the bytes of the right answer that arrive
    before the connection drops. `seconds` is how long the answer takes to begin. `headers` come with
    the error.
    """

    path_part: str
    method: str | None = None
    status: int | None = None
    cut_after: int | None = None
    seconds: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)

    def fits(self, method: str, path: str) -> bool:
        return self.path_part in path and self.method in (None, method)


class ConnectionDropped(Exception):
    """Ends the connection in the middle of an answer."""


def cut(answer: Response, after: int) -> Response:
    """The answer's own head and the first bytes of its body, then nothing."""
    body = bytes(answer.body)

    async def first_bytes() -> AsyncIterator[bytes]:
        yield body[:after]
        raise ConnectionDropped

    headers = {key: value for key, value in answer.headers.items() if key != "content-length"}
    # A body of the length it was to have is missed; one byte more is where there was none.
    length = max(len(body), after + 1)
    return StreamingResponse(first_bytes(), answer.status_code, headers | {"content-length": str(length)})

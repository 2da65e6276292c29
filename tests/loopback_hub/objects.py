"""Routes of the storage host, where large files lie: signed addresses, and no token of the Hub."""

import re
from hashlib import sha256
from urllib.parse import quote

from starlette.responses import Response

from tests.loopback_hub.call import Call, Refusal, route

# Another name of the same machine: to a client it is another host.
HOST = "localhost"
RANGE = re.compile(r"bytes=(\d*)-(\d*)")


def signature(method: str, path: str) -> str:
    return sha256(f"loopback {method} {path}".encode()).hexdigest()


def sign(call: Call, method: str, path: str) -> str:
    """An address at the storage host, for one method."""
    port = call.request.headers["host"].rpartition(":")[2]
    signed = f"X-Amz-Expires=3600&X-Amz-Signature={signature(method, quote(path))}"
    return f"http://{HOST}:{port}{quote(path)}?{signed}"


def admit(call: Call, method: str) -> None:
    """Let in whoever has the signature, and nobody who sends a token along."""
    if "authorization" in call.request.headers:
        raise Refusal(400, "Only one auth mechanism allowed")
    given = call.request.query_params.get("X-Amz-Signature")
    if given != signature(method, call.request.scope["raw_path"].decode()):
        raise Refusal(403, "AccessDenied")


def get(call: Call) -> Response:
    admit(call, "GET")
    data = call.store.large(call.args["oid"])
    if data is None:
        raise Refusal(404, "NoSuchKey")
    return ranged(call, data, {"ETag": f'"{call.args["oid"]}"', "Accept-Ranges": "bytes"})


def put(call: Call) -> Response:
    admit(call, "PUT")
    found = sha256(call.body).hexdigest()
    if found != call.args["oid"]:
        raise Refusal(400, f"The object's sha256 is {found}")
    call.store.lfs[found] = call.body
    return Response(status_code=200)


def ranged(call: Call, data: bytes, headers: dict[str, str]) -> Response:
    """The bytes that were asked for: all of them, a range of them, or only how many there are."""
    status = 200
    wanted = RANGE.fullmatch(call.request.headers.get("range", ""))
    if wanted is not None:
        start, stop = span(wanted[1], wanted[2], len(data))
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        status, data = 206, data[start:stop]
    headers["Content-Length"] = str(len(data))
    return Response(b"" if call.request.method == "HEAD" else data, status, headers)


def span(first: str, last: str, size: int) -> tuple[int, int]:
    """The half-open byte span of a Range header: "a-b", "a-" or "-n" (the last n)."""
    if first:
        start, stop = int(first), min(int(last) + 1, size) if last else size
    else:
        start, stop = max(size - int(last or 0), 0), size
    if start >= stop:
        raise Refusal(416, f"Range not satisfiable: {first}-{last} of {size}")
    return start, stop


OBJECT = r"/objects/(?P<oid>[0-9a-f]{64})(?:/[^/]+)?"
ROUTES = [route("GET", OBJECT, get), route("PUT", OBJECT, put)]

"""Routes of the storage host, where large files lie: signed addresses, and no token of the Hub."""

import json
import re
from hashlib import md5, sha256
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
    if len(call.body) > call.store.part_bytes:
        raise Refusal(400, "EntityTooLarge")
    found = sha256(call.body).hexdigest()
    if found != call.args["oid"]:
        raise Refusal(400, f"The object's sha256 is {found}")
    call.store.lfs[found] = call.body
    return Response(status_code=200)


def in_parts(call: Call, oid: str, size: int) -> dict[str, object]:
    """How an object comes in parts: an address for each, and one that puts them together."""
    header = {"chunk_size": str(call.store.part_bytes)}
    for number in range(1, -(-size // call.store.part_bytes) + 1):
        header[f"{number:05}"] = sign(call, "PUT", f"/parts/{oid}/{size}/{number}")
    return {"href": sign(call, "POST", f"/complete/{oid}/{size}"), "header": header}


def put_part(call: Call) -> Response:
    """Take a part, which must have its size; its ETag proves that it has arrived."""
    admit(call, "PUT")
    oid, size, number = call.args["oid"], int(call.args["size"]), int(call.args["number"])
    start = (number - 1) * call.store.part_bytes
    if len(call.body) != min(call.store.part_bytes, size - start):
        raise Refusal(400, f"Part {number} has {len(call.body)} bytes")
    call.store.parts[oid, number] = call.body
    return Response(headers={"ETag": f'"{md5(call.body).hexdigest()}"'})


def complete(call: Call) -> Response:
    """Put the named parts together, if they are those that arrived and give the object."""
    admit(call, "POST")
    oid, wanted = call.args["oid"], json.loads(call.body)
    count = -(-int(call.args["size"]) // call.store.part_bytes)
    arrived = [call.store.parts.get((oid, number), b"") for number in range(1, count + 1)]
    proofs = [(n, f'"{md5(data).hexdigest()}"') for n, data in enumerate(arrived, 1)]
    if wanted["oid"] != oid or [(p["partNumber"], p["etag"]) for p in wanted["parts"]] != proofs:
        raise Refusal(400, "InvalidPart")
    data = b"".join(arrived)
    if sha256(data).hexdigest() != oid:
        raise Refusal(400, f"The object's sha256 is {sha256(data).hexdigest()}")
    call.store.lfs[oid] = data
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
SIZED = r"(?P<oid>[0-9a-f]{64})/(?P<size>\d+)"
ROUTES = [
    route("GET", OBJECT, get),
    route("PUT", OBJECT, put),
    route("PUT", rf"/parts/{SIZED}/(?P<number>\d+)", put_part),
    route("POST", rf"/complete/{SIZED}", complete),
]

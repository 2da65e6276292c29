"""Routes for buckets: files without history, every one of them in xet."""

import json

from starlette.responses import JSONResponse, Response

from tests.loopback_hub.call import Call, Refusal, missing_entry, route
from tests.loopback_hub.objects import ranged
from tests.loopback_hub.storage import Bucket, BucketFile

CREATED = "2026-01-01T00:00:00.000Z"


def create(call: Call) -> Response:
    bucket_id = call.args["id"]
    url = f"{call.base}/buckets/{bucket_id}"
    if not call.may_write(bucket_id.split("/")[0]):
        raise Refusal(403 if call.account else 401, f"You cannot create the bucket {bucket_id}")
    if bucket_id in call.store.buckets:
        raise Refusal(409, f"You already created this bucket: {bucket_id}", url=url)
    wanted = call.json()
    private = bool(wanted.get("private")) or wanted.get("visibility") == "private"
    call.store.buckets[bucket_id] = Bucket(bucket_id, private)
    return JSONResponse({"url": url, "name": bucket_id, "id": bucket_id})


def info(call: Call) -> Response:
    bucket = call.bucket()
    return JSONResponse(
        {
            "id": bucket.bucket_id,
            "private": bucket.private,
            "createdAt": CREATED,
            "size": sum(len(file.data) for file in bucket.files.values()),
            "totalFiles": len(bucket.files),
        }
    )


def delete(call: Call) -> Response:
    del call.store.buckets[call.bucket(write=True).bucket_id]
    return Response(status_code=204)


def tree(call: Call) -> Response:
    bucket = call.bucket()
    top = call.args.get("path", "").strip("/")
    below = {p: f for p, f in bucket.files.items() if not top or f"{p}/".startswith(f"{top}/")}
    if call.request.query_params.get("recursive", "").lower() == "true":
        return JSONResponse([file.entry(path) for path, file in sorted(below.items())])
    found: dict[str, dict[str, object]] = {}
    for path, file in sorted(below.items()):
        rest = path.removeprefix(top).strip("/")
        first = rest.split("/")[0]
        here = f"{top}/{first}".strip("/")
        if "/" in rest:
            found.setdefault(here, {"type": "directory", "path": here, "uploadedAt": CREATED})
        else:
            found[path] = file.entry(path)
    return JSONResponse(list(found.values()))


def paths_info(call: Call) -> Response:
    files = call.bucket().files
    paths = json.loads(call.body)["paths"]
    return JSONResponse([files[path].entry(path) for path in paths if path in files])


def batch(call: Call) -> Response:
    """Add, copy and delete files, all of them or, where one cannot be, none."""
    bucket = call.bucket(write=True)
    after = dict(bucket.files)
    for line in filter(None, call.body.splitlines()):
        wanted = json.loads(line)
        path = wanted["path"]
        if wanted["type"] == "deleteFile":
            after.pop(path, None)
            continue
        try:
            data = call.store.xet.read(wanted["xetHash"])
        except KeyError:
            failed = [{"path": path, "error": f"No such object: {wanted['xetHash']}"}]
            return JSONResponse({"failed": failed}, 422)
        after[path] = BucketFile(data, wanted["xetHash"], wanted["mtime"])
        for space in call.store.spaces.values():
            space.mount(bucket.bucket_id, path, data)
    bucket.files = after
    return JSONResponse({"success": True, "failed": []})


def resolve(call: Call) -> Response:
    bucket = call.bucket()
    file = bucket.files.get(call.args["path"])
    if file is None:
        raise missing_entry(call.args["path"])
    token = f"{call.base}/api/buckets/{bucket.bucket_id}/xet-read-token"
    headers = {
        "ETag": f'"{file.xet_hash}"',
        "X-Xet-Hash": file.xet_hash,
        "X-Linked-Size": str(len(file.data)),
        "Link": f'<{token}>; rel="xet-auth"',
    }
    return ranged(call, file.data, headers)


BUCKET = r"/api/buckets/(?P<id>[^/]+/[^/]+)"
FILE = r"/buckets/(?P<id>[^/]+/[^/]+)/resolve/(?P<path>.+)"
ROUTES = [
    route("POST", BUCKET, create),
    route("GET", BUCKET, info),
    route("DELETE", BUCKET, delete),
    route("GET", rf"{BUCKET}/tree(?:/(?P<path>.*))?", tree),
    route("POST", rf"{BUCKET}/paths-info", paths_info),
    route("POST", rf"{BUCKET}/batch", batch),
    route("GET", FILE, resolve),
    route("HEAD", FILE, resolve),
]

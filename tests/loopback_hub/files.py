"""Routes for listing and reading files."""

import re

from starlette.responses import JSONResponse, Response

from tests.loopback_hub.call import REPO, REV, Call, Refusal, missing_entry, route
from tests.loopback_hub.storage import Blob, Commit, Repo, tree_oid, under

# Entries of a tree in one answer.
PAGE = 1000
RANGE = re.compile(r"bytes=(\d*)-(\d*)")


def tree(call: Call) -> Response:
    repo = call.repo()
    commit = call.commit(repo)
    folder = call.args.get("path", "").strip("/")
    below = {path for path in under(commit.tree, folder) if path != folder}
    if folder and not below:
        raise missing_entry(folder)
    flags = {key: call.request.query_params.get(key, "").lower() for key in ("recursive", "expand")}
    paths = below | {parent for path in below for parent in folders_of(path, folder)}
    if flags["recursive"] != "true":
        depth = folder.count("/") + 1 if folder else 0
        paths = {path for path in paths if path.count("/") == depth}
    expand = flags["expand"] == "true"
    asked = call.request.query_params
    first, limit = int(asked.get("cursor", 0)), int(asked.get("limit", PAGE))
    page = sorted(paths)[first : first + limit]
    headers = {}
    if first + limit < len(paths):
        url = call.request.url.include_query_params(cursor=first + limit, limit=limit)
        headers["Link"] = f'<{url}>; rel="next"'
    return JSONResponse([entry(repo, commit, path, expand) for path in page], 200, headers)


def folders_of(path: str, top: str) -> list[str]:
    """The folders above a path, those at or above `top` left out."""
    parts = path.split("/")[:-1]
    every = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
    return [folder for folder in every if len(folder) > len(top)]


def paths_info(call: Call) -> Response:
    repo = call.repo()
    commit = call.commit(repo)
    wanted = call.form()
    expand = wanted.get("expand", [""])[0].lower() == "true"
    known = [path.strip("/") for path in wanted.get("paths", []) if under(commit.tree, path)]
    return JSONResponse([entry(repo, commit, path, expand) for path in known if path])


def entry(repo: Repo, commit: Commit, path: str, expand: bool) -> dict[str, object]:
    content = commit.tree.get(path)
    made: dict[str, object]
    if content is None:
        oid = tree_oid(under(commit.tree, path))
        made = {"type": "directory", "oid": oid, "size": 0, "path": path}
    else:
        made = {"type": "file", "oid": content.oid, "size": len(content.data), "path": path}
    if content is not None and content.lfs:
        size, pointer = len(content.data), content.pointer_size
        made["lfs"] = {"oid": content.sha256, "size": size, "pointerSize": pointer}
    if expand:
        last = last_commit(repo, commit, path)
        made["lastCommit"] = {"id": last.sha, "title": last.title, "date": last.date}
    return made


def last_commit(repo: Repo, commit: Commit, path: str) -> Commit:
    """The newest commit that changed what is at or below `path`."""
    last = commit
    for older in repo.history(commit):
        if under(older.tree, path) != under(commit.tree, path):
            break
        last = older
    return last


def resolve(call: Call) -> Response:
    repo = call.repo()
    call.enter(repo)
    commit = call.commit(repo)
    content = commit.tree.get(call.args["path"])
    if content is None:
        raise missing_entry(call.args["path"])
    return ranged(call, content.data, file_headers(call, repo, commit, content))


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


def file_headers(call: Call, repo: Repo, commit: Commit, content: Blob) -> dict[str, str]:
    etag = f'"{content.sha256 if content.lfs else content.oid}"'
    headers = {"X-Repo-Commit": commit.sha, "ETag": etag, "Accept-Ranges": "bytes"}
    if content.lfs:
        headers |= {"X-Linked-Etag": etag, "X-Linked-Size": str(len(content.data))}
    known = call.store.xet.hash_of.get(content.sha256) if content.lfs else None
    if known is not None:
        token = f"{call.base}/api/{repo.repo_type}s/{repo.repo_id}/xet-read-token/{commit.sha}"
        headers |= {"X-Xet-Hash": known, "Link": f'<{token}>; rel="xet-auth"'}
    return headers


def span(first: str, last: str, size: int) -> tuple[int, int]:
    """The half-open byte span of a Range header: "a-b", "a-" or "-n" (the last n)."""
    if first:
        start, stop = int(first), min(int(last) + 1, size) if last else size
    else:
        start, stop = max(size - int(last or 0), 0), size
    if start >= stop:
        raise Refusal(416, f"Range not satisfiable: {first}-{last} of {size}")
    return start, stop


FILE = rf"/(?:(?P<type>dataset|space)s/)?(?P<id>[^/]+/[^/]+)/resolve/{REV}/(?P<path>.+)"
ROUTES = [
    route("GET", rf"{REPO}/tree/{REV}(?:/(?P<path>.*))?", tree),
    route("POST", rf"{REPO}/paths-info/{REV}", paths_info),
    route("GET", FILE, resolve),
    route("HEAD", FILE, resolve),
]

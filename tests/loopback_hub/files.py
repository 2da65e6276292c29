"""Routes for listing and reading files."""

from starlette.responses import JSONResponse, Response

from tests.loopback_hub.call import REPO, REV, Call, missing_entry, route
from tests.loopback_hub.objects import ranged, sign
from tests.loopback_hub.storage import Blob, Commit, Repo, tree_oid, under

# Entries of a tree in one answer.
PAGE = 1000


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
    headers = file_headers(call, repo, commit, content)
    if content.lfs:
        # The bytes are elsewhere, at an address that whoever may read the file is given.
        name = call.args["path"].rpartition("/")[2]
        headers["Location"] = sign(call, "GET", f"/objects/{content.sha256}/{name}")
        call.store.lfs.setdefault(content.sha256, content.data)
        return Response(status_code=302, headers=headers)
    return ranged(call, content.data, headers)


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


FILE = rf"/(?:(?P<type>dataset|space)s/)?(?P<id>[^/]+/[^/]+)/resolve/{REV}/(?P<path>.+)"
ROUTES = [
    route("GET", rf"{REPO}/tree/{REV}(?:/(?P<path>.*))?", tree),
    route("POST", rf"{REPO}/paths-info/{REV}", paths_info),
    route("GET", FILE, resolve),
    route("HEAD", FILE, resolve),
]

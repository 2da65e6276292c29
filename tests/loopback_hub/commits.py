"""Routes for writing: preupload, the LFS objects, and the commit itself."""

import base64
import json
from typing import Any

from starlette.responses import JSONResponse, Response

from tests.loopback_hub.call import REPO, REV, Call, Refusal, missing_entry, route
from tests.loopback_hub.card import problems
from tests.loopback_hub.objects import in_parts, sign
from tests.loopback_hub.storage import LFS_OVER_BYTES, Blob, Commit, StaleParent, blob, full_ref, goes_to_lfs, under

Changes = dict[str, Blob | None]


def preupload(call: Call) -> Response:
    repo = call.repo(write=True)
    commit = call.commit(repo)
    return JSONResponse({"files": [upload_mode(commit, f) for f in json.loads(call.body)["files"]]})


def upload_mode(commit: Commit, file: dict[str, Any]) -> dict[str, object]:
    """How a file is to be sent; `oid` lets the client skip what is already there."""
    lfs = goes_to_lfs(file["path"], base64.b64decode(file["sample"]), file["size"])
    answer = {"path": file["path"], "uploadMode": "lfs" if lfs else "regular", "shouldIgnore": False}
    there = commit.tree.get(file["path"])
    if there is not None:
        answer["oid"] = there.sha256 if there.lfs else there.oid
    return answer


def lfs_batch(call: Call) -> Response:
    repo = call.repo(write=True)
    objects: list[dict[str, object]] = []
    batch = json.loads(call.body)
    if (batch["operation"], batch["hash_algo"]) != ("upload", "sha256"):
        raise Refusal(422, "Only uploads of sha256 objects")
    new = sum(int(one["size"]) for one in batch["objects"])
    quota = call.store.quota
    if repo.private and quota is not None and call.store.private_bytes() + new > quota:
        raise Refusal(
            403,
            "Private repository storage limit reached, please upgrade your plan to increase your "
            "private storage limit.",
        )
    transfer = "basic"
    for wanted in batch["objects"]:
        answer = {"oid": wanted["oid"], "size": wanted["size"]}
        if wanted["oid"] not in call.store.lfs:
            upload: dict[str, object] = {"href": sign(call, "PUT", f"/objects/{wanted['oid']}")}
            if wanted["size"] > call.store.part_bytes:
                if "multipart" not in batch["transfers"]:
                    raise Refusal(422, f"{wanted['oid']} needs the transfer multipart")
                transfer, upload = "multipart", in_parts(call, wanted["oid"], wanted["size"])
            verify = {"href": f"{call.base}/{repo.path}.git/info/lfs/objects/verify"}
            answer["actions"] = {"upload": upload, "verify": verify}
        objects.append(answer)
    return JSONResponse({"transfer": transfer, "objects": objects})


def lfs_verify(call: Call) -> Response:
    wanted = call.json()
    data = call.store.lfs.get(str(wanted["oid"]))
    if data is None or len(data) != wanted["size"]:
        raise Refusal(404, f"No such object: {wanted['oid']}")
    return JSONResponse({"success": True})


def commit(call: Call) -> Response:
    repo = call.repo(write=True)
    base = call.commit(repo)
    ref = full_ref(call.args["rev"])
    lines = [json.loads(line) for line in call.body.splitlines() if line.strip()]
    header = next(line["value"] for line in lines if line["key"] == "header")
    if not header["summary"].strip():
        raise Refusal(400, "A commit needs a summary")
    changes = read_changes(call, base, [line for line in lines if line["key"] != "header"])
    try:
        made = repo.commit(
            ref, changes, header["summary"], description=header["description"], parent=header.get("parentCommit")
        )
    except StaleParent:
        raise Refusal(412, "A commit has happened since. Please refresh and try again.") from None
    url = f"{call.base}/{repo.path}/commit/{made.sha}"
    return JSONResponse({"success": True, "commitOid": made.sha, "commitUrl": url})


def read_changes(call: Call, base: Commit, lines: list[dict[str, Any]]) -> Changes:
    """What the lines of a commit do to the tree they are built upon."""
    changes: Changes = {}
    for line in lines:
        value = line["value"]
        path = value["path"].strip("/")
        if {".", "..", ".git", ""} & set(path.split("/")):
            raise Refusal(400, f"Invalid path: {path}")
        match line["key"]:
            case "file":
                content = base64.b64decode(value["content"])
                if len(content) > LFS_OVER_BYTES or b"\0" in content:
                    raise Refusal(400, f"{path} is binary or too large; upload it with LFS or Xet")
                changes[path] = blob(content, lfs=False)
            case "lfsFile":
                data = call.store.large(value["oid"])
                if data is None:
                    raise Refusal(400, f"LFS pointer of {path} points to a file that is not there")
                changes[path] = blob(data, lfs=True)
            case "deletedFile" | "deletedFolder":
                gone = under(base.tree, path)
                if not gone:
                    raise missing_entry(path)
                changes |= dict.fromkeys(gone)
            case other:
                raise Refusal(400, f"Unknown operation {other}")
    check_card(changes.get("README.md"))
    return changes


def check_card(readme: Blob | None) -> None:
    errors = problems(readme.data.decode())[0] if readme is not None else []
    if errors:
        raise Refusal(400, f"Invalid metadata in README.md: {'; '.join(errors)}")


LFS = r"/(?:(?P<type>dataset|space)s/)?(?P<id>[^/]+/[^/]+)\.git/info/lfs/objects"
ROUTES = [
    route("POST", rf"{REPO}/preupload/{REV}", preupload),
    route("POST", rf"{REPO}/commit/{REV}", commit),
    route("POST", rf"{LFS}/batch", lfs_batch),
    route("POST", rf"{LFS}/verify", lfs_verify),
]

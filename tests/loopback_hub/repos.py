"""Routes for accounts, repositories, their info and their refs."""

import re

from starlette.responses import JSONResponse, Response

from tests.loopback_hub.call import REPO, REV, USER, Call, Refusal, repo_type, route
from tests.loopback_hub.card import card_data, problems
from tests.loopback_hub.card_rules import listed
from tests.loopback_hub.spaces import space_of
from tests.loopback_hub.storage import Blob

# As `huggingface_hub.utils.validate_repo_id` has it.
NAME = re.compile(r"(?!.*(--|\.\.))(?!.*\.git$)[A-Za-z0-9_]([\w.-]{0,94}[A-Za-z0-9_])?", re.ASCII)
SDKS = ("gradio", "docker", "static", "streamlit")


def whoami(call: Call) -> Response:
    if call.account is None:
        raise Refusal(401, "Invalid username or password.")
    name = call.account.name
    token: dict[str, object] = {"displayName": "loopback", "role": call.role}
    if call.role == "fineGrained":
        scopes = [{"entity": {"name": entity}, "permissions": [right]} for entity, right in call.account.scopes]
        token["fineGrained"] = {"scoped": scopes, "global": []}
    return JSONResponse(
        {
            "type": "user",
            "id": name,
            "name": name,
            "fullname": name,
            "isPro": False,
            "orgs": [{"type": "org", "id": org, "name": org, "roleInOrg": "admin"} for org in call.account.orgs],
            "auth": {"type": "access_token", "accessToken": token},
        }
    )


def create(call: Call) -> Response:
    wanted = call.json()
    namespace = wanted.get("organization") or (call.account.name if call.account else USER)
    repo_id = f"{namespace}/{wanted['name']}"
    kind = repo_type(wanted.get("type"))
    if not NAME.fullmatch(str(wanted["name"])):
        raise Refusal(400, f"Invalid repository name: {wanted['name']}")
    if kind == "space" and wanted.get("sdk") not in SDKS:
        raise Refusal(400, "A Space needs an sdk: gradio, docker or static")
    if not call.may_write(str(namespace)):
        status = 403 if call.account else 401
        raise Refusal(status, f"You cannot create a {kind} under the namespace {namespace}")
    known = call.store.repos.get((kind, repo_id))
    if known is not None:
        url = f"{call.base}/{known.path}"
        raise Refusal(409, f"You already created this {kind} repo: {repo_id}", url=url)
    repo = call.store.create(kind, repo_id, private=wanted.get("visibility") == "private")
    return JSONResponse({"name": repo_id, "id": repo_id, "url": f"{call.base}/{repo.path}"})


def delete(call: Call) -> Response:
    wanted = call.json()
    kind = repo_type(wanted.get("type"))
    repo_id = f"{wanted.get('organization') or USER}/{wanted['name']}"
    repo = call.find(kind, repo_id, write=True)
    del call.store.repos[kind, repo.repo_id]
    return Response(status_code=204)


def info(call: Call) -> Response:
    repo = call.repo()
    commit = call.commit(repo)
    readme = commit.tree.get("README.md")
    metadata = card_data(readme.data) if readme else None
    first = list(repo.history(commit))[-1]
    blobs = call.request.query_params.get("blobs") is not None
    answer = {
        "id": repo.repo_id,
        "author": repo.namespace,
        "sha": commit.sha,
        "createdAt": first.date,
        "lastModified": commit.date,
        "private": repo.private,
        "gated": "auto" if repo.gated else False,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "cardData": metadata,
        "tags": tags(metadata or {}),
        "siblings": [sibling(path, commit.tree[path], blobs) for path in sorted(commit.tree)],
    }
    if repo.repo_type == "space":
        answer["sdk"] = (metadata or {}).get("sdk")
        if answer["sdk"] not in (None, "static"):
            answer["runtime"] = space_of(call, repo).runtime()
    for key in ("pipeline_tag", "library_name"):
        if repo.repo_type == "model" and metadata and key in metadata:
            answer[key] = metadata[key]
    return JSONResponse(answer)


def tags(metadata: dict[str, object]) -> list[str]:
    """A card's own tags, then those the Hub makes of its other fields."""
    made = [str(tag) for tag in listed(metadata.get("tags"))]
    for key, prefix in (("license", "license"), ("datasets", "dataset"), ("base_model",) * 2):
        made += [f"{prefix}:{value}" for value in listed(metadata.get(key))]
    return made


def sibling(path: str, content: Blob, with_blobs: bool) -> dict[str, object]:
    entry: dict[str, object] = {"rfilename": path}
    if with_blobs:
        entry |= {"size": len(content.data), "blobId": content.oid}
    if with_blobs and content.lfs:
        size, pointer = len(content.data), content.pointer_size
        entry["lfs"] = {"sha256": content.sha256, "size": size, "pointerSize": pointer}
    return entry


def auth_check(call: Call) -> Response:
    repo = call.repo(write="write" in call.args)
    call.enter(repo)
    return Response(status_code=200)


def refs(call: Call) -> Response:
    repo = call.repo()
    answer: dict[str, list[dict[str, str]]] = {}
    groups = {"branches": "refs/heads/", "converts": "refs/convert/", "tags": "refs/tags/"}
    for group, prefix in groups.items():
        answer[group] = [
            {"name": ref.removeprefix(prefix), "ref": ref, "targetCommit": sha}
            for ref, sha in sorted(repo.refs.items())
            if ref.startswith(prefix)
        ]
    return JSONResponse(answer)


def history(call: Call) -> Response:
    """The commits up to a revision, newest first, a page at a time."""
    repo = call.repo()
    limit = int(call.request.query_params.get("limit", 50))
    page = int(call.request.query_params.get("p", 0))
    every = list(repo.history(call.commit(repo)))
    shown = [
        {
            "id": commit.sha,
            "title": commit.title,
            "message": commit.description,
            "date": commit.date,
            "authors": [{"user": USER}],
        }
        for commit in every[page * limit : (page + 1) * limit]
    ]
    headers = {"X-Total-Count": str(len(every))}
    if len(every) > (page + 1) * limit:
        url = str(call.request.url.include_query_params(p=page + 1, limit=limit))
        headers["Link"] = f'<{url}>; rel="next"'
    return JSONResponse(shown, 200, headers)


def validate_yaml(call: Call) -> Response:
    errors, warnings = problems(str(call.json()["content"]))
    answer = {
        "errors": [{"message": message} for message in errors],
        "warnings": [{"message": message} for message in warnings],
    }
    return JSONResponse(answer, 400 if errors else 200)


ROUTES = [
    route("GET", r"/api/whoami-v2", whoami),
    route("POST", r"/api/repos/create", create),
    route("DELETE", r"/api/repos/delete", delete),
    route("POST", r"/api/validate-yaml", validate_yaml),
    route("GET", REPO, info),
    route("GET", rf"{REPO}/revision/{REV}", info),
    route("GET", rf"{REPO}/auth-check(?P<write>/write)?", auth_check),
    route("GET", rf"{REPO}/refs", refs),
    route("GET", rf"{REPO}/commits/{REV}", history),
]

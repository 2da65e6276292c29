from pathlib import Path

from tests.loopback_hub import LoopbackHub, run_client

REFUSED = """
import json
from huggingface_hub import CommitOperationAdd, HfApi, HfFileSystem, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError
api = HfApi()
EXPORT = "refs/convert/parquet"
def outcome(call):
    try:
        call()
    except Exception as error:
        status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
        return [type(error).__name__, status, str(error)]
    return ["fine"]
def add(**kwargs):
    operation = CommitOperationAdd("new.txt", b"new")
    return api.create_commit("me/public", operations=[operation], commit_message="add", **kwargs)
def readme(text):
    api.upload_file(path_or_fileobj=text.encode(), path_in_repo="README.md", repo_id="me/public")
print(json.dumps({
    "missing repo": outcome(lambda: api.model_info("me/nothing")),
    "missing revision": outcome(lambda: api.model_info("me/public", revision="v9")),
    "missing file": outcome(lambda: hf_hub_download("me/public", "nothing.txt")),
    "missing export": outcome(lambda: api.list_repo_files("me/public", revision=EXPORT)),
    "missing folder": outcome(lambda: list(api.list_repo_tree("me/public", "nothing"))),
    "private info": outcome(lambda: api.model_info("me/private")),
    "private file": outcome(lambda: hf_hub_download("me/private", "a.txt")),
    "private fs": outcome(lambda: HfFileSystem().ls("me/private")),
    "gated file": outcome(lambda: hf_hub_download("lab/gated", "a.txt")),
    "foreign": outcome(lambda: api.create_repo("other/repo")),
    "injected": outcome(lambda: add()),
    "stale": outcome(lambda: add(parent_commit="0" * 40)),
    "add": outcome(lambda: add()),
    "no-op": outcome(lambda: add()),
    "delete nothing": outcome(lambda: api.delete_file("nothing.txt", repo_id="me/public")),
    "foreign check": outcome(lambda: api.auth_check("other/repo", write=True)),
    "license": outcome(lambda: readme("---\\nlicense: mine-1.0\\n---\\n")),
    "base_model": outcome(lambda: readme("---\\nbase_model: /models/base\\n---\\n")),
    "good card": outcome(lambda: readme("---\\nlicense: apache-2.0\\n---\\n")),
}))
"""


def seed_for_refusals(hub: LoopbackHub) -> None:
    hub.seed("me/public", "model", {"a.txt": b"a"})
    hub.seed("me/private", "model", {"a.txt": b"a"}, private=True)
    hub.seed("lab/gated", "model", {"a.txt": b"a"}, gated=True)
    hub.seed("other/repo", "model", {})


def test_refusals_with_a_token(loopback_hub: LoopbackHub, tmp_path: Path) -> None:
    seed_for_refusals(loopback_hub)
    loopback_hub.fail_next("/api/models/me/public/commit/", 409)
    seen = run_client(loopback_hub, tmp_path, REFUSED)
    told = {name: outcome[:2] for name, outcome in seen.items()}
    assert told == {
        "missing repo": ["RepositoryNotFoundError", 404],
        "missing revision": ["RevisionNotFoundError", 404],
        "missing file": ["RemoteEntryNotFoundError", 404],
        "missing export": ["RevisionNotFoundError", 404],
        "missing folder": ["RemoteEntryNotFoundError", 404],
        "private info": ["fine"],
        "private file": ["fine"],
        "private fs": ["fine"],
        "gated file": ["fine"],
        "foreign": ["HfHubHTTPError", 403],
        "injected": ["HfHubHTTPError", 409],
        "stale": ["HfHubHTTPError", 412],
        "add": ["fine"],
        "no-op": ["fine"],
        "delete nothing": ["RemoteEntryNotFoundError", 404],
        "foreign check": ["HfHubHTTPError", 403],
        "license": ["ValueError", None],
        "base_model": ["ValueError", None],
        "good card": ["fine"],
    }
    assert "mine-1.0" in seen["license"][2]
    assert "/models/base" in seen["base_model"][2]
    assert loopback_hub.files("me/public")["README.md"] == b"---\nlicense: apache-2.0\n---\n"
    commits = [r.status for r in loopback_hub.requests if "/me/public/commit/" in r.path]
    assert commits == [409, 412, 200, 404, 200]


def test_refusals_without_a_token(loopback_hub: LoopbackHub, tmp_path: Path) -> None:
    seed_for_refusals(loopback_hub)
    told = run_client(loopback_hub, tmp_path, REFUSED, token=None)
    assert {name: outcome[:2] for name, outcome in told.items() if name.startswith("private")} == {
        "private info": ["RepositoryNotFoundError", 401],
        "private file": ["RepositoryNotFoundError", 401],
        "private fs": ["FileNotFoundError", None],
    }
    assert told["gated file"][:2] == ["GatedRepoError", 401]
    assert told["missing repo"][:2] == ["RepositoryNotFoundError", 401]
    assert told["missing revision"][0] == "RevisionNotFoundError"
    assert told["missing file"][0] == "RemoteEntryNotFoundError"
    assert all(told[name][1] == 401 for name in ("foreign", "foreign check", "add", "no-op", "delete nothing"))
    assert len(loopback_hub.repo("me/public").commits) == 2
    assert all("authorization" not in r.headers for r in loopback_hub.requests)

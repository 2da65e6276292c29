"""Large files by xet, buckets, accounts and faults, with the real clients."""

from hashlib import sha256
from pathlib import Path

import pytest

from tests.loopback_hub import LoopbackHub, run_client
from tests.loopback_hub.call import EXPIRED_TOKEN, OTHER_TOKEN, READ_TOKEN

BY_XET = """
import json, pathlib
from huggingface_hub import CommitOperationAdd, HfApi, hf_hub_download
api = HfApi()
api.create_repo("me/adapter", private=True)
data = bytes(range(256)) * 4096
done = api.upload_file(path_or_fileobj=data, path_in_repo="w.safetensors", repo_id="me/adapter")
again = api.upload_file(path_or_fileobj=data, path_in_repo="w.safetensors", repo_id="me/adapter")
back = pathlib.Path(hf_hub_download("me/adapter", "w.safetensors")).read_bytes()
print(json.dumps({
    "same": back == data,
    "no-op": done.oid == again.oid,
    "titles": [commit.title for commit in api.list_repo_commits("me/adapter")],
}))
"""


@pytest.mark.parametrize("skew", [3600.0, -3600.0])
def test_large_files_go_by_xet_whatever_the_clock_says(loopback_hub: LoopbackHub, tmp_path: Path, skew: float) -> None:
    loopback_hub.store.xet.expires_in = skew
    seen = run_client(loopback_hub, tmp_path, BY_XET, xet=True)
    assert seen["same"]
    assert seen["no-op"]
    assert seen["titles"] == ["Upload w.safetensors with huggingface_hub", "initial commit"]
    data = bytes(range(256)) * 4096
    assert loopback_hub.files("me/adapter")["w.safetensors"] == data
    assert not [seen for seen in loopback_hub.requests if seen.method == "PUT"]
    assert sha256(data).hexdigest() in loopback_hub.store.xet.hash_of


BUCKET = """
import json, pathlib
from huggingface_hub import HfApi
from huggingface_hub.errors import BucketNotFoundError
api = HfApi()
api.create_bucket("me/things", private=True)
api.create_bucket("me/things", private=True, exist_ok=True)
folder = pathlib.Path("up/deep")
folder.mkdir(parents=True)
(folder / "a.bin").write_bytes(b"a" * 99999)
(folder / "empty").write_bytes(b"")
add = [(b"top", "top.txt"), (folder / "a.bin", "deep/a.bin"), (folder / "empty", "deep/empty")]
api.batch_bucket_files("me/things", add=add)
shallow = {item.path: item.type for item in api.list_bucket_tree("me/things")}
every = {f.path: f.size for f in api.list_bucket_tree("me/things", recursive=True)}
names = ["deep/a.bin", "deep/empty", "top.txt"]
api.download_bucket_files("me/things", [(name, f"down/{name}") for name in names])
api.batch_bucket_files("me/things", add=[(b"new", "top.txt")], delete=["deep/a.bin"])
api.sync_bucket("hf://buckets/me/things", "synced", quiet=True)
info = api.bucket_info("me/things")
api.delete_bucket("me/things")
try:
    api.bucket_info("me/things")
except BucketNotFoundError as error:
    gone = error.response.status_code
def files(top):
    top = pathlib.Path(top)
    return {p.relative_to(top).as_posix(): p.read_text() for p in top.rglob("*") if p.is_file()}
print(json.dumps([shallow, every, files("down"), files("synced"), info.private, gone]))
"""


def test_a_bucket_holds_files(loopback_hub: LoopbackHub, tmp_path: Path) -> None:
    shallow, every, down, synced, private, gone = run_client(loopback_hub, tmp_path, BUCKET, xet=True)
    assert shallow == {"deep": "directory", "top.txt": "file"}
    assert every == {"deep/a.bin": 99999, "deep/empty": 0, "top.txt": 3}
    assert down == {"deep/a.bin": "a" * 99999, "deep/empty": "", "top.txt": "top"}
    assert synced == {"deep/empty": "", "top.txt": "new"}
    assert (private, gone) == (True, 404)
    assert not loopback_hub.store.buckets


LOOKS = """
import json
from huggingface_hub import HfApi, hf_hub_download
api = HfApi()
def outcome(call):
    try:
        return call()
    except Exception as error:
        return [type(error).__name__, getattr(getattr(error, "response", 0), "status_code", None)]
def get(name):
    return outcome(lambda: bool(hf_hub_download(name, "a.txt")))
print(json.dumps({
    "who": outcome(lambda: [api.whoami()["name"], api.whoami()["auth"]["accessToken"]["role"]]),
    "public": get("lab/public"), "private": get("lab/private"), "gated": get("lab/gated"),
    "create": outcome(lambda: bool(api.create_repo("me/new"))),
    "bucket": outcome(lambda: api.bucket_info("me/kept").private),
}))
"""


@pytest.mark.parametrize(
    ("token", "told"),
    [
        (
            READ_TOKEN,
            {
                "who": ["me", "read"],
                "public": True,
                "private": True,
                "gated": True,
                "create": ["HfHubHTTPError", 403],
                "bucket": True,
            },
        ),
        (
            OTHER_TOKEN,
            {
                "who": ["other", "write"],
                "public": True,
                "private": ["RepositoryNotFoundError", 404],
                "gated": ["GatedRepoError", 403],
                "create": ["HfHubHTTPError", 403],
                "bucket": ["BucketNotFoundError", 404],
            },
        ),
    ],
)
def test_accounts_see_what_is_theirs(
    loopback_hub: LoopbackHub, tmp_path: Path, token: str, told: dict[str, object]
) -> None:
    files = {"a.txt": b"a"}
    loopback_hub.seed("lab/public", "model", files)
    loopback_hub.seed("lab/private", "model", files, private=True)
    loopback_hub.seed("lab/gated", "model", files, gated=True)
    loopback_hub.add_bucket("me/kept", {"a": b"a"})
    assert run_client(loopback_hub, tmp_path, LOOKS, token=token) == told
    loopback_hub.repo("lab/gated").granted.add("other")
    assert run_client(loopback_hub, tmp_path / "again", LOOKS, token=token)["gated"] is True


def test_an_expired_token_is_refused_everywhere(loopback_hub: LoopbackHub, tmp_path: Path) -> None:
    loopback_hub.seed("lab/public", "model", {"a.txt": b"a"})
    told = run_client(loopback_hub, tmp_path, LOOKS, token=EXPIRED_TOKEN)
    assert {str(outcome) for outcome in told.values()} != {"True"}
    assert True not in told.values()


FAULTS = """
import json, pathlib
from huggingface_hub import hf_hub_download
got = pathlib.Path(hf_hub_download("me/m", "a.bin")).read_bytes()
print(json.dumps(got == bytes(range(256)) * 999))
"""


def test_a_client_gets_over_a_dropped_and_a_slow_answer(loopback_hub: LoopbackHub, tmp_path: Path) -> None:
    data = bytes(range(256)) * 999
    loopback_hub.seed("me/m", "model", {"a.bin": data})
    loopback_hub.slow_next("/resolve/", 0.2)
    loopback_hub.drop_next("/a.bin", after=1000, method="GET")
    assert run_client(loopback_hub, tmp_path, FAULTS)
    gets = [r for r in loopback_hub.requests if r.method == "GET" and r.path.endswith("a.bin")]
    assert len(gets) == 2
    assert not loopback_hub.faults

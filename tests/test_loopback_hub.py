import io
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.loopback_hub import ORG, LoopbackHub, run_client

EXPORT = "refs/convert/parquet"
SHARD = "default/train/0000.parquet"
CARD = "---\nlicense: mit\nbase_model: {base}\ntags: [lora]\n---\n# A card\n"

MODEL = """
import json, pathlib
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import HfHubHTTPError
api = HfApi()
seen = {"user": api.whoami()["name"]}
api.create_repo("me/adapter", private=True)
try:
    api.create_repo("me/adapter")
except HfHubHTTPError as error:
    seen["twice"] = error.response.status_code
seen["url"] = str(api.create_repo("me/adapter", exist_ok=True))
uploads = [api.upload_folder(repo_id="me/adapter", folder_path="up") for _ in range(2)]
seen["oids"] = [upload.oid for upload in uploads]
info = api.model_info("me/adapter", files_metadata=True)
seen["info"] = [info.sha, info.private, info.library_name, info.card_data.base_model, info.tags]
seen["lfs"] = {s.rfilename: s.lfs.sha256 for s in info.siblings if s.lfs}
down = pathlib.Path(snapshot_download("me/adapter"))
seen["down"] = {
    p.relative_to(down).as_posix(): p.read_bytes().hex() for p in down.rglob("*") if p.is_file()
}
api.delete_folder("deep", repo_id="me/adapter")
api.delete_file("weights.safetensors", repo_id="me/adapter")
seen["left"] = api.list_repo_files("me/adapter")
seen["before"] = api.list_repo_files("me/adapter", revision=uploads[0].oid)
api.auth_check("me/adapter", write=True)
api.delete_repo("me/adapter")
seen["exists"] = api.repo_exists("me/adapter")
print(json.dumps(seen))
"""


def test_a_model_goes_up_and_comes_back(loopback_hub: LoopbackHub, tmp_path: Path) -> None:
    files = {
        "README.md": CARD.format(base="lab/base").replace("tags", "library_name: peft\ntags").encode(),
        "deep/notes.txt": "caf\u00e9\n".encode(),
        "empty.txt": b"",
        "weights.safetensors": bytes(range(256)) * 40,
    }
    for path, data in files.items():
        (tmp_path / "up" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "up" / path).write_bytes(data)
    seen = run_client(loopback_hub, tmp_path, MODEL)

    assert seen["user"] == "me"
    assert seen["twice"] == 409
    assert seen["url"] == f"{loopback_hub.url}/me/adapter"
    first, second = seen["oids"]
    assert first == second
    sha, private, library, base, tags = seen["info"]
    assert (sha, private, library, base) == (first, True, "peft", "lab/base")
    assert tags == ["lora", "license:mit", "base_model:lab/base"]
    weights = files["weights.safetensors"]
    assert seen["lfs"] == {"weights.safetensors": sha256(weights).hexdigest()}
    down = {path: bytes.fromhex(data) for path, data in seen["down"].items()}
    assert b"*.parquet filter=lfs" in down.pop(".gitattributes")
    assert down == files
    assert sorted(seen["left"]) == [".gitattributes", "README.md", "empty.txt"]
    assert sorted(seen["before"]) == sorted([".gitattributes", *files])
    assert seen["exists"] is False
    commits = [r for r in loopback_hub.requests if "/commit/" in r.path]
    assert [r.status for r in commits] == [200] * 3  # one of the two uploads, two deletes
    puts = [r for r in loopback_hub.requests if r.method == "PUT"]
    assert [r.body for r in puts] == [weights]


READ = """
import json, sys
import pyarrow.parquet as pq
from huggingface_hub import HfApi, HfFileSystem, hf_hub_download
fs, api = HfFileSystem(), HfApi()
found = fs.glob("datasets/ns/name@refs/convert/parquet/**/*.parquet")
with fs.open(found[0], block_size=4096) as file:
    footer = pq.ParquetFile(file).metadata
kwargs = {"repo_type": "dataset", "revision": "refs/convert/parquet"}
refs = api.list_repo_refs("ns/name", repo_type="dataset")
sha = refs.converts[0].target_commit
tree = list(api.list_repo_tree("ns/name", expand=True, recursive=True, **kwargs))
paths = ["default/train", "default/train/0000.parquet", "no"]
infos = api.get_paths_info("ns/name", paths, **kwargs)
local = hf_hub_download("ns/name", "default/train/0000.parquet", **kwargs)
print(json.dumps({
    "found": found,
    "rows": footer.num_rows,
    "converts": [[ref.name, ref.ref, ref.target_commit] for ref in refs.converts],
    "branches": [ref.name for ref in refs.branches],
    "tree": {e.path: e.last_commit.title for e in tree},
    "infos": {e.path: type(e).__name__ for e in infos},
    "below": [e.path for e in api.list_repo_tree("ns/name", "default", recursive=True, **kwargs)],
    "info": api.dataset_info("ns/name", revision="refs/convert/parquet").sha,
    "pinned": fs.isfile(f"datasets/ns/name@{sha}/default/train/0000.parquet"),
    "local": local,
}))
"""


def test_the_parquet_export_is_found_and_read_in_ranges(loopback_hub: LoopbackHub, tmp_path: Path) -> None:
    table = pa.table({"text": [sha256(b"%d" % i).hexdigest() for i in range(8000)]})
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    shard = buffer.getvalue()
    main = loopback_hub.seed("ns/name", "dataset", {"a.jsonl": b"{}\n"})
    sha = loopback_hub.seed("ns/name", "dataset", {SHARD: shard}, revision=EXPORT)
    seen = run_client(loopback_hub, tmp_path, READ)

    assert seen["found"] == [f"datasets/ns/name@{EXPORT}/{SHARD}"]
    assert seen["rows"] == 8000
    assert seen["converts"] == [["parquet", EXPORT, sha]]
    assert seen["branches"] == ["main"]
    assert seen["info"] == sha != main
    assert seen["pinned"] is True
    assert seen["tree"] == {
        ".gitattributes": "initial commit",
        "default": "seed",
        "default/train": "seed",
        SHARD: "seed",
    }
    assert seen["below"] == ["default/train", SHARD]
    assert seen["infos"] == {"default/train": "RepoFolder", SHARD: "RepoFile"}
    assert Path(seen["local"]).read_bytes() == shard
    assert Path(seen["local"]).parts[-4:-2] == (sha, "default")
    gets = [r for r in loopback_hub.requests if r.method == "GET" and r.path.endswith(SHARD)]
    spans = [r.headers["range"].removeprefix("bytes=") for r in gets]
    assert {r.status for r in gets} == {302}
    assert all("/resolve/refs%2Fconvert%2Fparquet/" in r.path for r in gets)
    stored = [r for r in loopback_hub.requests if r.path.startswith("/objects/")]
    assert [r.status for r in stored] == [206] * len(gets) + [200]
    assert not any("authorization" in r.headers for r in stored)
    lengths = [int(last) - int(first) + 1 for first, last in (s.split("-") for s in spans)]
    assert 0 < sum(lengths) < len(shard) / 4


DATASET = """
import json
from datasets import Dataset, load_dataset
from huggingface_hub import DatasetCard
first = Dataset.from_dict({"n": list(range(10)), "text": [f"row {i}" for i in range(10)]})
first.push_to_hub("lab/rows", num_shards=2)
back = load_dataset("lab/rows", split="train")
card = DatasetCard.load("lab/rows")
card.data.license = "mit"
card.text += "\\nwritten by hand\\n"
card.push_to_hub("lab/rows")
second = Dataset.from_dict({"n": [7], "text": ["other"]})
second.push_to_hub("lab/rows", split="test")
second.push_to_hub("lab/rows")
streamed = load_dataset("lab/rows", split="test", streaming=True)
print(json.dumps({
    "same": back.to_list() == first.to_list() and back.features == first.features,
    "splits": {k: v.to_list() for k, v in load_dataset("lab/rows").items()},
    "streamed": list(streamed),
}))
"""


def test_a_dataset_is_pushed_and_loaded_back(loopback_hub: LoopbackHub, tmp_path: Path) -> None:
    seen = run_client(loopback_hub, tmp_path, DATASET)
    row = {"n": 7, "text": "other"}
    assert seen == {"same": True, "splits": {"train": [row], "test": [row]}, "streamed": [row]}
    files = loopback_hub.files(f"{ORG}/rows", "dataset")
    assert [path for path in files if path.endswith(".parquet")] == [
        "data/test-00000-of-00001.parquet",
        "data/train-00000-of-00001.parquet",
    ]
    assert b"license: mit" in files["README.md"]
    assert b"written by hand" in files["README.md"]
    assert pq.read_table(io.BytesIO(files["data/train-00000-of-00001.parquet"])).to_pylist() == [row]


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

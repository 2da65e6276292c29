"""What stops an adapter from being published, before the training and after it."""

import shlex
from pathlib import Path

import pytest

from tests.loopback_hub import TOKEN, LoopbackHub, run_client, run_hf
from tests.loopback_hub.call import EXPIRED_TOKEN, FINE_TOKEN, OTHER_TOKEN, READ_TOKEN

TRAINING = ("pimono_sdpo.training.output",)
CHECK = """
import json
from types import SimpleNamespace
from pimono_sdpo.errors import OutputError
from pimono_sdpo.training.output import open_destination
args = SimpleNamespace(hub_model_id={name!r}, hub_private_repo=None, output_dir="out")
try:
    open_destination(args, "train")
    print(json.dumps(None))
except OutputError as problem:
    print(json.dumps(str(problem)))
"""


@pytest.mark.parametrize(
    ("name", "token", "sentence"),
    [
        ("me/adapter", TOKEN, None),
        ("adapter", TOKEN, None),
        ("lab/adapter", TOKEN, None),
        ("me/adapter", None, "there is no token; set HF_TOKEN"),
        ("me/adapter", READ_TOKEN, "set HF_TOKEN to a token with write access"),
        ("me/adapter", EXPIRED_TOKEN, "does not accept the token; create a new one"),
        ("me/adapter", "hf_mistyped", "does not accept the token; create a new one"),
        ("me/adapter", OTHER_TOKEN, "the Hub answers 403, You cannot create a model under the"),
        ("lab/adapter", FINE_TOKEN, None),
        ("me/adapter", FINE_TOKEN, "the Hub answers 403, You cannot create a model under the"),
        ("me/there", FINE_TOKEN, "the Hub answers 403, You cannot write to me/there"),
        ("a/b/c", TOKEN, "it is not a valid name; use ns/name"),
    ],
)
def test_it_is_found_out_before_the_training(
    loopback_hub: LoopbackHub, tmp_path: Path, name: str, token: str | None, sentence: str | None
) -> None:
    loopback_hub.seed("me/there", "model", {}, private=True)
    told = run_client(loopback_hub, tmp_path, CHECK.format(name=name), token, imported=TRAINING)
    assert (told is None) == (sentence is None), told
    if sentence is not None:
        assert sentence in told
        assert f"Nothing can be pushed to `{name}`" in told
        assert {*loopback_hub.store.repos} == {("model", "me/there")}
    else:
        (made,) = {*loopback_hub.store.repos} - {("model", "me/there")}
        assert made[1] in (name, f"me/{name}")
        assert loopback_hub.repo(made[1]).private
        assert list(loopback_hub.repo(made[1]).refs) == ["refs/heads/main"]


PUBLISH = """
import json
from pathlib import Path
from pimono_sdpo.errors import OutputError
from pimono_sdpo.push import open_repo
from pimono_sdpo.training.output import publish_adapter
try:
    print(json.dumps([True, publish_adapter(open_repo("me/adapter", "model", False), Path("adapter"))]))
except OutputError as problem:
    print(json.dumps([False, str(problem)]))
"""
COMMIT = "/api/models/me/adapter/commit/"
CARD = b"""---
license: mit
---

<!-- pimono-sdpo:adapter -->
# An adapter
<!-- /pimono-sdpo:adapter -->
"""


@pytest.fixture
def adapter(tmp_path: Path) -> dict[str, bytes]:
    files = {
        "README.md": b"---\nlicense: mit\n---\n# An adapter\n",
        "adapter_config.json": b"{}",
        "adapter_model.safetensors": bytes(range(256)) * 99,
    }
    (tmp_path / "adapter").mkdir()
    for name, data in files.items():
        (tmp_path / "adapter" / name).write_bytes(data)
    return files


@pytest.mark.parametrize(
    ("path", "status", "times", "sentence"),
    [
        (COMMIT, 409, 1, None),
        (COMMIT, 412, 2, None),
        (COMMIT, 503, 1, None),
        ("/preupload/", 429, 9, None),
        (COMMIT, 412, 0, "others kept committing to it (the Hub answers 412"),
        (COMMIT, 403, 1, "the Hub answers 403, Injected fault; set HF_TOKEN to a token with"),
        (COMMIT, 413, 1, "it is too large for this account's storage, so free some space"),
        ("/objects/", 403, 1, "Error while uploading 'adapter_model.safetensors'"),
        ("/api/validate-yaml", 400, 1, "Invalid metadata in README.md"),
    ],
)
def test_after_the_training_nothing_is_lost(
    loopback_hub: LoopbackHub,
    tmp_path: Path,
    adapter: dict[str, bytes],
    path: str,
    status: int,
    times: int,
    sentence: str | None,
) -> None:
    wait = {"Retry-After": "0" if times else "3600"}
    method = "PUT" if path == "/objects/" else None
    loopback_hub.fail_next(path, status, times or 1, method, headers=wait)
    done, told = run_client(loopback_hub, tmp_path, PUBLISH, imported=TRAINING)
    assert done == (sentence is None), told
    assert {p.name: p.read_bytes() for p in (tmp_path / "adapter").iterdir()} == adapter
    if sentence is not None:
        assert sentence in told
        assert "\n" not in told
        assert not loopback_hub.store.repos, "nothing half-written, no empty repository"
        command = shlex.split(told.split("push the folder with `")[1].split("`")[0])
        again = run_hf(loopback_hub, tmp_path, *command[1:])
        assert again.returncode == 0, again.stderr
    if sentence is None:
        adapter["README.md"] = CARD
    pushed = loopback_hub.files("me/adapter")
    del pushed[".gitattributes"]
    assert pushed == adapter


def test_a_dropped_connection_is_gone_over(
    loopback_hub: LoopbackHub, tmp_path: Path, adapter: dict[str, bytes]
) -> None:
    loopback_hub.drop_next("/preupload/", times=2)
    loopback_hub.drop_next(COMMIT)
    done, told = run_client(loopback_hub, tmp_path, PUBLISH, imported=TRAINING)
    assert done, told
    pushed = loopback_hub.files("me/adapter")
    del pushed[".gitattributes"]
    assert pushed == adapter | {"README.md": CARD}
    assert told.startswith(f"{loopback_hub.url}/me/adapter (private) has these 3 files")


def test_the_next_adapter_takes_its_files_and_leaves_the_owners(
    loopback_hub: LoopbackHub, tmp_path: Path, adapter: dict[str, bytes]
) -> None:
    (tmp_path / "adapter" / "run.json").write_text("{}")
    (tmp_path / "adapter" / "tokenizer.json").write_text("{}")
    done, told = run_client(loopback_hub, tmp_path, PUBLISH, imported=TRAINING)
    assert done, told
    theirs = {"README.md": CARD + b"\nUse with care.\n", "notes.txt": b"mine", "training.svg": b"<svg/>"}
    loopback_hub.seed("me/adapter", "model", theirs)
    (tmp_path / "adapter" / "tokenizer.json").unlink()
    (tmp_path / "adapter" / "README.md").write_bytes(adapter["README.md"].replace(b"An adapter", b"A better one"))
    done, told = run_client(loopback_hub, tmp_path, PUBLISH, imported=TRAINING)
    assert done, told
    assert ", 2 removed, in commit" in told
    pushed = loopback_hub.files("me/adapter")
    assert {*pushed} == {".gitattributes", "notes.txt", "run.json", *adapter}
    assert pushed["README.md"] == CARD.replace(b"An adapter", b"A better one") + b"\nUse with care.\n"

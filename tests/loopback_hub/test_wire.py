"""The Hub without its clients: raw requests, storage, the rules of a card."""

import base64
import json
import urllib.error
import urllib.request
from hashlib import sha256

import pytest

from tests.loopback_hub import LoopbackHub
from tests.loopback_hub.card import problems


class Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Go nowhere."""


def fetch(url: str, follow: bool = True, **headers: str) -> tuple[int, dict[str, str], bytes]:
    opener = urllib.request.build_opener(*([] if follow else [Stay]))
    try:
        with opener.open(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read()


@pytest.mark.parametrize("revision", ["refs%2Fpr%2F1", "refs/pr/1", "sha"])
def test_revisions_and_ranges_on_the_wire(loopback_hub: LoopbackHub, revision: str) -> None:
    sha = loopback_hub.seed("ns/name", "dataset", {"a b/c.bin": b"0123456789"}, revision="refs/pr/1")
    url = f"{loopback_hub.url}/datasets/ns/name/resolve/{revision.replace('sha', sha)}/a%20b/c.bin"
    status, headers, body = fetch(url)
    assert (status, body) == (200, b"0123456789")
    assert headers["content-length"] == "10"
    status, headers, nothing = fetch(url, follow=False)
    assert (status, nothing, headers["x-repo-commit"]) == (302, b"", sha)
    assert headers["etag"] == headers["x-linked-etag"] == f'"{sha256(body).hexdigest()}"'
    assert headers["x-linked-size"] == "10"
    stored = headers["location"]
    assert fetch(stored)[2] == body
    assert fetch(stored, Authorization="Bearer hf_loopback")[0] == 400
    assert fetch(stored.partition("?")[0])[0] == 403
    assert fetch(stored.replace("localhost", "127.0.0.1"))[0] == 404
    for wanted, expected in [("2-4", b"234"), ("7-", b"789"), ("-4", b"6789"), ("8-99", b"89")]:
        status, headers, body = fetch(url, Range=f"bytes={wanted}")
        assert (status, body) == (206, expected)
        assert headers["content-range"].endswith("/10")
    assert fetch(url, Range="bytes=10-12")[0] == 416
    status, headers, body = fetch(url.replace("c.bin", "d.bin"))
    assert (status, headers["x-error-code"]) == (404, "EntryNotFound")
    assert json.loads(body)["error"].endswith("a b/d.bin")
    assert fetch(url, Authorization="Bearer hf_other")[0] == 401
    assert fetch(url, follow=False, Authorization="Bearer hf_loopback")[0] == 302


def send(method: str, url: str, body: object, token: str | None = "hf_loopback") -> tuple[int, dict[str, str], bytes]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url, data=data, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read()


def post(hub: LoopbackHub, path: str, body: bytes) -> int:
    return send("POST", f"{hub.url}{path}", body)[0]


def test_parts_of_an_object_that_the_storage_refuses(loopback_hub: LoopbackHub) -> None:
    loopback_hub.store.part_bytes = 4
    loopback_hub.seed("me/m", "model", {})
    oid = sha256(b"0123456789").hexdigest()
    batch = {"operation": "upload", "hash_algo": "sha256", "objects": [{"oid": oid, "size": 10}]}
    place = f"{loopback_hub.url}/me/m.git/info/lfs/objects/batch"
    assert send("POST", place, batch | {"transfers": ["basic"]})[0] == 422
    status, _, answer = send("POST", place, batch | {"transfers": ["basic", "multipart"]})
    assert status == 200
    upload = json.loads(answer)["objects"][0]["actions"]["upload"]
    parts = [upload["header"][f"{n:05}"] for n in (1, 2, 3)]
    assert upload["header"]["chunk_size"] == "4"
    assert send("PUT", parts[0], b"012", None)[0] == 400
    assert send("PUT", parts[0].partition("?")[0], b"0123", None)[0] == 403
    assert send("PUT", parts[0], b"0123")[0] == 400
    sent = [send("PUT", url, data, None) for url, data in zip(parts, (b"0123", b"4567", b"89"), strict=True)]
    named = [{"partNumber": n, "etag": one[1]["etag"]} for n, one in enumerate(sent, 1)]
    for wrong in (named[:2], named[::-1], [{**named[0], "etag": '"x"'}, *named[1:]]):
        assert send("POST", upload["href"], {"oid": oid, "parts": wrong}, None)[0] == 400
    assert oid not in loopback_hub.store.lfs
    assert send("POST", upload["href"], {"oid": oid, "parts": named}, None)[0] == 200
    assert loopback_hub.store.lfs[oid] == b"0123456789"


@pytest.mark.parametrize("name", ["a--b", "a.git", "A b", "a..b", ".a", "x" * 97])
def test_a_repository_needs_a_name_that_the_hub_takes(loopback_hub: LoopbackHub, name: str) -> None:
    create = "/api/repos/create"
    assert post(loopback_hub, create, json.dumps({"name": name}).encode()) == 400
    assert post(loopback_hub, create, b'{"name": "a.b-c_d"}') == 200
    assert post(loopback_hub, create, b'{"name": "s", "type": "space"}') == 400
    assert post(loopback_hub, create, b'{"name": "s", "type": "space", "sdk": "gradio"}') == 200


@pytest.mark.parametrize(
    ("summary", "path", "data"),
    [
        ("", "a.txt", b"a"),
        ("s", "../x", b"a"),
        ("s", ".git/config", b"a"),
        ("s", "a.txt", b"a\0b"),
        ("s", "a.txt", b"a" * (10 * 2**20 + 1)),
    ],
)
def test_a_commit_that_the_hub_refuses(loopback_hub: LoopbackHub, summary: str, path: str, data: bytes) -> None:
    loopback_hub.seed("me/m", "model", {})
    file = {"path": path, "content": base64.b64encode(data).decode(), "encoding": "base64"}
    header = {"summary": summary, "description": ""}
    lines = [{"key": "header", "value": header}, {"key": "file", "value": file}]
    body = "\n".join(map(json.dumps, lines)).encode()
    assert post(loopback_hub, "/api/models/me/m/commit/main", body) == 400
    assert list(loopback_hub.files("me/m")) == [".gitattributes"]


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({}, 200),
        ({"flavor": "abacus"}, 400),
        ({"dockerImage": None}, 400),
        ({"command": []}, 400),
        ({"timeout": "3h"}, 400),
        ({"labels": {"pimono-sdpo": "c0ffee_1"}}, 200),
        ({"labels": {"model": "Qwen3-0.6B"}}, 400),
    ],
)
def test_a_job_that_the_hub_refuses(loopback_hub: LoopbackHub, change: dict[str, object], status: int) -> None:
    spec = {"command": ["true"], "flavor": "cpu-basic", "dockerImage": "uv", "environment": {}}
    changed = {key: value for key, value in (spec | change).items() if value is not None}
    body = json.dumps(changed).encode()
    assert post(loopback_hub, "/api/jobs/me", body) == status
    loopback_hub.store.credit = False
    assert post(loopback_hub, "/api/jobs/me", body) == 402


@pytest.mark.parametrize(
    ("metadata", "told"),
    [
        ("license: mit", None),
        ("license: [mit, apache-2.0]", None),
        ("base_model: [google/gemma-4-12B-it, gpt2]", None),
        ("license: MIT", "license"),
        ("license: [mit, mine]", "mine"),
        ("base_model: ./runs/base", "./runs/base"),
        ("base_model: C:\\models\\base", "base_model"),
        ("base_model: [lab/base, a/b/c]", "a/b/c"),
        ("license: mit\nlicense: mit", "duplicated mapping key"),
        ("configs:\n- a: 1\n  a: 2", "duplicated mapping key"),
        ("tags: [open", "Invalid YAML"),
        ("- a\n- b", "mapping"),
        ("language: [en, code]", None),
        ("language: English", "language[0]"),
        ("tags: [agent-traces, 3]", '"tags[1]" must be a string'),
        ("datasets: [me/rows]\nsource_datasets: [original]", None),
        ("datasets: /tmp/rows", "/tmp/rows"),
        ("base_model_relation: lora", "base_model_relation"),
        ("configs:\n- data_files: data/*", "configs[0].config_name"),
        ("configs:\n- {config_name: a}\n- {config_name: a}", "duplicate config_name"),
        ("model-index: [{name: m}]", "model-index[0].results"),
        ("model-index: [{name: m, results: [{task: {type: t}, dataset: {type: d, name: d}}]}]", "metrics"),
        (
            "model-index: [{name: m, results: [{task: {type: t}, dataset: {type: d, name: d},"
            " metrics: [{type: a, value: 1}]}]}]",
            None,
        ),
    ],
)
def test_what_the_hub_says_of_a_card(metadata: str, told: str | None) -> None:
    errors, warnings = problems(f"---\n{metadata}\n---\n# Title\n")
    assert warnings == []
    assert len(errors) == (told is not None)
    assert told is None or told in errors[0]


@pytest.mark.parametrize("text", ["# No metadata\n", "---\n---\n# Title\n", ""])
def test_a_card_without_metadata_is_only_warned_about(text: str) -> None:
    errors, warnings = problems(text)
    assert errors == []
    assert len(warnings) == 1

"""Pushing finished rows, with the real clients, to a Hub that also refuses."""

import json
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from time import sleep

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pimono_sdpo.filtering import FilterOptions, run_filter
from tests.exports import write_samples
from tests.loopback_hub import TOKEN, LoopbackHub, run_client, run_python
from tests.loopback_hub.call import EXPIRED_TOKEN, FINE_TOKEN

NAME = "me/rows"
COMMIT = "/api/datasets/me/rows/commit/"
LOADED = """
import json
from datasets import load_dataset
def told(rows):
    return [[row["session_id"], row["source"]] for row in rows]
print(json.dumps({
    "rows": told(load_dataset("me/rows", split="train")),
    "streamed": told(load_dataset("me/rows", split="train", streaming=True)),
    "rejects": told(load_dataset("me/rows", "rejects", split="train")),
}))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    write_samples(folder / "traces")
    run_filter(str(folder / "traces"), folder / "rows", FilterOptions(licence="mit"))
    return folder


@pytest.fixture
def rows(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "rows", tmp_path / "rows"))


def front(
    hub: LoopbackHub, home: Path, *arguments: str, token: str | None = TOKEN, xet: bool = False, **env: str
) -> subprocess.CompletedProcess[str]:
    command = ("-m", "pimono_sdpo", *arguments)
    return run_python(hub, home, *command, token=token, xet=xet, environment=env)


def push(
    hub: LoopbackHub, rows: Path, *options: str, xet: bool = False, **env: str
) -> subprocess.CompletedProcess[str]:
    return front(hub, rows.parent, "push", str(rows), NAME, *options, xet=xet, **env)


def pushed(hub: LoopbackHub, revision: str = "main") -> dict[str, bytes]:
    files = hub.files(NAME, "dataset", revision)
    del files[".gitattributes"]
    return files


def as_pushed(rows: Path) -> dict[str, bytes]:
    files = {path.relative_to(rows).as_posix(): path.read_bytes() for path in rows.rglob("*") if path.is_file()}
    head, _, text = files["README.md"].replace(b'"PATH_OR_ID"', b'"me/rows"').partition(b"\n---\n")
    marked = b"<!-- pimono-sdpo:rows -->\n" + text.strip() + b"\n<!-- /pimono-sdpo:rows -->\n"
    files["README.md"] = head + b"\n---\n\n" + marked
    return files


def of_table(rows: Path, kind: str) -> list[list[str]]:
    files = sorted((rows / kind).glob("*.parquet"))
    table = pa.concat_tables([pq.read_table(file) for file in files])
    return [[row["session_id"], row["source"]] for row in table.to_pylist()]


def statuses(hub: LoopbackHub) -> list[int]:
    return [seen.status for seen in hub.requests if seen.path.startswith(COMMIT)]


def refused(done: subprocess.CompletedProcess[str], rows: Path, before: dict[str, bytes]) -> str:
    """One sentence, exit code 2, and the folder as it was."""
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert as_pushed(rows) == before
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("pimono-sdpo: "))
    return line


def test_filter_pushes_what_loads_back(loopback_hub: LoopbackHub, made: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows"
    arguments = ("filter", str(made / "traces"), "--out", str(out), "--license", "mit")
    done = front(loopback_hub, tmp_path, *arguments, "--push", NAME)
    assert done.returncode == 0, done.stderr
    assert pushed(loopback_hub) == as_pushed(out)
    assert loopback_hub.repo(NAME, "dataset").private
    assert "(private)" in done.stdout
    assert statuses(loopback_hub) == [200]
    seen = run_client(loopback_hub, tmp_path, LOADED)
    assert seen["rows"] == seen["streamed"] == of_table(out, "data")
    assert seen["rejects"] == of_table(out, "rejects")

    again = push(loopback_hub, out)
    assert again.returncode == 0, again.stderr
    assert "nothing is left to upload" in again.stdout
    assert statuses(loopback_hub) == [200]


def test_another_push_replaces_the_earlier_one_whole(loopback_hub: LoopbackHub, rows: Path) -> None:
    ours = {"report.json": b'{"pimono_sdpo": "0"}', "LICENSE": b"theirs"}
    shards = {f"data/train-0000{i}-of-00009.parquet": b"old" for i in range(3)}
    loopback_hub.seed(NAME, "dataset", ours | shards)
    done = push(loopback_hub, rows, "--public")
    assert done.returncode == 0, done.stderr
    assert "3 removed" in done.stdout
    assert pushed(loopback_hub) == as_pushed(rows) | {"LICENSE": b"theirs"}
    assert statuses(loopback_hub) == [200]


def write_on_the_card(hub: LoopbackHub, key: str, words: str) -> None:
    """Do what an owner does on the Hub: set a key of the metadata, and add words at the end."""
    card = hub.files(NAME, "dataset")["README.md"].decode()
    edited = card.replace("---\n", f"---\n{key}\n", 1) + f"\n{words}\n"
    hub.seed(NAME, "dataset", {"README.md": edited.encode()})


def test_what_the_owner_wrote_on_the_card_stays(loopback_hub: LoopbackHub, made: Path, rows: Path) -> None:
    assert push(loopback_hub, rows).returncode == 0
    write_on_the_card(loopback_hub, "language: en", "## My notes\n\nDo not train on Fridays.")
    assert push(loopback_hub, rows).returncode == 0
    assert statuses(loopback_hub) == [200], "nothing of ours changed"
    run_filter(str(made / "traces"), rows, FilterOptions(max_samples=3, licence="mit"))
    done = push(loopback_hub, rows)
    assert done.returncode == 0
    card = loopback_hub.files(NAME, "dataset")["README.md"].decode()
    ours = as_pushed(rows)["README.md"].decode()
    metadata, _, text = ours.removeprefix("---\n").partition("---\n")
    head, _, body = card.removeprefix("---\n").partition("---\n")
    assert sorted([*metadata.splitlines(), "language: en"]) == sorted(head.splitlines())
    assert body == f"{text}\n## My notes\n\nDo not train on Fridays.\n"
    assert "gave 3 rows" in card


def test_a_push_is_tried_again_while_the_hub_is_busy(loopback_hub: LoopbackHub, rows: Path) -> None:
    busy = [408, 409, 412, 412, 429, 429, 500, 503]
    loopback_hub.fail_next("/api/whoami-v2", 503, headers={"Retry-After": "0"})
    for status in busy:
        loopback_hub.fail_next(COMMIT, status, headers={"Retry-After": "0"})
    done = push(loopback_hub, rows)
    assert done.returncode == 0, done.stderr
    assert statuses(loopback_hub) == [*busy, 200]
    assert pushed(loopback_hub) == as_pushed(rows)
    for status in busy:
        assert f"The Hub is busy (answer {status}); trying again in 0 s." in done.stderr


def test_a_commit_whose_answer_is_lost_is_found(loopback_hub: LoopbackHub, rows: Path) -> None:
    loopback_hub.drop_next(COMMIT)
    done = push(loopback_hub, rows)
    assert done.returncode == 0, done.stderr
    assert f"has these {len(as_pushed(rows))} files" in done.stdout
    assert statuses(loopback_hub) == [200]
    assert pushed(loopback_hub) == as_pushed(rows)


def test_a_card_on_the_hub_that_cannot_be_read_is_one_sentence(loopback_hub: LoopbackHub, rows: Path) -> None:
    before = as_pushed(rows)
    for card in (b"---\nlicense: [mit\n---\n", b"\xff\xfe"):
        theirs = {"README.md": card, "report.json": b'{"pimono_sdpo": "0"}'}
        loopback_hub.seed(NAME, "dataset", theirs)
        line = refused(push(loopback_hub, rows), rows, before)
        assert "The card of `me/rows` cannot be read" in line


def test_two_pushes_at_once_leave_one_of_them_whole(loopback_hub: LoopbackHub, made: Path, rows: Path) -> None:
    other = rows.parent / "other"
    run_filter(str(made / "traces"), other, FilterOptions(max_samples=2, licence="mit"))
    loopback_hub.seed(NAME, "dataset", {})
    command = [sys.executable, "-m", "pimono_sdpo", "push"]
    env = loopback_hub.env(rows.parent)
    running = [
        subprocess.Popen([*command, str(folder), NAME], env=env, stdout=subprocess.DEVNULL) for folder in (rows, other)
    ]
    assert [one.wait() for one in running] == [0, 0]
    assert pushed(loopback_hub) in (as_pushed(rows), as_pushed(other))
    assert statuses(loopback_hub).count(200) == 2


def test_a_push_that_is_killed_goes_on(loopback_hub: LoopbackHub, rows: Path) -> None:
    before = as_pushed(rows)
    loopback_hub.slow_next(COMMIT, 60)
    running = subprocess.Popen(
        [sys.executable, "-m", "pimono_sdpo", "push", str(rows), NAME],
        env=loopback_hub.env(rows.parent),
        stdout=subprocess.DEVNULL,
    )
    while running.poll() is None and not any(seen.path.startswith(COMMIT) for seen in loopback_hub.requests):
        sleep(0.02)
    running.kill()
    running.wait()
    assert as_pushed(rows) == before
    assert pushed(loopback_hub) == {}, "no half of it, no card"
    sent = set(loopback_hub.store.lfs)
    assert sent
    loopback_hub.requests.clear()
    assert push(loopback_hub, rows).returncode == 0
    assert pushed(loopback_hub) == before
    assert not [seen for seen in loopback_hub.requests if seen.method == "PUT"], "sent before"


def test_a_push_by_xet(loopback_hub: LoopbackHub, rows: Path) -> None:
    done = push(loopback_hub, rows, xet=True)
    assert done.returncode == 0, done.stderr
    assert pushed(loopback_hub) == as_pushed(rows)
    assert loopback_hub.store.xet.files


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        (COMMIT, 412, "others kept committing to it"),
        (COMMIT, 429, "the Hub answers 429"),
        (COMMIT, 403, "to a token with write access"),
        (COMMIT, 413, "the Hub answers 413, Injected fault; it is too large for this account's"),
        ("/api/repos/create", 409, "is not visible to this account"),
        ("/api/datasets/me/rows", 500, "the Hub answers 500"),
        ("/api/whoami-v2", 401, "does not accept the token"),
        ("/api/validate-yaml", 400, "Invalid metadata in README.md"),
    ],
)
def test_a_refusal_is_one_sentence(
    loopback_hub: LoopbackHub, rows: Path, path: str, status: int, sentence: str
) -> None:
    loopback_hub.fail_next(path, status, headers={"Retry-After": "3600"})
    before = as_pushed(rows)
    line = refused(push(loopback_hub, rows, "--public"), rows, before)
    assert sentence in line
    if path == COMMIT:
        assert f"then `pimono-sdpo push {rows} me/rows --public`" in line
    assert not loopback_hub.store.repos


def test_a_full_account_is_one_sentence_and_a_public_push_still_goes_through(
    loopback_hub: LoopbackHub, rows: Path
) -> None:
    loopback_hub.store.quota = 1000
    line = refused(push(loopback_hub, rows), rows, as_pushed(rows))
    assert "Private repository storage limit reached" in line
    assert "free some space there" in line
    assert not loopback_hub.store.repos
    assert "(public)" in push(loopback_hub, rows, "--public").stdout
    assert not loopback_hub.repo(NAME, "dataset").private
    assert pushed(loopback_hub) == as_pushed(rows)


def test_no_token_is_found_out_before_the_work(loopback_hub: LoopbackHub, made: Path, rows: Path) -> None:
    before = as_pushed(rows)
    arguments = ("filter", str(made / "traces"), "--out", str(rows), "--push")
    home = rows.parent
    done = front(loopback_hub, home, *arguments, NAME, token=None)
    assert "there is no token; set HF_TOKEN" in refused(done, rows, before)
    done = front(loopback_hub, home, *arguments, "nobody/rows")
    assert "the Hub answers 403, You cannot create a dataset under" in refused(done, rows, before)
    done = front(loopback_hub, home, *arguments, "")
    assert "Nothing can be pushed to ``: it is not a valid name" in refused(done, rows, before)
    done = front(loopback_hub, home, "push", str(rows), "two words")
    assert "Nothing can be pushed to `two words`: it is not a valid name" in refused(done, rows, before)
    assert "leaves this machine" not in done.stdout
    for wrong in (EXPIRED_TOKEN, "hf_mistyped"):
        done = front(loopback_hub, home, *arguments, NAME, token=wrong)
        assert "does not accept the token; create a new one" in refused(done, rows, before)
    for name, sentence in ((NAME, "You cannot create a dataset under"), ("me/there", "You cannot write to me/there")):
        loopback_hub.seed("me/there", "dataset", {}, private=True)
        done = front(loopback_hub, home, *arguments, name, token=FINE_TOKEN)
        assert f"Nothing can be pushed to `{name}`: the Hub answers 403, {sentence}" in refused(done, rows, before)
    assert {*loopback_hub.store.repos} == {("dataset", "me/there")}
    loopback_hub.store.role = "read"
    done = front(loopback_hub, home, *arguments, NAME)
    assert "set HF_TOKEN to a token with write access" in refused(done, rows, before)
    done = front(loopback_hub, home, *arguments[:-1], "--public")
    assert "needs --push" in refused(done, rows, before)


def test_a_filter_that_keeps_nothing_leaves_no_dataset(loopback_hub: LoopbackHub, made: Path, rows: Path) -> None:
    arguments = ("filter", str(made / "traces"), "--out", str(rows), "--push", "lab/rows", "--min-score", "999")
    done = front(loopback_hub, rows.parent, *arguments, token=FINE_TOKEN)
    assert "lower --min-score" in refused(done, rows, as_pushed(rows))
    assert "/api/repos/create" in [seen.path for seen in loopback_hub.requests]
    assert not loopback_hub.store.repos


def test_no_network_is_one_sentence(loopback_hub: LoopbackHub, rows: Path) -> None:
    before = as_pushed(rows)
    done = push(loopback_hub, rows, HF_ENDPOINT="http://127.0.0.1:9")
    assert "cannot be reached (ConnectError); check the network" in refused(done, rows, before)
    done = push(loopback_hub, rows, HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE is set" in refused(done, rows, before)


def test_data_of_others_is_not_replaced(loopback_hub: LoopbackHub, rows: Path) -> None:
    theirs = {"data/train-00000-of-00001.parquet": b"theirs"}
    loopback_hub.seed(NAME, "dataset", theirs)
    before = as_pushed(rows)
    assert "that no such run has pushed" in refused(push(loopback_hub, rows), rows, before)
    assert pushed(loopback_hub) == theirs


SECRET = "hf_" + "aB3dE5fG7h" * 3


def in_card(rows: Path) -> None:
    with (rows / "README.md").open("a") as card:
        card.write(f"\n{SECRET}\n")


def in_report(rows: Path) -> None:
    report = json.loads((rows / "report.json").read_text())
    report["first_sample"]["privileged_context"] = f"token {SECRET}"
    (rows / "report.json").write_text(json.dumps(report))


def in_rows(rows: Path) -> None:
    path = max((rows / "data").glob("*.parquet"))
    table = pq.read_table(path)
    changed = table.to_pylist()
    changed[-1]["prompt"][-1]["content"] += f" {SECRET}"
    pq.write_table(pa.Table.from_pylist(changed, table.schema), path, row_group_size=1)


@pytest.mark.parametrize(
    ("put", "where"),
    [
        (in_card, "README.md` holds what looks like a secret (huggingface_token), so"),
        (in_report, "report.json` holds what looks like a secret (huggingface_token) in its column `first_sample`"),
        (in_rows, ".parquet` holds what looks like a secret (huggingface_token) in its column `prompt`"),
    ],
)
def test_an_open_secret_stops_the_push(loopback_hub: LoopbackHub, rows: Path, put: object, where: str) -> None:
    assert callable(put)
    put(rows)
    before = as_pushed(rows)
    line = refused(push(loopback_hub, rows), rows, before)
    assert where in line
    assert SECRET not in line
    assert not loopback_hub.requests


def test_what_only_another_scanner_knows_stops_the_push_unless_allowed(loopback_hub: LoopbackHub, rows: Path) -> None:
    pytest.importorskip("kingfisher_sdk", reason="the extra `scan` is not installed")
    path = max((rows / "data").glob("*.parquet"))
    table = pq.read_table(path)
    changed = table.to_pylist()
    # The client secret of a school, of a form that our rules do not name.
    token = f"s-s4t2ud-{sha256(b'a').hexdigest()}"
    changed[-1]["prompt"][-1]["content"] += f" {token}"
    pq.write_table(pa.Table.from_pylist(changed, table.schema), path)
    before = as_pushed(rows)
    line = refused(push(loopback_hub, rows), rows, before)
    assert f"(betterleaks.intra42-client-secret) in its column `prompt`, row {len(changed)}," in line
    assert token not in line
    assert not loopback_hub.requests
    assert "pushed to" in push(loopback_hub, rows, "--allow-findings").stdout


def test_a_folder_or_card_that_is_not_ours_stops_the_push(loopback_hub: LoopbackHub, rows: Path) -> None:
    (rows / "README.md").write_text("# no front matter")
    before = as_pushed(rows)
    assert "no YAML front matter" in refused(push(loopback_hub, rows), rows, before)
    path = max((rows / "data").glob("*.parquet"))
    (rows / "README.md").write_text("---\nlicense: mit\n---\n# A card\n")
    path.write_bytes(b"PAR1 but no more")
    before = as_pushed(rows)
    assert "Cannot read" in refused(push(loopback_hub, rows), rows, before)
    (rows / "notes.txt").write_text("mine")
    before = as_pushed(rows)
    assert "was not written by a finished `filter`" in refused(push(loopback_hub, rows), rows, before)
    assert not loopback_hub.requests

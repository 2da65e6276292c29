"""Put the folder of a finished run on the Hub as a dataset repository, in one commit.

    data/ of a folder of steps  ->  steps/            its config `steps`
    rejects/                    ->  steps_rejects/
    report.json                 ->  steps/report.json

The card of the dataset has a section for each stage; a push replaces its own and leaves the others.

Who loads the dataset always finds one whole push: what is new, what changed, and the removal of an
earlier push's shards are one commit, on the commit they were compared with or not at all.
"""

import json
import random
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha1, sha256
from pathlib import Path
from time import sleep
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from httpx2 import HTTPError
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    RepoFile,
    hf_hub_download,
)
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from pimono_sdpo.errors import OutputError
from pimono_sdpo.options import option, options
from pimono_sdpo.runs.folders import PICTURES, REPORT, mark_of, read_json
from pimono_sdpo.traces.hub import CONFLICTS, explain_error, explain_refusal

CARD = "README.md"
ALONE = (CARD, REPORT, "report.md", *PICTURES)
SHARDS = ("data", "rejects")


def checked_files(
    folder: Path,
    lint: Callable[[Path], Sequence[str]],
    secrets: Callable[[str], Sequence[str]],
) -> dict[str, Path]:
    """Return the files to publish by their path in the repository, in order.

    `lint` says what is wrong with a card, `secrets` names the kinds of secrets in a text. Raises
    OutputError when the folder is not of a finished filter run, a shard is damaged, the card would
    be refused, or a text still holds what looks like a secret.
    """
    if mark_of(folder) != REPORT:
        raise OutputError(
            f"`{folder}` is no folder that `filter` or `merge` has finished; give one, as it was "
            "written."
        )
    paths = [folder / name for name in ALONE]
    paths += [path for kind in SHARDS for path in sorted((folder / kind).glob("*.parquet"))]
    files = {path.relative_to(folder).as_posix(): path for path in paths if path.is_file()}
    if CARD not in files:
        raise OutputError(f"`{folder}` has no {CARD}; filter again.")
    problems = lint(files[CARD])
    if problems:
        raise OutputError(f"The Hub may refuse `{files[CARD]}`: {problems[0]} Mend it and push.")
    for path in files.values():
        for column, text in _texts_of(path):
            kinds = secrets(text)
            if kinds:
                where = f" in its column `{column}`" if column else ""
                raise OutputError(
                    f"`{path}` holds what looks like a secret ({', '.join(sorted(set(kinds)))})"
                    f"{where}, so nothing was pushed; take it out of the traces and filter again."
                )
    return files


def _texts_of(path: Path) -> Iterator[tuple[str, str]]:
    """Every text of a file, with its column (the key of a JSON object, nothing in a card)."""
    match path.suffix:
        case ".md":
            yield "", path.read_text()
        case ".json":
            report = read_json(path)
            # Value by value, as they were redacted: what escapes look like is no concern here.
            for key, value in report.items() if isinstance(report, dict) else ():
                yield from ((key, text) for text in _texts_in(value))
        case ".parquet":
            yield from _texts_of_shard(path)


def _texts_of_shard(path: Path) -> Iterator[tuple[str, str]]:
    try:
        with pq.ParquetFile(path) as shard:
            for batch in shard.iter_batches():
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    yield from ((name, text) for text in _texts_in_array(column))
    except pa.ArrowInvalid as error:
        raise OutputError(
            f"`{path}` is damaged ({str(error).splitlines()[0]}); filter again."
        ) from error


def _texts_in_array(array: pa.Array) -> Iterator[str]:
    """Every different text in an array, however deep it lies."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        # JSON: what its texts are, once their escapes are read.
        for text in array.storage.unique().to_pylist():
            yield from _texts_in(json.loads(text) if text else None)
    elif pa.types.is_struct(kind):
        # Arrow cannot flatten JSON; the children hold all there is, and what is null besides.
        for number in range(kind.num_fields):
            yield from _texts_in_array(array.field(number))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _texts_in_array(array.values)
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        yield from (text for text in array.unique().to_pylist() if text)


def _texts_in(value: object) -> Iterator[str]:
    """Every text in a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, below in value.items():
            yield key
            yield from _texts_in(below)
    elif isinstance(value, list):
        for below in value:
            yield from _texts_in(below)


STAGES = ("steps", "pairs")
_FRONT_MATTER = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
_SECTION = re.compile(r"<!-- pimono-sdpo:(\w+) -->\n.*?<!-- /pimono-sdpo:\1 -->\n", re.DOTALL)
Json = dict[str, Any]


def place_of(name: str, stage: str | None) -> str:
    """Return where a file of a folder lies in the dataset.

    >>> place_of("data/train-00000-of-00001.parquet", "steps")
    'steps/train-00000-of-00001.parquet'
    """
    if stage is None or name == CARD:
        return name
    folder, slash, rest = name.rpartition("/")
    if not slash:
        return f"{stage}/{name}"
    return f"{stage}/{rest}" if folder == "data" else f"{stage}_{folder}/{rest}"


def is_of(name: str, stage: str | None) -> bool:
    """Tell a shard that a push of this stage made, or of the filter's rows for None."""
    folders = ("data", "rejects") if stage is None else (stage, f"{stage}_rejects")
    return name.startswith(tuple(f"{folder}/" for folder in folders)) and name.endswith(".parquet")


def report_of(stage: str | None) -> str:
    """Return where the report of a stage lies in the dataset."""
    return place_of(REPORT, stage)


def merged_card(mine: str, theirs: str | None, stage: str | None, repo_id: str) -> str:
    """Return the card of a dataset after a push: of all stages whose rows are there then.

    Raises OutputError for a dataset whose files no config names: another one would hide them.
    """
    if stage is None:
        if theirs is None or not _SECTION.search(theirs):
            return mine
        others = [match[0] for match in _SECTION.finditer(theirs)]
        metadata, body = _parts(mine)
        before = _parts(theirs)[0]
        kept = [one for one in before.get("configs", []) if _stage_of(one) is not None]
        tags = sorted({*metadata["tags"], *before.get("tags", [])})
        told = {**metadata, "configs": [*metadata["configs"], *_plain(kept)], "tags": tags}
        return _card(told, body, others)
    own, body = _parts(mine)
    section = f"<!-- pimono-sdpo:{stage} -->\n{body.strip()}\n<!-- /pimono-sdpo:{stage} -->\n"
    configs = [_placed(config, stage) for config in own["configs"]]
    if theirs is None:
        return _card({**own, "configs": configs}, "", [section])
    metadata, body = _parts(theirs)
    if "configs" not in metadata:
        raise OutputError(
            f"The card of `{repo_id}` has no `configs`, so one for {stage} would hide what is "
            "there; add a config for it, or give another name."
        )
    kept = [config for config in metadata["configs"] if _stage_of(config) != stage]
    if any(config.get("default") for config in kept):
        configs = _plain(configs)
    sections = {match[1]: match[0] for match in _SECTION.finditer(body)} | {stage: section}
    tags = sorted({*metadata.get("tags", []), *own["tags"]})
    body = _SECTION.sub("", body)
    told = {**own, **metadata, "configs": [*kept, *configs], "tags": tags}
    return _card(told, body, [sections[name] for name in STAGES if name in sections])


def _parts(card: str) -> tuple[Json, str]:
    match = _FRONT_MATTER.match(card)
    if match is None:
        return {}, card
    found = yaml.safe_load(match[1])
    return (found if isinstance(found, dict) else {}), card[match.end() :]


def _card(metadata: Json, body: str, sections: list[str]) -> str:
    """Put a card together; in whatever order stages were pushed, it is the same."""
    order = [None, *STAGES]
    configs = sorted(metadata["configs"], key=lambda config: order.index(_stage_of(config)))
    told = {**metadata, "configs": configs}
    front: str = yaml.safe_dump(told, sort_keys=True, allow_unicode=True)
    rest = "\n\n".join(part.strip() for part in [body, *sections] if part.strip())
    return f"---\n{front}---\n\n{rest}\n"


def _stage_of(config: Json) -> str | None:
    name = str(config.get("config_name", "")).removesuffix("_rejects")
    return name if name in STAGES else None


def _placed(config: Json, stage: str) -> Json:
    files = [
        {**file, "path": place_of(file["path"], stage)} for file in config.get("data_files", [])
    ]
    return {**config, "data_files": files}


def _plain(configs: list[Json]) -> list[Json]:
    """Of a dataset one config alone is the default."""
    return [{k: v for k, v in config.items() if k != "default"} for config in configs]


DATASET = "dataset"
PLACEHOLDER = '"PATH_OR_ID"'
# Seconds before each attempt of a push that collides.
WAITS = (0.0, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class Target:
    """Where rows are pushed: `public` counts when the dataset is made, `revision` is a branch."""

    repo_id: str
    public: bool = False
    revision: str | None = None
    create_pr: bool = False

    def command(self, folder: Path) -> str:
        """The command line that pushes a folder there."""
        options = ["--public"] * self.public + ["--create-pr"] * self.create_pr
        options += ["--revision", self.revision] if self.revision else []
        return shlex.join(["pimono-sdpo", "push", str(folder), self.repo_id, *options])


@options
class PushOptions:
    """How a folder is pushed."""

    public: bool = option(
        "Make a new dataset public; an existing one keeps its visibility.", default=False
    )
    revision: str | None = option(
        "Branch to push to, created if missing.", default=None, shown="main"
    )
    create_pr: bool = option(
        "Open a pull request instead of committing to the branch.", default=False
    )


@options
class PushResult(PushOptions):
    """Where the result of a command is pushed, if anywhere."""

    push: str | None = option(
        "Push the result to this dataset (ns/name), private if new.", default=None
    )

    def target(self) -> Target | None:
        """Return the target, checked before any work is done; raises OutputError."""
        if self.push is None and not (self.public or self.revision or self.create_pr):
            return None
        target = target_of(self.push, self.public, self.revision, self.create_pr)
        check_account(target)
        return target


def target_of(repo_id: str | None, public: bool, revision: str | None, create_pr: bool) -> Target:
    """Check the name and how the options go together; raises OutputError."""
    if repo_id is None:
        raise OutputError("--public, --revision and --create-pr say how to push; add --push.")
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise OutputError(f"`{repo_id}` cannot name a dataset; give ns/name.") from error
    if "/" not in repo_id:
        raise OutputError(f"`{repo_id}` names no account; give ns/{repo_id}.")
    if create_pr and revision:
        raise OutputError("A pull request is made against main; leave out --revision.")
    return Target(repo_id, public, revision, create_pr)


def check_account(target: Target) -> None:
    """Find out before the work that it could not be pushed; raises OutputError."""
    api = HfApi()
    with _told(target):
        namespace = target.repo_id.split("/")[0]
        problem = explain_refusal(api, namespace, lambda: _is_there(api, target))
    if problem is not None:
        raise OutputError(f"Nothing can be pushed to `{target.repo_id}`: {problem}.")


def push_folder(
    folder: Path,
    target: Target,
    lint: Callable[[Path], Sequence[str]],
    secrets: Callable[[str], Sequence[str]],
) -> str:
    """Push what differs from the dataset's present commit; return a sentence on what was done.

    A dataset that is not there is made, private unless `target.public`, and so is a branch. The
    same content makes no commit. `lint` and `secrets` are as in `checked_files`. Raises OutputError
    as that does, and when the Hub refuses; the folder stays as it is.
    """
    checked = checked_files(folder, lint, secrets)
    stage = _stage(folder)
    files: dict[str, Path | bytes] = {place_of(name, stage): checked[name] for name in checked}
    # The card's example is to be copied from the Hub.
    card = (folder / CARD).read_text().replace(PLACEHOLDER, f'"{target.repo_id}"')
    api = HfApi()
    check_account(target)
    with _told(target, folder):
        _make(api, target)
        for wait in WAITS:
            # Those who collided do not try again at the same moment.
            sleep(wait * random.uniform(0.5, 1.5))
            try:
                return _commit(api, target, files, card, stage)
            except HfHubHTTPError as error:
                if error.response.status_code not in CONFLICTS:
                    raise
                conflict = error
        raise conflict


def _is_there(api: HfApi, target: Target) -> bool:
    try:
        api.repo_info(target.repo_id, repo_type=DATASET)
    except RepositoryNotFoundError as error:
        # Also what becomes of a refused token.
        if error.response.status_code == 401:
            raise
        return False
    return True


def _make(api: HfApi, target: Target) -> None:
    if not _is_there(api, target):
        private = not target.public
        api.create_repo(target.repo_id, repo_type=DATASET, private=private, exist_ok=True)
        if not _is_there(api, target):
            raise OutputError(
                f"The Hub says that `{target.repo_id}` is taken, but there is no dataset of that "
                "name: it is of another type or not for this account to see; give another name."
            )
    if target.revision and not target.revision.startswith("refs/"):
        api.create_branch(target.repo_id, repo_type=DATASET, branch=target.revision, exist_ok=True)


def _stage(folder: Path) -> str | None:
    """The stage that made a folder, None for the rows of the filter."""
    report = read_json(folder / REPORT)
    stage = report.get("stage") if isinstance(report, dict) else None
    return stage if stage in STAGES else None


def _commit(
    api: HfApi,
    target: Target,
    own: Mapping[str, Path | bytes],
    card: str,
    stage: str | None,
) -> str:
    """Compare with the branch as it is now and commit the difference onto just that."""
    repo_id = target.repo_id
    info = api.repo_info(repo_id, repo_type=DATASET, revision=target.revision or "main")
    entries = api.list_repo_tree(repo_id, repo_type=DATASET, revision=info.sha, recursive=True)
    there = {entry.path: entry for entry in entries if isinstance(entry, RepoFile)}
    # A card without data is of a dataset that was just made.
    is_empty = not set(there) - {CARD, ".gitattributes"}
    known = CARD in there and not is_empty
    before = _fetched(repo_id, CARD, info.sha).read_text() if known else None
    files = {**own, CARD: merged_card(card, before, stage, repo_id).encode()}
    changed = [name for name in files if not _same(there.get(name), files[name])]
    gone = [name for name in there if is_of(name, stage) and name not in files]
    where = f"{api.endpoint}/datasets/{repo_id} ({'private' if info.private else 'public'})"
    if target.public and info.private:
        where += ", which was private and stays so until its settings say otherwise"
    if not changed and not gone:
        return f"{where} has these rows already, in commit {info.sha}; nothing was uploaded"
    _check_replaced(repo_id, info.sha, there, stage)
    with _upload_told(target):
        done = api.create_commit(
            repo_id,
            [
                *(CommitOperationAdd(name, files[name]) for name in changed),
                *(CommitOperationDelete(name, is_folder=False) for name in gone),
            ],
            commit_message="Push rows filtered by pimono-sdpo",
            repo_type=DATASET,
            revision=target.revision,
            create_pr=target.create_pr,
            parent_commit=info.sha,
        )
    made = f"pull request {done.pr_url}" if target.create_pr else f"commit {done.oid}"
    return f"pushed to {where}: {len(changed)} files written, {len(gone)} removed, in {made}"


def _fetched(repo_id: str, name: str, commit: str | None) -> Path:
    return Path(hf_hub_download(repo_id, name, repo_type=DATASET, revision=commit))


def _check_replaced(
    repo_id: str, commit: str | None, there: Mapping[str, RepoFile], stage: str | None
) -> None:
    """Raise OutputError when a push would replace rows or a report that we did not write."""
    name = report_of(stage)
    if not any(is_of(file, stage) or file == name for file in there):
        return
    report: object = None
    if name in there:
        report = read_json(_fetched(repo_id, name, commit))
    if not isinstance(report, dict) or "pimono_sdpo" not in report:
        raise OutputError(
            f"`{repo_id}` holds data that is not of an earlier filter run; give another name."
        )


def _same(remote: RepoFile | None, local: Path | bytes) -> bool:
    """Compare by what the Hub knows of a file: its sha256, or git's hash of a small one."""
    if remote is None:
        return False
    size = len(local) if isinstance(local, bytes) else local.stat().st_size
    if remote.size != size:
        return False
    digest = sha256() if remote.lfs else sha1(b"blob %d\0" % size)
    if isinstance(local, bytes):
        digest.update(local)
    else:
        with local.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest() == (remote.lfs.sha256 if remote.lfs else remote.blob_id)


@contextmanager
def _told(target: Target, folder: Path | None = None) -> Iterator[None]:
    """Turn what the Hub, the token or the network refuse into one sentence with the next step."""
    try:
        yield
    except (HTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled) as error:
        what = f"Nothing {'was' if folder else 'can be'} pushed to `{target.repo_id}`"
        again = f"; then `{target.command(folder)}`" if folder else ""
        raise OutputError(
            f"{what}: {explain_error(error, target.revision or 'main')}{again}."
        ) from error


@contextmanager
def _upload_told(target: Target) -> Iterator[None]:
    """The client hides why a card or a file was refused behind errors of its own."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        what = f"{error} {error.__cause__ or ''}"
        raise OutputError(
            f"Nothing was pushed to `{target.repo_id}`: {' '.join(what.split())}; mend it and "
            "push again, what is uploaded counts."
        ) from error

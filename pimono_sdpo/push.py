"""Push the folder of a finished run to the Hub, as a dataset, in one commit.

    data/ of a folder of steps  ->  steps/            its config `steps`
    rejects/                    ->  steps_rejects/
    report.json                 ->  steps/report.json

Rows of the filter keep their places. The card of the dataset has a section for each stage; a push
replaces its own and leaves the others.

Whoever loads the dataset always finds one whole push: new and changed files and the removal of an
earlier push's shards are one commit, made on the commit they were compared with or not at all.
"""

import json
import random
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import file_digest, sha1
from io import SEEK_END, BytesIO
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

from cards.lint import lint_file
from pimono_sdpo.errors import OutputError
from pimono_sdpo.options import option, options
from pimono_sdpo.runs.folders import PICTURES, REPORT, mark_of, read_json
from pimono_sdpo.traces.hub import CONFLICTS, explain_error, explain_refusal
from processors.secrets import find_secret_kinds

CARD = "README.md"
# Files beside the shards that are published.
SINGLE_FILES = (CARD, REPORT, "report.md", *PICTURES)
SHARDS = ("data", "rejects")
# Stages whose rows are configs of their own; None stands for the rows of the filter.
STAGES = ("steps", "pairs")
DATASET = "dataset"
PLACEHOLDER = '"PATH_OR_ID"'
# Seconds before each attempt of a push that collides.
WAITS = (0.0, 0.5, 1.0, 2.0, 4.0)
_FRONT_MATTER = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
_PLACEHOLDER = re.compile(r"\[REDACTED:\w+\]")
_SECTION = re.compile(r"<!-- pimono-sdpo:(\w+) -->\n.*?<!-- /pimono-sdpo:\1 -->\n", re.DOTALL)
Json = dict[str, Any]


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
    allow_findings: bool = option(
        "Push although the second scanner takes a text for a secret.", default=False
    )

    def check_target(self, repo_id: str) -> "Target":
        """Check the name and how the options go together; raises OutputError."""
        try:
            validate_repo_id(repo_id)
        except HFValidationError as error:
            raise OutputError(f"`{repo_id}` cannot name a dataset; use ns/name.") from error
        if "/" not in repo_id:
            raise OutputError(f"`{repo_id}` names no account; use ns/{repo_id}.")
        if self.create_pr and self.revision:
            raise OutputError("A pull request is made against main; leave out --revision.")
        return Target(repo_id, self.public, self.revision, self.create_pr, self.allow_findings)


@options
class PushResult(PushOptions):
    """Where the result of a command is pushed, if anywhere."""

    push: str | None = option(
        "Push the result to this dataset (ns/name), private if new.", default=None
    )

    def push_target(self) -> "Target | None":
        """Return the target, checked before any work is done; raises OutputError."""
        if self.push is None:
            if self.public or self.revision or self.create_pr or self.allow_findings:
                raise OutputError(
                    "--public, --revision, --create-pr and --allow-findings need --push."
                )
            return None
        target = self.check_target(self.push)
        check_account(target)
        return target


@dataclass(frozen=True)
class Target:
    """A dataset to push to; `public` counts when it is created, `revision` is a branch."""

    repo_id: str
    public: bool
    revision: str | None
    create_pr: bool
    allow_findings: bool = False

    def command(self, folder: Path) -> str:
        """Return the command line that pushes a folder there."""
        given = ["--public"] * self.public + ["--create-pr"] * self.create_pr
        given += ["--revision", self.revision] if self.revision else []
        given += ["--allow-findings"] * self.allow_findings
        return shlex.join(["pimono-sdpo", "push", str(folder), self.repo_id, *given])


def push_folder(folder: Path, target: Target) -> str:
    """Push what differs from the dataset's present commit; return a sentence on what was done.

    A missing dataset is created, private unless `target.public`, and so is a branch. The same
    content makes no commit. Raises OutputError as `check_files` does, and when the Hub refuses; the
    folder stays as it is.
    """
    checked = check_files(folder)
    if not target.allow_findings:
        _check_again(checked.values())
    stage = _stage_of_folder(folder)
    files: dict[str, Path | bytes] = {path_in_repo(name, stage): checked[name] for name in checked}
    # The example of the card is copied from the Hub.
    card = (folder / CARD).read_text().replace(PLACEHOLDER, f'"{target.repo_id}"')
    api = HfApi()
    check_account(target)
    with _hub_errors(target, folder):
        _create(api, target)
        for wait in WAITS:
            # Those who collided must not try again at the same moment.
            sleep(wait * random.uniform(0.5, 1.5))
            try:
                return _commit(api, target, files, card, stage)
            except HfHubHTTPError as error:
                if error.response.status_code not in CONFLICTS:
                    raise
                conflict = error
        raise conflict


def check_account(target: Target) -> None:
    """Raise OutputError if the account cannot push there, before any work is done."""
    api = HfApi()
    with _hub_errors(target):
        namespace = target.repo_id.split("/")[0]
        problem = explain_refusal(api, namespace, lambda: _exists(api, target))
    if problem is not None:
        raise OutputError(f"Nothing can be pushed to `{target.repo_id}`: {problem}.")


# What is published, and the check that it may be.


def check_files(folder: Path) -> dict[str, Path]:
    """Return the files to publish by their path in the folder, in order.

    Raises OutputError if the folder is not of a finished run, a shard is damaged, the Hub would
    refuse the card, or a text holds what looks like a secret.
    """
    if mark_of(folder) != REPORT:
        raise OutputError(
            f"`{folder}` was not written by a finished `filter`, `steps` or `pairs`; push such a "
            "folder, unchanged."
        )
    paths = [folder / name for name in SINGLE_FILES]
    paths += [path for kind in SHARDS for path in sorted((folder / kind).glob("*.parquet"))]
    files = {path.relative_to(folder).as_posix(): path for path in paths if path.is_file()}
    if CARD not in files:
        raise OutputError(f"`{folder}` has no {CARD}; run the command that wrote it again.")
    if problems := lint_file(files[CARD]):
        raise OutputError(
            f"The Hub may refuse `{files[CARD]}`: {problems[0]} Correct it and push again."
        )
    for path in files.values():
        for column, text in _texts_of(path):
            if kinds := find_secret_kinds(text):
                where = f" in its column `{column}`" if column else ""
                raise OutputError(
                    f"`{path}` holds what looks like a secret ({', '.join(sorted(set(kinds)))})"
                    f"{where}, so nothing was pushed; remove it from the traces and filter again."
                )
    return files


def _check_again(paths: Iterable[Path]) -> None:
    """Search the texts with another scanner, which has rules of its own, where it is installed.

    It only reads: nothing that it finds is sent anywhere. Raises OutputError.
    """
    try:
        from kingfisher_sdk import Scanner
    except ImportError:
        return
    scanner = Scanner()
    for path in paths:
        for column, text in _texts_of(path):
            findings = scanner.scan(_PLACEHOLDER.sub("", text))
            # Low is what any address with a user has, such as those of examples.
            found = {one.rule_id for one in findings if one.visible and one.confidence != "low"}
            if found:
                kinds = ", ".join(sorted(found))
                where = f"row {_find_row(path, column, text)} of " if column else ""
                raise OutputError(
                    f"The scanner kingfisher takes something in {where}`{path}`"
                    f"{f', column `{column}`,' if column else ''} for a secret ({kinds}), so "
                    "nothing was pushed; remove it from the traces and filter again, or use "
                    "--allow-findings if it is none."
                )


def _find_row(path: Path, column: str, text: str) -> int | str:
    """Return the number of the first row that holds a text, from 1."""
    if path.suffix != ".parquet":
        return 1
    with pq.ParquetFile(path) as shard:
        rows = (row for batch in shard.iter_batches() for row in batch.to_pylist())
        holds = (
            number for number, row in enumerate(rows, 1) if text in _texts_in_json(row[column])
        )
        return next(holds, "?")


def _texts_of(path: Path) -> Iterator[tuple[str, str]]:
    """Yield every text of a file with its column: the key of a JSON object, "" in a card."""
    match path.suffix:
        case ".md":
            yield "", path.read_text()
        case ".json":
            # Value by value, as they were redacted: JSON escapes could look like secrets.
            report = read_json(path)
            for key, value in report.items() if isinstance(report, dict) else ():
                yield from ((key, text) for text in _texts_in_json(value))
        case ".parquet":
            try:
                with pq.ParquetFile(path) as shard:
                    for batch in shard.iter_batches():
                        for name, column in zip(batch.schema.names, batch.columns, strict=True):
                            yield from ((name, text) for text in _texts_in_array(column))
            except pa.ArrowInvalid as error:
                reason = str(error).splitlines()[0]
                raise OutputError(f"`{path}` is damaged ({reason}); filter again.") from error


def _texts_in_array(array: pa.Array) -> Iterator[str]:
    """Yield every distinct text in an array, at any depth."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        # JSON: the texts as they are once their escapes are read.
        for text in array.storage.unique().to_pylist():
            yield from _texts_in_json(json.loads(text) if text else None)
    elif pa.types.is_struct(kind):
        # Arrow cannot flatten JSON; the children hold all there is, and nulls besides.
        for number in range(kind.num_fields):
            yield from _texts_in_array(array.field(number))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _texts_in_array(array.values)
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        yield from (text for text in array.unique().to_pylist() if text)


def _texts_in_json(value: object) -> Iterator[str]:
    """Yield every text in a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, below in value.items():
            yield key
            yield from _texts_in_json(below)
    elif isinstance(value, list):
        for below in value:
            yield from _texts_in_json(below)


# Where the files of a stage are in the dataset, and its card.


def path_in_repo(name: str, stage: str | None) -> str:
    """Return the path in the dataset of a file of a folder.

    >>> path_in_repo("data/train-00000-of-00001.parquet", "steps")
    'steps/train-00000-of-00001.parquet'
    """
    if stage is None or name == CARD:
        return name
    folder, slash, rest = name.rpartition("/")
    if not slash:
        return f"{stage}/{name}"
    return f"{stage}/{rest}" if folder == "data" else f"{stage}_{folder}/{rest}"


def _is_shard_of(name: str, stage: str | None) -> bool:
    folders = SHARDS if stage is None else (stage, f"{stage}_rejects")
    return name.startswith(tuple(f"{folder}/" for folder in folders)) and name.endswith(".parquet")


def _stage_of_folder(folder: Path) -> str | None:
    report = read_json(folder / REPORT)
    stage = report.get("stage") if isinstance(report, dict) else None
    return stage if stage in STAGES else None


def merge_cards(mine: str, theirs: str | None, stage: str | None, repo_id: str) -> str:
    """Return the card of a dataset after a push: of all stages whose rows are there then.

    Raises OutputError for a dataset whose files no config names: a new config would hide them.
    """
    own, body = _split_card(mine)
    metadata, their_body = _split_card(theirs or "")
    sections = {match[1]: match[0] for match in _SECTION.finditer(their_body)}
    if stage is None:
        if not sections:
            return mine
        kept = [one for one in metadata.get("configs", []) if _stage_of_config(one) is not None]
        configs = [*own["configs"], *_without_default(kept)]
        front = {**own, "configs": configs, "tags": _union(own, metadata)}
        return _join_card(front, body, list(sections.values()))
    mark = f"pimono-sdpo:{stage} -->\n"
    sections[stage] = f"<!-- {mark}{body.strip()}\n<!-- /{mark}"
    configs = [_move_config(config, stage) for config in own["configs"]]
    if theirs is None:
        return _join_card({**own, "configs": configs}, "", [sections[stage]])
    if "configs" not in metadata:
        raise OutputError(
            f"The card of `{repo_id}` has no `configs`, so one for {stage} would hide the files "
            "that are there; add a config for them, or push to another name."
        )
    kept = [config for config in metadata["configs"] if _stage_of_config(config) != stage]
    if any(config.get("default") for config in kept):
        configs = _without_default(configs)
    front = {**own, **metadata, "configs": [*kept, *configs], "tags": _union(own, metadata)}
    ordered = [sections[name] for name in STAGES if name in sections]
    return _join_card(front, _SECTION.sub("", their_body), ordered)


def _split_card(card: str) -> tuple[Json, str]:
    match = _FRONT_MATTER.match(card)
    if match is None:
        return {}, card
    found = yaml.safe_load(match[1])
    return (found if isinstance(found, dict) else {}), card[match.end() :]


def _join_card(metadata: Json, body: str, sections: list[str]) -> str:
    """Put a card together; it is the same in whatever order stages were pushed."""
    order = [None, *STAGES]
    configs = sorted(metadata["configs"], key=lambda config: order.index(_stage_of_config(config)))
    front: str = yaml.safe_dump(
        {**metadata, "configs": configs}, sort_keys=True, allow_unicode=True
    )
    rest = "\n\n".join(part.strip() for part in [body, *sections] if part.strip())
    return f"---\n{front}---\n\n{rest}\n"


def _stage_of_config(config: Json) -> str | None:
    name = str(config.get("config_name", "")).removesuffix("_rejects")
    return name if name in STAGES else None


def _move_config(config: Json, stage: str) -> Json:
    files = config.get("data_files", [])
    moved = [{**file, "path": path_in_repo(file["path"], stage)} for file in files]
    return {**config, "data_files": moved}


def _without_default(configs: list[Json]) -> list[Json]:
    """Only one config of a dataset may be the default."""
    return [{k: v for k, v in config.items() if k != "default"} for config in configs]


def _union(own: Json, other: Json) -> list[str]:
    return sorted({*own["tags"], *other.get("tags", [])})


# The Hub.


def _exists(api: HfApi, target: Target) -> bool:
    try:
        api.repo_info(target.repo_id, repo_type=DATASET)
    except RepositoryNotFoundError as error:
        # Also raised for a refused token.
        if error.response.status_code == 401:
            raise
        return False
    return True


def _create(api: HfApi, target: Target) -> None:
    if not _exists(api, target):
        private = not target.public
        api.create_repo(target.repo_id, repo_type=DATASET, private=private, exist_ok=True)
        if not _exists(api, target):
            raise OutputError(
                f"The Hub says that `{target.repo_id}` is taken, but there is no dataset of that "
                "name: it has another type, or this account may not see it; use another name."
            )
    if target.revision and not target.revision.startswith("refs/"):
        api.create_branch(target.repo_id, repo_type=DATASET, branch=target.revision, exist_ok=True)


def _commit(
    api: HfApi,
    target: Target,
    own: Mapping[str, Path | bytes],
    card: str,
    stage: str | None,
) -> str:
    """Compare with the branch as it is now, and commit the difference onto that commit."""
    repo_id = target.repo_id
    info = api.repo_info(repo_id, repo_type=DATASET, revision=target.revision or "main")
    entries = api.list_repo_tree(repo_id, repo_type=DATASET, revision=info.sha, recursive=True)
    there = {entry.path: entry for entry in entries if isinstance(entry, RepoFile)}
    # A dataset that was just created may have a card, but no data.
    is_empty = not set(there) - {CARD, ".gitattributes"}
    known = CARD in there and not is_empty
    before = _download(repo_id, CARD, info.sha).read_text() if known else None
    files = {**own, CARD: merge_cards(card, before, stage, repo_id).encode()}
    changed = [name for name in files if not _is_same(there.get(name), files[name])]
    gone = [name for name in there if _is_shard_of(name, stage) and name not in files]
    where = f"{api.endpoint}/datasets/{repo_id} ({'private' if info.private else 'public'})"
    if target.public and info.private:
        where += ", which stays private until its settings are changed"
    if not changed and not gone:
        return f"{where} has these rows already, in commit {info.sha}; nothing was uploaded"
    _check_replaced(repo_id, info.sha, there, stage)
    with _upload_errors(target):
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


def _download(repo_id: str, name: str, commit: str | None) -> Path:
    return Path(hf_hub_download(repo_id, name, repo_type=DATASET, revision=commit))


def _check_replaced(
    repo_id: str, commit: str | None, there: Mapping[str, RepoFile], stage: str | None
) -> None:
    """Raise OutputError if a push would replace rows or a report that we did not write."""
    name = path_in_repo(REPORT, stage)
    if not any(_is_shard_of(file, stage) or file == name for file in there):
        return
    report = read_json(_download(repo_id, name, commit)) if name in there else None
    if not isinstance(report, dict) or "pimono_sdpo" not in report:
        raise OutputError(
            f"`{repo_id}` holds data that is not of an earlier filter run; use another name."
        )


def _is_same(remote: RepoFile | None, local: Path | bytes) -> bool:
    """Compare by what the Hub knows of a file: its sha256, or git's hash of a small one."""
    with BytesIO(local) if isinstance(local, bytes) else local.open("rb") as file:
        size = file.seek(0, SEEK_END)
        file.seek(0)
        if remote is None or remote.size != size:
            return False
        if remote.lfs:
            return file_digest(file, "sha256").hexdigest() == remote.lfs.sha256
        return sha1(b"blob %d\0" % size + file.read()).hexdigest() == remote.blob_id


@contextmanager
def _hub_errors(target: Target, folder: Path | None = None) -> Iterator[None]:
    """Turn what the Hub, the token or the network refuse into one sentence with the next step."""
    try:
        yield
    except (HTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled) as error:
        what = f"Nothing {'was' if folder else 'can be'} pushed to `{target.repo_id}`"
        again = f"; then `{target.command(folder)}`" if folder else ""
        reason = explain_error(error, target.revision or "main")
        raise OutputError(f"{what}: {reason}{again}.") from error


@contextmanager
def _upload_errors(target: Target) -> Iterator[None]:
    """The client hides why a card or a file was refused behind errors of its own."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        reason = " ".join(f"{error} {error.__cause__ or ''}".split())
        raise OutputError(
            f"Nothing was pushed to `{target.repo_id}`: {reason}; fix this and push again (files "
            "already uploaded are reused)."
        ) from error

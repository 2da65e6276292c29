"""Push the folder of a finished run to the Hub, as a dataset, in one commit.

    data/ of a folder of steps  ->  steps/            its config `steps`
    rejects/                    ->  steps_rejects/
    report.json                 ->  steps/report.json

Rows of the filter keep their paths. The dataset card has a section for each stage; a push replaces
its own section and leaves the others.

A push is atomic: one commit adds new and changed files and removes the shards of an earlier push. Its
parent is the commit that the files were compared with; if the branch has moved on, nothing is committed.
"""

import logging
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import typer
import yaml
from datasets import Features
from httpx2 import HTTPError
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled

from cards.lint import is_repo_id, lint_file
from pimono_sdpo.errors import OutputError
from pimono_sdpo.push_options import PushOptions, PushResult
from pimono_sdpo.runs.folders import PICTURES, REPORT, mark_of, read_json
from pimono_sdpo.runs.parquet import read_tables
from pimono_sdpo.stage import iterate_rows
from pimono_sdpo.traces.hub import explain_error, is_transient, retry_hub
from processors.secrets import redact_secrets

CARD = "README.md"
# Files that are published besides the shards.
SINGLE_FILES = (CARD, REPORT, "report.md", *PICTURES)
SHARDS = ("data", "rejects")
# Stages whose rows get a config of their own; rows of any other stage are the default config.
STAGES = ("steps", "pairs")
BATCH_ROWS = 1024
PLACEHOLDER = '"PATH_OR_ID"'
_FRONT_MATTER = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
_PLACEHOLDER = re.compile(r"\[REDACTED:\w+\]")
_SECTION = re.compile(r"<!-- pimono-sdpo:(\w+) -->\n.*?<!-- /pimono-sdpo:\1 -->\n", re.DOTALL)
# Errors of the Hub, the token or the network.
HUB_ERRORS = (HTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled)
Json = dict[str, Any]
Operation = CommitOperationAdd | CommitOperationDelete

logger = logging.getLogger(__name__)
# `retry_hub` logs each retry itself.
logging.getLogger("stamina").setLevel(logging.ERROR)


@contextmanager
def hub_errors(what: str) -> Iterator[None]:
    """Turn errors of the Hub and the network into an OutputError that starts with `what`."""
    try:
        yield
    except HUB_ERRORS as error:
        raise OutputError(f"{what}: {explain_error(error)}.") from error


def check_push(options: PushResult) -> None:
    """Check that the result can be pushed, before any work is done.

    A missing dataset is created and deleted again, to find out whether the token allows it.
    """
    if options.push is not None:
        upload = RowsUpload(repo_id=options.push, options=options, folder=Path())
        upload.open()
        upload.remove_empty()
    elif flags := options.flags():
        raise OutputError(f"{flags[0]} needs --push.")


@dataclass(kw_only=True)
class Upload(ABC):
    """The upload of a folder to a repository, in one commit.

    advice        ends the error message of a failed upload
    created       whether this upload created the repository
    unconfirmed   whether a commit may have been made although its response was lost
    """

    KIND: ClassVar[str]
    MESSAGE: ClassVar[str]

    repo_id: str
    options: PushOptions
    folder: Path
    advice: str = ""
    api: HfApi = field(default_factory=HfApi)
    created: bool = False
    unconfirmed: bool = False

    def __post_init__(self) -> None:
        """Raise OutputError unless `repo_id` is a valid repository name."""
        if not is_repo_id(self.repo_id):
            raise OutputError(
                f"Nothing can be pushed to `{self.repo_id}`: it is not a valid repository name; use ns/name."
            )

    @abstractmethod
    def operations(self, info: Any) -> list[Operation]:
        """Return the files to add and delete in the repository that `info`, from `repo_info`, describes."""

    def open(self) -> None:
        """Create the repository if it is missing, and check write access; raises OutputError.

        A branch is created and deleted: a fine-grained token may see a repository and not write to it.
        """
        problem: str | None = None
        branch = f"pimono-sdpo-check-{uuid4().hex[:8]}"
        try:
            for attempt in retry_hub(connected=False):
                with attempt:
                    problem = self._create()
                    if problem is None:
                        self.api.create_branch(self.repo_id, branch=branch, repo_type=self.KIND, exist_ok=True)
                        self.api.delete_branch(self.repo_id, branch=branch, repo_type=self.KIND)
        except HUB_ERRORS as error:
            problem = explain_error(error)
        if problem is not None:
            self.remove_empty()
            raise OutputError(f"Nothing can be pushed to `{self.repo_id}`: {problem}{self.advice}.")

    def _exists(self) -> bool:
        return self.api.repo_exists(self.repo_id, repo_type=self.KIND)

    def _create(self) -> str | None:
        """Create the repository if it is missing; return why its name cannot be used."""
        account = self.api.whoami()["name"]
        if "/" not in self.repo_id:
            self.repo_id = f"{account}/{self.repo_id}"
        if not self._exists():
            try:
                self.api.create_repo(self.repo_id, repo_type=self.KIND, private=not self.options.public)
                self.created = True
            except HfHubHTTPError as error:
                if error.response.status_code != 409:
                    raise
                if not self._exists():
                    return (
                        f"the Hub says that the name is taken, but there is no {self.KIND} of that name: it has "
                        "another type, or this account may not see it; use another name"
                    )
        return None

    def remove_empty(self) -> None:
        """Delete the repository if this upload created it and nothing was committed to it."""
        if not self.created or self.unconfirmed:
            return
        try:
            if len(self.api.list_repo_commits(self.repo_id, repo_type=self.KIND)) == 1:
                self.api.delete_repo(self.repo_id, repo_type=self.KIND, missing_ok=True)
                self.created = False
        except HTTPError:
            logger.warning("The new repository `%s` is empty; delete it or use it.", self.repo_id)

    def push(self) -> str:
        """Push the folder, and return a sentence on what was done; raises OutputError."""
        try:
            self.open()
            for attempt in retry_hub():
                with attempt:
                    return self._commit()
        except Exception as error:
            self.remove_empty()
            if not isinstance(error, (*HUB_ERRORS, _FileRefused)):
                raise
            what = f"Nothing was pushed to `{self.repo_id}`"
            if self.unconfirmed:
                what = f"The Hub did not confirm whether the files are in `{self.repo_id}`"
            reason = f"{error}; fix this" if isinstance(error, _FileRefused) else explain_error(error)
            raise OutputError(f"{what}: {reason}{self.advice}.") from error
        raise AssertionError("the last attempt returns or raises")

    def _fetch_info(self) -> Any:
        return self.api.repo_info(self.repo_id, repo_type=self.KIND, revision="main")

    def _commit(self) -> str:
        """Compare the folder with the head of `main`, and commit the difference on top of it."""
        info = self._fetch_info()
        operations = self.operations(info)
        try:
            # The client skips unchanged files and makes no empty commit.
            commit = self.api.create_commit(
                self.repo_id, operations, commit_message=self.MESSAGE, repo_type=self.KIND, parent_commit=info.sha
            )
        except HTTPError as error:
            if is_transient(error):
                # The commit may exist although its response was lost; the next attempt then finds the
                # files. Set first, since asking the Hub can fail, too.
                self.unconfirmed = True
                self.unconfirmed = self._fetch_info().sha != info.sha
            raise
        except (ValueError, RuntimeError) as error:
            # The client wraps the reason for which a card or a file was refused.
            raise _FileRefused(" ".join(f"{error} {error.__cause__ or ''}".split())) from error
        kind = "" if self.KIND == "model" else f"{self.KIND}s/"
        where = f"{self.api.endpoint}/{kind}{self.repo_id} ({'private' if info.private else 'public'})"
        if self.options.public and info.private:
            where += ", which stays private until its settings are changed"
        if commit.oid == info.sha and not self.unconfirmed:
            return f"{where} has these files already, in commit {info.sha}; nothing was uploaded"
        deleted = sum(isinstance(operation, CommitOperationDelete) for operation in operations)
        removed = f", {deleted} removed" * (deleted > 0)
        return f"pushed {len(operations) - deleted} files to {where}{removed}, in commit {commit.oid}"


class _FileRefused(RuntimeError):
    """A file could not be uploaded, or the Hub does not accept the card."""


@dataclass(kw_only=True)
class RowsUpload(Upload):
    """The upload of a folder of rows.

    files          paths on this machine, by path in the folder
    stage          the stage that wrote the rows, None for the filter
    only_private   whether a public dataset is refused
    """

    KIND = "dataset"
    MESSAGE = "Push rows made by pimono-sdpo"

    files: dict[str, Path] = field(default_factory=dict)
    stage: str | None = None
    only_private: bool = False

    def operations(self, info: Any) -> list[Operation]:
        """Add the files, and delete the shards of an earlier push; raises OutputError."""
        repo_id, head = self.repo_id, info.sha
        if self.only_private and not info.private:
            raise OutputError(
                f"The dataset `{repo_id}` is public; rename the folder, or push it yourself and give the id of the "
                "dataset."
            )
        present = set(self.api.list_repo_files(repo_id, repo_type=self.KIND, revision=head))

        def download(name: str) -> Path:
            return Path(hf_hub_download(repo_id, name, repo_type=self.KIND, revision=head))

        folders = tuple(path_in_repo(f"{folder}/", self.stage) for folder in SHARDS)
        shards = {name for name in present if name.startswith(folders) and name.endswith(".parquet")}
        report_path = path_in_repo(REPORT, self.stage)
        if shards or report_path in present:
            report = read_json(download(report_path)) if report_path in present else {}
            if "pimono_sdpo" not in report or report.get("stage") != self.stage:
                raise OutputError(f"`{repo_id}` holds data that no such run has pushed; use another name.")
        # The card on the Hub shows how to load the rows from there.
        new_card = (self.folder / CARD).read_text().replace(PLACEHOLDER, f'"{repo_id}"')
        # A dataset that was just created may have a card, but no data.
        has_card = CARD in present and present - {CARD, ".gitattributes"}
        card = merge_cards(new_card, download(CARD).read_bytes() if has_card else None, self.stage, repo_id)
        files = {path_in_repo(name, self.stage): path for name, path in self.files.items()}
        return [
            *(CommitOperationAdd(name, card.encode() if name == CARD else path) for name, path in files.items()),
            *(CommitOperationDelete(name, is_folder=False) for name in sorted(shards - files.keys())),
        ]


def push_folder(folder: Path, repo_id: str, options: PushOptions, only_private: bool = False) -> str:
    """Push the files that differ from the dataset's current commit; return a sentence on what was done.

    A missing dataset is created, private unless `public`; a public one is refused if `only_private`.
    """
    files = check_files(folder, options.allow_findings)
    upload = RowsUpload(
        repo_id=repo_id,
        options=options,
        folder=folder,
        advice=f"; then `{shlex.join(['pimono-sdpo', 'push', str(folder), repo_id, *options.flags()])}`",
        files=files,
        stage=read_json(folder / REPORT).get("stage"),
        only_private=only_private,
    )
    typer.echo(
        f"leaves this machine: the rows in {folder}, with rejects, report and card, to the dataset "
        f"{repo_id} ({'public' if options.public else 'private'} if new)"
    )
    return upload.push()


def check_files(folder: Path, allow_findings: bool = False) -> dict[str, Path]:
    """Return the files to publish by their path in the folder; raises OutputError as `check_texts` does."""
    if mark_of(folder) != REPORT or not (folder / CARD).is_file():
        raise OutputError(
            f"`{folder}` was not written by a finished `filter`, `steps` or `pairs`; push such a folder, unchanged."
        )
    paths = [folder / name for name in SINGLE_FILES]
    paths += [path for kind in SHARDS for path in sorted((folder / kind).glob("*.parquet"))]
    files = {path.relative_to(folder).as_posix(): path for path in paths if path.is_file()}
    check_texts(files.values(), "remove it from the traces and filter again", allow_findings)
    return files


def check_texts(files: Iterable[Path], advice: str, allow_findings: bool = True) -> None:
    """Raise OutputError for a card that the Hub would refuse and for anything that looks like a secret.

    Unless `allow_findings`, the scanner kingfisher searches as well if it is installed. It works offline.
    """
    scanner = None
    if not allow_findings:
        with suppress(ImportError):
            from kingfisher_sdk import Scanner

            scanner = Scanner()
    for path in files:
        if path.name == CARD and (problems := lint_file(path)):
            raise OutputError(f"The Hub may refuse `{path}`: {problems[0]} Correct it and push again.")
        for text, where in _texts_of(path):
            kinds, alternative = set(redact_secrets(text)[1]), ""
            if not kinds and scanner is not None:
                findings = scanner.scan(_PLACEHOLDER.sub("", text))
                # Any URL with a user name, as in examples, is a finding of low confidence.
                kinds = {one.rule_id for one in findings if one.visible and one.confidence != "low"}
                alternative = ", or use --allow-findings if it is not one"
            if kinds:
                raise OutputError(
                    f"`{path}` holds what looks like a secret ({', '.join(sorted(kinds))}){where}, so nothing was "
                    f"pushed; {advice}{alternative}."
                )


def _texts_of(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the texts of a file, each once per batch of rows, with a phrase that locates it."""
    if path.suffix == ".md":
        yield path.read_text(), ""
    elif path.suffix == ".json":
        # Value by value, as they were redacted: JSON escapes could look like secrets.
        for name, value in read_json(path).items():
            yield from ((text, f" in its column `{name}`") for text in _texts_in(value))
    elif path.suffix == ".parquet":
        first = 1
        for table in read_tables(path, BATCH_ROWS):
            locations: dict[str, str] = {}
            for number, row in enumerate(iterate_rows(table, Features.from_arrow_schema(table.schema)), first):
                for name, value in row.items():
                    locations.update((text, f" in its column `{name}`, row {number}") for text in _texts_in(value))
            yield from locations.items()
            first += table.num_rows


def _texts_in(value: object) -> Iterator[str]:
    """Yield every string in a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from _texts_in(item)


def path_in_repo(name: str, stage: str | None) -> str:
    """Return the path in the dataset of a file of the pushed folder."""
    if stage not in STAGES or name == CARD:
        return name
    folder, _, rest = name.rpartition("/")
    return f"{stage}_rejects/{rest}" if folder == "rejects" else f"{stage}/{rest}"


def merge_cards(new_card: str, old_card: bytes | None, stage: str | None, repo_id: str) -> str:
    """Return the dataset card after a push of `stage`; it describes every stage, in any order of pushes.

    A dataset with files that no config names is refused: a new config would hide them.
    """
    new, body = _split_card(new_card)
    try:
        old, old_body = _split_card((old_card or b"").decode())
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise OutputError(f"The card of `{repo_id}` cannot be read ({reason}); correct it there.") from error
    metadata, sections = new, {match[1]: match[0] for match in _SECTION.finditer(old_body)}
    if stage in STAGES:
        if old_card is not None and "configs" not in old:
            raise OutputError(
                f"The card of `{repo_id}` has no `configs`, so one for {stage} would hide the files that are there; "
                "add a config for them, or push to another name."
            )
        mark = f"pimono-sdpo:{stage} -->\n"
        sections[stage] = f"<!-- {mark}{body.strip()}\n<!-- /{mark}"
        metadata, body = {**new, **old}, _SECTION.sub("", old_body)
    elif not sections:
        return new_card

    def rank(config_name: str | None) -> int:
        name = str(config_name).removesuffix("_rejects")
        return STAGES.index(name) + 1 if name in STAGES else 0

    configs = [
        {**one, "data_files": [{**file, "path": path_in_repo(file["path"], stage)} for file in one["data_files"]]}
        for one in new["configs"]
    ]
    configs += [one for one in old.get("configs", []) if rank(one.get("config_name")) != rank(stage)]
    configs.sort(key=lambda one: rank(one.get("config_name")))
    # Only one config of a dataset may be the default.
    for config in [one for one in configs if one.get("default")][1:]:
        del config["default"]
    tags = sorted({*new["tags"], *old.get("tags", [])})
    header = yaml.safe_dump({**metadata, "configs": configs, "tags": tags}, sort_keys=True, allow_unicode=True)
    parts = [body, *(sections[name] for name in STAGES if name in sections)]
    text = "\n\n".join(part.strip() for part in parts if part.strip())
    return f"---\n{header}---\n\n{text}\n"


def _split_card(card: str) -> tuple[Json, str]:
    """Return the metadata of a card and its text."""
    match = _FRONT_MATTER.match(card)
    metadata = yaml.safe_load(match[1]) if match else None
    return (metadata if isinstance(metadata, dict) else {}), card[match.end() :] if match else card

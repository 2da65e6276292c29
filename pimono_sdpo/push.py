"""Push the folder of a finished run to the Hub, as a dataset, in one commit.

    data/ of a folder of steps  ->  steps/            its config `steps`
    rejects/                    ->  steps_rejects/
    report.json                 ->  steps/report.json

Rows of the filter keep their places. The card of the dataset has a section for each stage; a push
replaces its own and leaves the others.

Whoever loads the dataset always finds one whole push: new and changed files and the removal of an
earlier push's shards are one commit, made on the commit they were compared with or not at all.
"""

import logging
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import typer
import yaml
from datasets import Features
from httpx2 import HTTPError
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, hf_hub_download
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
from pimono_sdpo.options import flag_of, option, options
from pimono_sdpo.runs.folders import PICTURES, REPORT, mark_of, read_json
from pimono_sdpo.stage import iterate_rows
from pimono_sdpo.traces.hub import explain_error, explain_refusal, is_transient, retry_hub
from processors.secrets import find_secret_kinds

CARD = "README.md"
# Files beside the shards that are published.
SINGLE_FILES = (CARD, REPORT, "report.md", *PICTURES)
SHARDS = ("data", "rejects")
# Stages whose rows are configs of their own; None stands for the rows of the filter.
STAGES = ("steps", "pairs")
DATASET = "dataset"
PLACEHOLDER = '"PATH_OR_ID"'
_FRONT_MATTER = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
_PLACEHOLDER = re.compile(r"\[REDACTED:\w+\]")
_SECTION = re.compile(r"<!-- pimono-sdpo:(\w+) -->\n.*?<!-- /pimono-sdpo:\1 -->\n", re.DOTALL)
Json = dict[str, Any]
Operation = CommitOperationAdd | CommitOperationDelete

# Retries have a line of their own.
logger = logging.getLogger(__name__)
logging.getLogger("stamina").setLevel(logging.ERROR)


@options
class PushOptions:
    """How a folder is pushed."""

    public: bool = option("Make a new dataset public; an existing one keeps its visibility.", default=False)
    allow_findings: bool = option("Push even if the second scanner reports a secret.", default=False)

    def given(self) -> list[str]:
        """Return the options that were given, as words of a command line."""
        return [flag_of(one) for one in fields(PushOptions) if getattr(self, one.name)]


@options
class PushResult(PushOptions):
    """Where the result of a command is pushed, if anywhere."""

    push: str | None = option("Push the result to this dataset (ns/name), private if new.", default=None)

    def check_push(self) -> None:
        """Raise OutputError if the result could not be pushed, before any work is done."""
        if self.push is not None:
            check_account(self.push)
        elif given := self.given():
            raise OutputError(f"{given[0]} needs --push.")


def check_account(repo_id: str) -> None:
    """Raise OutputError for an invalid name, or if the account cannot push there."""
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise OutputError(f"`{repo_id}` cannot name a dataset; use ns/name.") from error
    if "/" not in repo_id:
        raise OutputError(f"`{repo_id}` names no account; use ns/{repo_id}.")
    api = HfApi()
    problem = None
    with hub_errors(f"Nothing can be pushed to `{repo_id}`"):
        namespace = repo_id.split("/")[0]
        for attempt in retry_hub(connected=False):
            with attempt:
                problem = explain_refusal(api, namespace, lambda: _exists(api, repo_id))
    if problem is not None:
        raise OutputError(f"Nothing can be pushed to `{repo_id}`: {problem}.")


def push_folder(folder: Path, repo_id: str, options: PushOptions, only_private: bool = False) -> str:
    """Push what differs from the dataset's present commit; return a sentence on what was done.

    A missing dataset is created, private unless `public`. The same content makes no commit. Raises
    OutputError as `check_files` does, for a public dataset if `only_private`, and when the Hub
    refuses; the folder stays as it is.
    """
    files = check_files(folder, options.allow_findings)
    report = read_json(folder / REPORT)
    stage = report.get("stage") if isinstance(report, dict) else None
    stage = stage if stage in STAGES else None
    moved: dict[str, Path | bytes] = {path_in_repo(name, stage): files[name] for name in files}
    # The example of the card is copied from the Hub.
    card = (folder / CARD).read_text().replace(PLACEHOLDER, f'"{repo_id}"')
    check_account(repo_id)
    new = "public" if options.public else "private"
    typer.echo(
        f"leaves this machine: the rows in {folder}, with rejects, report and card, to the dataset "
        f"{repo_id} ({new} if new)"
    )
    digest = sha256((folder / REPORT).read_bytes()).hexdigest()
    again = shlex.join(["pimono-sdpo", "push", str(folder), repo_id, *options.given()])
    return _RowsUpload(
        repo_id=repo_id,
        options=options,
        own=moved,
        card=card,
        stage=stage,
        only_private=only_private,
        description=f"report.json has the sha256 {digest}.",
        again=f"; then `{again}`",
    ).run()


# What is published, and the check that it may be.


def check_files(folder: Path, allow_findings: bool = False) -> dict[str, Path]:
    """Return the files to publish by their path in the folder, in order.

    Raises OutputError if the folder is not of a finished run, a shard is damaged, the Hub would
    refuse the card, or a text holds what looks like a secret.
    """
    if mark_of(folder) != REPORT:
        raise OutputError(
            f"`{folder}` was not written by a finished `filter`, `steps` or `pairs`; push such a folder, unchanged."
        )
    paths = [folder / name for name in SINGLE_FILES]
    paths += [path for kind in SHARDS for path in sorted((folder / kind).glob("*.parquet"))]
    files = {path.relative_to(folder).as_posix(): path for path in paths if path.is_file()}
    if CARD not in files:
        raise OutputError(f"`{folder}` has no {CARD}; run the command that wrote it again.")
    if problems := lint_file(files[CARD]):
        raise OutputError(f"The Hub may refuse `{files[CARD]}`: {problems[0]} Correct it and push again.")
    for path in files.values():
        check_secrets(path, allow_findings)
    return files


def check_secrets(path: Path, allow_findings: bool = False) -> None:
    """Raise OutputError if a text of a file holds what looks like a secret.

    Where the scanner kingfisher is installed, it searches as well, by rules of its own, unless its
    findings are allowed; it only reads, and sends nothing.
    """
    scanner = None
    if not allow_findings:
        try:
            from kingfisher_sdk import Scanner
        except ImportError:
            pass
        else:
            scanner = Scanner()
    for where, text in _texts_of(path):
        found, advice = set(find_secret_kinds(text)), ""
        if not found and scanner is not None:
            findings = scanner.scan(_PLACEHOLDER.sub("", text))
            # Low is what any address with a user has, such as those of examples.
            found = {one.rule_id for one in findings if one.visible and one.confidence != "low"}
            advice = ", or use --allow-findings if it is not one"
        if found:
            raise OutputError(
                f"`{path}` holds what looks like a secret ({', '.join(sorted(found))}){where}, so "
                f"nothing was pushed; remove it from the traces and filter again{advice}."
            )


def _texts_of(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the texts of a file, each once per batch of rows, with a phrase on where it is."""
    match path.suffix:
        case ".md":
            yield "", path.read_text()
        case ".json":
            # Value by value, as they were redacted: JSON escapes could look like secrets.
            report = read_json(path)
            for key, value in report.items() if isinstance(report, dict) else ():
                yield from ((f" in its column `{key}`", text) for text in _texts_in(value))
        case ".parquet":
            first = 1
            try:
                with pq.ParquetFile(path) as shard:
                    features = Features.from_arrow_schema(shard.schema_arrow)
                    for batch in shard.iter_batches():
                        places: dict[str, str] = {}
                        rows = iterate_rows(pa.Table.from_batches([batch]), features)
                        for number, row in enumerate(rows, first):
                            for name, value in row.items():
                                where = f" in its column `{name}`, row {number}"
                                places.update((text, where) for text in _texts_in(value))
                        yield from ((where, text) for text, where in places.items())
                        first += batch.num_rows
            except pa.ArrowInvalid as error:
                reason = str(error).splitlines()[0]
                raise OutputError(f"`{path}` is damaged ({reason}); filter again.") from error


def _texts_in(value: object) -> Iterator[str]:
    """Yield every text in a value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for below in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from _texts_in(below)


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


def merge_cards(mine: str, theirs: bytes | None, stage: str | None, repo_id: str) -> str:
    """Return the card of a dataset after a push: of all stages whose rows are there then.

    It is the same in whatever order they were pushed. Raises OutputError for a card on the Hub that
    cannot be read, and for a dataset whose files no config names: a new config would hide them.
    """
    own, body = _split_card(mine)
    try:
        metadata, their_body = _split_card((theirs or b"").decode())
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise OutputError(
            f"The card of `{repo_id}` cannot be read ({reason}); correct it there and push again."
        ) from error
    sections = {match[1]: match[0] for match in _SECTION.finditer(their_body)}
    if stage is None and not sections:
        return mine
    front = own
    if stage is not None:
        if theirs is not None and "configs" not in metadata:
            raise OutputError(
                f"The card of `{repo_id}` has no `configs`, so one for {stage} would hide the "
                "files that are there; add a config for them, or push to another name."
            )
        front = {**own, **metadata}
        mark = f"pimono-sdpo:{stage} -->\n"
        sections[stage] = f"<!-- {mark}{body.strip()}\n<!-- /{mark}"
        body = _SECTION.sub("", their_body)
    configs = [one for one in metadata.get("configs", []) if _stage_of_config(one) != stage]
    for config in own["configs"]:
        files = [{**file, "path": path_in_repo(file["path"], stage)} for file in config["data_files"]]
        configs.append({**config, "data_files": files})
    order = [None, *STAGES]
    configs.sort(key=lambda config: order.index(_stage_of_config(config)))
    # Only one config of a dataset may be the default.
    default = next((config for config in configs if config.get("default")), None)
    for config in configs:
        if config is not default:
            config.pop("default", None)
    tags = sorted({*own["tags"], *metadata.get("tags", [])})
    head = yaml.safe_dump({**front, "configs": configs, "tags": tags}, sort_keys=True, allow_unicode=True)
    parts = [body, *(sections[name] for name in STAGES if name in sections)]
    rest = "\n\n".join(part.strip() for part in parts if part.strip())
    return f"---\n{head}---\n\n{rest}\n"


def _split_card(card: str) -> tuple[Json, str]:
    match = _FRONT_MATTER.match(card)
    found = yaml.safe_load(match[1]) if match else None
    return (found if isinstance(found, dict) else {}), card[match.end() :] if match else card


def _stage_of_config(config: Json) -> str | None:
    name = str(config.get("config_name", "")).removesuffix("_rejects")
    return name if name in STAGES else None


# The Hub.


def _exists(api: HfApi, repo_id: str, kind: str = DATASET) -> bool:
    try:
        api.repo_info(repo_id, repo_type=kind)
    except RepositoryNotFoundError as error:
        # Also raised for a refused token.
        if error.response.status_code == 401:
            raise
        return False
    return True


@dataclass(kw_only=True)
class Upload(ABC):
    """One commit to a repository; its attempts and what they left on the Hub.

    `description` is of the commit and the same only for the same files; `again` ends the sentence
    on a failure. `created` is whether this upload made the repository. `sent` is the head
    before a commit that may have been made, of `files` files.
    """

    KIND: ClassVar[str]
    MESSAGE: ClassVar[str]

    repo_id: str
    options: PushOptions
    description: str = ""
    again: str = ""
    api: HfApi = field(default_factory=HfApi)
    created: bool = False
    sent: str | None = None
    files: int = 0

    @abstractmethod
    def operations(self, head: str) -> list[Operation]:
        """Return what is to be added and deleted, compared with a commit of the repository."""

    def run(self) -> str:
        """Push, and return a sentence on what was done; raises OutputError."""
        try:
            with self.errors():
                for attempt in retry_hub():
                    with attempt:
                        if made := self.find_sent():
                            return made
                        self.create()
                        return self.commit()
        except Exception:
            self.remove_empty()
            raise
        raise AssertionError("the last attempt returns or raises")

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise OutputError for what the Hub, the token or the network refuse."""
        try:
            yield
        except (*HUB_ERRORS, _FileRefused) as error:
            what = f"Nothing was pushed to `{self.repo_id}`"
            if isinstance(error, _FileRefused):
                raise OutputError(f"{what}: {error}; fix this{self.again}.") from error
            if self.sent is not None:
                what = f"The Hub did not confirm whether the files are in `{self.repo_id}`"
            reason = explain_error(error)
            raise OutputError(f"{what}: {reason}{self.again}.") from error

    def create(self) -> None:
        """Create the repository if it is missing."""
        api, repo_id, kind = self.api, self.repo_id, self.KIND
        if not _exists(api, repo_id, kind):
            try:
                api.create_repo(repo_id, repo_type=kind, private=not self.options.public)
                self.created = True
            except HfHubHTTPError as error:
                if error.response.status_code != 409:
                    raise
            if not _exists(api, repo_id, kind):
                raise OutputError(
                    f"The Hub says that `{repo_id}` is taken, but there is no {kind} of that "
                    "name: it has another type, or this account may not see it; use another name"
                    f"{self.again}."
                )

    def remove_empty(self) -> None:
        """Delete the repository if this upload created it and nothing was committed to it."""
        if not self.created or self.sent is not None:
            return
        try:
            if len(self.api.list_repo_commits(self.repo_id, repo_type=self.KIND)) == 1:
                self.api.delete_repo(self.repo_id, repo_type=self.KIND, missing_ok=True)
                self.created = False
        except HTTPError:
            logger.warning("The new repository `%s` is empty; delete it or use it.", self.repo_id)

    def find_sent(self) -> str | None:
        """Return a sentence on the commit whose answer was lost, if it was made."""
        if self.sent is None:
            return None
        # The list of commits is asked for with retries of its own, which may wait for an hour.
        head = self.api.repo_info(self.repo_id, repo_type=self.KIND, revision="main").sha
        if head != self.sent:
            made = self.api.list_repo_commits(self.repo_id, repo_type=self.KIND, revision=head)[0]
            if self.description in made.message:
                return f"pushed {self.files} files to {self.place()}, in commit {head}"
        self.sent = None
        return None

    def place(self) -> str:
        """Return the address of the repository."""
        kind = "" if self.KIND == "model" else f"{self.KIND}s/"
        return f"{self.api.endpoint}/{kind}{self.repo_id}"

    def commit(self) -> str:
        """Compare with the branch as it is now, and commit the difference onto that commit."""
        api, repo_id, options = self.api, self.repo_id, self.options
        info = api.repo_info(repo_id, repo_type=self.KIND, revision="main")
        operations = self.operations(str(info.sha))
        where = f"{self.place()} ({'private' if info.private else 'public'})"
        if options.public and info.private:
            where += ", which stays private until its settings are changed"
        gone = sum(isinstance(one, CommitOperationDelete) for one in operations)
        self.files = len(operations) - gone
        self.sent = str(info.sha)
        try:
            # The client leaves out files that are there already, and makes no empty commit.
            done = api.create_commit(
                repo_id,
                operations,
                commit_message=self.MESSAGE,
                commit_description=self.description,
                repo_type=self.KIND,
                parent_commit=info.sha,
            )
        except HTTPError as error:
            # A commit may have been made although its answer was lost.
            if is_transient(error) and (made := self.find_sent()):
                return made
            self.sent = None
            raise
        except (ValueError, RuntimeError) as error:
            self.sent = None
            # The client hides why a card or a file was refused behind errors of its own.
            reason = " ".join(f"{error} {error.__cause__ or ''}".split())
            raise _FileRefused(reason) from error
        if done.oid == info.sha:
            return f"{where} has these files already, in commit {info.sha}; nothing was uploaded"
        return f"pushed {self.files} files to {where}, {gone} removed, in commit {done.oid}"


@dataclass(kw_only=True)
class _RowsUpload(Upload):
    """The upload of a folder of rows."""

    KIND = DATASET
    MESSAGE = "Push rows filtered by pimono-sdpo"

    own: dict[str, Path | bytes]
    card: str
    stage: str | None
    only_private: bool = False

    def create(self) -> None:
        """Create the dataset if it is missing, and refuse a public one if it is to be private."""
        super().create()
        if self.only_private and not self.api.dataset_info(self.repo_id).private:
            raise OutputError(
                f"The dataset `{self.repo_id}` is public; rename the folder, or push it yourself "
                "and give the id of the dataset."
            )

    def operations(self, head: str) -> list[Operation]:
        """Add our files, and delete the shards of an earlier push; raises OutputError."""
        api, repo_id = self.api, self.repo_id
        there = set(api.list_repo_files(repo_id, repo_type=DATASET, revision=head))

        def download(name: str) -> Path:
            return Path(hf_hub_download(repo_id, name, repo_type=DATASET, revision=head))

        folders = SHARDS if self.stage is None else (self.stage, f"{self.stage}_rejects")
        starts = tuple(f"{folder}/" for folder in folders)
        shards = {name for name in there if name.startswith(starts) and name.endswith(".parquet")}
        report = path_in_repo(REPORT, self.stage)
        if shards or report in there:
            known = read_json(download(report)) if report in there else None
            if not isinstance(known, dict) or "pimono_sdpo" not in known:
                raise OutputError(f"`{repo_id}` holds data that is not of an earlier filter run; use another name.")
        # A dataset that was just created may have a card, but no data.
        has_card = CARD in there and there - {CARD, ".gitattributes"}
        before = download(CARD).read_bytes() if has_card else None
        card = merge_cards(self.card, before, self.stage, repo_id)
        files = {**self.own, CARD: card.encode()}
        return [
            *(CommitOperationAdd(name, files[name]) for name in files),
            *(CommitOperationDelete(name, is_folder=False) for name in sorted(shards - files.keys())),
        ]


class _FileRefused(RuntimeError):
    """The client could not upload a file, or the Hub does not accept the card."""


# What the Hub, the token or the network refuse.
HUB_ERRORS = (HTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled)


@contextmanager
def hub_errors(what: str) -> Iterator[None]:
    """Raise OutputError with `what` and a reason for what the Hub or the network refuse."""
    try:
        yield
    except HUB_ERRORS as error:
        raise OutputError(f"{what}: {explain_error(error)}.") from error

"""Push the folder of a finished run to the Hub, as a dataset, in one commit.

    data/ of a folder of steps  ->  steps/            its config `steps`
    rejects/                    ->  steps_rejects/
    report.json                 ->  steps/report.json

Rows of the filter keep their paths. One commit adds new and changed files and removes those of an earlier push. Its
parent is the commit that the files were compared with; if the branch has moved on, the files are compared again.
`upload_folder` commits in several parts with hf_xet, hence `create_commit`.
"""

import logging
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import yaml
from httpx2 import HTTPError
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, hf_hub_download
from huggingface_hub.errors import (
    LocalEntryNotFoundError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from cards.lint import is_repo_id, lint_file
from cards.merge import SECTIONS, merge_cards, path_in_repo, split_card
from pimono_sdpo.errors import OutputError
from pimono_sdpo.program import print_lines
from pimono_sdpo.push_options import PushOptions, PushResult
from pimono_sdpo.runs.folders import PICTURES, REPORT, mark_of, read_json
from pimono_sdpo.runs.parquet import read_rows
from pimono_sdpo.traces.hub import explain_error, retry_hub
from processors.secrets import redact_secrets

CARD, RUN = "README.md", "run.json"
# Files that are published besides the shards.
SINGLE_FILES = (CARD, REPORT, "report.md", *PICTURES)
SHARDS = ("data", "rejects")
# The columns that say which session or run a row was made from; the first one that is filled counts.
ORIGINS = ("session_id", "run_id", "run_chosen", "task_id", "instance_id")
TITLES = {"dataset": "Push rows made by pimono-sdpo", "model": "Add the adapter"}
PLACEHOLDER = '"PATH_OR_ID"'
_PLACEHOLDER = re.compile(r"\[REDACTED:\w+\]")
# Errors of the Hub, the token or the network.
HUB_ERRORS = (HTTPError, LocalEntryNotFoundError, LocalTokenNotFoundError, OfflineModeIsEnabled)
API = HfApi()
Json = dict[str, Any]

logger = logging.getLogger(__name__)
# `retry_hub` logs each retry itself.
logging.getLogger("stamina").setLevel(logging.ERROR)


@contextmanager
def hub_errors(what: str, advice: str = "") -> Iterator[None]:
    """Turn errors of the Hub and the network into an OutputError that starts with `what`."""
    try:
        yield
    except HUB_ERRORS as error:
        raise OutputError(f"{what}: {explain_error(error)}{advice}.") from error


def check_push(options: PushResult) -> None:
    """Check that the result can be pushed, before any work is done.

    A missing dataset is created and deleted again, to find out whether the token allows it.
    """
    if options.push is not None:
        remove_empty(open_repo(options.push, "dataset", options.public))
    elif flags := options.flags():
        raise OutputError(f"{flags[0]} needs --push.")


@dataclass
class Repo:
    """A repository on the Hub; `removable` if this process created it, and may delete it while it is empty."""

    name: str
    kind: Literal["dataset", "model"]
    public: bool = False
    removable: bool = False

    def __post_init__(self) -> None:
        """Raise OutputError for a name that the Hub does not accept."""
        if not is_repo_id(self.name):
            raise OutputError(f"Nothing can be pushed to `{self.name}`: it is not a valid name; use ns/name.")

    def info(self) -> Any:
        """Return what the Hub says about the head of `main`."""
        return API.repo_info(self.name, repo_type=self.kind, revision="main")

    def download(self, name: str, revision: str | None) -> Path:
        """Download a file, and return its place in the cache."""
        return Path(hf_hub_download(self.name, name, repo_type=self.kind, revision=revision))


def open_repo(name: str, kind: Literal["dataset", "model"], public: bool, advice: str = "") -> Repo:
    """Create a repository if it is missing, private unless `public`, and check write access; raises OutputError."""
    repo = Repo(name, kind, public)
    try:
        with hub_errors(f"Nothing can be pushed to `{name}`", advice):
            for attempt in retry_hub(connected=False):
                with attempt:
                    account = API.whoami()["name"]
                    repo.name = name if "/" in name else f"{account}/{name}"
                    if not API.repo_exists(repo.name, repo_type=kind):
                        # Set first, because the response may be lost.
                        repo.removable = True
                        API.create_repo(repo.name, repo_type=kind, private=not public, exist_ok=True)
                    API.auth_check(repo.name, repo_type=kind, write=True)
    except OutputError:
        remove_empty(repo)
        raise
    return repo


def remove_empty(repo: Repo) -> None:
    """Delete a repository if this process created it and nothing was committed to it."""
    if not repo.removable:
        return
    try:
        if len(API.list_repo_commits(repo.name, repo_type=repo.kind)) == 1:
            API.delete_repo(repo.name, repo_type=repo.kind, missing_ok=True)
    except RepositoryNotFoundError:
        pass
    except HTTPError:
        logger.warning("The new repository `%s` is empty; delete it or use it.", repo.name)
        return
    repo.removable = False


def list_present(info: Any) -> set[str]:
    """Return the files in a repository except for the one that the Hub itself makes."""
    return {file.rfilename for file in info.siblings or ()} - {".gitattributes"}


# Returns which of the files in a repository were written by an earlier push, from its info.
FindOld = Callable[[Any], set[str]]


def push_files(repo: Repo, section: str, card: str, files: Mapping[str, Path], find_old: FindOld, advice: str) -> str:
    """Push a card and files, by their path in the repository, in one commit; return a sentence on it.

    `section` is the name of our part of the card; `advice` ends the message of an error. Raises OutputError.
    """
    try:
        with hub_errors(f"The push to `{repo.name}` failed", advice):
            for attempt in retry_hub():
                with attempt:
                    return _commit(repo, section, card, files, find_old, advice)
    finally:
        remove_empty(repo)
    raise AssertionError("the last attempt returns or raises")


def _commit(repo: Repo, section: str, card: str, files: Mapping[str, Path], find_old: FindOld, advice: str) -> str:
    """Compare the files with the head of `main`, and commit the difference on top of it."""
    info = repo.info()
    gone = find_old(info) - {CARD, *files}
    card, note = _merge_with_hub(repo, section, card, info)
    operations: list[CommitOperationAdd | CommitOperationDelete] = [
        CommitOperationAdd(CARD, card.encode()),
        *(CommitOperationAdd(name, file) for name, file in files.items()),
        *(CommitOperationDelete(name, is_folder=False) for name in sorted(gone)),
    ]
    # The client leaves out unchanged files, and makes no empty commit; so after an answer that was lost, the next
    # attempt finds the files.
    try:
        commit = API.create_commit(
            repo.name, operations, commit_message=TITLES[repo.kind], repo_type=repo.kind, parent_commit=info.sha
        )
    except (ValueError, RuntimeError) as error:
        if isinstance(error, HTTPError):  # the Hub answered, which the caller explains
            raise
        # The client wraps the reason for which a card or a file was refused.
        reason = " ".join(f"{error} {error.__cause__ or ''}".split())
        raise OutputError(f"The push to `{repo.name}` failed: {reason}; fix this{advice}.") from error
    repo.removable = False
    kind = "datasets/" if repo.kind == "dataset" else ""
    where = f"{API.endpoint}/{kind}{repo.name} ({'private' if info.private else 'public'})"
    if commit.oid == info.sha:
        return f"{where} has these {len(files) + 1} files, in commit {info.sha}; nothing is left to upload"
    removed = f", {len(gone)} removed" * bool(gone)
    return f"pushed {len(files) + 1} files to {where}{removed}, in commit {commit.oid}{note and f'; {note}'}"


def _merge_with_hub(repo: Repo, section: str, card: str, info: Any) -> tuple[str, str]:
    """Return the card of a push, and a note for the owner; raises OutputError."""
    present = list_present(info)
    try:
        old = repo.download(CARD, info.sha).read_text() if CARD in present else ""
        if section in SECTIONS[1:] and present - {CARD} and "configs" not in split_card(old)[0]:
            raise OutputError(
                f"The card of `{repo.name}` has no `configs`, so one for {section} would hide the files that are "
                "there; add a config for them, or push to another name."
            )
        return merge_cards(section, card, old)
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise OutputError(f"The card of `{repo.name}` cannot be read ({reason}); correct it there.") from error


def push_folder(folder: Path, repo_id: str, options: PushOptions, typed: bool = True) -> str:
    """Push the files that differ from the dataset's current commit; return a sentence on what was done.

    A missing dataset is created, private unless `public`. Unless the user has typed the name, it must be that of a
    private dataset of rows from the same source. Raises OutputError.
    """
    paths, report = check_files(folder, options.allow_findings), read_json(folder / REPORT)
    stage, shards = report.get("stage"), [path for path in paths.values() if path.suffix == ".parquet"]
    section = stage if stage in SECTIONS[1:] else SECTIONS[0]
    # The card on the Hub shows how to load the rows from there.
    card = paths.pop(CARD).read_text().replace(PLACEHOLDER, f'"{repo_id}"')
    advice = f"; then `{shlex.join(['pimono-sdpo', 'push', str(folder), repo_id, *options.flags()])}`"
    repo = open_repo(repo_id, "dataset", options.public, advice)
    print_lines(
        f"leaves this machine: the rows in {folder}, with rejects, report and card, to the dataset "
        f"{repo_id} ({'public' if options.public else 'private'} if new) at `{urlsplit(API.endpoint).hostname}`"
    )

    def find_old(info: Any) -> set[str]:
        present, place = list_present(info), path_in_repo(REPORT, section)
        folders = tuple(path_in_repo(f"{kind}/", section) for kind in SHARDS)
        old = {name for name in present if name.startswith(folders) and name.endswith(".parquet")}
        problem = "" if typed or info.private else "is public"
        if place in present or old:
            held = read_json(repo.download(place, info.sha)) if place in present else {}
            if "pimono_sdpo" not in held or held.get("stage") != stage:
                raise OutputError(f"`{repo.name}` holds data that no such run has pushed; use another name.")
            if not typed and held != report:
                pushed = [repo.download(name, info.sha) for name in sorted(old)[-1:]]
                sources = {one.get("input", one).get("source") for one in (held, report)}
                if len(sources) > 1 or not read_origins(pushed) & read_origins(shards):
                    problem = problem or "holds rows of another source"
            old |= {path_in_repo(name, section) for name in SINGLE_FILES} & present
        if problem:
            raise OutputError(
                f"The dataset `{repo.name}` {problem}; rename the folder, or push it yourself and give the id of the "
                "dataset."
            )
        return old

    files = {path_in_repo(name, section): path for name, path in paths.items()}
    return push_files(repo, section, card, files, find_old, advice)


def read_origins(shards: Iterable[Path]) -> set[str]:
    """Return the ids of the sessions or runs that the rows of files were made from."""
    origins = set()
    for path in shards:
        columns = [name for name in ORIGINS if name in pq.read_schema(path).names]
        origins |= {next(filter(None, row.values()), "") for row in read_rows([path], columns)}
    return origins - {""}


def require_adapter_of(dataset: str, repo_id: str) -> None:
    """Raise OutputError if a model repository holds anything but an adapter that was trained on a dataset."""
    repo, present, held = Repo(repo_id, "model"), set[str](), None
    with hub_errors("No job can be submitted"):
        for attempt in retry_hub(connected=False):
            with attempt:
                if API.repo_exists(repo_id):
                    info = repo.info()
                    present = list_present(info)
                    run = read_json(repo.download(RUN, info.sha)) if RUN in present else {}
                    held = run.get("dataset", {}).get("id")
    if present and held != dataset:
        problem = f"an adapter that was trained on `{held}`" if held else "files that no training has pushed"
        raise OutputError(
            f"`{repo_id}` holds {problem}; give --hub_model_id, with this name to replace it or another."
        )


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
        # Hashes, because the texts of a file may not fit into memory.
        seen = set()
        for text, where in _texts_of(path):
            if hash(text) in seen:
                continue
            seen.add(hash(text))
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
    """Yield the texts of a file, each with a phrase that locates it."""
    if path.suffix == ".md":
        yield path.read_text(), ""
    # Value by value, as they were redacted: JSON escapes could look like secrets.
    rows = read_rows([path]) if path.suffix == ".parquet" else [read_json(path)] if path.suffix == ".json" else []
    for number, row in enumerate(rows, 1):
        place = f", row {number}" if path.suffix == ".parquet" else ""
        for name, value in row.items():
            yield from ((text, f" in its column `{name}`{place}") for text in _texts_in(value))


def _texts_in(value: object) -> Iterator[str]:
    """Yield every string in a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from _texts_in(item)

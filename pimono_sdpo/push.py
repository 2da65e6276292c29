"""Put the folder of a finished filter run on the Hub as a dataset repository, in one commit.

Who loads the dataset always finds one whole push: what is new, what changed, and the removal of an
earlier push's shards are one commit, on the commit they were compared with or not at all.
"""

import random
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha1, sha256
from pathlib import Path
from time import sleep

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
from pimono_sdpo.hub_errors import CONFLICTS, clause, who_may_write
from pimono_sdpo.push_check import CARD, checked_files
from pimono_sdpo.push_stage import STAGES, is_of, merged_card, place_of, report_of
from pimono_sdpo.runs.folders import REPORT, read_json

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
        problem = who_may_write(api, namespace, lambda: _is_there(api, target))
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
        raise OutputError(f"{what}: {clause(error, target.revision or 'main')}{again}.") from error


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

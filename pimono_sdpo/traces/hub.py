"""Read datasets and files of the Hub at a pinned commit, retry its requests and explain its errors.

The viewer's export lives on the revision `refs/convert/parquet` as `{config}/{split}/0000.parquet`.
`load_dataset("ns/name")` never uses it, so it is read explicitly.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from glob import has_magic
from pathlib import Path
from time import monotonic
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import stamina
from httpx2 import ConnectError, HTTPError
from huggingface_hub import HfApi, HfFileSystem, RepoFile, get_token, hf_hub_download, snapshot_download
from huggingface_hub.constants import HF_HUB_CACHE
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.utils import parse_ratelimit_headers  # type: ignore[attr-defined]

from pimono_sdpo.errors import SourceError

logger = logging.getLogger(__name__)

# Somebody else is committing at the same time (409, 412), or the Hub is busy or restarting.
TRANSIENT = (408, 409, 412, 429, 500, 502, 503, 504)
# How many seconds an upload is retried.
PATIENCE = 600.0


def is_transient(error: Exception) -> bool:
    """Return whether a retry may help."""
    error = _unwrap(error)
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in TRANSIENT
    return isinstance(error, HTTPError)


def _unwrap(error: Exception) -> Exception:
    """Return the cause of a failed upload or download, which the client wraps."""
    while isinstance(error, RuntimeError | LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    return error


def retry_hub(connected: bool = True) -> Iterator[stamina.Attempt]:
    """Yield attempts while the Hub is busy or drops connections, for at most PATIENCE seconds.

    It waits as long as the Hub asks for, otherwise longer after each attempt. If the wait would
    exceed PATIENCE, the error is raised at once; so is a missing network unless `connected`.
    """
    end = monotonic() + PATIENCE

    def should_retry(error: Exception) -> bool | float:
        error = _unwrap(error)
        if not is_transient(error) or (isinstance(error, ConnectError) and not connected):
            return False
        wait = _read_wait(error) if isinstance(error, HfHubHTTPError) else None
        if monotonic() + (wait or 0) >= end:
            return False
        reason = type(error).__name__
        if isinstance(error, HfHubHTTPError):
            reason = f"answer {error.response.status_code}"
        logger.warning("The Hub is busy (%s); trying again%s.", reason, "" if wait is None else f" in {wait:g} s")
        return True if wait is None else wait

    # `stamina` adds jitter, so that clients that collided do not retry at the same moment.
    return iter(stamina.retry_context(on=should_retry, attempts=None, timeout=PATIENCE, wait_initial=0.5, wait_max=60))


def _read_wait(error: HfHubHTTPError) -> float | None:
    """Return how many seconds the Hub asks to wait, None if it does not say."""
    headers = error.response.headers
    limit = parse_ratelimit_headers(headers)
    if error.response.status_code == 429 and limit is not None and limit.remaining == 0:
        return float(limit.reset_in_seconds)
    seconds = headers.get("retry-after", "").strip()
    return float(seconds) if seconds.isdecimal() else None


def explain_error(error: Exception) -> str:
    """Explain an error of the Hub's client and what to do about it."""
    error = _unwrap(error)
    if isinstance(error, LocalTokenNotFoundError):
        return "there is no token; set HF_TOKEN, or log in with `hf auth login`"
    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set; unset it"
    if not isinstance(error, HfHubHTTPError):
        return f"the Hub cannot be reached ({type(error).__name__}); check the network"
    status = error.response.status_code
    message = " ".join((error.server_message or "").split())
    answer = f"the Hub answers {status}{f', {message}' if message else ''}"
    match status:
        case 401:
            return "the Hub does not accept the token; create a new one and set HF_TOKEN"
        case 403 if "storage limit" in message:
            return f"{answer.rstrip('.')}; free some space there"
        case 403:
            return f"{answer}; set HF_TOKEN to a token with write access, or fix what it names"
        case 404 if isinstance(error, RepositoryNotFoundError):
            return "the repository does not exist or is not visible to this account; check its name"
        case 409 | 412:
            return f"others kept committing to it ({answer}); try again later"
        case 413:
            return f"{answer}; it is too large for this account's storage, so free some space"
    return f"{answer}; wait, or fix what it names"


Json = dict[str, Any]
EXPORT_REF = "refs/convert/parquet"


def find_export(repo_id: str) -> tuple[str, dict[str, int], Json | None]:
    """Return the commit of a dataset's export, the sizes of its parquet files by name, and its lag.

    The lag is `commit`, the newest one of the dataset, the `licence` on its card, and
    `commits_behind` and `days_behind`, both None where the Hub lists no commits. It is None for a
    dataset without a main branch. The Hub does not record which commit an export was made from, so
    times are compared: commits made during the export count as exported. Raises SourceError.
    """
    api = HfApi()
    with translate_errors(repo_id):
        export, head = _find_commits(api, repo_id)
        files = _list_parquet(api, repo_id, export) if export else {}
        if export is None or not files:
            raise SourceError(
                f"`{repo_id}` has no parquet export at {EXPORT_REF}; wait for the dataset viewer "
                "to build it, or download the raw files and use their folder."
            )
        if head is None:
            return export, files, None
        export_commits, main_commits = (
            api.list_repo_commits(repo_id, repo_type="dataset", revision=commit) for commit in (export, head)
        )
        card = api.dataset_info(repo_id, revision=head).card_data
    lag: Json = {"commit": head, "licence": card.get("license") if card else None}
    lag |= {"commits_behind": None, "days_behind": None}
    if export_commits and main_commits:
        # Both lists begin with the newest commit.
        exported = export_commits[0].created_at
        newer = [commit.created_at for commit in main_commits if commit.created_at > exported]
        lag["commits_behind"] = len(newer)
        lag["days_behind"] = (newer[0] - exported).days if newer else 0
    return export, files, lag


def _find_commits(api: HfApi, repo_id: str) -> tuple[str | None, str | None]:
    """Return the commit of a dataset's export and that of its main branch, each None if missing."""
    refs = api.list_repo_refs(repo_id, repo_type="dataset")
    export = next((ref.target_commit for ref in refs.converts if ref.ref == EXPORT_REF), None)
    return export, next((ref.target_commit for ref in refs.branches if ref.name == "main"), None)


def _list_parquet(api: HfApi, repo_id: str, commit: str) -> dict[str, int]:
    tree = api.list_repo_tree(repo_id, recursive=True, revision=commit, repo_type="dataset")
    files = [entry for entry in tree if isinstance(entry, RepoFile) and entry.path.endswith(".parquet")]
    return {file.path: file.size for file in sorted(files, key=lambda file: file.path)}


def find_parquet(repo_id: str) -> tuple[str, list[str]]:
    """Return the commit and the names of a dataset's parquet files; raises SourceError.

    A complete export is preferred to the repository's own files.
    """
    api = HfApi()
    with translate_errors(repo_id):
        export, head = _find_commits(api, repo_id)
        for commit in filter(None, (export, head)):
            names = list(_list_parquet(api, repo_id, commit))
            is_partial = commit == export and any("/partial-" in name for name in names)
            if names and not is_partial:
                return commit, names
    raise SourceError(f"`{repo_id}` has no parquet files; use a dataset that does.")


@contextmanager
def open_parquet(repo_id: str, name: str, revision: str) -> Iterator[pq.ParquetFile]:
    """Open a dataset's file on the Hub; only the parts that are read are downloaded."""
    with translate_errors(repo_id), HfFileSystem().open(f"datasets/{repo_id}@{revision}/{name}", "rb") as remote:
        yield pq.ParquetFile(remote, pre_buffer=True)


def download(repo_id: str, name: str, revision: str | None) -> Path:
    """Download a dataset's file at a commit into the local cache; interrupted downloads are resumed."""
    with translate_errors(repo_id):
        return Path(hf_hub_download(repo_id, name, repo_type="dataset", revision=revision))


def fetch_files(address: str, endings: tuple[str, ...]) -> tuple[str, str | None, Path, list[Path]]:
    """Download the files with these endings from `hf://datasets/...` or `hf://buckets/...`.

    The address is that of a file, a folder or a glob. Returns the name of the repository, its commit
    (None for a bucket), the local folder and the files in it. Raises SourceError.
    """
    path = address.removeprefix("hf://").rstrip("/")
    if not re.match(r"(datasets|buckets)/[^/]+/[^/]+", path):
        raise SourceError(
            f"`{address}` is not a source; use hf://datasets/ns/name[@rev]/path or hf://buckets/ns/name/path."
        )
    hub_files = HfFileSystem(use_listings_cache=False)
    with translate_errors(address):
        try:
            resolved: Any = hub_files.resolve_path(path)
            matches = hub_files.glob(path) if has_magic(path) else [path]
            listed = [name for match in matches for name in hub_files.find(match)]
        except (FileNotFoundError, NotImplementedError) as error:
            if isinstance(error, HTTPError):
                raise
            listed = []
        names = sorted(hub_files.resolve_path(one).path for one in listed if one.endswith(endings))
        if not names:
            raise SourceError(f"`{address}` has no file that ends with {', '.join(endings)}; check the address.")
        if path.startswith("buckets/"):
            name, revision = str(resolved.bucket_id), None
            root = Path(HF_HUB_CACHE) / "pimono-sdpo" / name
            targets: list[Any] = [(one, root / one) for one in names]
            HfApi().download_bucket_files(name, targets, raise_on_missing_files=True)
        else:
            name = str(resolved.repo_id)
            revision = HfApi().dataset_info(name, revision=resolved.revision).sha
            root = Path(snapshot_download(name, repo_type="dataset", revision=revision, allow_patterns=names))
    return name, revision, root, [root / one for one in names]


def fetch_repository(repo_id: str, patterns: Sequence[str]) -> Path:
    """Download the files of a dataset, or of a model if there is no such dataset; raises SourceError."""
    with translate_errors(repo_id):
        is_dataset = HfApi().repo_exists(repo_id, repo_type="dataset")
        kind = "dataset" if is_dataset else "model"
        return Path(snapshot_download(repo_id, repo_type=kind, allow_patterns=list(patterns)))


@contextmanager
def translate_errors(repo_id: str) -> Iterator[None]:
    """Translate the Hub's errors into a SourceError that says what to do."""
    try:
        yield
    except (pa.ArrowInvalid, HTTPError, OSError) as error:
        status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
        if isinstance(error, GatedRepoError):
            problem = "is gated: accept its terms on the Hub and set HF_TOKEN"
        elif isinstance(error, RepositoryNotFoundError) and not (status == 401 and get_token()):
            problem = (
                "is neither a local path nor a dataset this account can see on the Hub; check the "
                "name, or set HF_TOKEN if it is private"
            )
        elif isinstance(error, pa.ArrowInvalid):
            problem = (
                f"is damaged ({str(error).splitlines()[0]}); wait for the dataset viewer to build "
                "its export again, or download the raw files"
            )
        else:
            problem = f"is not a local path, and cannot be read: {explain_error(error)}"
        raise SourceError(f"`{repo_id}` {problem}.") from error

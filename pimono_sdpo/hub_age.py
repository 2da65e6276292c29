"""How far the viewer's export of a Hub dataset is behind the dataset itself."""

from dataclasses import asdict, dataclass
from typing import Any

from huggingface_hub import GitCommitInfo, GitRefs, HfApi

Json = dict[str, Any]


@dataclass(frozen=True)
class Upstream:
    """The dataset behind an export: its newest commit, and what came after the export was made.

    The Hub does not tell which commit an export was made from, so commits are told apart by their
    times: those that came while it was being made count as exported. None where it tells nothing.
    """

    commit: str
    commits_behind: int | None
    days_behind: int | None


def upstream_of(api: HfApi, repo_id: str, refs: GitRefs, export: str) -> Json | None:
    """Return commit, commits_behind and days_behind; None for a dataset without a main branch."""
    heads = [ref.target_commit for ref in refs.branches if ref.name == "main"]
    if not heads:
        return None
    made = api.list_repo_commits(repo_id, repo_type="dataset", revision=export)
    since = api.list_repo_commits(repo_id, repo_type="dataset", revision=heads[0])
    return asdict(behind(heads[0], made, since))


def behind(head: str, export: list[GitCommitInfo], source: list[GitCommitInfo]) -> Upstream:
    """Compare two histories, newest first."""
    if not export or not source:
        return Upstream(head, None, None)
    newer = [commit for commit in source if commit.created_at > export[0].created_at]
    days = (newer[0].created_at - export[0].created_at).days if newer else 0
    return Upstream(head, len(newer), days)

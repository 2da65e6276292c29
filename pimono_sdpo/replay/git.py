"""What a git or gh command changes in the work tree: nothing, files it names, or anything."""

import re
from collections.abc import Sequence

_CHANGES = frozenset(
    """checkout switch restore reset stash pull merge rebase cherry-pick revert apply am
    clean worktree mv rm submodule sparse-checkout bisect lfs filter-branch read-tree
    checkout-index update-ref""".split()
)
_TAKE_VALUE = frozenset({"-C", "-c", "--git-dir", "--work-tree"})
_NOTHING_NEW = re.compile(r"\s*(?:Already up to date\.|Already on '[^'\n]*')\s*")


def changed_by_git(arguments: Sequence[str], output: str, is_alone: bool) -> set[str] | None:
    """Return the files it may have changed, None for any.

    `output` tells only where the command stands alone.

    >>> changed_by_git(("checkout", "--", "a.ts"), "", True), changed_by_git(("stash",), "", True)
    ({'a.ts'}, None)
    """
    words = _without_options(arguments)
    if not words or words[0] not in _CHANGES:
        return set()
    subcommand, rest = words[0], list(words[1:])
    named = {word for word in rest if not word.startswith("-")}
    if is_alone and _NOTHING_NEW.fullmatch(output):
        return set()
    if subcommand == "reset":
        return None if {"--hard", "--merge", "--keep"} & set(rest) else set()
    if subcommand == "restore":
        staged_only = {"--staged", "-S"} & set(rest) and not {"--worktree", "-W"} & set(rest)
        return set() if staged_only else named or None
    if subcommand in {"checkout", "switch"}:
        if rest[:1] in (["-b"], ["-c"], ["--create"]) and len(rest) == 2:
            return set()
        return set(rest[rest.index("--") + 1 :]) if "--" in rest else None
    if subcommand in {"rm", "mv"}:
        return set() if "--cached" in rest else named
    if subcommand in {"stash", "worktree", "bisect"} and rest[:1] in (["list"], ["show"], ["log"]):
        return set()
    return None


def changed_by_gh(arguments: Sequence[str]) -> set[str] | None:
    """Return what GitHub's client may have changed: branches it checks out."""
    return None if {"checkout", "merge", "sync", "clone", "develop"} & set(arguments[:3]) else set()


def _without_options(arguments: Sequence[str]) -> Sequence[str]:
    at = 0
    while at < len(arguments) and arguments[at].startswith("-"):
        at += 2 if arguments[at] in _TAKE_VALUE else 1
    return arguments[at:]

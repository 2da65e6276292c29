"""Repositories as the Hub keeps them: refs point at commits, a commit is a path -> blob dict.

Everything is in memory and deterministic: the same commits in the same order have the same shas
and dates.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatch
from hashlib import sha1, sha256
from pathlib import PurePosixPath
from threading import Lock
from typing import TYPE_CHECKING, Literal

from tests.loopback_hub.xet import Xet

if TYPE_CHECKING:
    from tests.loopback_hub.executor import Job
    from tests.loopback_hub.spaces import Space

RepoType = Literal["model", "dataset", "space"]
Tree = dict[str, "Blob"]

DAY_ONE = datetime(2026, 1, 1, tzinfo=UTC)
LFS_OVER_BYTES = 10 * 1024 * 1024
LFS_PART_BYTES = 5 * 1000**3
LFS_PATTERNS = (
    "*.7z *.arrow *.bin *.bz2 *.ckpt *.gguf *.gz *.h5 *.joblib *.msgpack *.npy *.npz *.onnx"
    " *.parquet *.pickle *.pkl *.pt *.pth *.safetensors *.tar *.tar.* *.tgz *.wasm *.xz *.zip *.zst"
).split()
GITATTRIBUTES = "".join(f"{p} filter=lfs diff=lfs merge=lfs -text\n" for p in LFS_PATTERNS).encode()


class StaleParent(Exception):
    """The ref moved since the commit that was to be built upon."""


@dataclass(frozen=True)
class Blob:
    """The bytes of a file; `oid` is what git would call it (the pointer's, for LFS)."""

    data: bytes
    lfs: bool
    sha256: str
    oid: str
    pointer_size: int


@dataclass(frozen=True)
class Commit:
    sha: str
    parent: str | None
    title: str
    description: str
    date: str
    tree: Tree


def blob(data: bytes, *, lfs: bool) -> Blob:
    digest = sha256(data).hexdigest()
    pointer = (f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(data)}\n").encode()
    return Blob(data, lfs, digest, git_oid(pointer if lfs else data), len(pointer))


def git_oid(data: bytes) -> str:
    return sha1(b"blob %d\0" % len(data) + data).hexdigest()


def goes_to_lfs(path: str, sample: bytes, size: int) -> bool:
    """Whether the Hub keeps a file as LFS: by name, by size, or because it is not text."""
    name = PurePosixPath(path).name
    return size > LFS_OVER_BYTES or b"\0" in sample or any(fnmatch(name, p) for p in LFS_PATTERNS)


def blob_for(path: str, data: bytes) -> Blob:
    return blob(data, lfs=goes_to_lfs(path, data[:512], len(data)))


def under(tree: Tree, folder: str) -> Tree:
    """The part of a tree at or below `folder` ("" is all of it)."""
    if not folder:
        return tree
    return {p: b for p, b in tree.items() if p == folder or p.startswith(f"{folder}/")}


def tree_oid(tree: Tree) -> str:
    lines = "".join(f"{path}\0{tree[path].oid}\n" for path in sorted(tree))
    return sha1(b"tree\0" + lines.encode()).hexdigest()


def full_ref(revision: str) -> str:
    return revision if revision.startswith("refs/") else f"refs/heads/{revision}"


@dataclass
class Repo:
    repo_type: RepoType
    repo_id: str
    private: bool = False
    gated: bool = False
    granted: set[str] = field(default_factory=set)
    """Accounts that were let into a gated repository."""
    commits: dict[str, Commit] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    days: int = 0
    """How many days later the next commits are made."""
    lock: Lock = field(default_factory=Lock)

    @property
    def namespace(self) -> str:
        return self.repo_id.split("/")[0]

    @property
    def path(self) -> str:
        """Where the repository is found under the endpoint, without a leading slash."""
        prefix = "" if self.repo_type == "model" else f"{self.repo_type}s/"
        return prefix + self.repo_id

    def resolve(self, revision: str) -> Commit | None:
        """The commit that a branch, a full ref or a sha stands for."""
        return self.commits.get(self.refs.get(full_ref(revision), revision))

    def commit(
        self,
        ref: str,
        changes: Mapping[str, Blob | None],
        title: str,
        *,
        description: str = "",
        parent: str | None = None,
    ) -> Commit:
        """Put `changes` (None deletes) on a ref; a new ref starts from the root commit.

        Raises StaleParent when `parent` is named and is not where the ref points.
        """
        with self.lock:
            base = self.resolve(ref) or self.root()
            if parent is not None and (base is None or base.sha != parent):
                raise StaleParent(ref)
            tree = dict(base.tree) if base else {}
            for path, content in changes.items():
                if content is None:
                    tree.pop(path, None)
                else:
                    tree[path] = content
            made = self._make(base, tree, title, description)
            self.refs[ref] = made.sha
            return made

    def _make(self, base: Commit | None, tree: Tree, title: str, description: str) -> Commit:
        later = timedelta(days=self.days, seconds=len(self.commits))
        date = (DAY_ONE + later).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        parent = base.sha if base else None
        text = "\0".join([self.path, str(parent), tree_oid(tree), title, description, date])
        made = Commit(sha1(text.encode()).hexdigest(), parent, title, description, date, tree)
        self.commits[made.sha] = made
        return made

    def root(self) -> Commit | None:
        return next(iter(self.commits.values()), None)

    def history(self, start: Commit) -> Iterator[Commit]:
        """`start` and its ancestors, newest first."""
        commit: Commit | None = start
        while commit is not None:
            yield commit
            commit = self.commits[commit.parent] if commit.parent else None


@dataclass(frozen=True)
class BucketFile:
    data: bytes
    xet_hash: str
    mtime: int = 0
    """Milliseconds since 1970, as the client that wrote it says."""

    def entry(self, path: str) -> dict[str, object]:
        written = datetime.fromtimestamp(self.mtime / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "type": "file",
            "path": path,
            "size": len(self.data),
            "xetHash": self.xet_hash,
            "mtime": written,
            "uploadedAt": written,
        }


@dataclass
class Bucket:
    bucket_id: str
    private: bool = False
    files: dict[str, BucketFile] = field(default_factory=dict)

    @property
    def namespace(self) -> str:
        return self.bucket_id.split("/")[0]


@dataclass(frozen=True)
class Account:
    """Who a token stands for, and its role: `read`, `write`, `fineGrained`, or `expired`.

    A fine-grained token has permissions on entities: namespaces, or single repositories.
    """

    name: str
    role: str
    orgs: tuple[str, ...] = ()
    scopes: tuple[tuple[str, str], ...] = ()

    @property
    def namespaces(self) -> tuple[str, ...]:
        return (self.name, *self.orgs)


@dataclass
class Store:
    repos: dict[tuple[RepoType, str], Repo] = field(default_factory=dict)
    part_bytes: int = LFS_PART_BYTES
    """The most that one PUT may bring; larger objects come in parts of this size."""
    parts: dict[tuple[str, int], bytes] = field(default_factory=dict)
    """What has arrived of such objects, by sha256 and number."""
    lfs: dict[str, bytes] = field(default_factory=dict)
    """Uploaded objects by sha256; a commit refers to them."""
    role: str = "write"
    """What the token may do: `read` or `write`."""
    accounts: dict[str, Account] = field(default_factory=dict)
    """Accounts by token."""
    xet: Xet = field(default_factory=Xet)
    buckets: dict[str, Bucket] = field(default_factory=dict)
    jobs: dict[str, "Job"] = field(default_factory=dict)
    spaces: dict[str, "Space"] = field(default_factory=dict)
    credit: bool = True
    """Whether the accounts can pay for jobs."""
    quota: int | None = None
    """How many bytes of large files the private repositories may hold together."""
    image: dict[str, str] = field(default_factory=dict)
    """The environment that the image of every job brings along."""

    def private_bytes(self) -> int:
        """The bytes of large files in private repositories, each file counted once."""
        kept = {
            content.sha256: len(content.data)
            for repo in self.repos.values()
            if repo.private and (head := repo.resolve("main")) is not None
            for content in head.tree.values()
            if content.lfs
        }
        return sum(kept.values())

    def large(self, sha256: str) -> bytes | None:
        """An uploaded object, by whichever way it came; None when it never did."""
        return self.lfs[sha256] if sha256 in self.lfs else self.xet.read_sha256(sha256)

    def close(self) -> None:
        """End what still runs and remove what is on disk."""
        for job in self.jobs.values():
            job.kill("CANCELED", None)
            job.ended.wait()
        for space in self.spaces.values():
            space.close()
        self.xet.close()

    def create(self, repo_type: RepoType, repo_id: str, *, private: bool = False) -> Repo:
        """A new repository with the commit the Hub itself makes, which holds .gitattributes."""
        repo = Repo(repo_type, repo_id, private=private)
        attributes = {".gitattributes": blob(GITATTRIBUTES, lfs=False)}
        repo.commit("refs/heads/main", attributes, "initial commit")
        self.repos[repo_type, repo_id] = repo
        return repo

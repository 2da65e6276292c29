"""One request to the Hub: who asks, what for, and what a refusal looks like."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tests.loopback_hub.storage import Account, Bucket, Commit, Repo, RepoType, Store

USER = "me"
ORG = "lab"
TOKEN = "hf_loopback"
READ_TOKEN = "hf_loopback_read"
OTHER_TOKEN = "hf_loopback_other"
EXPIRED_TOKEN = "hf_loopback_expired"
# As the Hub's form for inference and reading proposes it, plus writing to one organization.
FINE_TOKEN = "hf_loopback_fine"
ACCOUNTS = {
    TOKEN: Account(USER, "write", (ORG,)),
    READ_TOKEN: Account(USER, "read", (ORG,)),
    OTHER_TOKEN: Account("other", "write"),
    EXPIRED_TOKEN: Account(USER, "expired", (ORG,)),
    FINE_TOKEN: Account(USER, "fineGrained", (ORG,), ((USER, "repo.content.read"), (ORG, "repo.write"))),
}

# Paths are matched percent-encoded: decoded, refs%2Fconvert%2Fparquet and a folder look alike.
REPO = r"/api/(?P<type>model|dataset|space)s/(?P<id>[^/]+/[^/]+)"
REV = r"(?P<rev>refs/(?:convert|heads|pr)/[^/]+|[^/]+)"


class Refusal(Exception):
    """An answer that is an error; `code` is what the clients choose their exception by."""

    def __init__(self, status: int, message: str, code: str = "", **body: object) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.body = body

    def response(self) -> Response:
        headers = {"X-Error-Message": self.message}
        if self.code:
            headers["X-Error-Code"] = self.code
        return JSONResponse({"error": self.message, **self.body}, self.status, headers)


@dataclass(frozen=True)
class Call:
    """A request with its body read and the decoded parts of its path (`args`)."""

    store: Store
    request: Request
    body: bytes
    args: dict[str, str]
    account: Account | None

    @property
    def base(self) -> str:
        return f"http://{self.request.headers['host']}"

    def json(self) -> dict[str, object]:
        loaded = json.loads(self.body or b"{}")
        if not isinstance(loaded, dict):
            raise Refusal(400, "Expected a JSON object")
        return loaded

    def form(self) -> dict[str, list[str]]:
        return parse_qs(self.body.decode(), keep_blank_values=True)

    def owns(self, namespace: str) -> bool:
        return self.account is not None and namespace in self.account.namespaces

    def may_write(self, entity: str, permission: str = "repo.write") -> bool:
        """Whether the token may write to a namespace, or to the repository `ns/name`."""
        namespace = entity.split("/")[0]
        if not self.owns(namespace) or self.role != "fineGrained":
            return self.owns(namespace) and self.role == "write"
        assert self.account is not None
        return not {(entity, permission), (namespace, permission)}.isdisjoint(self.account.scopes)

    @property
    def role(self) -> str:
        """What the token may do; the Hub's own `role` holds for the token of the tests."""
        assert self.account is not None
        return "read" if self.store.role == "read" else self.account.role

    def repo(self, *, write: bool = False) -> Repo:
        """The repository that the path names; without a type it is a model."""
        return self.find(repo_type(self.args.get("type")), self.args["id"], write=write)

    def find(self, kind: RepoType, repo_id: str, *, write: bool) -> Repo:
        """A repository; one the caller may not see looks like a missing one."""
        repo = self.store.repos.get((kind, repo_id))
        if repo is None or (repo.private and not self.owns(repo.namespace)):
            # The Hub says 401 to strangers; the clients' rule for a bare 401 wants an https URL.
            raise Refusal(404 if self.account else 401, "Repository not found", "RepoNotFound")
        if write and not self.may_write(repo.repo_id):
            raise Refusal(403 if self.account else 401, f"You cannot write to {repo.repo_id}")
        return repo

    def enter(self, repo: Repo) -> None:
        """Refuse the files of a gated repository to whom it was not granted."""
        if not repo.gated or self.owns(repo.namespace):
            return
        if self.account is None:
            raise Refusal(401, f"Access to {repo.repo_id} is restricted", "GatedRepo")
        if self.account.name not in repo.granted:
            message = f"Access to {repo.repo_id} is restricted and you are not in the list"
            raise Refusal(403, message, "GatedRepo")

    def bucket(self, *, write: bool = False) -> Bucket:
        """The bucket that the path names; one the caller may not see looks like a missing one."""
        bucket = self.store.buckets.get(self.args["id"])
        if bucket is None or (bucket.private and not self.owns(bucket.namespace)):
            raise Refusal(404 if self.account else 401, "Bucket not found", "RepoNotFound")
        if write and not self.may_write(bucket.namespace):
            raise Refusal(403 if self.account else 401, f"You cannot write to {self.args['id']}")
        return bucket

    def commit(self, repo: Repo) -> Commit:
        commit = repo.resolve(self.args.get("rev", "main"))
        if commit is None:
            raise Refusal(404, f"Invalid rev id: {self.args.get('rev')}", "RevisionNotFound")
        return commit


def account_of(request: Request, accounts: dict[str, Account]) -> Account | None:
    """Whose token came along, None without one; a wrong one is refused, even for what is public."""
    given = request.headers.get("authorization")
    if given is None:
        return None
    account = accounts.get(given.removeprefix("Bearer "))
    if account is None:
        raise Refusal(401, "Invalid credentials in Authorization header")
    if account.role == "expired":
        raise Refusal(401, "User Access Token is expired")
    return account


Route = tuple[str, re.Pattern[str], Callable[[Call], Response]]


def route(method: str, pattern: str, handler: Callable[[Call], Response]) -> Route:
    return method, re.compile(pattern), handler


def repo_type(name: object) -> RepoType:
    match name:
        case "model" | None:
            return "model"
        case "dataset":
            return "dataset"
        case "space":
            return "space"
    raise Refusal(400, f"Unknown repository type {name}")


def missing_entry(path: str) -> Refusal:
    return Refusal(404, f"A file with this name doesn't exist: {path}", "EntryNotFound")

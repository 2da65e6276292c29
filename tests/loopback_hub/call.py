"""One request to the Hub: who asks, what for, and what a refusal looks like."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tests.loopback_hub.storage import Commit, Repo, RepoType, Store

USER = "me"
ORG = "lab"
TOKEN = "hf_loopback"

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
    signed_in: bool

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
        return self.signed_in and namespace in (USER, ORG)

    def may_write(self, namespace: str) -> bool:
        return self.owns(namespace) and self.store.role == "write"

    def repo(self, *, write: bool = False) -> Repo:
        """The repository that the path names; without a type it is a model."""
        return self.find(repo_type(self.args.get("type")), self.args["id"], write=write)

    def find(self, kind: RepoType, repo_id: str, *, write: bool) -> Repo:
        """A repository; one the caller may not see looks like a missing one."""
        repo = self.store.repos.get((kind, repo_id))
        if repo is None or (repo.private and not self.owns(repo.namespace)):
            # The Hub says 401 to strangers; the clients' rule for a bare 401 wants an https URL.
            raise Refusal(404 if self.signed_in else 401, "Repository not found", "RepoNotFound")
        if write and not self.may_write(repo.namespace):
            raise Refusal(403 if self.signed_in else 401, f"You cannot write to {repo.repo_id}")
        return repo

    def commit(self, repo: Repo) -> Commit:
        commit = repo.resolve(self.args.get("rev", "main"))
        if commit is None:
            raise Refusal(404, f"Invalid rev id: {self.args.get('rev')}", "RevisionNotFound")
        return commit


def check_token(request: Request) -> bool:
    """Whether a token came along; a wrong one is refused, even for what is public."""
    given = request.headers.get("authorization")
    if given not in (None, f"Bearer {TOKEN}"):
        raise Refusal(401, "Invalid credentials in Authorization header")
    return given is not None


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

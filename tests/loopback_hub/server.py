"""The running Hub: a route table over raw paths, served from a thread on a free local port."""

import asyncio
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from threading import Thread
from urllib.parse import unquote

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from tests.loopback_hub import buckets, commits, files, jobs, objects, repos, spaces, tokens
from tests.loopback_hub.call import ACCOUNTS, ORG, TOKEN, USER, Call, Refusal, account_of
from tests.loopback_hub.faults import Fault, cut
from tests.loopback_hub.forked import Forked
from tests.loopback_hub.storage import Bucket, BucketFile, Repo, RepoType, Store, blob_for, full_ref

__all__ = ["ORG", "TOKEN", "USER", "LoopbackHub", "Seen", "loopback"]

ROUTES = [*repos.ROUTES, *files.ROUTES, *commits.ROUTES, *tokens.ROUTES, *buckets.ROUTES, *jobs.ROUTES, *spaces.ROUTES]
METHODS = ["GET", "POST", "PUT", "DELETE"]


@dataclass
class Seen:
    """A request that arrived: `path` is still percent-encoded, `status` is what was answered."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    status: int = 0


@dataclass
class LoopbackHub:
    """A Hub with two namespaces the token may write to: the user `me` and the org `lab`."""

    url: str
    store: Store = field(default_factory=lambda: Store(accounts=dict(ACCOUNTS)))
    requests: list[Seen] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    problems: list[Exception] = field(default_factory=list)
    """Faults of this server itself; the fixture raises them."""
    edge: spaces.Edge | None = None
    """Where the apps of Spaces answer, if they are to."""
    forks: Callable[[tuple[str, ...], bool], Forked] | None = None
    """Gives the process that has imported some modules and forks clients of this address."""

    def seed(
        self,
        repo_id: str,
        repo_type: RepoType,
        files: Mapping[str, bytes],
        revision: str = "main",
        private: bool = False,
        gated: bool = False,
    ) -> str:
        """Commit `files` on a ref, on top of what it holds; returns the sha.

        A missing repository is created (`private` and `gated` are of that moment), a missing ref
        starts from its first commit.
        """
        repo = self.store.repos.get((repo_type, repo_id))
        if repo is None:
            repo = self.store.create(repo_type, repo_id, private=private)
            repo.gated = gated
        changes = {path: blob_for(path, data) for path, data in files.items()}
        return repo.commit(full_ref(revision), changes, "seed").sha

    def add_bucket(self, bucket_id: str, files: Mapping[str, bytes], private: bool = True) -> None:
        """Make a bucket that holds `files`."""
        kept = {path: BucketFile(data, self.store.xet.write(data)) for path, data in files.items()}
        self.store.buckets[bucket_id] = Bucket(bucket_id, private, kept)

    def repo(self, repo_id: str, repo_type: RepoType = "model") -> Repo:
        return self.store.repos[repo_type, repo_id]

    def files(self, repo_id: str, repo_type: RepoType = "model", revision: str = "main") -> dict[str, bytes]:
        """Every file at a revision, .gitattributes included."""
        commit = self.repo(repo_id, repo_type).resolve(revision)
        assert commit is not None, f"{repo_id} has no revision {revision}"
        return {path: content.data for path, content in sorted(commit.tree.items())}

    def fail_next(
        self,
        path_part: str,
        status: int,
        times: int = 1,
        method: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Answer the next requests whose percent-encoded path holds `path_part` with `status`."""
        given = dict(headers or {})
        self.faults += [Fault(path_part, method, status=status, headers=given) for _ in range(times)]

    def drop_next(self, path_part: str, after: int = 0, times: int = 1, method: str | None = None) -> None:
        """Close the connection of the next such answers after so many bytes of their body."""
        self.faults += [Fault(path_part, method, cut_after=after) for _ in range(times)]

    def slow_next(self, path_part: str, seconds: float, times: int = 1) -> None:
        """Let the next such requests wait for their answer."""
        self.faults += [Fault(path_part, seconds=seconds) for _ in range(times)]

    def env(self, home: Path, token: str | None = TOKEN, xet: bool = False) -> dict[str, str]:
        """The environment of a client: this Hub, a cache of its own under `home`, no proxies.

        Large files go the way of LFS unless `xet`; buckets know no other way.
        """
        drop = ("HF_", "HUGGING", "TRANSFORMERS_", "TRACKIO_")
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(drop) and not key.lower().endswith("_proxy")
        }
        switches = ["TELEMETRY", "UPDATE_CHECK", "PROGRESS_BARS", "EXPERIMENTAL_WARNING"]
        switches += [] if xet else ["XET"]
        kept |= {f"HF_HUB_DISABLE_{switch}": "1" for switch in switches}
        kept |= self.edge.env() if self.edge is not None else {}
        kept |= {"HF_ENDPOINT": self.url, "HF_HOME": str(home / "hf_home")}
        return kept if token is None else kept | {"HF_TOKEN": token}

    async def handle(self, request: Request) -> Response:
        raw = request.scope["raw_path"].decode()
        query, headers = request.url.query, dict(request.headers)
        seen = Seen(request.method, raw, query, headers, await request.body())
        self.requests.append(seen)
        fault = next((f for f in self.faults if f.fits(request.method, raw)), Fault(""))
        if fault in self.faults:
            self.faults.remove(fault)
        await asyncio.sleep(fault.seconds)
        try:
            if fault.status is not None:
                # Clients that accept a 409 read the address.
                raise Refusal(fault.status, "Injected fault", url=f"{self.url}/an/address")
            # In a thread: reading what was uploaded may ask this server for a token.
            response = await run_in_threadpool(self.answer, request, seen)
        except Refusal as refusal:
            response = refusal.response()
            response.headers.update(fault.headers)
        except Exception as problem:
            self.problems.append(problem)
            raise
        seen.status = response.status_code
        response.headers["date"] = formatdate(usegmt=True)
        # Of every answer; only the one of a 429 asks the client to wait.
        response.headers.setdefault("RateLimit", '"api";r=999;t=300')
        return response if fault.cut_after is None else cut(response, fault.cut_after)

    def answer(self, request: Request, seen: Seen) -> Response:
        at_storage = request.url.hostname == objects.HOST
        for method, pattern, handler in objects.ROUTES if at_storage else ROUTES:
            match = pattern.fullmatch(seen.path)
            if match and method == seen.method:
                found = match.groupdict()
                args = {key: unquote(value) for key, value in found.items() if value is not None}
                account = account_of(request, self.store.accounts)
                return handler(Call(self.store, request, seen.body, args, account))
        raise Refusal(404, "Sorry, we can't find the page you are looking for.")


def address(listening: socket.socket) -> str:
    return f"http://127.0.0.1:{listening.getsockname()[1]}"


@contextmanager
def loopback(listening: socket.socket | None = None) -> Iterator[LoopbackHub]:
    """A fresh, empty Hub for as long as the block runs, at a free port or a given one."""
    listening = listening or socket.create_server(("127.0.0.1", 0))
    hub = LoopbackHub(address(listening))
    app = Starlette(routes=[StarletteRoute("/{path:path}", hub.handle, methods=METHODS)])
    config = uvicorn.Config(app, lifespan="off", loop="asyncio", http="h11", ws="none", log_level="critical")
    # Uvicorn refreshes its Date once a second; `hf jobs logs` drops lines newer than that header.
    config.date_header = False
    config.timeout_graceful_shutdown = 1
    server = uvicorn.Server(config)
    thread = Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
        hub.store.close()
    if hub.problems:
        raise hub.problems[0]

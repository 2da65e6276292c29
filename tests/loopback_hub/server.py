"""The running Hub: a route table over raw paths, served from a thread on a free local port."""

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from urllib.parse import unquote

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from tests.loopback_hub import commits, files, repos
from tests.loopback_hub.call import ORG, TOKEN, USER, Call, Refusal, check_token
from tests.loopback_hub.storage import Repo, RepoType, Store, blob_for, full_ref

__all__ = ["ORG", "TOKEN", "USER", "LoopbackHub", "Seen", "loopback"]

ROUTES = [*repos.ROUTES, *files.ROUTES, *commits.ROUTES]
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
    store: Store = field(default_factory=Store)
    requests: list[Seen] = field(default_factory=list)
    faults: list[tuple[str, int]] = field(default_factory=list)

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

    def repo(self, repo_id: str, repo_type: RepoType = "model") -> Repo:
        return self.store.repos[repo_type, repo_id]

    def files(
        self, repo_id: str, repo_type: RepoType = "model", revision: str = "main"
    ) -> dict[str, bytes]:
        """Every file at a revision, .gitattributes included."""
        commit = self.repo(repo_id, repo_type).resolve(revision)
        assert commit is not None, f"{repo_id} has no revision {revision}"
        return {path: content.data for path, content in sorted(commit.tree.items())}

    def fail_next(self, path_part: str, status: int, times: int = 1) -> None:
        """Answer the next requests whose percent-encoded path holds `path_part` with `status`."""
        self.faults += [(path_part, status)] * times

    def env(self, home: Path, token: str | None = TOKEN) -> dict[str, str]:
        """The environment of a client: this Hub, a cache of its own under `home`, no proxies."""
        drop = ("HF_", "HUGGING", "TRANSFORMERS_", "TRACKIO_")
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(drop) and not key.lower().endswith("_proxy")
        }
        switches = ("XET", "TELEMETRY", "UPDATE_CHECK", "PROGRESS_BARS", "EXPERIMENTAL_WARNING")
        kept |= {f"HF_HUB_DISABLE_{switch}": "1" for switch in switches}
        kept |= {"HF_ENDPOINT": self.url, "HF_HOME": str(home / "hf_home")}
        return kept if token is None else kept | {"HF_TOKEN": token}

    async def handle(self, request: Request) -> Response:
        raw = request.scope["raw_path"].decode()
        query, headers = request.url.query, dict(request.headers)
        seen = Seen(request.method, raw, query, headers, await request.body())
        self.requests.append(seen)
        try:
            response = self.answer(request, seen)
        except Refusal as refusal:
            response = refusal.response()
        seen.status = response.status_code
        return response

    def answer(self, request: Request, seen: Seen) -> Response:
        for fault in self.faults:
            if fault[0] in seen.path:
                self.faults.remove(fault)
                # Clients that accept a 409 read the address.
                raise Refusal(fault[1], "Injected fault", url=f"{self.url}/an/address")
        for method, pattern, handler in ROUTES:
            match = pattern.fullmatch(seen.path)
            if match and method == seen.method:
                found = match.groupdict()
                args = {key: unquote(value) for key, value in found.items() if value is not None}
                signed_in = check_token(request)
                return handler(Call(self.store, request, seen.body, args, signed_in))
        raise Refusal(404, "Sorry, we can't find the page you are looking for.")


@contextmanager
def loopback() -> Iterator[LoopbackHub]:
    """A fresh, empty Hub for as long as the block runs."""
    listening = socket.create_server(("127.0.0.1", 0))
    hub = LoopbackHub(f"http://127.0.0.1:{listening.getsockname()[1]}")
    app = Starlette(routes=[StarletteRoute("/{path:path}", hub.handle, methods=METHODS)])
    config = uvicorn.Config(
        app, lifespan="off", loop="asyncio", http="h11", ws="none", log_level="warning"
    )
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

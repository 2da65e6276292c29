"""Routes for Spaces, the processes of their apps, and the address at which an app is reached.

An app is what the Space's repository holds: `python app.py`. Its address is that of the real Hub,
`https://ns-name.hf.space`; clients find it through HTTPS_PROXY and trust its certificate by
SSL_CERT_FILE, see `Edge.env`.
"""

import asyncio
import os
import re
import socket
import ssl
import subprocess
import sys
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock, Thread
from typing import Any

from starlette.responses import JSONResponse, Response

from tests.loopback_hub.call import Call, Refusal, route
from tests.loopback_hub.storage import Repo, Store

DOMAIN = ".hf.space"
HEAD = re.compile(rb"(?i)\r\nauthorization: Bearer (\S+)")
SECONDS = 60


@dataclass
class Space:
    """A Space beside its repository; a stage is as the Hub names it."""

    repo: Repo
    endpoint: str
    stage: str = "BUILDING"
    variables: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    volumes: list[dict[str, Any]] = field(default_factory=list)
    port: int = 0
    process: subprocess.Popen[bytes] | None = None
    disk: "TemporaryDirectory[str]" = field(default_factory=TemporaryDirectory)
    lock: Lock = field(default_factory=Lock)

    @property
    def subdomain(self) -> str:
        return re.sub(r"[_./]", "-", self.repo.repo_id.lower())

    def runtime(self) -> dict[str, object]:
        hardware = {"current": "cpu-basic", "requested": "cpu-basic"}
        return {"stage": self.stage, "hardware": hardware, "volumes": self.volumes}

    def stop(self, stage: str) -> None:
        """End the app; its disk stays, as a bucket that is mounted would."""
        with self.lock:
            self.stage = stage
            if self.process is not None:
                self.process.kill()
                self.process.wait()
                self.process = None

    def close(self) -> None:
        self.stop("STOPPED")
        self.disk.cleanup()

    def mount(self, bucket_id: str, path: str, data: bytes) -> None:
        """Show a file of a bucket to the app."""
        for volume in self.volumes:
            if volume["type"] == "bucket" and volume["source"] == bucket_id:
                file = Path(f"{self.disk.name}{volume['mountPath']}/{path}")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)

    def wake(self) -> None:
        """Start the app of a Space that is built or sleeps; it runs once it answers."""
        with self.lock:
            if self.process is not None or self.stage not in ("BUILDING", "SLEEPING"):
                return
            commit = self.repo.resolve("main")
            assert commit is not None
            if "app.py" not in commit.tree:
                self.stage = "NO_APP_FILE"
                return
            folder = Path(self.disk.name)
            for path, content in commit.tree.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(content.data)
            with socket.create_server(("127.0.0.1", 0)) as free:
                self.port = free.getsockname()[1]
            namespace, name = self.repo.repo_id.split("/")
            given = {**self.variables, **self.secrets}
            mounts = [one["mountPath"] for one in self.volumes]
            environment = {
                "PATH": os.environ["PATH"],
                "HOME": self.disk.name,
                "HF_ENDPOINT": self.endpoint,
                "HF_HUB_DISABLE_TELEMETRY": "1",
                "GRADIO_SERVER_PORT": str(self.port),
                "SYSTEM": "spaces",
                "SPACE_ID": self.repo.repo_id,
                "SPACE_AUTHOR_NAME": namespace,
                "SPACE_REPO_NAME": name,
                # A mount is a folder of the disk.
                **{
                    key: self.disk.name + value if value.startswith((*mounts,)) else value
                    for key, value in given.items()
                },
            }
            self.stage = "APP_STARTING"
            with (folder / "log").open("wb") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "app.py"], cwd=folder, env=environment, stdout=log, stderr=log
                )
            Thread(target=self._watch, args=(self.process,), daemon=True).start()

    def _watch(self, process: "subprocess.Popen[bytes]") -> None:
        for _ in range(10 * SECONDS):
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.port}/version"):
                break
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
                break
        with self.lock:
            if self.process is process:
                self.stage = "RUNNING" if process.poll() is None else "RUNTIME_ERROR"


def space_of(call: Call, repo: Repo) -> Space:
    if repo.repo_id not in call.store.spaces:
        call.store.spaces[repo.repo_id] = Space(repo, call.base)
    return call.store.spaces[repo.repo_id]


def find(call: Call, *, write: bool = False) -> Space:
    return space_of(call, call.find("space", call.args["id"], write=write))


def runtime(call: Call) -> Response:
    return JSONResponse(find(call).runtime())


def auth_check(call: Call) -> Response:
    call.find("space", call.args["id"], write="write" in call.args["how"])
    return Response(status_code=200)


def variables(call: Call) -> Response:
    known = find(call, write=True).variables
    return JSONResponse({key: {"key": key, "value": value} for key, value in known.items()})


def add(call: Call) -> Response:
    """Set a variable or a secret, for which an app that runs is started again."""
    space, wanted = find(call, write=True), call.json()
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(wanted["key"])):
        raise Refusal(400, f"Invalid key: {wanted['key']}")
    getattr(space, call.args["kind"])[str(wanted["key"])] = str(wanted["value"])
    space.stop("BUILDING")
    return variables(call)


def set_volumes(call: Call) -> Response:
    space, wanted = find(call, write=True), json_list(call, "volumes")
    for volume in wanted:
        if volume["type"] == "bucket" and volume["source"] not in call.store.buckets:
            raise Refusal(400, f"Volume source not found: {volume['source']}")
    space.volumes = wanted
    space.stop("BUILDING")
    return JSONResponse(space.runtime())


def json_list(call: Call, key: str) -> list[dict[str, Any]]:
    given = call.json()[key]
    assert isinstance(given, list)
    return given


def pause(call: Call) -> Response:
    space = find(call, write=True)
    space.stop("PAUSED")
    return JSONResponse(space.runtime())


class Edge:
    """What answers at https://ns-name.hf.space for the apps of a store, and the proxy to it."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store = store
        self.certificate, key = folder / "edge.pem", folder / "edge.key"
        names = ["-subj", "/CN=loopback", "-addext", f"subjectAltName=DNS:*{DOMAIN}"]
        files = ["-keyout", str(key), "-out", str(self.certificate)]
        subprocess.run(
            [*"openssl req -x509 -newkey rsa:2048 -nodes -days 2".split(), *names, *files],
            check=True,
            capture_output=True,
        )
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.load_cert_chain(self.certificate, key)
        self.loop = asyncio.new_event_loop()
        self.server = self.loop.run_until_complete(asyncio.start_server(self.meet, "127.0.0.1", 0))
        self.thread = Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def env(self) -> dict[str, str]:
        """What a client needs to reach the apps."""
        port = self.server.sockets[0].getsockname()[1]
        return {"HTTPS_PROXY": f"http://127.0.0.1:{port}", "SSL_CERT_FILE": str(self.certificate)}

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.server.close()

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Open a tunnel, and answer in it as the Hub does, or let the app answer."""
        with suppress(OSError, asyncio.IncompleteReadError):
            asked = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
            host = asked.partition(":")[0]
            if not host.endswith(DOMAIN):
                writer.write(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
            else:
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
                await writer.start_tls(self.context)
                head = await reader.readuntil(b"\r\n\r\n")
                await self.answer(host.removesuffix(DOMAIN), head, reader, writer)
        writer.close()

    async def answer(self, name: str, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        space = next((s for s in self.store.spaces.values() if s.subdomain == name), None)
        token = HEAD.search(head)
        account = self.store.accounts.get(token[1].decode()) if token else None
        hidden = space is not None and space.repo.private
        if space is None or (hidden and (account is None or space.repo.namespace not in account.namespaces)):
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        elif space.stage != "RUNNING":
            space.wake()
            page = f"<html>Your space is {space.stage}</html>".encode()
            writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/html\r\n")
            writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(page), page))
        else:
            app_reader, app = await asyncio.open_connection("127.0.0.1", space.port)
            app.write(head)
            await asyncio.gather(pipe(reader, app), pipe(app_reader, writer))
            return
        await writer.drain()


async def pipe(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
        target.close()


SPACE = r"/api/spaces/(?P<id>[^/]+/[^/]+)"
ROUTES = [
    route("GET", rf"{SPACE}/runtime", runtime),
    route("GET", rf"{SPACE}/(?P<how>auth-check(?:/write)?)", auth_check),
    route("GET", rf"{SPACE}/variables", variables),
    route("POST", rf"{SPACE}/(?P<kind>variables|secrets)", add),
    route("PUT", rf"{SPACE}/volumes", set_volumes),
    route("POST", rf"{SPACE}/pause", pause),
]

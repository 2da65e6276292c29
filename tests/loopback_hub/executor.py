"""Runs a submitted job: its volumes as folders, its command as a process, its end as a stage.

Every job gets an empty disk. A mount such as /data is a folder on it, and the command and the
environment are told that folder in its place. What a job writes to a bucket it may write to is put
back when it ends.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Lock, Thread
from typing import Any

from tests.loopback_hub.storage import BucketFile, Store

DEFAULT_SECONDS = 30 * 60
# What the machine of a test has and a container has, too: certificates, caches, where wheels are.
KEYS = {
    *("command", "arguments", "environment", "secrets", "flavor", "timeoutSeconds", "labels"),
    *("volumes", "dockerImage", "spaceId", "attempts", "expose", "ssh", "network"),
    "resourceGroupId",
}
# A machine without a GPU has a PyTorch without CUDA: its libraries are left out.
CUDA = re.compile(r"(nvidia-|cuda-|triton==)")
LABEL = re.compile(r"[A-Za-z0-9_-]+")
PASSED_ON = ("SSL_CERT_FILE", "SSL_CERT_DIR", "UV_CACHE_DIR", "UV_FIND_LINKS", "UV_INDEX_URL")


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def check(store: Store, spec: dict[str, Any], flavors: list[str]) -> str | None:
    """What the Hub would refuse of a job, None when it takes it."""
    unknown = sorted(spec.keys() - KEYS)
    if unknown:
        return f"Unrecognized key: {unknown[0]}"
    if ("dockerImage" in spec) == ("spaceId" in spec):
        return "A job needs a docker image or a Space"
    if spec.get("flavor") not in flavors:
        return f"Invalid flavor {spec.get('flavor')}"
    if not spec.get("command"):
        return "A job needs a command"
    # The characters are those of the Hub's documentation (huggingface/hub-docs#2735).
    for text in chain.from_iterable((spec.get("labels") or {}).items()):
        if not LABEL.fullmatch(text):
            return f"Invalid label {text}: only letters, digits, - and _"
    for volume in spec.get("volumes", []):
        if volume["type"] == "bucket" and volume["source"] not in store.buckets:
            return f"Volume source not found: {volume['source']}"
    return None


@dataclass
class Job:
    """One job; `log` holds (time, line), `stage` is as the Hub names it."""

    job_id: str
    namespace: str
    spec: dict[str, Any]
    stage: str = "SCHEDULING"
    message: str | None = None
    log: list[tuple[str, str]] = field(default_factory=list)
    created: str = field(default_factory=now)
    started: str | None = None
    finished: str | None = None
    ended: Event = field(default_factory=Event)
    process: subprocess.Popen[str] | None = None
    lock: Lock = field(default_factory=Lock)

    def info(self) -> dict[str, object]:
        return {
            "id": self.job_id,
            "createdAt": self.created,
            "startedAt": self.started,
            "finishedAt": self.finished,
            "dockerImage": self.spec.get("dockerImage"),
            "command": self.spec["command"],
            "arguments": self.spec.get("arguments", []),
            "environment": self.spec.get("environment", {}),
            "secrets": dict.fromkeys(self.spec.get("secrets", {})),
            "flavor": self.spec["flavor"],
            "labels": self.spec.get("labels"),
            "volumes": self.spec.get("volumes"),
            "status": {"stage": self.stage, "message": self.message},
            "owner": {"id": self.namespace, "name": self.namespace, "type": "user"},
        }

    def start(self, store: Store, endpoint: str) -> None:
        Thread(target=self._run, args=(store, endpoint), daemon=True).start()

    def kill(self, stage: str, message: str | None) -> None:
        """End the job from outside, without a warning; one that has ended stays as it is."""
        with self.lock:
            if self.ended.is_set() or self.stage not in ("SCHEDULING", "RUNNING"):
                return
            self.stage, self.message = stage, message
            if self.process is not None:
                os.killpg(self.process.pid, signal.SIGKILL)

    def _run(self, store: Store, endpoint: str) -> None:
        with TemporaryDirectory(prefix="loopback-job-") as name:
            disk = Path(name)
            try:
                code = self._execute(store, endpoint, disk)
                put_back(store, self.spec, disk)
                with self.lock:
                    if self.stage == "RUNNING":
                        self.stage = "ERROR" if code else "COMPLETED"
                        self.message = f"Job failed with exit code: {code}" if code else None
            except Exception as problem:
                # Ours, not the job's: whoever waits for the job is told.
                self.stage, self.message = "ERROR", f"the executor failed: {problem!r}"
                raise
            finally:
                self.finished = now()
                self.ended.set()

    def _execute(self, store: Store, endpoint: str, disk: Path) -> int:
        places = materialise(store, self.spec, disk)
        home = disk / "home"
        home.mkdir()
        environment = container(self, store, endpoint, home) | {
            key: in_place(str(value), places) for key, value in self.spec.get("environment", {}).items()
        }
        command = [in_place(part, places) for part in without_cuda(self.spec["command"])]
        command += [in_place(part, places) for part in self.spec.get("arguments", [])]
        with self.lock:
            if self.stage != "SCHEDULING":
                return 1
            self.process = subprocess.Popen(
                command,
                cwd=home,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            self.stage, self.started = "RUNNING", now()
        self.log.append((now(), f"===== Job started at {self.started} ====="))
        limit = self.spec.get("timeoutSeconds", DEFAULT_SECONDS)
        watch = Thread(target=self._strike, args=(limit,), daemon=True)
        watch.start()
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.log.append((now(), line.rstrip("\n")))
        return self.process.wait()

    def _strike(self, seconds: float) -> None:
        if not self.ended.wait(seconds):
            self.kill("ERROR", "Job timeout")


def without_cuda(command: list[str]) -> list[str]:
    """A command of uv without the packages for GPUs.

    >>> without_cuda(["uv", "run", "--with", "triton==3", "--with", "trl==1", "train"])
    ['uv', 'run', '--with', 'trl==1', 'train']
    """
    gone = {n for n, word in enumerate(command) if CUDA.match(word) and command[n - 1] == "--with"}
    return [word for n, word in enumerate(command) if not {n, n + 1} & gone]


def container(job: Job, store: Store, endpoint: str, home: Path) -> dict[str, str]:
    """The environment of a fresh container: nothing of the machine but where its tools are."""
    return {
        **find_links(),
        **{name: os.environ[name] for name in PASSED_ON if name in os.environ},
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "HOME": str(home),
        "HF_HOME": str(home / "hf"),
        "HF_ENDPOINT": endpoint,
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "PYTHONUNBUFFERED": "1",
        "UV_NO_PROGRESS": "1",
        "JOB_ID": job.job_id,
        "ACCELERATOR": job.spec["flavor"],
        "CPU_CORES": "2",
        "MEMORY": "16Gi",
        **store.image,
        **{name: str(value) for name, value in job.spec.get("secrets", {}).items()},
    }


@cache
def find_links() -> dict[str, str]:
    """Where pip is told to look for wheels."""
    asked = [sys.executable, "-m", "pip", "config", "get", "global.find-links"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return {"UV_FIND_LINKS": found} if found else {}


def materialise(store: Store, spec: dict[str, Any], disk: Path) -> dict[str, Path]:
    """Write the volumes of a job to its disk; return the folder of each mount."""
    places = {}
    for volume, folder in volumes(spec, disk):
        for path, data in content(store, volume).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        places[volume["mountPath"].rstrip("/")] = folder
    return places


def volumes(spec: dict[str, Any], disk: Path) -> Iterator[tuple[dict[str, Any], Path]]:
    for volume in spec.get("volumes", []):
        folder = disk / "mounts" / volume["mountPath"].strip("/")
        folder.mkdir(parents=True, exist_ok=True)
        yield volume, folder


def content(store: Store, volume: dict[str, Any]) -> dict[str, bytes]:
    top = volume.get("path", "").strip("/")
    if volume["type"] == "bucket":
        found = {path: file.data for path, file in store.buckets[volume["source"]].files.items()}
    else:
        repo = store.repos[volume["type"], volume["source"]]
        commit = repo.resolve(volume.get("revision") or "main")
        assert commit is not None, f"{volume['source']} has no such revision"
        found = {path: blob.data for path, blob in commit.tree.items()}
    below = f"{top}/" if top else ""
    return {path[len(below) :]: data for path, data in found.items() if path.startswith(below)}


def put_back(store: Store, spec: dict[str, Any], disk: Path) -> None:
    """What a job wrote to a bucket that is mounted for writing is in the bucket."""
    for volume, folder in volumes(spec, disk):
        if volume["type"] != "bucket" or volume.get("readOnly", False):
            continue
        before = content(store, volume)
        bucket, top = store.buckets[volume["source"]], volume.get("path", "").strip("/")
        for file in folder.rglob("*"):
            path = file.relative_to(folder).as_posix()
            if file.is_file() and before.get(path) != (data := file.read_bytes()):
                name = f"{top}/{path}".strip("/")
                bucket.files[name] = BucketFile(data, store.xet.write(data))
        shutil.rmtree(folder)


def in_place(text: str, places: dict[str, Path]) -> str:
    """Name the folder of each mount that a text names: whole paths, never the end of a longer one.

    >>> in_place("/data/a.py --x=/data /my/data", {"/data": Path("/tmp/j")})
    '/tmp/j/a.py --x=/tmp/j /my/data'
    """
    for mount in sorted(places, key=len, reverse=True):
        text = re.sub(rf"(?<![\w./-]){re.escape(mount)}(?=[/\s:,\[\]]|$)", str(places[mount]), text)
    return text

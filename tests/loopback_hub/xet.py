"""The content-addressed store behind large files: folders that the clients' own hf_xet works on.

The token routes answer `casUrl: local://FOLDER`, so hf_xet reads and writes the folder itself. It
locks a folder while it is at work there, so every token stands for a folder of its own: an empty
one to write to, a copy of all that is known to read from. A git commit names a file by its sha256
alone; which xet hash that is stands in the shards.
"""

import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import RLock

import hf_xet

HEADER, ENTRY = 48, 48
VERIFIED, WITH_SHA256 = 1 << 31, 1 << 30
END = b"\xff" * 32


class Xet:
    """Files by their xet hash, and what is known of them."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="loopback-xet-")
        self._all = Path(self._folder.name) / "all"
        self._all.mkdir()
        self._writing: list[Path] = []
        self._count = 0
        self._lock = RLock()
        self.files: dict[str, bytes] = {}
        self.hash_of: dict[str, str] = {}
        """The xet hash of a sha256."""
        self.expires_in = 3600.0
        """Seconds that a token is good for by the Hub's clock; negative when it is behind ours."""

    def close(self) -> None:
        self._folder.cleanup()

    def place(self, *, write: bool) -> str:
        """Where the holder of a new token reads or writes."""
        with self._lock:
            folder = self._new_folder() if write else self._copy(self._all)
            if write:
                self._writing.append(folder)
        return f"local://{folder}"

    def read(self, xet_hash: str) -> bytes:
        """The bytes of a file; raises KeyError for a hash that nobody has written."""
        with self._lock:
            if xet_hash not in self.files:
                self._collect()
            return self.files[xet_hash]

    def read_sha256(self, sha256: str) -> bytes | None:
        """The bytes of a file by its sha256, None when nobody has written it."""
        with self._lock:
            if sha256 not in self.hash_of:
                self._collect()
            known = self.hash_of.get(sha256)
            return None if known is None else self.files[known]

    def write(self, data: bytes) -> str:
        """Put a file there, as a client would, and return its hash."""
        with self._lock:
            endpoint = f"local://{self._all}"
            with hf_xet.XetSession().new_upload_commit(endpoint=endpoint) as commit:
                handle = commit.start_upload_bytes(data, sha256=hf_xet.SKIP_SHA256)
            made: str = handle.result().xet_info.hash
            self.files[made] = data
        return made

    def _collect(self) -> None:
        """Take over what clients have written since."""
        for folder in self._writing:
            found = [
                entry
                for shard in sorted(folder.glob("xet/xorbs/shards/*.mdb"))
                for entry in files_in(shard.read_bytes())
            ]
            new = {name: size for name, size, _ in found if name not in self.files}
            for name, data in self._contents(folder, new):
                written = self.write(data)
                assert written == name, "hf_xet names the same bytes alike"
            self.hash_of |= {sha256: name for name, _, sha256 in found if sha256 is not None}

    def _contents(self, folder: Path, sizes: dict[str, int]) -> Iterator[tuple[str, bytes]]:
        if not sizes:
            return
        # The client may still hold its lock.
        copy = self._copy(folder)
        with hf_xet.XetSession().new_file_download_group(endpoint=f"local://{copy}") as group:
            for name, size in sizes.items():
                if size:
                    group.start_download_file(hf_xet.XetFileInfo(name, size), str(copy / name))
        for name, size in sizes.items():
            yield name, (copy / name).read_bytes() if size else b""
        shutil.rmtree(copy)

    def _new_folder(self) -> Path:
        self._count += 1
        folder = Path(self._folder.name) / str(self._count)
        folder.mkdir()
        return folder

    def _copy(self, folder: Path) -> Path:
        copy = self._new_folder()
        for path in sorted(folder.glob("xet/xorbs/**/*")):
            there = copy / path.relative_to(folder)
            there.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".redb":
                shutil.copyfile(path, there)
            elif path.is_file():
                os.link(path, there)
        return copy


def files_in(shard: bytes) -> Iterator[tuple[str, int, str | None]]:
    """Each file of a shard: xet hash, size, sha256 when it is kept."""
    at = HEADER
    while at + HEADER <= len(shard) and shard[at : at + 32] != END:
        flags, count = struct.unpack_from("<II", shard, at + 32)
        name = hex_of(shard[at : at + 32])
        at += HEADER
        size = sum(struct.unpack_from("<I", shard, at + ENTRY * i + 36)[0] for i in range(count))
        at += ENTRY * count * (2 if flags & VERIFIED else 1)
        sha256 = None
        if flags & WITH_SHA256:
            sha256 = hex_of(shard[at : at + 32])
            at += ENTRY
        yield name, size, sha256


def hex_of(data: bytes) -> str:
    """A hash is kept as four little-endian numbers."""
    return "".join(f"{number:016x}" for number in struct.unpack("<4Q", data))

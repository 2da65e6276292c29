"""The folder of a run: made and filled before, measured meanwhile, read and removed after.

Whatever lies in it after the start is hostile: symlinks, pipes, folders a thousand deep, folders
that may not be listed. Nothing here follows a symlink, blocks on a pipe, or recurses without bound.
"""

import os
import stat

DEEPEST = 64
ENTER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NO_ANSWER = (1 << 62, 1 << 62)


def measure(path: str, most: int, above: int | None = None, depth: int = 0) -> tuple[int, int]:
    """Bytes on disk and entries below, too much of both in a tree deeper than DEEPEST; stops soon after `most`."""
    if depth > DEEPEST:
        return NO_ANSWER
    size = entries = 0
    folder = _enter(path, above)
    try:
        with os.scandir(folder) as listing:
            for entry in listing:
                try:
                    found = entry.stat(follow_symlinks=False)
                    size, entries = size + found.st_blocks * 512, entries + 1
                    if stat.S_ISDIR(found.st_mode):
                        deeper = measure(entry.name, most - entries, folder, depth + 1)
                        size, entries = size + deeper[0], entries + deeper[1]
                except (FileNotFoundError, NotADirectoryError):
                    continue  # it went while we looked
                if entries > most:
                    break
    finally:
        os.close(folder)
    return size, entries


def _enter(name: str, folder: int | None) -> int:
    """Open a folder, also one whose mode forbids it to its owner."""
    try:
        return os.open(name, ENTER, dir_fd=folder)
    except PermissionError:
        # By descriptor: by name, a symlink could have taken its place.
        itself = os.open(name, os.O_PATH | ENTER, dir_fd=folder)
        try:
            os.chmod(f"/proc/self/fd/{itself}", 0o700)
        finally:
            os.close(itself)
        return os.open(name, ENTER, dir_fd=folder)


def fill(base: str, files: dict[str, bytes], uid: int) -> None:
    """Make `work`, which holds the files, and `tmp`, and all of it the run's own."""
    os.chmod(base, 0o700)
    made = [base]
    for name in (f"{base}/work", f"{base}/tmp"):
        os.mkdir(name, 0o700)
        made.append(name)
    for name, content in files.items():
        above = f"{base}/work"
        *folders, last = name.split("/")
        for one in folders:
            above += f"/{one}"
            if above not in made:
                os.mkdir(above)
                made.append(above)
        made.append(f"{above}/{last}")
        descriptor = os.open(made[-1], os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        with open(descriptor, "wb") as file:
            file.write(content)
    if uid:
        for name in made:
            os.chown(name, uid, uid)


def read(path: str, name: str, most: int) -> bytes | None:
    """Read a regular file of at most `most` bytes; None when it is not there or something else."""
    folder = os.open(path, ENTER)
    try:
        *parents, last = name.split("/")
        for parent in parents:
            inner = os.open(parent, ENTER, dir_fd=folder)
            os.close(folder)
            folder = inner
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(last, flags, dir_fd=folder), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_size > most:
                return None
            return file.read(most)
    except OSError:
        return None  # a symlink, a missing parent, no permission: not what was asked for
    finally:
        os.close(folder)


def remove(path: str) -> None:
    """Remove a tree of any depth."""
    empty(path)
    os.rmdir(path)


def empty(path: str) -> None:
    """Remove what is below: every folder is emptied at the top, its folders moved there."""
    top = os.open(path, ENTER)
    moved, number = os.urandom(8).hex(), 0
    try:
        while folders := _empty(top):
            for name in folders:
                inner = _enter(name, top)
                try:
                    for deeper in _empty(inner):
                        number += 1
                        os.rename(deeper, f"{moved}-{number}", src_dir_fd=inner, dst_dir_fd=top)
                finally:
                    os.close(inner)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)


def _empty(folder: int) -> list[str]:
    """Unlink everything but folders; return their names, made writable."""
    os.fchmod(folder, 0o700)
    folders = []
    with os.scandir(folder) as listing:
        for entry in list(listing):
            if entry.is_dir(follow_symlinks=False):
                os.chmod(entry.name, 0o700, dir_fd=folder)
                folders.append(entry.name)
            else:
                os.unlink(entry.name, dir_fd=folder)
    return folders

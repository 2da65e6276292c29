"""Fill the folder of a run before it starts, measure it during the run, then read files and remove it.

Its content is untrusted once the run has started: it may have symlinks, pipes, folders a thousand
levels deep, or folders that cannot be listed. Nothing here follows a symlink, blocks on a pipe, or
recurses without bound.
"""

import os
import stat

MAX_DEPTH = 64
OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
TOO_LARGE = (1 << 62, 1 << 62)


def measure(path: str, max_entries: int, parent: int | None = None, depth: int = 0) -> tuple[int, int]:
    """Return the bytes on disk and the number of entries of a tree; stops soon after `max_entries`.

    A tree deeper than MAX_DEPTH counts as too large in both.
    """
    if depth > MAX_DEPTH:
        return TOO_LARGE
    size = entries = 0
    folder = _open_folder(path, parent)
    try:
        with os.scandir(folder) as listing:
            for entry in listing:
                try:
                    state = entry.stat(follow_symlinks=False)
                    size, entries = size + state.st_blocks * 512, entries + 1
                    if stat.S_ISDIR(state.st_mode):
                        inner_size, inner_entries = measure(entry.name, max_entries - entries, folder, depth + 1)
                        size, entries = size + inner_size, entries + inner_entries
                except (FileNotFoundError, NotADirectoryError):
                    continue  # the run has removed it meanwhile
                if entries > max_entries:
                    break
    finally:
        os.close(folder)
    return size, entries


def _open_folder(name: str, folder: int | None) -> int:
    """Open a folder, even if its mode forbids that to its owner."""
    try:
        return os.open(name, OPEN_FOLDER, dir_fd=folder)
    except PermissionError:
        # By descriptor, because the name could be replaced by a symlink.
        descriptor = os.open(name, os.O_PATH | OPEN_FOLDER, dir_fd=folder)
        try:
            os.chmod(f"/proc/self/fd/{descriptor}", 0o700)
        finally:
            os.close(descriptor)
        return os.open(name, OPEN_FOLDER, dir_fd=folder)


def fill(base: str, files: dict[str, bytes], uid: int) -> None:
    """Create `work` with the files, and `tmp`; give everything to the uid of the run, if it has one."""
    os.chmod(base, 0o700)
    created = [base]
    for name in (f"{base}/work", f"{base}/tmp"):
        os.mkdir(name, 0o700)
        created.append(name)
    for name, content in files.items():
        parent = f"{base}/work"
        *folders, last = name.split("/")
        for folder in folders:
            parent += f"/{folder}"
            if parent not in created:
                os.mkdir(parent)
                created.append(parent)
        created.append(f"{parent}/{last}")
        descriptor = os.open(created[-1], os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        with open(descriptor, "wb") as file:
            file.write(content)
    if uid:
        for name in created:
            os.chown(name, uid, uid)


def read(path: str, name: str, max_size: int) -> bytes | None:
    """Read a regular file; None if it is missing, is not a regular file, or has more than `max_size` bytes."""
    folder = os.open(path, OPEN_FOLDER)
    try:
        *parents, last = name.split("/")
        for parent in parents:
            inner = os.open(parent, OPEN_FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(last, flags, dir_fd=folder), "rb") as file:
            state = os.fstat(file.fileno())
            if not stat.S_ISREG(state.st_mode) or state.st_size > max_size:
                return None
            return file.read(max_size)
    except OSError:
        return None  # a symlink, a missing parent, or no permission
    finally:
        os.close(folder)


def remove(path: str) -> None:
    """Remove a tree of any depth."""
    empty(path)
    os.rmdir(path)


def empty(path: str) -> None:
    """Empty a tree of any depth: deeper folders are moved to the top, where they are emptied in turn."""
    top = os.open(path, OPEN_FOLDER)
    moved, number = os.urandom(8).hex(), 0
    try:
        while folders := _unlink_files(top):
            for name in folders:
                inner = _open_folder(name, top)
                try:
                    for deeper in _unlink_files(inner):
                        number += 1
                        os.rename(deeper, f"{moved}-{number}", src_dir_fd=inner, dst_dir_fd=top)
                finally:
                    os.close(inner)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)


def _unlink_files(folder: int) -> list[str]:
    """Unlink everything except folders; make those writable and return their names."""
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

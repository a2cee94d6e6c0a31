"""Files and folders that exist under their name only once they are complete, and are on disk when the call returns.

A rename, a new folder and a removal are changes of the folder that holds the name: until that folder is synced, power
loss may undo them, however well the file itself was synced. Blocking; small enough to be called from anywhere.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

_making_folders = threading.Lock()


def write_whole(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Writes a fresh file beside `path`, syncs it, and renames it into place; survives a kill and power loss."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    fresh.unlink(missing_ok=True)
    try:
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(handle, "w") as file:
            os.fchmod(file.fileno(), mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def make_folders(folder: Path, *, mode: int = 0o700) -> None:
    """Makes `folder` and what is missing above it, durably: nothing is put into a folder that could be lost itself.

    Who finds a folder that another thread is making waits until that one is on disk. FileNotFoundError when a folder
    is removed meanwhile.
    """
    with _making_folders:
        missing = []
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        for path in reversed(missing):
            try:
                path.mkdir(mode=mode)
            except FileExistsError:
                pass  # another process was first; whether it has synced it yet, nobody knows
            sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Has the names in `folder` (made, renamed, removed) on disk when it returns."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(top: Path) -> None:
    """Has everything in and below the folder `top` on disk: each file, then the folder that names it."""
    for folder, _, names in os.walk(top, topdown=False):
        for name in names:
            path = Path(folder, name)
            if path.is_symlink():
                continue  # it lies in its folder
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_folder(Path(folder))

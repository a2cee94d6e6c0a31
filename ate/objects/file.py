"""`file://`: objects as plain files below one folder. For one machine, tests, and folders on shared file systems.

An object appears by rename after its bytes are on disk, and the put returns after the folder that names it is too: an
acknowledged suspend survives power loss. What was deleted stays so, since nobody remembers to delete it again. Files
named `.part-…` are puts that have not ended.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from ate.errors import (
    AteError,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
)
from ate.files import make_folders, sync_folder
from ate.objects.store import ObjectInfo, ObjectStore, StopSign, in_thread

_PARTIAL: Final = ".part-"
_CHUNK: Final = 1 << 20


class FileStore(ObjectStore):
    """Objects below `root`. The folder is made by the first put and removed with the last object."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def uri(self, key: str) -> str:
        return f"file://{self._path(key)}"

    async def put(self, key: str, chunks: Iterable[bytes]) -> None:
        path = self._path(key)

        def work(sign: StopSign) -> None:
            with _explained(path):
                write_durably(path, sign.guard(chunks))

        await in_thread(work)

    async def get(self, key: str, sink: Callable[[bytes], object]) -> None:
        path = self._path(key)

        def work(sign: StopSign) -> None:
            with _explained(path):
                file = path.open("rb", buffering=0)
            with file:
                while True:
                    sign.check()
                    with _explained(path):
                        chunk = file.read(_CHUNK)
                    if not chunk:
                        return
                    sink(chunk)

        await in_thread(work)

    async def list(self, *, partial: bool = False) -> list[ObjectInfo]:
        return await in_thread(lambda sign: _walk(self._root, sign, partial))

    async def delete(self, keys: Sequence[str]) -> None:
        paths = [self._path(key) for key in keys]

        def work(sign: StopSign) -> None:
            for path in paths:
                sign.check()
                with _explained(path):
                    path.unlink(missing_ok=True)
            for folder in {self._prune(folder) for folder in {path.parent for path in paths}}:
                with _explained(folder):
                    _sync_what_is_left(folder)

        await in_thread(work)

    def _prune(self, folder: Path) -> Path:
        """Folders mean nothing to an object store: empty ones go, up to and with the root. The first one that stays."""
        while folder == self._root or self._root in folder.parents:
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                break
            folder = folder.parent
        return folder

    async def copy(self, source: str, target: str) -> None:
        origin, path = self._path(source), self._path(target)

        def work(sign: StopSign) -> None:
            with _explained(origin):
                file = origin.open("rb", buffering=0)
            with file, _explained(path):
                write_durably(path, sign.guard(iter(lambda: file.read(_CHUNK), b"")))

        await in_thread(work)

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        if any(part in ("", ".", "..") or "\0" in part for part in parts):
            raise InvalidArgument(f"object key {key!r} leads out of file://{self._root}")
        return self._root.joinpath(*parts)


def _walk(root: Path, sign: StopSign, partial: bool) -> list[ObjectInfo]:
    found: list[ObjectInfo] = []

    def failed(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    with _explained(root):
        for folder, _, names in os.walk(root, onerror=failed):
            sign.check()
            for name in names:
                path = Path(folder, name)
                if partial or not name.startswith(_PARTIAL):
                    with contextlib.suppress(FileNotFoundError):
                        found.append(ObjectInfo(path.relative_to(root).as_posix(), path.lstat().st_size))
    return sorted(found, key=lambda info: info.key)


def write_durably(path: Path, chunks: Iterable[bytes]) -> None:
    """A whole new file at `path`, on disk together with every folder made for it; nothing is left of a failure."""
    temporary = path.with_name(f"{_PARTIAL}{secrets.token_hex(6)}")
    descriptor = -1
    for attempt in range(10):
        try:
            # Readable by their owner only: they hold memory images.
            make_folders(path.parent, mode=0o700)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            break
        except FileNotFoundError:  # a delete beside us pruned the folder
            if attempt == 9:
                raise
    try:
        try:
            for chunk in chunks:
                view = memoryview(chunk)
                while view:
                    view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.rename(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _sync_what_is_left(folder: Path) -> None:
    """Syncs `folder`, or where a delete beside us removed that too, the nearest one above it that still is."""
    while True:
        try:
            return sync_folder(folder)
        except FileNotFoundError:
            folder = folder.parent


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise explain(error, path) from error


def explain(error: OSError, path: Path) -> AteError:
    """The error of our tree for a failed call on a file."""
    name = error.filename or path
    if isinstance(error, FileNotFoundError):
        return NotFound(f"file://{path} does not exist")
    if isinstance(error, PermissionError):
        return PermissionDenied(f"no permission for file://{path}: {error.strerror}")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ResourceExhausted(f"no space left on the disk of {path}: free some, then try again")
    if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EROFS):
        return FailedPrecondition(f"{name} cannot hold objects: {error.strerror}")
    return Unavailable(f"file://{path} failed: {error.strerror or error}")

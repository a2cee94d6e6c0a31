"""What images are on disk: blobs and unpacked layers by digest, and staging folders that a killed process loses.

`blobs/sha256/<hex>` are manifests, indexes and configs; `layers/sha256/<diff id>/fs` is an unpacked layer, `size` its
bytes; `imported/<hex>` marks an image that no registry could give again. Everything appears by rename, so several
processes (an import beside the node agent) need no lock: who comes second finds the same content and drops its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from ate.errors import DataLoss, InvalidArgument, NotFound
from ate.node.images.reference import DIGEST


class ImageDirectory:
    """Paths below `root` and the few ways to change them. Blocking; used from threads."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.blobs = root / "blobs" / "sha256"
        self.layers = root / "layers" / "sha256"
        self.staging = root / "staging"
        self._imported = root / "imported"
        for path in (self.blobs, self.layers, self.staging, self._imported):
            path.mkdir(parents=True, exist_ok=True)
        # Layers are shown to sandboxes: everything above them may be searched, staging is nobody's business.
        self.staging.chmod(0o700)

    def blob(self, digest: str) -> Path:
        return self.blobs / _hex(digest)

    def layer(self, diff_id: str) -> Path:
        return self.layers / _hex(diff_id) / "fs"

    def read_blob(self, digest: str) -> bytes:
        """A stored document; NotFound when it is not here, DataLoss when it rotted (it is removed then)."""
        path = self.blob(digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError as error:
            raise NotFound(f"blob {digest} is not on this node") from error
        if "sha256:" + hashlib.sha256(data).hexdigest() != digest:
            path.unlink(missing_ok=True)
            raise DataLoss(f"blob {digest} was damaged on this node's disk and is removed: try again")
        return data

    def write_blob(self, data: bytes) -> str:
        """Stores a document; its digest."""
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        if not self.blob(digest).exists():
            with self.stage() as staging:
                fresh = staging / "blob"
                with fresh.open("xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                fresh.rename(self.blob(digest))
        return digest

    def mark_imported(self, digest: str) -> None:
        """Remembers that the image with this digest came from this machine: it is never collected."""
        (self._imported / _hex(digest)).touch()

    def imported(self) -> set[str]:
        """Digests of the images marked so."""
        return {f"sha256:{path.name}" for path in self._imported.iterdir()}

    def commit_layer(self, fresh: Path, diff_id: str) -> None:
        """Moves an unpacked layer (a folder with `fs` and `size`) to its place, on disk before it is named."""
        target = self.layers / _hex(diff_id)
        descriptor = os.open(fresh, os.O_RDONLY)
        try:
            # One call for all of the layer's files; after a power loss a layer is whole or not there.
            _syncfs(descriptor)
        finally:
            os.close(descriptor)
        try:
            fresh.rename(target)
        except OSError:
            if not target.exists():
                raise

    @contextlib.contextmanager
    def stage(self) -> Iterator[Path]:
        """A folder of our own for the length of the block. It is locked, so that `sweep` of another leaves it."""
        path = self.staging / secrets.token_hex(8)
        path.mkdir(mode=0o700)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
            os.close(descriptor)

    def sweep(self) -> None:
        """Removes staging folders of processes that were killed."""
        for path in self.staging.iterdir():
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            except OSError:
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            except BlockingIOError:
                pass
            finally:
                os.close(descriptor)


def _hex(digest: str) -> str:
    if not DIGEST.fullmatch(digest):
        raise InvalidArgument(f"{digest!r} is no sha256 digest")
    return digest.removeprefix("sha256:")


def _syncfs(descriptor: int) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syncfs(descriptor) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))

"""Raw snapshot files of this node, by content, so that a warm resume neither downloads nor decompresses.

Files are hard links in one folder per boot, bounded in bytes, least recently used go first. A file's name carries the
inode, size and mtime it had when it was put there: a hit is checked by one stat, never by hashing. After a reboot the
folder is dropped, because nothing here was ever forced to disk. Cached files are shared by links: nobody writes them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ate.log import Logger
from ate.node import boot
from ate.node.snapshots import sparse

log = Logger("ate.node")

_OWNERS: Final = 10_000
"""Owners whose newest files are remembered; beyond that the bound in bytes is what drops old files."""
_ENTRY: Final = re.compile(r"([0-9a-f]{64})-(\d+)-(\d+)-(\d+)")


@dataclass(frozen=True, slots=True)
class _Entry:
    path: Path
    stamp: tuple[int, int, int]
    """inode, size, mtime in ns"""
    allocated: int


class FileCache:
    """Used from threads. `limit` in bytes on disk; 0 keeps nothing."""

    def __init__(self, directory: Path, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._used = 0
        self._owned: OrderedDict[str, set[str]] = OrderedDict()
        self._folder = directory / boot.boot_id()
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for other in directory.iterdir():
            if other != self._folder:
                shutil.rmtree(other, ignore_errors=True)
        self._adopt()

    def _adopt(self) -> None:
        found = []
        for path in self._folder.iterdir():
            named = _ENTRY.fullmatch(path.name)
            status = path.stat()
            if named is None or _stamp(status) != tuple(int(part) for part in named.groups()[1:]):
                path.unlink()
                continue
            found.append((status.st_ctime_ns, named[1], _Entry(path, _stamp(status), _allocated(status))))
        # Every link made or removed touches the ctime, so it tells when an entry was used last.
        for _, digest, entry in sorted(found, key=lambda item: item[0]):
            self._insert(digest, entry)

    def link(self, digest: str, target: Path) -> bool:
        """Makes `target` a link to the cached file with that content digest; whether there was one."""
        with self._lock:
            entry = self._entries.get(digest)
            if entry is None:
                return False
            self._entries.move_to_end(digest)
        try:
            if _stamp(entry.path.stat()) == entry.stamp:
                place(entry.path, target)
                return True
            log.error("a cached snapshot file was modified and is dropped", path=str(entry.path))
        except FileNotFoundError:
            pass
        self._drop(digest)
        return False

    def add(self, digest: str, source: Path) -> None:
        """Keeps a link to `source`, whose content digest is known. A file that cannot be linked is not kept."""
        status = source.stat()
        stamp = _stamp(status)
        entry = _Entry(self._folder / f"{digest}-{stamp[0]}-{stamp[1]}-{stamp[2]}", stamp, _allocated(status))
        if entry.allocated > self._limit:
            return
        with self._lock:
            if digest in self._entries:
                self._entries.move_to_end(digest)
                return
        try:
            os.link(source, entry.path)
        except FileExistsError:
            pass
        except OSError as error:  # another file system, or too many links
            log.warning("snapshot file is not cached", path=str(source), error=str(error))
            return
        self._insert(digest, entry)

    def supersede(self, owner: str, digests: set[str]) -> None:
        """Drops what `owner` had kept before and does not keep now. What is forgotten here only ages out later."""
        with self._lock:
            before = self._owned.pop(owner, set())
            self._owned[owner] = digests
            if len(self._owned) > _OWNERS:
                self._owned.popitem(last=False)
            stale = before - digests
            if stale:
                stale -= set().union(*self._owned.values())
        for digest in stale:
            self._drop(digest)

    def _insert(self, digest: str, entry: _Entry) -> None:
        with self._lock:
            if digest in self._entries:
                return
            self._entries[digest] = entry
            self._used += entry.allocated
            while self._used > self._limit:
                _, oldest = self._entries.popitem(last=False)
                self._used -= oldest.allocated
                oldest.path.unlink(missing_ok=True)

    def _drop(self, digest: str) -> None:
        with self._lock:
            entry = self._entries.pop(digest, None)
            if entry is not None:
                self._used -= entry.allocated
                entry.path.unlink(missing_ok=True)


def place(source: Path, target: Path) -> None:
    """Makes `target` a link to `source`, replacing what was there; a sparse copy when they are on two file systems."""
    with contextlib.suppress(FileNotFoundError):
        target.unlink()
    try:
        os.link(source, target)
    except OSError as error:
        if isinstance(error, FileNotFoundError | FileExistsError | PermissionError):
            raise
        with source.open("rb", buffering=0) as origin, target.open("xb", buffering=0) as copy:
            sparse.copy(origin.fileno(), copy.fileno())


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _allocated(status: os.stat_result) -> int:
    return status.st_blocks * 512

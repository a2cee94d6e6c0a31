"""Durable volumes in a snapshot: one tar of the actor's volume directories, holes and attributes kept.

GNU tar does the work: it is on every Linux node, reads and writes sparse files, and refuses names that lead out of the
directory it unpacks into. Used by ateom around a checkpoint and a restore.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import trio

from ate.errors import DataLoss, Internal, ResourceExhausted
from ate.process import CommandFailed, run

ARCHIVE: Final = "durable-dir.tar"
_KEPT: Final = ("--sparse", "--xattrs", "--xattrs-include=*", "--numeric-owner")
_TIMEOUT: Final = 3600.0


async def save(directory: Path, volumes: Sequence[str], target: Path) -> None:
    """Writes `target` from the volumes below `directory`. Raises ResourceExhausted when there is no room for it."""
    needed = await trio.to_thread.run_sync(_allocated, [directory / name for name in volumes])
    space = os.statvfs(target.parent)
    if space.f_bavail * space.f_frsize < needed:
        free = space.f_bavail * space.f_frsize
        raise ResourceExhausted(f"{target.parent} has {free} bytes free; the durable volumes need {needed}")
    try:
        await run(["tar", "-C", str(directory), *_KEPT, "-cf", str(target), *volumes], timeout=_TIMEOUT)
    except CommandFailed as error:
        target.unlink(missing_ok=True)
        kind = ResourceExhausted if "No space left" in error.stderr else Internal
        raise kind(f"durable volumes in {directory} were not saved: {error.stderr.strip()[-500:]}") from error


async def load(archive: Path, directory: Path, volumes: Sequence[str]) -> None:
    """Replaces the content of the volumes below `directory` with the archive's. Raises DataLoss when it is damaged."""
    for name in volumes:
        await trio.to_thread.run_sync(_empty, directory / name)
    try:
        await run(
            ["tar", "-C", str(directory), *_KEPT, "--same-permissions", "--same-owner", "-xf", str(archive), *volumes],
            timeout=_TIMEOUT,
        )
    except CommandFailed as error:
        words = error.stderr.strip()[-500:]
        if "No space left" in words:
            raise ResourceExhausted(f"no room for the durable volumes in {directory}: {words}") from error
        raise DataLoss(f"{archive} cannot be unpacked: {words}") from error


def _allocated(roots: Sequence[Path]) -> int:
    """Bytes on disk, holes not counted, plus tar's headers."""
    total = 1 << 16
    for root in roots:
        for path in (root, *root.rglob("*")):
            status = path.lstat()
            total += 1024 + (status.st_blocks * 512 if stat.S_ISREG(status.st_mode) else 0)
    return total


def _empty(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()

"""A disk whose power can be cut: an ext4 file system on a loop device, and what its blocks hold at a moment.

What the kernel has not yet been made to write is not in the blocks, so a copy of them is what a machine finds after
power loss. Needs root and loop devices.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass
class Disk:
    """`path` is where it is mounted."""

    path: Path
    _image: Path
    _cuts: int = 0

    @contextlib.contextmanager
    def after_power_loss(self) -> Iterator[Path]:
        """What would be found if the power were lost now; the disk itself goes on."""
        self._cuts += 1
        image = self._image.with_suffix(f".{self._cuts}")
        shutil.copyfile(self._image, image)
        with _mounted(image, self._image.with_name(f"found-{self._cuts}")) as path:
            yield path
        image.unlink()


@contextlib.contextmanager
def disk(folder: Path, megabytes: int = 32) -> Iterator[Disk]:
    """A fresh disk mounted below the new folder `folder`."""
    if os.geteuid() != 0 or not Path("/dev/loop-control").exists() or shutil.which("mkfs.ext4") is None:
        pytest.skip("needs root, loop devices and mkfs.ext4 for a disk that loses power")
    folder.mkdir()
    image = folder / "image"
    with image.open("wb") as file:
        file.truncate(megabytes << 20)
    subprocess.run(["mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", image], check=True)
    # Its journal is committed when somebody syncs, not after the five seconds that a slow test may take.
    with _mounted(image, folder / "disk", "commit=600") as path:
        subprocess.run(["sync", "-f", path], check=True)
        yield Disk(path, image)


@contextlib.contextmanager
def _mounted(image: Path, path: Path, *options: str) -> Iterator[Path]:
    path.mkdir()
    subprocess.run(["mount", "-o", ",".join(["loop", *options]), image, path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)

"""Changes to a layer's folder by names that an image chose: no name, link or whiteout leads out of the folder.

Parents are walked from the root by lstat and links among them are followed here, never by the kernel; a link that is
absolute or climbs above the root is refused. Used by `unpack` in a staging folder that nobody else touches.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from pathlib import Path
from typing import Final

_MAX_LINKS: Final = 40


class Escape(Exception):
    """A name that leads out of the layer."""


class Tree:
    """The folder `root`. Paths are handed in as names in the image, handed out as paths whose parents are folders."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._folders: set[tuple[str, ...]] = {()}
        self.implicit: set[tuple[str, ...]] = set()
        """Folders that no entry of the layer named, made because something lies in them."""

    def locate(self, name: str) -> tuple[str, ...]:
        """The components of `name` with links among its parents resolved; missing parents are made.

        The empty tuple is the root itself. Escape when it leads out.
        """
        parts = _parts(name)
        if not parts:
            return ()
        return (*self._folder(parts[:-1], 0), parts[-1])

    def path(self, parts: tuple[str, ...]) -> str:
        return "/".join((self._root, *parts))

    def _folder(self, parts: tuple[str, ...], links: int) -> tuple[str, ...]:
        if parts in self._folders:
            return parts
        at: tuple[str, ...] = ()
        for index, part in enumerate(parts):
            below = (*at, part)
            if below in self._folders:
                at = below
                continue
            try:
                mode = os.lstat(self.path(below)).st_mode
            except FileNotFoundError:
                os.mkdir(self.path(below), 0o755)
                self.implicit.add(below)
            else:
                if stat.S_ISLNK(mode):
                    if links >= _MAX_LINKS:
                        raise Escape("too many symbolic links")
                    target = os.readlink(self.path(below))
                    if target.startswith("/"):
                        raise Escape(f"it lies below the absolute symbolic link /{'/'.join(below)} -> {target}")
                    inside = _join(at, target)
                    return self._folder((*inside, *parts[index + 1 :]), links + 1)
                if not stat.S_ISDIR(mode):
                    raise Escape(f"it lies below /{'/'.join(below)}, which is no folder")
            self._folders.add(below)
            at = below
        return at

    def remove(self, parts: tuple[str, ...]) -> None:
        """Removes whatever lies there, links not followed. The root stays."""
        path = self.path(parts)
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(mode):
            os.unlink(path)
            return
        shutil.rmtree(path)
        depth = len(parts)
        self._folders = {folder for folder in self._folders if folder[:depth] != parts}
        self.implicit = {folder for folder in self.implicit if folder[:depth] != parts}

    def kind(self, parts: tuple[str, ...]) -> int:
        """The file type bits of what lies there, 0 for nothing."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return stat.S_IFMT(os.lstat(self.path(parts)).st_mode)
        return 0

    def make_folder(self, parts: tuple[str, ...]) -> None:
        """A folder there, whatever was; one that is there already keeps what is in it."""
        if self.kind(parts) != stat.S_IFDIR:
            self.remove(parts)
            os.mkdir(self.path(parts), 0o755)
        self.implicit.discard(parts)
        self._folders.add(parts)


def _parts(name: str) -> tuple[str, ...]:
    """Leading slashes and `.` mean nothing in a tar; `..` is refused wherever it stands."""
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts or any("\0" in part for part in parts):
        raise Escape("its name has a '..' in it")
    return parts


def _join(folder: tuple[str, ...], target: str) -> tuple[str, ...]:
    result = list(folder)
    for part in target.split("/"):
        if part == "..":
            if not result:
                raise Escape(f"a symbolic link leads out: {target}")
            result.pop()
        elif part not in ("", "."):
            result.append(part)
    return tuple(result)

"""Layers that name a file but not its folders: such a folder must not hide what lies below it under the same name.

An overlay takes a folder's owner and mode from the topmost layer that has it, and a folder over a symbolic link (`lib`
over `lib -> usr/lib`) hides the link. Builders that apply layers one on another never notice; we unpack each by itself.
So a folder that no entry named takes the attributes of the one below, and moves to where a link below leads. That
depends on the stack, so it is done in a copy (hard links) of the layer for that stack; nearly no image needs one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from ate.node.images.disk import ImageDirectory

IMPLICIT: Final = "implicit.json"
_MAX_LINKS: Final = 40
Parts = tuple[str, ...]


def record(layer: Path, implicit: Iterable[Parts]) -> None:
    """Notes beside an unpacked layer which of its folders no entry named."""
    if paths := sorted(implicit):
        (layer / IMPLICIT).write_text(json.dumps(paths))


def stack(disk: ImageDirectory, diff_ids: Sequence[str], *, build: bool) -> list[str]:
    """Digests of the layers to mount for an image, bottom first; copies that are missing are made with `build`."""
    result: list[str] = []
    for diff_id in diff_ids:
        note = disk.layer(diff_id).with_name(IMPLICIT)
        lowers = [disk.layer(name) for name in reversed(result)]
        implicit = [tuple(path) for path in json.loads(note.read_text())] if lowers and note.exists() else []
        below = {parts: found for parts in implicit if (found := _find(lowers, parts)) is not None}
        if not below:
            result.append(diff_id)
            continue
        name = "sha256:" + hashlib.sha256("\0".join(["settled", diff_id, *result]).encode()).hexdigest()
        if build and not disk.layer(name).exists():
            _copy(disk, diff_id, name, lowers, below)
        result.append(name)
    return result


def _find(lowers: Sequence[Path], parts: Parts) -> Path | None:
    """What the layers (top first) show at a path; None for nothing."""
    for layer in lowers:
        for depth in range(1, len(parts) + 1):
            path = layer.joinpath(*parts[:depth])
            try:
                status = path.lstat()
            except FileNotFoundError:
                if _opaque(path.parent) and depth > 1:
                    return None
                break
            if stat.S_ISCHR(status.st_mode):
                return None  # a whiteout
            if depth == len(parts):
                return path
            if not stat.S_ISDIR(status.st_mode):
                return None
    return None


def _opaque(path: Path) -> bool:
    try:
        return os.getxattr(path, "trusted.overlay.opaque") == b"y"
    except OSError:
        return False


def _copy(disk: ImageDirectory, diff_id: str, name: str, lowers: Sequence[Path], below: dict[Parts, Path]) -> None:
    source = disk.layer(diff_id).parent
    with disk.stage() as staging:
        fresh = staging / "layer"
        # "copy2" keeps a folder's attributes; files are links, which nobody writes to.
        shutil.copytree(source, fresh, symlinks=True, copy_function=_link)
        _keep_owners(source, fresh)
        root = fresh / "fs"
        for parts, lower in sorted(below.items()):
            folder = root.joinpath(*parts)
            if not folder.is_dir() or folder.is_symlink():
                continue  # it has moved with its parent
            if lower.is_symlink():
                target = _resolve(lowers, parts)
                if target is not None and target[: len(parts)] != parts:
                    _make_folders(root, target, lowers)
                    _merge(folder, root.joinpath(*target))
            elif lower.is_dir():
                _attributes(lower, folder)
        (fresh / IMPLICIT).unlink(missing_ok=True)
        (fresh / "size").write_text("0")  # links take no room
        disk.commit_layer(fresh, name)


def _link(source: str, target: str) -> None:
    os.link(source, target, follow_symlinks=False)


def _keep_owners(source: Path, target: Path) -> None:
    for folder, _, _ in os.walk(source):
        status = os.lstat(folder)
        os.chown(target / os.path.relpath(folder, source), status.st_uid, status.st_gid)


def _resolve(lowers: Sequence[Path], parts: Parts) -> Parts | None:
    """Where a link in the lower layers leads, as seen from the image's root."""
    for _ in range(_MAX_LINKS):
        found = _find(lowers, parts)
        if found is None or not found.is_symlink():
            return parts
        target = os.readlink(found)
        at = [] if target.startswith("/") else list(parts[:-1])
        for part in target.split("/"):
            if part == "..":
                del at[-1:]
            elif part not in ("", "."):
                at.append(part)
        if not at:
            return None
        parts = tuple(at)
    return None


def _make_folders(root: Path, parts: Parts, lowers: Sequence[Path]) -> None:
    for depth in range(1, len(parts) + 1):
        path = root.joinpath(*parts[:depth])
        if not path.exists():
            path.mkdir()
            lower = _find(lowers, parts[:depth])
            if lower is not None and lower.is_dir() and not lower.is_symlink():
                _attributes(lower, path)


def _merge(source: Path, target: Path) -> None:
    """Moves all of a folder into another, which exists; what is there under the same name and no folder goes."""
    for child in source.iterdir():
        there = target / child.name
        if child.is_dir() and not child.is_symlink() and there.is_dir() and not there.is_symlink():
            _merge(child, there)
            continue
        if there.is_dir() and not there.is_symlink():
            shutil.rmtree(there)
        child.rename(there)
    source.rmdir()


def _attributes(source: Path, target: Path) -> None:
    status = source.stat()
    os.chown(target, status.st_uid, status.st_gid)
    target.chmod(stat.S_IMODE(status.st_mode))
    for name in os.listxattr(source):
        if not name.startswith("trusted."):
            os.setxattr(target, name, os.getxattr(source, name))
    os.utime(target, ns=(status.st_mtime_ns, status.st_mtime_ns))

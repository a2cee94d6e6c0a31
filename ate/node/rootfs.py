"""Root file systems of containers: read-only overlays of image layers, in the worker's private mount namespace.

Equal stacks of layers share one mount, kept for the next actor of the same image: mounting is off the path of a warm
resume. A sandbox keeps its changes in its own memory; only mount points that an image lacks are made here, in memory
too. Owned by ateom.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections import OrderedDict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from ate.errors import FailedPrecondition
from ate.node.network import interfaces as kernel

_KEPT: Final = 8


class RootfsMounts:
    """Mounts below `directory`, which is short: mount(2) takes one page of options for all layers together."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._users: OrderedDict[Path, int] = OrderedDict()

    def acquire(self, layers: Sequence[Path], mount_points: Collection[str] = ()) -> Path:
        """A directory showing the layers, top first. Give it back with `release`. FailedPrecondition names a fault.

        `mount_points` are where volumes will be mounted: the runtime makes those that are missing, so with any of
        them the directory can be written to.
        """
        if not layers:
            raise FailedPrecondition("a container's image has no layers")
        text = "\0".join([*map(str, layers), "", *sorted(mount_points)])
        name = hashlib.sha256(text.encode()).hexdigest()[:16]
        target = self._directory / name
        if target not in self._users:
            missing = [str(layer) for layer in layers if not layer.is_dir()]
            if missing:
                raise FailedPrecondition(f"image layers are missing on this node: {', '.join(missing)}")
            target.mkdir(parents=True, exist_ok=True)
            try:
                self._mount(layers, target, writable=bool(mount_points))
            except OSError as error:
                target.rmdir()
                raise FailedPrecondition(f"the image's {len(layers)} layers could not be mounted: {error}") from error
            self._users[target] = 0
        self._users[target] += 1
        self._users.move_to_end(target)
        return target

    def release(self, target: Path) -> None:
        """Ends one use; mounts unused for longest go when there are more than a few."""
        self._users[target] -= 1
        unused = [path for path, users in self._users.items() if users == 0]
        for path in unused[: max(0, len(unused) - _KEPT)]:
            self._unmount(path)

    def close(self) -> None:
        for target in list(self._users):
            self._unmount(target)

    def _mount(self, layers: Sequence[Path], target: Path, *, writable: bool) -> None:
        if len(layers) == 1 and not writable:
            kernel.mount(str(layers[0]), target, flags=kernel.MS_BIND)
            kernel.mount("none", target, flags=kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY)
            return
        # Short links instead of the layers' long paths, so that images of hundreds of layers fit into the page;
        # they also keep colons and commas, which overlayfs would split at, out of the options.
        links = []
        for layer in layers:
            link = self._directory / "l" / hashlib.sha256(str(layer).encode()).hexdigest()[:10]
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.is_symlink():
                link.symlink_to(layer)
            links.append(str(link))
        lower = f"lowerdir={':'.join(links)}"
        if not writable:
            kernel.mount("overlay", target, "overlay", kernel.MS_RDONLY, lower)
            return
        upper, work = (self._directory / kind / target.name for kind in ("u", "w"))
        upper.mkdir(parents=True, exist_ok=True)
        work.mkdir(parents=True, exist_ok=True)
        kernel.mount("overlay", target, "overlay", 0, f"{lower},upperdir={upper},workdir={work}")

    def _unmount(self, target: Path) -> None:
        del self._users[target]
        with contextlib.suppress(OSError):
            kernel.unmount(target)
            target.rmdir()
        for kind in ("u", "w"):
            shutil.rmtree(self._directory / kind / target.name, ignore_errors=True)

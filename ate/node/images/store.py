"""ImageStore: from a pinned reference to unpacked layers on this node, pulling only what is not here.

One pull of a layer serves all who wait for it; a pull that is cancelled leaves nothing. `collect` removes images that
nobody uses, least recently used first.
"""

from __future__ import annotations

import functools
import os
import shutil
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

import trio

from ate.asyncio_room import AsyncioRoom
from ate.errors import AteError, DataLoss, DeadlineExceeded, NotFound
from ate.log import Logger
from ate.node.images import document as documents
from ate.node.images import settle
from ate.node.images.disk import ImageDirectory
from ate.node.images.layers import install_layer, told
from ate.node.images.reference import Reference, parse
from ate.node.images.registry import Registry
from ate.objects.store import in_thread, side_by_side
from ate.telemetry import metrics

log = Logger("ate.node")

_HIT: Final = {metrics.IMAGE_CACHE_OUTCOME: "hit"}
_LAYERS_AT_ONCE: Final = 4
_YOUNG: Final = 120.0
"""Seconds during which a used image is not collected: whoever asked for it may not have recorded that yet."""


@dataclass(frozen=True)
class Image:
    """`config` is the image's config document, `layers` its unpacked layers, top first."""

    reference: str
    digest: str
    config: Mapping[str, Any]
    layers: tuple[Path, ...]


class ImageStore:
    """Images below `directory`. `plain_http` names registries (host[:port]) without TLS; loopback ones have none."""

    def __init__(self, directory: Path, room: AsyncioRoom, *, plain_http: tuple[str, ...] = ()) -> None:
        self._disk = ImageDirectory(directory)
        self._disk.sweep()
        self._room = room
        self._plain_http = plain_http
        self._known: dict[str, Image] = {}
        self._used: dict[str, float] = {}
        self._asked: Counter[str] = Counter()
        self._locks: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()

    async def ensure(self, reference: str) -> Image:
        """The image, pulled when it is not here.

        Unavailable when the registry is down, NotFound when it lacks the image, InvalidArgument for a reference
        without digest or an image that tries to leave its layers, DataLoss for content of another digest.
        """
        known = self._known.get(reference)
        if known is not None:
            self._used[known.digest] = time.time()
            metrics.IMAGE_CACHE_REQUESTS.add(_HIT)
            await trio.lowlevel.checkpoint()
            return known
        parsed = parse(reference)
        self._asked[parsed.digest] += 1
        try:
            async with self._lock(reference):
                image = self._known.get(reference) or await self._counted(parsed)
            self._known[reference] = image
            self._used[image.digest] = time.time()
            return image
        finally:
            self._asked[parsed.digest] -= 1

    async def _counted(self, reference: Reference) -> Image:
        """As `_load`; counted as a miss where the image was not on the disk, whatever of its layers was."""
        labels = dict(_HIT)
        try:
            if await self._stored(reference.digest) is None:
                labels = {metrics.IMAGE_CACHE_OUTCOME: "miss"}
            return await self._load(reference)
        except AteError as error:
            slow = isinstance(error, DeadlineExceeded)
            labels = {metrics.IMAGE_CACHE_OUTCOME: "timeout" if slow else "error", metrics.ERROR_TYPE: error.code.name}
            raise
        except trio.Cancelled:
            labels = {metrics.IMAGE_CACHE_OUTCOME: "cancelled"}
            raise
        finally:
            metrics.IMAGE_CACHE_REQUESTS.add(labels)

    def _lock(self, key: str) -> trio.Lock:
        lock = self._locks.get(key)
        if lock is None:
            self._locks[key] = lock = trio.Lock()
        return lock

    async def _load(self, reference: Reference) -> Image:
        registry = Registry(reference, self._plain_http)
        what = f"image {reference.text}"
        document = documents.load(await self._document(registry, reference.digest), what)
        if documents.is_index(document):
            chosen = documents.choose(document, what)
            document = documents.load(await self._document(registry, chosen.digest), what)
        manifest = documents.manifest(document, what)
        config = documents.load(await self._config(registry, manifest.config), f"the config of {what}")
        diff_ids = documents.diff_ids(config, manifest, what)

        async def layer(blob: documents.Descriptor, diff_id: str) -> None:
            async with self._lock(diff_id):
                if not self._disk.layer(diff_id).exists():
                    await self._pull(registry, blob, diff_id, reference)

        pairs = dict(zip(diff_ids, manifest.layers, strict=True))  # a layer may occur twice in an image
        jobs = (functools.partial(layer, blob, diff_id) for diff_id, blob in pairs.items())
        await side_by_side(jobs, limit=_LAYERS_AT_ONCE)

        def finish() -> list[str]:
            self._touch(reference.digest)
            return settle.stack(self._disk, diff_ids, build=True)

        try:
            stacked = await trio.to_thread.run_sync(finish)
        except OSError as error:
            raise told(error, self._disk) from error
        paths = [self._disk.layer(name) for name in reversed(stacked)]
        return Image(reference.text, reference.digest, config, _visible(paths))

    async def _document(self, registry: Registry, digest: str) -> bytes:
        data = await self._stored(digest)
        if data is None:
            data = await self._room.run(registry.document, digest)
            await self._store(data)
        return data

    async def _config(self, registry: Registry, blob: documents.Descriptor) -> bytes:
        data = await self._stored(blob.digest)
        if data is None:
            data = await self._room.run(registry.small_blob, blob)
            await self._store(data)
        return data

    async def _stored(self, digest: str) -> bytes | None:
        try:
            return await trio.to_thread.run_sync(self._disk.read_blob, digest)
        except NotFound:
            return None
        except DataLoss as error:
            log.warning("a damaged blob is pulled again", error=error.message)
            return None

    async def _store(self, data: bytes) -> None:
        try:
            await trio.to_thread.run_sync(self._disk.write_blob, data)
        except OSError as error:
            raise told(error, self._disk) from error

    async def _pull(self, registry: Registry, blob: documents.Descriptor, diff_id: str, reference: Reference) -> None:
        started = time.monotonic()
        try:
            with self._disk.stage() as staging:
                path = staging / "blob"
                await self._room.run(registry.blob, blob, path)
                name = f"{blob.digest} of image {reference.text}"
                await in_thread(lambda sign: install_layer(self._disk, path, staging, name, diff_id, sign.check))
        except OSError as error:
            raise told(error, self._disk) from error
        seconds = round(time.monotonic() - started, 3)
        log.info("layer pulled", image=reference.text, layer=blob.digest, bytes=blob.size, seconds=seconds)

    # -- collection -------------------------------------------------------------------------------------------------

    async def collect(self, in_use: set[str], max_bytes: int) -> int:
        """Removes images that are not `in_use` (references) until the layers have at most `max_bytes`; bytes freed.

        What was asked for in the last minutes stays, and so does what is being pulled or was imported on this node.
        """
        keep = {reference.partition("@")[2] for reference in in_use}
        keep |= {digest for digest, count in self._asked.items() if count > 0}
        keep |= {digest for digest, used in self._used.items() if time.time() - used < _YOUNG}
        freed, removed = await trio.to_thread.run_sync(self._collect, keep, dict(self._used), max_bytes)
        for digest in removed:
            self._used.pop(digest, None)
        self._known = {name: image for name, image in self._known.items() if image.digest not in removed}
        if removed:
            log.info("images collected", images=len(removed), bytes=freed)
        return freed

    def _touch(self, digest: str) -> None:
        try:
            os.utime(self._disk.blob(digest))
        except FileNotFoundError:
            pass

    def _collect(self, keep: set[str], used: Mapping[str, float], max_bytes: int) -> tuple[int, set[str]]:
        keep = keep | self._disk.imported()
        images, parts = self._images()
        sizes = {path.name: _size(path) for path in self._disk.layers.iterdir()}
        total = sum(sizes.values())
        removed: set[str] = set()
        order = sorted(images, key=lambda digest: used.get(digest, images[digest][0]))
        candidates = [digest for digest in order if digest not in keep and time.time() - images[digest][0] >= _YOUNG]
        needed = Counter(layer for digest in images for layer in images[digest][1])
        freed = 0
        # Layers that belong to no image are of pulls that were cut off; they go once they are not young.
        for name in set(sizes) - set(needed):
            if time.time() - (self._disk.layers / name).stat().st_mtime >= _YOUNG:
                freed += self._remove_layer(name, sizes[name])
        for digest in candidates:
            if total - freed <= max_bytes:
                break
            self._disk.blob(digest).unlink(missing_ok=True)
            removed.add(digest)
            for layer in images[digest][1]:
                needed[layer] -= 1
                if needed[layer] == 0 and layer in sizes:
                    freed += self._remove_layer(layer, sizes[layer])
        if removed:
            left = {part for digest in set(images) - removed for part in parts[digest]}
            for digest in removed:
                for part in parts[digest] - left:
                    self._disk.blob(part).unlink(missing_ok=True)
        return freed, removed

    def _images(self) -> tuple[dict[str, tuple[float, set[str]]], dict[str, set[str]]]:
        """Roots (indexes, and manifests in no index): digest -> (last use, layers); digest -> all blobs of it."""
        manifests: dict[str, tuple[set[str], set[str]]] = {}
        indexes: dict[str, set[str]] = {}
        for path in self._disk.blobs.iterdir():
            digest = f"sha256:{path.name}"
            try:
                document = documents.load(self._disk.read_blob(digest), digest)
                if documents.is_index(document):
                    indexes[digest] = {documents.choose(document, digest).digest}
                elif "layers" in document:
                    manifest = documents.manifest(document, digest)
                    config = documents.load(self._disk.read_blob(manifest.config.digest), digest)
                    layers = documents.diff_ids(config, manifest, digest)
                    if all(self._disk.layer(layer).exists() for layer in layers):
                        layers += tuple(settle.stack(self._disk, layers, build=False))
                    manifests[digest] = (
                        {layer.removeprefix("sha256:") for layer in layers},
                        {digest, manifest.config.digest},
                    )
            except (AteError, OSError):
                continue  # not whole (yet): a pull writes the parts one by one
        roots: dict[str, tuple[float, set[str]]] = {}
        parts: dict[str, set[str]] = {}
        inside = {child for children in indexes.values() for child in children}
        for digest in {*indexes, *(set(manifests) - inside)}:
            path = self._disk.blob(digest)
            if path.exists():
                children = indexes.get(digest, {digest})
                found = [manifests[child] for child in children if child in manifests]
                roots[digest] = (path.stat().st_mtime, set().union(*(layers for layers, _ in found)))
                parts[digest] = {digest, *children}.union(*(blobs for _, blobs in found))
        return roots, parts

    def _remove_layer(self, name: str, size: int) -> int:
        """Out of sight first, so that no one finds half a layer."""
        with self._disk.stage() as staging:
            try:
                (self._disk.layers / name).rename(staging / "gone")
            except FileNotFoundError:
                return 0
            shutil.rmtree(staging / "gone", ignore_errors=True)
        return size


def _visible(layers: list[Path]) -> tuple[Path, ...]:
    """Layers down to the first whose root is opaque: overlayfs knows opaque folders only below the root."""
    shown = []
    for layer in layers:
        shown.append(layer)
        try:
            if os.getxattr(layer, "trusted.overlay.opaque") == b"y":
                break
        except OSError:
            continue
    return tuple(shown)


def _size(layer: Path) -> int:
    try:
        return int((layer / "size").read_text())
    except (OSError, ValueError):
        return 0

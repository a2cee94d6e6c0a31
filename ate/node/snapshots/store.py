"""SnapshotStore: saves checkpoints below a URI and fetches them, verified, into a folder to restore from.

A save is acknowledged when everything is durable, the manifest last. A fetch places files only after every one of them
matched its digests; a damaged snapshot is reported, marked beside its manifest, and left as it is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import trio

from ate import objects
from ate.errors import AteError, DataLoss, InvalidArgument, NotFound
from ate.log import Logger
from ate.node.snapshots import local, sparse
from ate.node.snapshots.cache import FileCache, place
from ate.node.snapshots.manifest import DATA, Manifest, StoredObject, check_name
from ate.objects.file import explain
from ate.objects.store import StopSign, in_thread, side_by_side

log = Logger("ate.node")

_MAX_MANIFEST: Final = 4 << 20
_KEPT_MANIFESTS: Final = 4096
QUARANTINE: Final = "quarantine.json"


class SnapshotStore:
    """Works below `directory` (`cache/`, `staging/`); one process at a time. `cache_bytes` bounds the cache on disk."""

    def __init__(self, directory: Path, *, cache_bytes: int) -> None:
        self._staging = directory / "staging"
        shutil.rmtree(self._staging, ignore_errors=True)
        self._staging.mkdir(parents=True, mode=0o700)
        self._cache = FileCache(directory / "cache", cache_bytes)
        # A snapshot's URI holds one snapshot for ever, so what was read once need not be asked for again.
        self._manifests: OrderedDict[str, Manifest] = OrderedDict()

    # -- object storage ---------------------------------------------------------------------------------------------

    async def save(self, uri: str, directory: Path, manifest: Manifest) -> Manifest:
        """Uploads the manifest's files from `directory`; the manifest as it was stored, when all of it is durable.

        May be repeated. The files are left in `directory`, and links to them in the cache.
        """
        return await self._save(uri, directory, manifest, {})

    async def _save(
        self, uri: str, directory: Path, manifest: Manifest, expected: Mapping[str, StoredObject]
    ) -> Manifest:
        """As `save`; a file in `expected` must have that content."""
        location = objects.open_location(uri)
        saved: dict[str, StoredObject] = {}

        async def upload(name: str) -> None:
            saved[name] = stored = await _upload(location, directory, name)
            known = expected.get(name)
            if known is not None and known.raw_sha256 != stored.raw_sha256:
                raise sparse.mismatch(name, str(directory), stored.raw_sha256, known.raw_sha256)

        names = _checked(manifest.all_names())
        await side_by_side(functools.partial(upload, name) for name in names)
        manifest = dataclasses.replace(manifest, objects=tuple(saved[name] for name in names))
        await location.store.put(objects.MANIFEST, [manifest.to_json()])
        self._remember(uri, manifest)

        def keep() -> None:
            for stored in manifest.objects:
                # Saved is saved: a file that cannot be cached only costs a download later.
                with contextlib.suppress(OSError):
                    self._cache.add(stored.raw_sha256, directory / stored.name)
            # The snapshot before this one is about to be deleted: nobody will ask for its files again.
            self._cache.supersede(uri.rpartition("/")[0], {stored.raw_sha256 for stored in manifest.objects})

        await trio.to_thread.run_sync(keep)
        return manifest

    async def read_manifest(self, uri: str) -> Manifest:
        """NotFound when there is no snapshot at `uri`, DataLoss when its manifest is malformed."""
        known = self._manifests.get(uri)
        if known is not None:
            self._manifests.move_to_end(uri)
            await trio.lowlevel.checkpoint()
            return known
        data = bytearray()

        def sink(chunk: bytes) -> None:
            data.extend(chunk)
            if len(data) > _MAX_MANIFEST:
                raise DataLoss(f"{uri}/{objects.MANIFEST} is no usable snapshot manifest: it is too long")

        try:
            await objects.open_location(uri).store.get(objects.MANIFEST, sink)
        except NotFound as error:
            raise NotFound(f"there is no snapshot at {uri}: {error.message}") from error
        manifest = Manifest.from_json(bytes(data), f"{uri}/{objects.MANIFEST}")
        self._remember(uri, manifest)
        return manifest

    def _remember(self, uri: str, manifest: Manifest) -> None:
        self._manifests[uri] = manifest
        self._manifests.move_to_end(uri)
        if len(self._manifests) > _KEPT_MANIFESTS:
            self._manifests.popitem(last=False)

    async def fetch(self, uri: str, into_dir: Path, manifest: Manifest, scope: str) -> None:
        """Puts the raw files of `scope` ("full" or "data") into `into_dir`, replacing files of the same names.

        All of them are verified before the first is placed, or come from the cache. They may be links to files of the
        cache: nobody may write to them. DataLoss names the object that is damaged; nothing is left in `into_dir` then.
        """
        wanted = manifest.wanted(scope, uri)
        missing: list[StoredObject] = []

        def from_cache() -> None:
            missing.extend(s for s in wanted if not self._cache.link(s.raw_sha256, into_dir / s.name))

        try:
            with _explained(into_dir):
                await trio.to_thread.run_sync(from_cache)
            if missing:
                await self._fetch_missing(uri, into_dir, missing)
        except BaseException as error:
            for stored in wanted:
                (into_dir / stored.name).unlink(missing_ok=True)
            if isinstance(error, DataLoss):
                self._manifests.pop(uri, None)
                await _mark_damaged(uri, error)
            raise

    async def _fetch_missing(self, uri: str, into_dir: Path, missing: Sequence[StoredObject]) -> None:
        with self._staged() as staging:

            async def fetch(stored: StoredObject) -> None:
                await self._fetch_one(uri, stored, staging)

            await side_by_side(functools.partial(fetch, stored) for stored in missing)

            def finish() -> None:
                for stored in missing:
                    fresh = staging / stored.name
                    place(fresh, into_dir / stored.name)
                    self._cache.add(stored.raw_sha256, fresh)

            with _explained(into_dir):
                await trio.to_thread.run_sync(finish)

    async def _fetch_one(self, uri: str, stored: StoredObject, staging: Path) -> None:
        """Downloads one object and unpacks it to `staging`, verified."""
        digest, received = hashlib.sha256(), 0
        with _explained(staging), tempfile.TemporaryFile(dir=staging) as packed:

            def sink(chunk: bytes) -> None:
                nonlocal received
                received += len(chunk)
                if received > stored.stored_size:
                    raise sparse.mismatch(stored.stored_name, uri, "more bytes", stored.stored_size)
                digest.update(chunk)
                packed.write(chunk)

            try:
                await objects.open_location(uri).store.get(stored.stored_name, sink)
            except NotFound as error:
                raise sparse.mismatch(stored.stored_name, uri, "no such object", "otherwise") from error
            if received != stored.stored_size:
                raise sparse.mismatch(stored.stored_name, uri, f"{received} bytes", stored.stored_size)
            if digest.hexdigest() != stored.stored_sha256:
                raise sparse.mismatch(stored.stored_name, uri, digest.hexdigest(), stored.stored_sha256)
            packed.seek(0)
            await in_thread(lambda sign: _unpack(uri, stored, packed, staging / stored.name, sign))

    @contextlib.contextmanager
    def _staged(self) -> Iterator[Path]:
        path = self._staging / secrets.token_hex(8)
        path.mkdir(mode=0o700)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    # -- paused actors ----------------------------------------------------------------------------------------------

    async def save_local(self, folder: Path, directory: Path, manifest: Manifest) -> Manifest:
        """Moves the manifest's files from `directory` into the new `folder`; other folders beside it are removed.

        May be repeated, also after a kill in the middle. Costs one reading of the files for their digests.
        """
        _checked(manifest.all_names())
        with _explained(folder):
            # Not cancellable: it is short, and half of it is of no use.
            return await trio.to_thread.run_sync(local.save, folder, directory, manifest)

    async def open_local(self, folder: Path) -> Manifest:
        """DataLoss when the paused state is not there any more, or not readable."""
        return await trio.to_thread.run_sync(local.load, folder)

    async def fetch_local(self, folder: Path, into_dir: Path, manifest: Manifest, scope: str) -> None:
        """As `fetch`, from a paused actor's folder; every file's content is verified."""
        wanted = manifest.wanted(scope, str(folder))

        async def verify(stored: StoredObject) -> None:
            await in_thread(lambda sign: local.verify(folder, stored))

        await side_by_side(functools.partial(verify, stored) for stored in wanted)

        def finish() -> None:
            for stored in wanted:
                place(folder / stored.name, into_dir / stored.name)

        try:
            with _explained(into_dir):
                await trio.to_thread.run_sync(finish)
        except BaseException:
            for stored in wanted:
                (into_dir / stored.name).unlink(missing_ok=True)
            raise

    async def upload_local(self, folder: Path, uri: str, scope: str) -> Manifest:
        """Saves a paused actor's files, verified on the way, as the snapshot `uri`. The folder stays as it is.

        `scope` "data" of a full snapshot keeps only its durable data; FailedPrecondition when it has none of its own.
        """
        manifest = await self.open_local(folder)
        expected = {stored.name: stored for stored in manifest.wanted(scope, str(folder))}
        if scope == DATA and manifest.scope != DATA:
            manifest = dataclasses.replace(manifest, scope=DATA, file_names=manifest.data_file_names)
        return await self._save(uri, folder, manifest, expected)


async def _upload(location: objects.Location, directory: Path, name: str) -> StoredObject:
    path = directory / name
    try:
        file = path.open("rb", buffering=0)
    except FileNotFoundError as error:
        raise DataLoss(f"snapshot file {path} is missing: the checkpoint did not write it") from error
    with file, _explained(path):
        compressor = sparse.Compressor(file.fileno())
        await location.store.put(f"{name}.zstd", compressor)
        return StoredObject(
            name=name,
            raw_size=os.fstat(file.fileno()).st_size,
            raw_sha256=compressor.raw.hexdigest(),
            stored_name=f"{name}.zstd",
            stored_size=compressor.stored_size,
            stored_sha256=compressor.stored.hexdigest(),
        )


def _unpack(uri: str, stored: StoredObject, packed: BinaryIO, target: Path, sign: StopSign) -> None:
    with _explained(target), target.open("xb", buffering=0) as file:
        sign.check()
        try:
            found = sparse.restore(packed, file.fileno(), stored.raw_size)
        except ValueError as error:
            raise sparse.mismatch(stored.stored_name, uri, error, "otherwise") from error
    if found != stored.raw_sha256:
        raise sparse.mismatch(stored.name, uri, found, stored.raw_sha256)


async def _mark_damaged(uri: str, error: DataLoss) -> None:
    """A note for people beside the snapshot; whether it can be written or not, the error is what counts."""
    log.error("snapshot is damaged", snapshot=uri, error=error.message)
    with trio.move_on_after(5):
        try:
            note = json.dumps({"snapshot": uri, "fault": error.message}).encode()
            await objects.open_location(uri).store.put(QUARANTINE, [note])
        except AteError as failure:
            log.warning("could not mark the damaged snapshot", snapshot=uri, error=failure.message)


def _checked(names: Sequence[str]) -> Sequence[str]:
    try:
        return [check_name(name) for name in names]
    except ValueError as error:
        raise InvalidArgument(f"snapshot files: {error}") from error


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise explain(error, Path(error.filename) if isinstance(error.filename, str) else path) from error

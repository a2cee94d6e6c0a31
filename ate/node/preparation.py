"""What an actor's start needs on its node, brought there side by side: runtime, images, the snapshot's files."""

from __future__ import annotations

import json
from collections.abc import Callable

import trio

from ate.errors import FailedPrecondition
from ate.node import bundles
from ate.node.actor_dirs import ActorDirs
from ate.node.assets import Assets, Runtime, architecture
from ate.node.images import ImageStore
from ate.node.phases import SCOPES, phase
from ate.node.snapshots import Manifest, SnapshotStore
from ate.proto import atelet_pb2 as pb
from ate.proto import node_pb2


class Preparation:
    """See the module. Holds nothing of any one actor."""

    def __init__(self, images: ImageStore, assets: Assets, snapshots: SnapshotStore) -> None:
        self._images, self._assets, self._snapshots = images, assets, snapshots

    async def bring(
        self,
        request: pb.RunRequest | pb.RestoreRequest,
        restore: pb.RestoreRequest | None,
        dirs: ActorDirs,
        record: node_pb2.LocalActor,
    ) -> Runtime:
        """Fills the actor's folders and notes its images and runtime in `record`. AteError when one cannot be had."""
        wanted = request.sandbox_assets
        runtime: Runtime | None = None

        async with trio.open_nursery() as nursery:
            ready = trio.Event()

            def on_manifest(manifest: Manifest) -> None:
                nonlocal wanted
                wanted = _pinned(manifest, wanted)
                ready.set()

            if restore is None:
                ready.set()
            else:
                nursery.start_soon(self._fetch, restore, dirs, on_manifest)
            await ready.wait()
            with phase("sandbox_assets"):
                runtime = await self._assets.ensure(wanted)
            with phase("oci_unpack"):
                images = await bundles.images_of(self._images, request.spec, runtime)
            record.images[:] = sorted(images)
            facts: dict[int, str] = {
                pb.ACTOR_METADATA_FIELD_NAME: request.actor_name,
                pb.ACTOR_METADATA_FIELD_ATESPACE: request.atespace,
                pb.ACTOR_METADATA_FIELD_UID: request.actor_uid,
            }
            bundles.write(
                dirs,
                request.spec,
                runtime,
                images,
                facts,
                cpu_milli=request.cpu_milli,
                memory_bytes=request.memory_bytes,
            )
        assert runtime is not None
        record.runtime_json = _runtime_json(runtime)
        return runtime

    async def _fetch(
        self, request: pb.RestoreRequest, dirs: ActorDirs, on_manifest: Callable[[Manifest], None]
    ) -> None:
        """The snapshot's verified files into the restore folder; `on_manifest` is called as soon as it is known."""
        scope = SCOPES[request.scope]
        on_golden = request.scope == pb.SNAPSHOT_SCOPE_DATA_ON_GOLDEN
        if on_golden:  # memory and runtime are the golden snapshot's, its durable data is then replaced by the actor's
            with phase("manifest_fetch"):
                golden = await self._snapshots.read_manifest(request.golden_snapshot_uri)
            on_manifest(golden)
            with phase("download"):
                await self._snapshots.fetch(request.golden_snapshot_uri, dirs.restore, golden, "full")
        if request.type == pb.CHECKPOINT_TYPE_LOCAL:
            folder = dirs.local_checkpoints / request.local_config.snapshot_name
            manifest = await self._snapshots.open_local(folder)
            if not on_golden:
                on_manifest(manifest)
            with phase("download"):
                await self._snapshots.fetch_local(folder, dirs.restore, manifest, scope)
            return
        uri = request.external_config.snapshot_uri
        with phase("manifest_fetch"):
            manifest = await self._snapshots.read_manifest(uri)
        if not on_golden:
            on_manifest(manifest)
        with phase("download"):
            await self._snapshots.fetch(uri, dirs.restore, manifest, scope)


def _pinned(manifest: Manifest, wanted: pb.SandboxAssets) -> pb.SandboxAssets:
    """The runtime a snapshot was taken with takes precedence over what the config says now."""
    if manifest.sandbox_class != wanted.sandbox_class:
        raise FailedPrecondition(
            f"the snapshot is of sandbox class {manifest.sandbox_class!r}, the template of {wanted.sandbox_class!r}"
        )
    files = {name: pb.AssetFile(url=asset.url, sha256=asset.sha256) for name, asset in manifest.assets.items()}
    return pb.SandboxAssets(
        sandbox_class=manifest.sandbox_class,
        pause_image=manifest.pause_image or wanted.pause_image,
        assets={architecture(): pb.ArchAssets(files=files)},
    )


def _runtime_json(runtime: Runtime) -> str:
    assets = {name: {"url": url, "sha256": sha256} for name, (url, sha256) in runtime.sources.items()}
    return json.dumps({"sandboxClass": runtime.sandbox_class, "pauseImage": runtime.pause_image, "assets": assets})

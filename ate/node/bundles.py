"""Writes what an ateom needs to run an actor: an OCI bundle a container, the files of its volumes, the root overlays.

Layers stay where the image store keeps them; a bundle only names them. Files of systemInfo volumes are written anew on
every start, so that an actor cloned from another's snapshot reads its own name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import trio

from ate.errors import FailedPrecondition, Unimplemented
from ate.node.actor_dirs import ActorDirs
from ate.node.assets import Runtime
from ate.node.images import Image, ImageStore
from ate.node.sandbox import oci_spec
from ate.proto import atelet_pb2 as pb
from ate.proto import ateom_pb2


async def images_of(store: ImageStore, spec: pb.WorkloadSpec, runtime: Runtime) -> Mapping[str, Image]:
    """Every image the actor is made of, by reference, pulled side by side."""
    references = {container.image for container in spec.containers} | {runtime.pause_image}
    references |= {volume.image.reference for volume in spec.volumes if volume.HasField("image")}
    found: dict[str, Image] = {}

    async def ensure(reference: str) -> None:
        found[reference] = await store.ensure(reference)

    async with trio.open_nursery() as nursery:
        for reference in sorted(references):
            nursery.start_soon(ensure, reference)
    return found


def write(
    dirs: ActorDirs,
    spec: pb.WorkloadSpec,
    runtime: Runtime,
    images: Mapping[str, Image],
    facts: Mapping[int, str],
    *,
    cpu_milli: int,
    memory_bytes: int,
) -> None:
    """Bundles for `pause` and every container. `facts` are the actor's identity by ActorMetadataField."""
    volumes = {volume.name: volume for volume in spec.volumes}
    for volume in spec.volumes:
        _prepare(dirs, volume, facts)
    pause = images[runtime.pause_image]
    _bundle(dirs, oci_spec.PAUSE, oci_spec.build_pause(oci_spec.ImageConfig.parse(pause.config)), pause, {})
    for container in spec.containers:
        image = images[container.image]
        process = oci_spec.Process(
            name=container.name,
            command=tuple(container.command),
            args=tuple(container.args),
            env=tuple((entry.name, entry.value) for entry in container.env),
            add_capabilities=tuple(container.security_context.capabilities.add),
            drop_capabilities=tuple(container.security_context.capabilities.drop),
            mounts=tuple(_mount(dirs, volumes[m.name], m.mount_path, images) for m in container.volume_mounts),
        )
        parsed = oci_spec.ImageConfig.parse(image.config)
        config = oci_spec.build(process, parsed, cpu_milli=cpu_milli, memory_bytes=memory_bytes)
        shown = {
            mount.mount_path: images[volumes[mount.name].image.reference]
            for mount in container.volume_mounts
            if volumes[mount.name].HasField("image")
        }
        _bundle(dirs, container.name, config, image, shown)


def _bundle(dirs: ActorDirs, name: str, config: Mapping[str, object], image: Image, shown: Mapping[str, Image]) -> None:
    """`shown` are the images of image volumes by mount point: their layers are stacked as a root's are."""
    folder = dirs.bundles / name
    (folder / "rootfs").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    volumes = {path: [str(layer) for layer in volume.layers] for path, volume in shown.items()}
    overlay = {"layers": [str(layer) for layer in image.layers], "imageVolumes": volumes}
    (folder / "rootfs-overlay.json").write_text(json.dumps(overlay))


def _prepare(dirs: ActorDirs, volume: pb.Volume, facts: Mapping[int, str]) -> None:
    if volume.HasField("durable_dir"):
        path = dirs.durable / volume.name
        path.mkdir()
        path.chmod(0o777)
    elif volume.HasField("system_info"):
        for source in volume.system_info.data_sources:
            if source.HasField("trust_bundle"):
                names = ", ".join(source.trust_bundle.names)
                raise FailedPrecondition(
                    f"trust bundle {names!r} is not available on this node: it has no egress gateway"
                )
            for item in source.actor_metadata.items:
                target = dirs.system_info / volume.name / item.path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(facts[item.field])
    elif volume.HasField("external"):
        raise Unimplemented(f"volume {volume.name!r}: external (CSI) volumes are not implemented yet")


def _mount(dirs: ActorDirs, volume: pb.Volume, path: str, images: Mapping[str, Image]) -> oci_spec.Mount:
    if volume.HasField("durable_dir"):
        return oci_spec.Mount(dirs.durable / volume.name, path)
    if volume.HasField("system_info"):
        return oci_spec.Mount(dirs.system_info / volume.name, path, read_only=True)
    # The worker shows all layers there; the top one stands in the config until it knows where.
    return oci_spec.Mount(images[volume.image.reference].layers[0], path, read_only=True)


def workload(spec: pb.WorkloadSpec) -> ateom_pb2.WorkloadSpec:
    """The part of the spec an ateom needs beside the bundles: probes, and which mounts are durable."""
    kinds = {volume.name: volume.WhichOneof("source") for volume in spec.volumes}
    result = ateom_pb2.WorkloadSpec()
    for container in spec.containers:
        target = result.containers.add(name=container.name)
        if container.HasField("readyz"):
            probe = container.readyz
            target.readyz.CopyFrom(
                ateom_pb2.Readyz(
                    http_get=ateom_pb2.HTTPGetAction(path=probe.http_get.path, port=probe.http_get.port),
                    timeout_seconds=probe.timeout_seconds,
                )
            )
        for mount in container.volume_mounts:
            values = {"volume_name": mount.name, "mount_path": mount.mount_path}
            kind = kinds[mount.name]
            if kind == "durable_dir":
                target.durable_dir_volume_mounts.add(**values)
            elif kind == "system_info":
                target.system_info_volume_mounts.add(**values)
            elif kind == "image":
                target.image_volume_mounts.add(**values)
            else:
                target.csi_volume_mounts.add(**values)
    return result

"""What the control plane asks of a node, built from stored resources. Pure, but for `terminate`."""

from __future__ import annotations

from typing import Any, Final

from ate.api import scheduling
from ate.api.nodes import Nodes
from ate.names import FENCE_METADATA, OPERATION_ID_METADATA
from ate.proto import ateapi_pb2 as pb
from ate.proto import atelet_pb2 as node
from ate.store import Lease, Row

SCOPES: Final = {
    pb.SNAPSHOT_CONTENT_SCOPE_FULL: node.SNAPSHOT_SCOPE_FULL,
    pb.SNAPSHOT_CONTENT_SCOPE_DATA: node.SNAPSHOT_SCOPE_DATA,
}


def metadata(operation_id: str, lease: Lease, *, drain_grace_ms: int | None = None) -> dict[str, str]:
    """gRPC metadata: the same operation id means the same operation, so that a repeat is not done twice.

    The lease's fence lets the node refuse what comes late from a holder that was overtaken.
    """
    values = {OPERATION_ID_METADATA: operation_id, FENCE_METADATA: str(lease.fence)}
    if drain_grace_ms is not None:
        values["ate-drain-grace-ms"] = str(drain_grace_ms)
    return values


def identity(actor: Row[pb.Actor], template: Row[pb.ActorTemplate]) -> dict[str, Any]:
    """The fields every AteomHerder request begins with, the worker aside."""
    return {
        "atespace": actor.key.scope,
        "actor_name": actor.key.name,
        "actor_uid": actor.uid,
        "actor_template_atespace": template.key.scope,
        "actor_template_name": template.key.name,
    }


def sizes(template: pb.ActorTemplate) -> dict[str, int]:
    cpu, memory = scheduling.amounts(template.resources)
    return {"cpu_milli": cpu, "memory_bytes": memory}


def assets(template: pb.ActorTemplate, config: pb.SandboxRuntimeConfig) -> node.SandboxAssets:
    """The runtime's files for every architecture, and the root container's image."""
    return node.SandboxAssets(
        sandbox_class=scheduling.CLASS_NAMES[template.sandbox_config.sandbox_class],
        pause_image=config.spec.pause_image,
        assets={
            arch: node.ArchAssets(
                files={name: node.AssetFile(url=file.url, sha256=file.sha256) for name, file in files.files.items()}
            )
            for arch, files in config.spec.assets.items()
        },
    )


def workload(template: pb.ActorTemplate, actor: pb.Actor) -> node.WorkloadSpec:
    """The template's containers and volumes in the node's words. The two messages differ only in what is shared."""
    spec = node.WorkloadSpec()
    for container in template.containers:
        target = spec.containers.add(
            name=container.name, image=container.image, command=container.command, args=container.args
        )
        target.env.extend(node.EnvEntry(name=entry.name, value=entry.value) for entry in container.env)
        if container.HasField("readyz"):
            probe = container.readyz
            target.readyz.CopyFrom(
                node.Readyz(
                    http_get=node.HTTPGetAction(path=probe.http_get.path, port=probe.http_get.port),
                    timeout_seconds=probe.timeout_seconds,
                )
            )
        target.volume_mounts.extend(
            node.VolumeMount(name=mount.name, mount_path=mount.mount_path) for mount in container.volume_mounts
        )
        if container.HasField("security_context"):
            wanted = container.security_context.capabilities
            target.security_context.capabilities.CopyFrom(node.Capabilities(add=wanted.add, drop=wanted.drop))
        if container.HasField("resources"):
            cpu, memory = scheduling.amounts(container.resources)
            target.resources.CopyFrom(node.ContainerResources(cpu_millis=cpu, memory_bytes=memory))
    created = {volume.volume_name: volume for volume in actor.status.actor_volumes}
    for volume in template.volumes:
        target_volume = spec.volumes.add(name=volume.name)
        if volume.HasField("durable_dir"):
            target_volume.durable_dir.SetInParent()
        elif volume.HasField("external_volume_template"):
            made = created[volume.name]
            target_volume.external.CopyFrom(
                node.ExternalVolumeSource(
                    storage_volume_id=made.storage_volume_id,
                    volume_type=made.volume_type,
                    volume_context=made.volume_context,
                )
            )
        elif volume.HasField("image"):
            target_volume.image.reference = volume.image.reference
        else:
            _system_info(volume.system_info, target_volume.system_info)
    return spec


def _system_info(source: pb.SystemInfoVolume, target: node.SystemInfoVolume) -> None:
    target.SetInParent()
    for item in source.data_sources:
        if item.HasField("actor_metadata"):
            fields = [
                node.ActorMetadataItem(field=node.ActorMetadataField.Name(entry.field), path=entry.path)
                for entry in item.actor_metadata.items
            ]
            target.data_sources.add(actor_metadata=node.ActorMetadataSource(items=fields))
        else:
            bundle = node.TrustBundleSource(path=item.trust_bundle.path, names=[item.trust_bundle.name])
            target.data_sources.add(trust_bundle=bundle)


async def terminate(
    nodes: Nodes,
    actor: Row[pb.Actor],
    lease: Lease,
    *,
    at: tuple[str, str] | None = None,
    keep_paused: bool = True,
    timeout: float = 60,
) -> None:
    """Makes sure nothing of the actor runs on its worker any more, before the place is given to another.

    `at`: (node, worker), where that is not where its status says it is placed. What a pause left on the node stays
    with `keep_paused`: the actor may still be had from that.
    Raises (ambiguous) when the node cannot be asked: the actor then stays in transition with its place, to be retried.
    """
    assigned = actor.value.status.worker_assignment
    node_name, worker = at or (assigned.node_name, assigned.worker.name)
    herder = await nodes.herder(node_name)
    request = node.TerminateRequest(
        target_ateom_uid=worker,
        atespace=actor.key.scope,
        actor_name=actor.key.name,
        actor_uid=actor.uid,
        actor_template_atespace=actor.value.actor_template.atespace,
        actor_template_name=actor.value.actor_template.name,
        keep_paused=keep_paused,
    )
    await herder.Terminate(request, timeout=timeout, metadata=metadata(f"stop-{actor.uid}", lease))

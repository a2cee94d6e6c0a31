"""SuspendActor and PauseActor: save the actor, give its worker back, and only then let go of what it was before.

RUNNING -> SUSPENDING -> SUSPENDED (snapshot in object storage), RUNNING -> PAUSING -> PAUSED (snapshot on the node),
PAUSED -> SUSPENDING -> SUSPENDED (the node's snapshot is uploaded). The node answers only when the snapshot is durable
and verified; the snapshot's name, stored before the node is asked, is the operation's id.
"""

from __future__ import annotations

from ate.api.context import Context
from ate.api.workflows import measures, node_requests, steps
from ate.errors import STILL_RUNNING, AteError, FailedPrecondition, NotFound, reason_of
from ate.log import Logger
from ate.names import GOLDEN_ATESPACE, Ref, actor_prefix, new_uid, snapshot_uri
from ate.proto import ateapi_pb2 as pb
from ate.proto import atelet_pb2 as node
from ate.store import Lease, Row
from ate.telemetry import trace

log = Logger("ate.api")

NODE_TIMEOUT = 590.0
"""Seconds for one checkpoint with its upload: just under the longest RPC."""
DEFAULT_DRAIN_GRACE_MS = 10_000
FULL, DATA = pb.SNAPSHOT_CONTENT_SCOPE_FULL, pb.SNAPSHOT_CONTENT_SCOPE_DATA


async def suspend(ctx: Context, ref: Ref, *, worker: str = "", uid: str = "") -> pb.Actor:
    """The suspended actor; one that already is, is returned as it is.

    With `worker` and `uid` only while that worker holds that actor (RequestActorSuspend): NotFound otherwise.
    """
    actor = await steps.load(ctx, ref, uid=uid)
    if worker and actor.value.status.worker_assignment.worker.name != worker:
        raise NotFound(f"worker {worker} does not hold actor {ref}")
    if actor.value.status.state == pb.ACTOR_STATE_SUSPENDED:
        return actor.value

    async def work(lease: Lease) -> pb.Actor:
        return await _suspend(ctx, ref, lease)

    return await ctx.operations.run(steps.lease_key(ref), "suspend", work)


async def _suspend(ctx: Context, ref: Ref, lease: Lease) -> pb.Actor:
    actor = await steps.load(ctx, ref)
    state = actor.value.status.state
    if state == pb.ACTOR_STATE_SUSPENDED:
        return actor.value
    if state not in (pb.ACTOR_STATE_RUNNING, pb.ACTOR_STATE_PAUSED, pb.ACTOR_STATE_SUSPENDING):
        raise FailedPrecondition(_not_from(ref, actor.value, "suspended", "RUNNING or PAUSED"))
    template = await steps.template_of(ctx, actor)
    scope = commit_scope(ref, template.value)
    measures.snapshot(scope)
    if state != pb.ACTOR_STATE_SUSPENDING:
        if state == pb.ACTOR_STATE_PAUSED and actor.value.status.local_snapshot.content_scope == DATA and scope == FULL:
            raise FailedPrecondition(
                f"actor {ref} was paused with durable data only and its template commits FULL: resume it first"
            )
        actor = await steps.write(ctx, actor, lease, lambda value: _mark_suspending(value, template.value))
        steps.log_state(actor)
    target = actor.value.status.in_progress_snapshot_uri
    cpu = _cpu_of(ctx, actor.value, scope)
    try:
        if actor.value.status.HasField("worker_assignment"):
            with trace.span("step.Checkpoint"):
                await _checkpoint(ctx, actor, template, scope, lease)
        else:
            with trace.span("step.UploadPaused"):
                await _upload_paused(ctx, actor, template, scope, lease)
    except steps.AMBIGUOUS:
        raise
    except AteError as error:
        if reason_of(error) == STILL_RUNNING:
            await ctx.objects.delete_prefix(target)
            await steps.write(ctx, actor, lease, _back_to_running)
        elif actor.value.status.HasField("worker_assignment"):
            await node_requests.terminate(ctx.nodes, actor, lease)
            await steps.crash(ctx, actor, lease, f"suspend failed: {error.message}")
        else:
            await steps.write(ctx, actor, lease, _back_to_paused)
        raise

    def done(value: pb.Actor) -> None:
        status = value.status
        status.state = pb.ACTOR_STATE_SUSPENDED
        status.external_snapshot.CopyFrom(
            pb.ExternalSnapshot(
                snapshot_uri=target, content_scope=scope, actor_template_uid=template.uid, cpu_features_id=cpu
            )
        )
        status.in_progress_snapshot_uri = ""
        status.ClearField("local_snapshot")

    with trace.span("step.FinalizeSuspended"):
        actor = await steps.write_and_release(ctx, actor, lease, done)
    steps.log_state(actor)
    with trace.span("step.DropOlderSnapshots"):
        await _drop_older(ctx, actor, template.value, target)
    return actor.value


def commit_scope(ref: Ref, template: pb.ActorTemplate) -> pb.SnapshotContentScope:
    """What a suspend keeps. Golden actors keep all, whatever the template says: clones need their memory."""
    return FULL if ref.atespace == GOLDEN_ATESPACE else template.snapshots_config.on_commit or FULL


def _cpu_of(ctx: Context, actor: pb.Actor, scope: pb.SnapshotContentScope) -> str:
    """The CPU features that memory saved now may rely on: those of the node it is on. Durable data relies on none."""
    paused_on = actor.status.local_snapshot.node_vms_with_local_snapshots[:1]
    node_name = actor.status.worker_assignment.node_name or next(iter(paused_on), "")
    return ctx.cpus.of_node(node_name) if scope == FULL else ""


def _not_from(ref: Ref, actor: pb.Actor, what: str, states: str) -> str:
    state = pb.ActorState.Name(actor.status.state).removeprefix("ACTOR_STATE_")
    return f"actor {ref} is {state}: it can be {what} from {states} only"


def _mark_suspending(value: pb.Actor, template: pb.ActorTemplate) -> None:
    value.status.state = pb.ACTOR_STATE_SUSPENDING
    value.status.in_progress_snapshot_uri = snapshot_uri(
        template.snapshots_config.storage_location, value.metadata.atespace, value.metadata.uid, new_uid()
    )


def _back_to_running(value: pb.Actor) -> None:
    value.status.state = pb.ACTOR_STATE_RUNNING
    value.status.in_progress_snapshot_uri = ""
    value.status.in_progress_local_snapshot_name = ""


def _back_to_paused(value: pb.Actor) -> None:
    value.status.state = pb.ACTOR_STATE_PAUSED
    value.status.in_progress_snapshot_uri = ""


def _drain_grace_ms(template: pb.ActorTemplate) -> int:
    if template.lifecycle.HasField("drain_grace"):
        return int(template.lifecycle.drain_grace.ToNanoseconds() // 1_000_000)
    return DEFAULT_DRAIN_GRACE_MS


async def _checkpoint(
    ctx: Context,
    actor: Row[pb.Actor],
    template: Row[pb.ActorTemplate],
    scope: pb.SnapshotContentScope,
    lease: Lease,
) -> None:
    assigned = actor.value.status.worker_assignment
    target = actor.value.status.in_progress_snapshot_uri
    herder = await ctx.nodes.herder(assigned.node_name)
    request = node.CheckpointRequest(
        target_ateom_uid=assigned.worker.name,
        **node_requests.identity(actor, template),
        spec=node_requests.workload(template.value, actor.value),
        type=node.CHECKPOINT_TYPE_EXTERNAL,
        external_config=node.ExternalCheckpointConfiguration(snapshot_uri=target),
        scope=node_requests.SCOPES[scope],
    )
    grace = _drain_grace_ms(template.value)
    operation = target.rpartition("/")[2]
    await herder.Checkpoint(
        request, timeout=NODE_TIMEOUT, metadata=node_requests.metadata(operation, lease, drain_grace_ms=grace)
    )


async def _upload_paused(
    ctx: Context,
    actor: Row[pb.Actor],
    template: Row[pb.ActorTemplate],
    scope: pb.SnapshotContentScope,
    lease: Lease,
) -> None:
    local = actor.value.status.local_snapshot
    if not local.node_vms_with_local_snapshots:
        raise FailedPrecondition(f"no node is known to hold the paused state of actor {actor.key}: revert the actor")
    herder = await ctx.nodes.herder(local.node_vms_with_local_snapshots[0])
    request = node.UploadPausedCheckpointRequest(
        **node_requests.identity(actor, template),
        local_snapshot_name=local.snapshot_name,
        destination_snapshot_uri=actor.value.status.in_progress_snapshot_uri,
        desired_scope=node_requests.SCOPES[scope],
    )
    metadata = node_requests.metadata(request.destination_snapshot_uri.rpartition("/")[2], lease)
    await herder.UploadPausedCheckpoint(request, timeout=NODE_TIMEOUT, metadata=metadata)


async def _drop_older(ctx: Context, actor: Row[pb.Actor], template: pb.ActorTemplate, keep: str) -> None:
    """Collects every older snapshot of the actor's own prefix, the one just replaced among them.

    The new one is durable and recorded, so a failure here costs space, not data; the next suspend tries again.
    """
    prefix = actor_prefix(template.snapshots_config.storage_location, actor.key.scope, actor.uid) + "/snapshots"
    try:
        await ctx.objects.delete_other_snapshots(prefix, keep)
    except AteError as error:
        log.warning("older snapshots not deleted", actor=str(actor.key), prefix=prefix, error=error.message)


async def pause(ctx: Context, ref: Ref) -> pb.Actor:
    """The paused actor, its snapshot on the node it ran on."""
    actor = await steps.load(ctx, ref)
    if actor.value.status.state == pb.ACTOR_STATE_PAUSED:
        return actor.value

    async def work(lease: Lease) -> pb.Actor:
        return await _pause(ctx, ref, lease)

    return await ctx.operations.run(steps.lease_key(ref), "pause", work)


async def _pause(ctx: Context, ref: Ref, lease: Lease) -> pb.Actor:
    actor = await steps.load(ctx, ref)
    state = actor.value.status.state
    if state == pb.ACTOR_STATE_PAUSED:
        return actor.value
    if state not in (pb.ACTOR_STATE_RUNNING, pb.ACTOR_STATE_PAUSING):
        raise FailedPrecondition(_not_from(ref, actor.value, "paused", "RUNNING"))
    if ref.atespace == GOLDEN_ATESPACE:
        raise FailedPrecondition(f"golden actor {ref} cannot be paused")
    template = await steps.template_of(ctx, actor)
    scope = template.value.snapshots_config.on_pause or FULL
    measures.snapshot(scope)
    if state == pb.ACTOR_STATE_RUNNING:

        def mark(value: pb.Actor) -> None:
            value.status.state = pb.ACTOR_STATE_PAUSING
            value.status.in_progress_local_snapshot_name = new_uid()

        actor = await steps.write(ctx, actor, lease, mark)
    name = actor.value.status.in_progress_local_snapshot_name
    assigned = actor.value.status.worker_assignment
    herder = await ctx.nodes.herder(assigned.node_name)
    request = node.CheckpointRequest(
        target_ateom_uid=assigned.worker.name,
        **node_requests.identity(actor, template),
        spec=node_requests.workload(template.value, actor.value),
        type=node.CHECKPOINT_TYPE_LOCAL,
        local_config=node.LocalCheckpointConfiguration(snapshot_name=name),
        scope=node_requests.SCOPES[scope],
    )
    try:
        grace = _drain_grace_ms(template.value)
        metadata = node_requests.metadata(name, lease, drain_grace_ms=grace)
        with trace.span("step.Checkpoint"):
            await herder.Checkpoint(request, timeout=NODE_TIMEOUT, metadata=metadata)
    except steps.AMBIGUOUS:
        raise
    except AteError as error:
        if reason_of(error) == STILL_RUNNING:
            await steps.write(ctx, actor, lease, _back_to_running)
        else:
            await node_requests.terminate(ctx.nodes, actor, lease)
            await steps.crash(ctx, actor, lease, f"pause failed: {error.message}")
        raise
    node_name = assigned.node_name

    def done(value: pb.Actor) -> None:
        value.status.state = pb.ACTOR_STATE_PAUSED
        value.status.in_progress_local_snapshot_name = ""
        value.status.local_snapshot.CopyFrom(
            pb.LocalSnapshot(snapshot_name=name, node_vms_with_local_snapshots=[node_name], content_scope=scope)
        )

    with trace.span("step.FinalizePaused"):
        actor = await steps.write_and_release(ctx, actor, lease, done)
    steps.log_state(actor)
    return actor.value

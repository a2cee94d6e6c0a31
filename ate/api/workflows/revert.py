"""RevertActor and DeleteActor: stop whatever runs, give everything back, keep the last good snapshot, or nothing."""

from __future__ import annotations

from ate.api.context import Context
from ate.api.kinds import ACTORS, ASSIGNMENTS, EGRESS, TEMPLATES, key_of
from ate.api.workflows import history, node_requests, steps
from ate.errors import FailedPrecondition, Unavailable
from ate.log import Logger
from ate.names import Ref, actor_prefix
from ate.proto import ateapi_pb2 as pb
from ate.store import Key, Lease, Row, Tx
from ate.telemetry import trace

log = Logger("ate.api")

_REVERTIBLE = (
    pb.ACTOR_STATE_RUNNING,
    pb.ACTOR_STATE_PAUSED,
    pb.ACTOR_STATE_CRASHED,
    pb.ACTOR_STATE_REVERTING,
)
_DELETABLE = (pb.ACTOR_STATE_SUSPENDED, pb.ACTOR_STATE_CRASHED, pb.ACTOR_STATE_DELETING)


async def revert(ctx: Context, ref: Ref) -> pb.Actor:
    """The actor, SUSPENDED at its last external snapshot (or at its images when it has none)."""
    actor = await steps.load(ctx, ref)
    if actor.value.status.state == pb.ACTOR_STATE_SUSPENDED:
        return actor.value

    async def work(lease: Lease) -> pb.Actor:
        return await _revert(ctx, ref, lease)

    return await ctx.operations.run(steps.lease_key(ref), "revert", work)


async def _revert(ctx: Context, ref: Ref, lease: Lease) -> pb.Actor:
    actor = await steps.load(ctx, ref)
    state = actor.value.status.state
    if state == pb.ACTOR_STATE_SUSPENDED:
        return actor.value
    if state not in _REVERTIBLE:
        name = pb.ActorState.Name(state).removeprefix("ACTOR_STATE_")
        raise FailedPrecondition(f"actor {ref} is {name}: it can be reverted from RUNNING, PAUSED or CRASHED only")
    if state != pb.ACTOR_STATE_REVERTING:

        def mark(value: pb.Actor) -> None:
            value.status.state = pb.ACTOR_STATE_REVERTING

        actor = await steps.write(ctx, actor, lease, mark)
    with trace.span("step.StopOnNode"):
        await _stop(ctx, actor, lease)
    if actor.value.status.in_progress_snapshot_uri:
        await ctx.objects.delete_prefix(actor.value.status.in_progress_snapshot_uri)

    def done(value: pb.Actor) -> None:
        value.status.state = pb.ACTOR_STATE_SUSPENDED
        value.status.in_progress_snapshot_uri = ""
        value.status.in_progress_local_snapshot_name = ""
        value.status.ClearField("local_snapshot")
        value.status.ClearField("crash")

    actor = await steps.write_and_release(ctx, actor, lease, done)
    steps.log_state(actor)
    return actor.value


async def delete(ctx: Context, ref: Ref, *, any_state: bool, options: pb.DeleteOptions) -> pb.Actor:
    """The actor as it was just before removal. Repeating an interrupted delete goes on where it stopped."""
    actor = await steps.load(ctx, ref)
    steps.check_guards(f"actor {ref}", actor, options)
    state = actor.value.status.state
    if state not in _DELETABLE and not any_state:
        name = pb.ActorState.Name(state).removeprefix("ACTOR_STATE_")
        raise FailedPrecondition(f"actor {ref} is {name}: suspend it first, or delete it in any state (--any-state)")

    async def work(lease: Lease) -> pb.Actor:
        return await _delete(ctx, ref, lease)

    return await ctx.operations.run(steps.lease_key(ref), "delete", work)


async def _delete(ctx: Context, ref: Ref, lease: Lease) -> pb.Actor:
    actor = await steps.load(ctx, ref)
    if actor.value.status.state != pb.ACTOR_STATE_DELETING:

        def mark(value: pb.Actor) -> None:
            value.status.state = pb.ACTOR_STATE_DELETING

        actor = await steps.write(ctx, actor, lease, mark)
    before = actor.value
    with trace.span("step.StopOnNode"):
        await _stop(ctx, actor, lease)
    template = await ctx.store.get(TEMPLATES, key_of(actor.value.actor_template))
    locations = {_location(uri, actor.uid) for uri in _uris(actor.value)}
    if template is not None:
        locations.add(actor_prefix(template.value.snapshots_config.storage_location, actor.key.scope, actor.uid))
    for prefix in sorted(filter(None, locations)):
        await ctx.objects.delete_prefix(prefix)
    actor = await steps.write_and_release(ctx, actor, lease, lambda value: None)

    def remove(tx: Tx) -> None:
        tx.delete(ACTORS, actor.key, uid=actor.uid, version=actor.version)
        if tx.get(EGRESS, actor.key) is not None:
            tx.delete(EGRESS, actor.key)
        history.drop(tx, actor.key)

    await ctx.store.transact(remove)
    ctx.affinity.forget([actor.uid])
    log.info("Actor deleted", actor=str(ref), actor_uid=actor.uid)
    return before


def _uris(actor: pb.Actor) -> list[str]:
    return [actor.status.external_snapshot.snapshot_uri, actor.status.in_progress_snapshot_uri]


def _location(uri: str, actor_uid: str) -> str:
    """The actor's own prefix in `uri`; empty for a snapshot it only borrowed."""
    before, found, _ = uri.partition(f"/actors/{actor_uid}/")
    return f"{before}/actors/{actor_uid}" if found else ""


async def _stop(ctx: Context, actor: Row[pb.Actor], lease: Lease) -> None:
    """Terminates the actor where it runs (or was paused). Unavailable while that node cannot be asked.

    A worker that is gone, or has restarted since, took the actor with it: there is nothing left to stop.
    """
    status = actor.value.status
    nodes = {(status.worker_assignment.node_name, status.worker_assignment.worker.name)}
    nodes |= {(name, "") for name in status.local_snapshot.node_vms_with_local_snapshots}
    for node_name, worker in sorted(nodes):
        if not node_name:
            continue
        if worker and await ctx.store.get(ASSIGNMENTS, Key(worker, actor.uid)) is None:
            continue
        try:
            await node_requests.terminate(ctx.nodes, actor, lease, at=(node_name, worker), keep_paused=False)
        except Unavailable as error:
            if worker:
                raise
            log.warning("paused state not collected", actor=str(actor.key), node=node_name, error=error.message)

"""Tags: a copy of a suspended actor's snapshot in storage the tag owns, made, shared and collected."""

from __future__ import annotations

from ate.api.context import Context
from ate.api.kinds import ATESPACES, TAGS, key_of
from ate.api.workflows import steps
from ate.errors import FailedPrecondition, NotFound
from ate.log import Logger
from ate.names import Ref, tag_prefix
from ate.proto import ateapi_pb2 as pb
from ate.store import Key, Lease, Row, Tx

log = Logger("ate.api")


async def create(ctx: Context, tag: pb.Tag) -> pb.Tag:
    """The READY tag. A copy that fails leaves it CREATING: delete it, then create it again."""
    ref = Ref(tag.metadata.atespace, tag.metadata.name)
    source = Ref(tag.source_actor.atespace, tag.source_actor.name)

    async def work(lease: Lease) -> pb.Tag:
        return await _create(ctx, tag, ref, source, lease)

    return await ctx.operations.run(steps.lease_key(source), f"tag {ref}", work)


async def _create(ctx: Context, tag: pb.Tag, ref: Ref, source: Ref, lease: Lease) -> pb.Tag:
    actor = await steps.load(ctx, source)
    snapshot = actor.value.status.external_snapshot
    if actor.value.status.state != pb.ACTOR_STATE_SUSPENDED:
        state = pb.ActorState.Name(actor.value.status.state).removeprefix("ACTOR_STATE_")
        raise FailedPrecondition(f"actor {source} is {state}: only a SUSPENDED actor can be tagged")
    if not snapshot.snapshot_uri or not snapshot.actor_template_uid:
        raise FailedPrecondition(f"actor {source} has no snapshot yet: resume and suspend it first")
    template = await steps.template_of(ctx, actor)
    location = template.value.snapshots_config.storage_location
    fresh = pb.Tag(metadata=tag.metadata, scope=tag.scope, source_actor=tag.source_actor)
    fresh.status.actor_template_uid = snapshot.actor_template_uid
    fresh.status.storage_location = location
    fresh.status.state = pb.TAG_STATE_CREATING

    def reserve(tx: Tx) -> Row[pb.Tag]:
        tx.require_lease(lease)
        if tx.get(ATESPACES, Key("", ref.atespace)) is None:
            raise FailedPrecondition(f"atespace {ref.atespace} not found: create it first")
        return tx.insert(TAGS, Key(ref.atespace, ref.name), fresh)

    row = await ctx.store.transact(reserve)
    target = tag_prefix(location, ref.atespace, row.uid)
    await ctx.objects.copy_prefix(snapshot.snapshot_uri, target)
    row.value.status.snapshot.CopyFrom(
        pb.ExternalSnapshot(
            snapshot_uri=target,
            content_scope=snapshot.content_scope,
            actor_template_uid=snapshot.actor_template_uid,
            cpu_features_id=snapshot.cpu_features_id,
        )
    )
    row.value.status.state = pb.TAG_STATE_READY
    row = await ctx.store.transact(lambda tx: tx.update(TAGS, row.key, row.value, uid=row.uid, version=row.version))
    log.info("tag created", tag=str(ref), actor=str(source))
    return row.value


async def delete(ctx: Context, ref: Ref, options: pb.DeleteOptions) -> pb.Tag:
    """Objects first, then the row, so that a failure can be repeated."""

    def mark(tx: Tx) -> Row[pb.Tag]:
        row = tx.get(TAGS, Key(ref.atespace, ref.name))
        if row is None:
            raise NotFound(f"tag {ref} not found")
        steps.check_guards(f"tag {ref}", row, options)
        if row.value.status.state == pb.TAG_STATE_DELETING:
            return row
        row.value.status.state = pb.TAG_STATE_DELETING
        return tx.update(TAGS, row.key, row.value, uid=row.uid, version=row.version)

    row = await ctx.store.transact(mark)
    await ctx.objects.delete_prefix(tag_prefix(row.value.status.storage_location, ref.atespace, row.uid))
    await ctx.store.transact(lambda tx: tx.delete(TAGS, key_of(row.value.metadata), uid=row.uid))
    return row.value

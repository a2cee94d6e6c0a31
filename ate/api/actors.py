"""Actors as resources: create, get, update, list. What moves them between states is in workflows/."""

from __future__ import annotations

from ate.api import paging
from ate.api.context import Context
from ate.api.kinds import ACTORS, ATESPACES, TAGS, TEMPLATES, key_of
from ate.api.validation import resources as rules
from ate.api.validation.problems import Problems
from ate.api.workflows import history, measures, steps
from ate.errors import FailedPrecondition, InvalidArgument, NotFound
from ate.names import GOLDEN_ATESPACE, Ref
from ate.proto import ateapi_pb2 as pb
from ate.store import Key, Row, Tx


def ref_of(present: bool, value: pb.ObjectRef, *options: pb.DeleteOptions) -> Ref:
    """A checked actor reference of a request."""
    problems = Problems()
    rules.ref(problems, "actor", present, value, scoped=True)
    for option in options:
        rules.delete_options(problems, "options", option)
    problems.raise_if_any()
    return Ref(value.atespace, value.name)


async def create(ctx: Context, request: pb.CreateActorRequest) -> pb.Actor:
    with measures.operation("create"):
        return await _create(ctx, request)


async def _create(ctx: Context, request: pb.CreateActorRequest) -> pb.Actor:
    problems = Problems()
    rules.actor(problems, "actor", request.actor)
    problems.raise_if_any()
    given = request.actor
    actor = pb.Actor(
        metadata=pb.ResourceMetadata(atespace=given.metadata.atespace, name=given.metadata.name),
        actor_template=given.actor_template,
    )
    for name in ("worker_selector", "source_tag", "wake_time"):
        if given.HasField(name):
            getattr(actor, name).CopyFrom(getattr(given, name))
    actor.status.state = pb.ACTOR_STATE_SUSPENDED
    noted = history.note(ctx.wall_clock(), "create")
    measures.actor(actor)

    def insert(tx: Tx) -> Row[pb.Actor]:
        if tx.get(ATESPACES, Key("", actor.metadata.atespace)) is None:
            raise FailedPrecondition(f"atespace {actor.metadata.atespace} not found: create it first")
        template = tx.get(TEMPLATES, key_of(actor.actor_template))
        if template is None:
            raise FailedPrecondition(
                f"actor template not found: {actor.actor_template.atespace}/{actor.actor_template.name}"
            )
        for volume in template.value.volumes:
            if volume.HasField("external_volume_template"):
                actor.status.actor_volumes.add(volume_name=volume.name, status=pb.ExternalVolume.STATUS_PENDING)
        _set_expiry(actor, template.value, ctx.wall_clock())
        tag = _source_tag(tx, actor, template)
        if tag is not None:
            actor.status.external_snapshot.CopyFrom(tag.value.status.snapshot)
        row = tx.insert(ACTORS, Key(actor.metadata.atespace, actor.metadata.name), actor)
        history.record(tx, noted, history.NOTHING, row)
        return row

    return (await ctx.store.transact(insert)).value


def _source_tag(tx: Tx, actor: pb.Actor, template: Row[pb.ActorTemplate]) -> Row[pb.Tag] | None:
    """The tag the actor starts from: its own choice, else the template's golden tag, else none (a cold boot)."""
    explicit = actor.HasField("source_tag")
    golden = template.value.status.golden_snapshot_status
    if not explicit and not golden.HasField("golden_tag"):
        return None
    ref = actor.source_tag if explicit else golden.golden_tag
    name = f"{ref.atespace}/{ref.name}"
    tag = tx.get(TAGS, key_of(ref))
    if tag is None:
        raise NotFound(f"tag {name} not found")
    if explicit and actor.status.actor_volumes:
        raise FailedPrecondition("an actor with external volumes cannot start from a tag: they are not in its snapshot")
    if tag.value.status.state != pb.TAG_STATE_READY:
        raise FailedPrecondition(f"tag {name} is not ready yet")
    if tag.value.scope != pb.TAG_SCOPE_PUBLISHED and tag.key.scope != actor.metadata.atespace:
        raise FailedPrecondition(f"tag {name} may be used in its own atespace only: publish it to share it")
    if tag.value.status.actor_template_uid != template.uid:
        raise FailedPrecondition(f"tag {name} was taken under another actor template than {template.key}")
    return tag


async def get(ctx: Context, request: pb.GetActorRequest) -> pb.Actor:
    ref = ref_of(request.HasField("actor"), request.actor)
    return (await steps.load(ctx, ref)).value


async def update(ctx: Context, request: pb.UpdateActorRequest) -> pb.Actor:
    problems = Problems()
    rules.actor(problems, "actor", request.actor)
    rules.guards(problems, "actor.metadata", request.actor.metadata)
    problems.raise_if_any()
    given = request.actor

    def replace(tx: Tx) -> Row[pb.Actor]:
        row = tx.get(ACTORS, key_of(given.metadata))
        if row is None:
            raise NotFound(f"actor {given.metadata.atespace}/{given.metadata.name} not found")
        steps.check_guards(
            f"actor {row.key}", row, pb.DeleteOptions(uid=given.metadata.uid, version=given.metadata.version)
        )
        actor = row.value
        if actor.HasField("source_tag") != given.HasField("source_tag") or actor.source_tag != given.source_tag:
            raise InvalidArgument("actor.source_tag: is fixed at creation")
        if actor.actor_template != given.actor_template:
            new = _repoint(tx, row, given)
            actor.actor_template.CopyFrom(given.actor_template)
            _set_expiry(actor, new.value, actor.metadata.create_time.ToNanoseconds() / 1e9)
        for name in ("worker_selector", "wake_time"):
            actor.ClearField(name)
            if given.HasField(name):
                getattr(actor, name).CopyFrom(getattr(given, name))
        return tx.update(ACTORS, row.key, actor, uid=row.uid, version=row.version)

    return (await ctx.store.transact(replace)).value


def _set_expiry(actor: pb.Actor, template: pb.ActorTemplate, created: float) -> None:
    """`created` in Unix time, seconds. Golden actors end when their snapshot is taken."""
    actor.ClearField("expire_time")
    if template.lifecycle.HasField("max_lifetime") and actor.metadata.atespace != GOLDEN_ATESPACE:
        life = template.lifecycle.max_lifetime.ToNanoseconds()
        actor.expire_time.FromNanoseconds(int(created * 1e9) + life)


def _repoint(tx: Tx, row: Row[pb.Actor], given: pb.Actor) -> Row[pb.ActorTemplate]:
    """A change of template: only while SUSPENDED, and only to one that can take over the durable data. The new one."""
    target = f"{given.actor_template.atespace}/{given.actor_template.name}"
    if row.value.status.state != pb.ACTOR_STATE_SUSPENDED:
        state = pb.ActorState.Name(row.value.status.state).removeprefix("ACTOR_STATE_")
        raise FailedPrecondition(f"actor {row.key} is {state}: its template can change only while SUSPENDED")
    new = tx.get(TEMPLATES, key_of(given.actor_template))
    if new is None:
        raise FailedPrecondition(f"actor template not found: {target}")
    old = tx.get(TEMPLATES, key_of(row.value.actor_template))
    if old is None:
        return new
    if old.value.sandbox_config != new.value.sandbox_config:
        raise FailedPrecondition(f"template {target} has another sandbox_config than {old.key}")
    same_volumes = list(old.value.volumes) == list(new.value.volumes) and _mounts(old.value) == _mounts(new.value)
    if not same_volumes:
        raise FailedPrecondition(f"template {target} has other volumes or mounts than {old.key}")
    if old.value.snapshots_config.storage_location != new.value.snapshots_config.storage_location:
        raise FailedPrecondition(f"template {target} has another storage_location than {old.key}")
    return new


def _mounts(template: pb.ActorTemplate) -> dict[str, list[tuple[str, str]]]:
    return {c.name: [(m.name, m.mount_path) for m in c.volume_mounts] for c in template.containers}


async def list_(ctx: Context, request: pb.ListActorsRequest) -> pb.ListActorsResponse:
    problems = Problems()
    problems.short("atespace", request.atespace, required=False)
    items, token = await paging.page(
        problems,
        ctx.store.page_key,
        f"actors:{request.atespace}",
        request.page_size,
        request.page_token,
        lambda after, limit: ctx.store.scan(ACTORS, scope=request.atespace or None, after=after, limit=limit),
    )
    return pb.ListActorsResponse(actors=items, next_page_token=token)

"""Steps the actor workflows share: loading, writing, crashing, and reading what a node's error means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ate.api.context import Context
from ate.api.kinds import ACTORS, CONFIGS, TEMPLATES, key_of
from ate.api.workflows import claims, history, measures
from ate.errors import Aborted, Cancelled, DeadlineExceeded, FailedPrecondition, NotFound, Unavailable
from ate.log import Logger
from ate.names import Ref
from ate.proto import ateapi_pb2 as pb
from ate.store import Key, Lease, Row, Tx

log = Logger("ate.api")

AMBIGUOUS: Final = (Unavailable, Cancelled, DeadlineExceeded, Aborted)
"""Errors of a node after which it may or may not have acted, or did not because it was overtaken or at something else:
the step is entered again, never undone."""
_MAX_CRASH_MESSAGE: Final = 4096


def lease_key(ref: Ref) -> str:
    return f"lease:actor:{ref}"


async def load(ctx: Context, ref: Ref, *, uid: str = "") -> Row[pb.Actor]:
    """The stored actor. NotFound when absent (or, with `uid`, when it is another one of the same name)."""
    row = await ctx.store.get(ACTORS, Key(ref.atespace, ref.name))
    if row is None or (uid and row.uid != uid):
        raise NotFound(f"actor {ref} not found")
    measures.actor(row.value)
    return row


async def template_of(ctx: Context, actor: Row[pb.Actor]) -> Row[pb.ActorTemplate]:
    row = await ctx.store.get(TEMPLATES, key_of(actor.value.actor_template))
    if row is None:
        raise FailedPrecondition(f"actor template not found: {Ref(*_pair(actor.value.actor_template))}")
    measures.template(row.value)
    return row


async def config_of(ctx: Context, template: Row[pb.ActorTemplate]) -> Row[pb.SandboxRuntimeConfig]:
    name = template.value.sandbox_config.config_name
    row = await ctx.store.get(CONFIGS, Key("", name))
    if row is None:
        raise FailedPrecondition(f"SandboxConfig {name!r} of template {template.key} not found: apply it first")
    return row


def _pair(ref: pb.ObjectRef) -> tuple[str, str]:
    return ref.atespace, ref.name


async def write(
    ctx: Context,
    actor: Row[pb.Actor],
    lease: Lease | None,
    change: Callable[[pb.Actor], None],
    *,
    require: Callable[[Tx], None] = lambda tx: None,
) -> Row[pb.Actor]:
    """Applies `change` to the actor as it was read, and stores it if nobody else wrote in between."""
    noted, before = history.note(ctx.wall_clock()), history.standing(actor.value)

    def update(tx: Tx) -> Row[pb.Actor]:
        if lease is not None:
            tx.require_lease(lease)
        require(tx)
        change(actor.value)
        row = tx.update(ACTORS, actor.key, actor.value, uid=actor.uid, version=actor.version)
        history.record(tx, noted, before, row)
        return row

    return await ctx.store.transact(update)


async def write_and_release(
    ctx: Context, actor: Row[pb.Actor], lease: Lease | None, change: Callable[[pb.Actor], None]
) -> Row[pb.Actor]:
    """Like `write`, giving back the actor's place on its worker in the same transaction."""
    noted, before = history.note(ctx.wall_clock()), history.standing(actor.value)

    def update(tx: Tx) -> tuple[Row[pb.Actor], Row[pb.Worker] | None]:
        if lease is not None:
            tx.require_lease(lease)
        worker = claims.release(tx, actor.uid)
        actor.value.status.ClearField("worker_assignment")
        change(actor.value)
        row = tx.update(ACTORS, actor.key, actor.value, uid=actor.uid, version=actor.version)
        history.record(tx, noted, before, row)
        return row, worker

    row, worker = await ctx.store.transact(update)
    if worker is not None:
        ctx.workers.apply(worker)
    return row


def back_to_sleep(value: pb.Actor) -> None:
    """The state of an actor whose start did not come about: as it slept before."""
    paused = value.status.HasField("local_snapshot")
    value.status.state = pb.ACTOR_STATE_PAUSED if paused else pb.ACTOR_STATE_SUSPENDED


async def crash(ctx: Context, actor: Row[pb.Actor], lease: Lease | None, message: str) -> Row[pb.Actor]:
    """CRASHED, the place given back, the last good snapshot kept. In-progress names stay for revert to collect."""

    def change(value: pb.Actor) -> None:
        value.status.state = pb.ACTOR_STATE_CRASHED
        value.status.crash.message = message[:_MAX_CRASH_MESSAGE]
        value.status.crash.crash_time.FromNanoseconds(int(ctx.wall_clock() * 1e9))

    before = pb.Actor()
    before.CopyFrom(actor.value)
    lost = before.status.worker_assignment
    row = await write_and_release(ctx, actor, lease, change)
    measures.crashed(before, history.note(0).operation, ctx.workers.sandbox_class_of(lost.worker.name))
    log.warning(
        "Actor crashed",
        actor=str(actor.key),
        actor_uid=actor.uid,
        worker=lost.worker.name,
        node=lost.node_name,
        reason=message,
    )
    return row


def check_guards(what: str, row: Row[Any], options: pb.DeleteOptions) -> None:
    """Aborted when a guard of the delete does not match the stored resource."""
    if options.uid and options.uid != row.uid:
        raise Aborted(f"{what} has uid {row.uid}, not {options.uid}: it was deleted and created again")
    if options.version and options.version != row.version:
        raise Aborted(f"{what} is at version {row.version}, not {options.version}: read it again")


def log_state(actor: Row[pb.Actor], **timings: float) -> None:
    """The state-change event; `timings` are phases of the operation in milliseconds."""
    log.info(
        "Actor state changed",
        actor=str(actor.key),
        actor_uid=actor.uid,
        state=pb.ActorState.Name(actor.value.status.state).removeprefix("ACTOR_STATE_"),
        worker=actor.value.status.worker_assignment.worker.name,
        **{name: round(value, 2) for name, value in timings.items()},
    )

"""What happens to actors whose worker is lost: it was deleted, or came back with a higher epoch.

An actor that ran there lost its memory without a suspend: it goes CRASHED, keeps its last good snapshot and gives its
place back. One that was only being started there sleeps on. Before either, the node is asked to end what may still
run, unless it has been silent for so long that it counts as away.
"""

from __future__ import annotations

from ate.api.context import Context
from ate.api.kinds import ACTORS, ASSIGNMENTS, NODES, WORKERS, key_of
from ate.api.nodes import AWAY_SECONDS
from ate.api.workflows import claims, node_requests, steps
from ate.errors import Aborted, AteError, NotFound, Unavailable
from ate.log import Logger
from ate.names import Ref
from ate.proto import ateapi_pb2 as pb
from ate.store import Key, Lease, Row, Tx

log = Logger("ate.api")

_PAGE = 100
_BEING_SAVED = (pb.ACTOR_STATE_SUSPENDING, pb.ACTOR_STATE_PAUSING)


async def drain(ctx: Context, name: str, *, uid: str = "") -> pb.Worker:
    """DRAINING: no new placements. Repeating it changes nothing."""

    def mark(tx: Tx) -> Row[pb.Worker]:
        row = tx.get(WORKERS, Key("", name))
        if row is None or (uid and row.uid != uid):
            raise NotFound(f"worker {name} not found")
        if row.value.status.state == pb.WORKER_STATE_DRAINING:
            return row
        row.value.status.state = pb.WORKER_STATE_DRAINING
        return tx.update(WORKERS, row.key, row.value, uid=row.uid, version=row.version)

    row = await ctx.store.transact(mark)
    ctx.workers.apply(row)
    return row.value


async def delete(ctx: Context, name: str, options: pb.DeleteOptions) -> pb.Worker:
    """Drains the worker, crashes the actors still on it, then removes it. Returns it as it last was.

    Unavailable while it saves an actor, or its node does not say that what it runs has ended.
    """
    row = await ctx.store.get(WORKERS, Key("", name))
    if row is None:
        raise NotFound(f"worker {name} not found")
    steps.check_guards(f"worker {name}", row, options)
    await drain(ctx, name, uid=row.uid)
    await _crash_claims(ctx, name, before_epoch=None, message="its worker went away")

    def remove(tx: Tx) -> Row[pb.Worker]:
        if tx.scan(ASSIGNMENTS, scope=name, limit=1):
            raise Aborted(f"worker {name} still holds an actor: retry")
        return tx.delete(WORKERS, Key("", name), uid=row.uid)

    gone = await ctx.store.transact(remove)
    ctx.workers.forget(name)
    log.info("worker deleted", worker=name)
    return gone.value


async def observe_epoch(ctx: Context, name: str) -> None:
    """Crashes the actors placed before the worker's present epoch, then marks that epoch as dealt with."""
    row = await ctx.store.get(WORKERS, Key("", name))
    if row is None or row.value.status.observed_epoch >= row.value.epoch:
        return
    epoch = row.value.epoch
    if not await _crash_claims(ctx, name, before_epoch=epoch, message="its worker restarted"):
        return

    def raise_observed(tx: Tx) -> Row[pb.Worker] | None:
        current = tx.get(WORKERS, Key("", name))
        if current is None or current.value.status.observed_epoch >= epoch:
            return current
        current.value.status.observed_epoch = epoch
        return tx.update(WORKERS, current.key, current.value, uid=current.uid, version=current.version)

    current = await ctx.store.transact(raise_observed)
    if current is not None:
        ctx.workers.apply(current)


async def _crash_claims(ctx: Context, worker: str, *, before_epoch: int | None, message: str) -> bool:
    """Deals with every claim on the worker (of an earlier epoch). False when one has to be looked at again."""
    after: Key | None = None
    done = True
    while held := await ctx.store.scan(ASSIGNMENTS, scope=worker, after=after, limit=_PAGE):
        for claim in held:
            if before_epoch is None or claim.value.worker_epoch < before_epoch:
                done &= await _crash_claim(ctx, worker, claim, message, before_epoch)
        after = held[-1].key
    return done


async def _crash_claim(
    ctx: Context, worker: str, claim: Row[pb.ActorAssignment], message: str, before_epoch: int | None
) -> bool:
    """Crashes one actor if it still points here; a claim no actor points at is only given back. False: look again.

    An actor that is being saved is left to that: its checkpoint may be safe on the node.
    """
    while True:
        actor = await ctx.store.get(ACTORS, key_of(claim.value.actor))
        mine = (
            actor is not None
            and actor.uid == claim.value.actor_uid
            and actor.value.status.worker_assignment.worker.name == worker
            and actor.value.status.worker_assignment.worker_epoch == claim.value.worker_epoch
        )
        try:
            if not mine or actor is None:
                await give_back(ctx, claim)
            elif before_epoch is not None and actor.value.status.state in _BEING_SAVED:
                pass
            elif before_epoch is None and await _away(ctx, actor):
                await _lost(ctx, actor, message)
            elif actor.value.status.state in _BEING_SAVED:
                raise Unavailable(f"worker {worker} is saving actor {actor.key}: retry in a moment")
            elif not await _stopped(ctx, actor):
                if before_epoch is not None:
                    return False
                raise Unavailable(f"worker {worker} may still run actor {actor.key}, its node does not answer: retry")
            else:
                await _lost(ctx, actor, message)
            return True
        except Aborted:
            continue  # a workflow wrote the actor in between: look again


async def _lost(ctx: Context, actor: Row[pb.Actor], message: str) -> None:
    """The actor has no place any more; what it was about to become decides what it is."""
    if actor.value.status.state == pb.ACTOR_STATE_DELETING:
        await steps.write_and_release(ctx, actor, None, lambda value: None)
    elif actor.value.status.state == pb.ACTOR_STATE_RESUMING:
        # It had not run there yet, so nothing is lost.
        await steps.write_and_release(ctx, actor, None, steps.back_to_sleep)
    else:
        await steps.crash(ctx, actor, None, ctx.last_words.take(actor.uid, message))


async def _away(ctx: Context, actor: Row[pb.Actor]) -> bool:
    """Whether the actor's node has been silent for so long that waiting for it helps nobody."""
    node = await ctx.store.get(NODES, Key("", actor.value.status.worker_assignment.node_name))
    return node is None or ctx.wall_clock() - node.value.last_seen_unix_nano / 1e9 > AWAY_SECONDS


async def _stopped(ctx: Context, actor: Row[pb.Actor]) -> bool:
    """Has the node end what may run of the actor: a start on its way may have reached the worker's new process."""

    async def work(lease: Lease) -> None:
        await node_requests.terminate(ctx.nodes, actor, lease, timeout=20)

    try:
        await ctx.operations.run(steps.lease_key(Ref(actor.key.scope, actor.key.name)), "stop", work)
    except AteError as error:
        log.info(
            "what its old worker may run of an actor is not stopped yet", actor=str(actor.key), error=error.message
        )
        return False
    return True


async def give_back(ctx: Context, claim: Row[pb.ActorAssignment]) -> None:
    """Removes a claim that no actor stands behind, if it still is the one that was read."""

    def remove(tx: Tx) -> Row[pb.Worker] | None:
        current = tx.get(ASSIGNMENTS, claim.key)
        if current is None or current.uid != claim.uid:
            return None
        return claims.release(tx, claim.value.actor_uid)

    worker = await ctx.store.transact(remove)
    if worker is not None:
        ctx.workers.apply(worker)

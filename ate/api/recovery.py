"""Finishes what was interrupted: actors in transition without anybody working on them, and epochs not dealt with.

It looks once at start and then every few seconds. A workflow that cannot finish (its node is away) is entered again
and again, with growing pauses, until it ends in a state that people can act on.
"""

from __future__ import annotations

import trio

from ate.api.context import Context
from ate.api.kinds import ACTORS, ASSIGNMENTS, TRANSITION, key_of
from ate.api.pauses import Pauses
from ate.api.workflows import resume, revert, steps, suspend
from ate.api.workflows import workers as worker_workflows
from ate.errors import AteError, NotFound
from ate.log import Logger
from ate.names import Ref
from ate.proto import ateapi_pb2 as pb
from ate.store import Key, Row

log = Logger("ate.api")

CLAIMS_INTERVAL = 60.0
"""Seconds between looks at every claim."""
INTERVAL = 2.0
"""Seconds between looks: with a step's own time it keeps recovery well under the promised 30 s."""


class Recovery:
    """Use `run` in a nursery of the role."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._pauses = Pauses()

    async def run(self) -> None:
        claims_due = trio.current_time() + CLAIMS_INTERVAL
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    await self._workers()
                    await self._actors(nursery)
                    if trio.current_time() >= claims_due:
                        claims_due = trio.current_time() + CLAIMS_INTERVAL
                        await self._claims()
                except Exception as error:  # a store that refuses now is looked at again
                    log.error("looking for interrupted work failed, trying again", exc=error)
                await trio.sleep(INTERVAL)

    async def _workers(self) -> None:
        behind = [w.metadata.name for w in self._ctx.workers.all() if w.status.observed_epoch < w.epoch]
        for name in behind:
            await worker_workflows.observe_epoch(self._ctx, name)

    async def _claims(self) -> None:
        """A claim changes together with its actor, so this finds nothing; but a place lost for good would be worse."""
        after: Key | None = None
        while page := await self._ctx.store.scan(ASSIGNMENTS, after=after, limit=100):
            for claim in page:
                await self._stale_claim(claim)
            after = page[-1].key

    async def _stale_claim(self, claim: Row[pb.ActorAssignment]) -> None:
        """A claim whose actor is gone or points elsewhere is given back; one just being made is left alone."""
        actor = await self._ctx.store.get(ACTORS, key_of(claim.value.actor))
        known = actor is not None and actor.uid == claim.value.actor_uid
        if actor is not None and known and actor.value.status.worker_assignment.worker.name == claim.key.scope:
            return
        await worker_workflows.give_back(self._ctx, claim)
        log.warning("stale claim given back", worker=claim.key.scope, actor=str(key_of(claim.value.actor)))

    async def _actors(self, nursery: trio.Nursery) -> None:
        rows = await self._ctx.store.scan_owned(ACTORS, TRANSITION, limit=10_000)
        self._pauses.keep_only({row.uid for row in rows})
        for row in rows:
            ref = Ref(row.key.scope, row.key.name)
            if not self._ctx.operations.busy(steps.lease_key(ref)) and self._pauses.over(row.uid):
                nursery.start_soon(self._finish, row, ref)

    async def _finish(self, row: Row[pb.Actor], ref: Ref) -> None:
        state = row.value.status.state
        try:
            if state == pb.ACTOR_STATE_RESUMING:
                await resume.resume(self._ctx, ref)
            elif state == pb.ACTOR_STATE_SUSPENDING:
                await suspend.suspend(self._ctx, ref)
            elif state == pb.ACTOR_STATE_PAUSING:
                await suspend.pause(self._ctx, ref)
            elif state == pb.ACTOR_STATE_REVERTING:
                await revert.revert(self._ctx, ref)
            elif state == pb.ACTOR_STATE_DELETING:
                await revert.delete(self._ctx, ref, any_state=True, options=pb.DeleteOptions())
            log.info("interrupted work finished", actor=str(ref), was=pb.ActorState.Name(state))
        except NotFound:
            pass
        except AteError as error:
            self._pauses.failed(row.uid)
            log.warning("interrupted work not finished yet", actor=str(ref), state=state, error=error.message)
        except Exception as error:  # a bug that one actor meets may not take the others down with it
            self._pauses.failed(row.uid)
            log.error("finishing interrupted work failed", exc=error, actor=str(ref), state=state)

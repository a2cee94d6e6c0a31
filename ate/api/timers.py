"""What happens to actors because a stored time has come: they wake, or their life is over.

Times are the wall clock's and stored with the actor, so they hold across restarts; the store lists those that are due
however many actors there are. Idleness is not here: the worker that carries an actor's bytes watches it (`ate/node`).
"""

from __future__ import annotations

import trio

from ate.api.context import Context
from ate.api.kinds import ACTORS, SLEEPING
from ate.api.pauses import Pauses
from ate.api.workflows import resume, revert, steps
from ate.errors import Aborted, AteError, NotFound
from ate.log import Logger
from ate.names import Ref
from ate.proto import ateapi_pb2 as pb
from ate.store import Row

log = Logger("ate.api")

INTERVAL = 1.0
"""Seconds between looks: how late a wake-up may be."""


class Timers:
    """Use `run` in a nursery of the role."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._pauses = Pauses()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    await self._look(nursery)
                except Exception as error:  # a store that refuses now is looked at again
                    log.error("looking for actors whose time has come failed, trying again", exc=error)
                await trio.sleep(INTERVAL)

    async def _look(self, nursery: trio.Nursery) -> None:
        rows = await self._ctx.store.scan_due(ACTORS, self._ctx.wall_clock())
        self._pauses.keep_only({row.uid for row in rows})
        for row in rows:
            ref = Ref(row.key.scope, row.key.name)
            if not self._ctx.operations.busy(steps.lease_key(ref)) and self._pauses.over(row.uid):
                nursery.start_soon(self._act, row, ref)

    async def _act(self, row: Row[pb.Actor], ref: Ref) -> None:
        actor = row.value
        try:
            if actor.HasField("expire_time") and actor.expire_time.ToNanoseconds() <= self._ctx.wall_clock() * 1e9:
                options = pb.DeleteOptions(uid=row.uid)
                await revert.delete(self._ctx, ref, any_state=True, options=options)
                log.info("actor deleted at the end of its lifetime", actor=str(ref), actor_uid=row.uid)
            elif actor.status.state in SLEEPING:
                await resume.resume(self._ctx, ref)
                log.info("actor woken at its time", actor=str(ref), actor_uid=row.uid)
            else:  # its time came while it was awake
                await steps.write(self._ctx, row, None, lambda value: value.ClearField("wake_time"))
        except (NotFound, Aborted):
            pass  # somebody else's change came first: the next look sees it
        except AteError as error:
            self._pauses.failed(row.uid)
            log.warning("an actor's time has come, and it cannot be done yet", actor=str(ref), error=error.message)
        except Exception as error:  # a bug that one actor meets may not take the others down with it
            self._pauses.failed(row.uid)
            log.error("doing what an actor's time has come for failed", exc=error, actor=str(ref))

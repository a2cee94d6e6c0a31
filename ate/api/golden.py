"""Golden snapshots: for each template one actor is started, warmed up, suspended and tagged, so that new actors wake.

The golden actor is named by the template's uid in the reserved atespace, so a repeated step never makes a second one.
Every step is read off the stored state: the reconciler may be killed anywhere. Only errors that repeating cannot mend
end it, with `status.golden_snapshot_status.error_message`.
"""

from __future__ import annotations

import trio

from ate.api import actors
from ate.api.context import Context
from ate.api.kinds import ACTORS, TAGS, TEMPLATES
from ate.api.workflows import resume, revert, suspend
from ate.api.workflows import tags as tag_workflows
from ate.errors import Aborted, AlreadyExists, AteError, NotFound, OutOfRange
from ate.log import Logger
from ate.names import GOLDEN_ATESPACE, Ref
from ate.proto import ateapi_pb2 as pb
from ate.store import EventType, Key, Row

log = Logger("ate.api")

WARM_UP = 20.0
"""Seconds a golden actor runs before its snapshot when some container has no probe (reference, section 3)."""
RESYNC = 20.0
RETRY_FIRST, RETRY_MOST = 0.5, 20.0
WORKERS = 5


class GoldenFailed(Exception):
    """Terminal: `<Reason>: <detail>`."""


class Golden:
    """Use `run` in a nursery of the role."""

    def __init__(self, ctx: Context, nursery: trio.Nursery) -> None:
        self._ctx, self._nursery = ctx, nursery
        self._active: set[str] = set()
        self._limit = trio.CapacityLimiter(WORKERS)

    async def run(self) -> None:
        """Follows template creations; lists all of them again when it fell behind."""
        while True:
            try:
                async with self._ctx.store.watch(TEMPLATES) as feed:
                    async for event in feed:
                        if event.row is not None and event.type is not EventType.DELETED:
                            self._consider(event.row)
            except OutOfRange:
                continue

    def _consider(self, row: Row[pb.ActorTemplate]) -> None:
        if _finished(row.value) or row.uid in self._active:
            return
        self._active.add(row.uid)
        self._nursery.start_soon(self._until_done, row.key, row.uid)

    async def _until_done(self, key: Key, uid: str) -> None:
        delay = RETRY_FIRST
        try:
            while True:
                row = await self._ctx.store.get(TEMPLATES, key)
                if row is None or row.uid != uid or _finished(row.value):
                    return
                try:
                    try:
                        async with self._limit:
                            await self._ctx.operations.run(
                                f"lease:actortemplate:{key}",
                                "golden",
                                lambda lease, row=row: self._advance(row),  # type: ignore[misc]
                            )
                    except GoldenFailed as failed:
                        await self._fail(row, str(failed))
                    return
                except AteError as error:
                    log.info("golden snapshot not ready yet", template=str(key), reason=error.message)
                except Exception as error:  # a bug that one template meets may not take the others down with it
                    log.error("making a golden snapshot failed", exc=error, template=str(key))
                await trio.sleep(delay)
                delay = min(delay * 2, RETRY_MOST)
        finally:
            self._active.discard(uid)

    async def _advance(self, template: Row[pb.ActorTemplate]) -> None:
        golden = Ref(GOLDEN_ATESPACE, template.uid)
        tag = await self._ctx.store.get(TAGS, Key(golden.atespace, golden.name))
        if tag is not None and tag.value.status.state != pb.TAG_STATE_READY:
            await tag_workflows.delete(self._ctx, golden, pb.DeleteOptions())
            tag = None
        if tag is None:
            await self._take(template, golden)
        elif tag.value.status.actor_template_uid != template.uid:
            raise GoldenFailed(f"GoldenTagConflict: tag {golden} belongs to another template")
        await self._drop_actor(golden)

        def publish(status: pb.GoldenSnapshotStatus) -> None:
            status.golden_tag.CopyFrom(pb.ObjectRef(atespace=golden.atespace, name=golden.name))
            status.ClearField("take_golden_snapshot_at")

        await self._write(template.key, template.uid, publish)
        log.info("golden snapshot ready", template=str(template.key), tag=str(golden))

    async def _take(self, template: Row[pb.ActorTemplate], golden: Ref) -> None:
        ctx = self._ctx
        given = pb.Actor(
            metadata=pb.ResourceMetadata(atespace=golden.atespace, name=golden.name),
            actor_template=pb.ObjectRef(atespace=template.key.scope, name=template.key.name),
        )
        try:
            await actors.create(ctx, pb.CreateActorRequest(actor=given))
        except AlreadyExists:
            pass
        row = await ctx.store.get(ACTORS, Key(golden.atespace, golden.name))
        if row is None:
            raise Aborted(f"golden actor {golden} was deleted meanwhile")
        state = row.value.status.state
        if state == pb.ACTOR_STATE_CRASHED:
            raise GoldenFailed(f"GoldenActorCrashed: {row.value.status.crash.message}")
        if state == pb.ACTOR_STATE_SUSPENDED and row.value.status.HasField("external_snapshot"):
            pass  # suspended before this role was restarted: only the tag is missing
        else:
            await self._warm_up(template, golden)
            await suspend.suspend(ctx, golden)
        try:
            await tag_workflows.create(
                ctx,
                pb.Tag(
                    metadata=pb.ResourceMetadata(atespace=golden.atespace, name=golden.name),
                    scope=pb.TAG_SCOPE_PUBLISHED,
                    source_actor=pb.ObjectRef(atespace=golden.atespace, name=golden.name),
                ),
            )
        except AlreadyExists:
            raise Aborted(f"tag {golden} is being made by another operation")

    async def _warm_up(self, template: Row[pb.ActorTemplate], golden: Ref) -> None:
        ctx = self._ctx
        try:
            await resume.resume(ctx, golden)
        except AteError as error:
            row = await ctx.store.get(ACTORS, Key(golden.atespace, golden.name))
            if row is not None and row.value.status.state == pb.ACTOR_STATE_CRASHED:
                raise GoldenFailed(f"GoldenActorCrashed: {row.value.status.crash.message}")
            raise error
        probed = all(container.HasField("readyz") for container in template.value.containers)
        fresh = await ctx.store.get(TEMPLATES, template.key)
        if probed or fresh is None:
            return
        status = fresh.value.status.golden_snapshot_status
        now = ctx.wall_clock()
        if not status.HasField("take_golden_snapshot_at"):

            def schedule(value: pb.GoldenSnapshotStatus) -> None:
                value.take_golden_snapshot_at.FromNanoseconds(int((now + WARM_UP) * 1e9))

            await self._write(template.key, template.uid, schedule)
            await trio.sleep(WARM_UP)
        else:
            due = status.take_golden_snapshot_at.ToNanoseconds() / 1e9
            await trio.sleep(min(max(due - now, 0), WARM_UP))

    async def _drop_actor(self, golden: Ref) -> None:
        try:
            await revert.delete(self._ctx, golden, any_state=True, options=pb.DeleteOptions())
        except NotFound:
            pass

    async def _fail(self, template: Row[pb.ActorTemplate], message: str) -> None:
        def note(status: pb.GoldenSnapshotStatus) -> None:
            status.error_message = message[:4096]

        log.warning("golden snapshot failed", template=str(template.key), reason=message)
        await self._write(template.key, template.uid, note)
        await self._drop_actor(Ref(GOLDEN_ATESPACE, template.uid))

    async def _write(self, key: Key, uid: str, change) -> None:  # type: ignore[no-untyped-def]
        def update(tx):  # type: ignore[no-untyped-def]
            row = tx.get(TEMPLATES, key)
            if row is None or row.uid != uid:
                raise NotFound(f"actor template {key} was deleted meanwhile")
            change(row.value.status.golden_snapshot_status)
            return tx.update(TEMPLATES, key, row.value, uid=uid, version=row.version)

        await self._ctx.store.transact(update)


def _finished(template: pb.ActorTemplate) -> bool:
    status = template.status.golden_snapshot_status
    return status.HasField("golden_tag") or bool(status.error_message)

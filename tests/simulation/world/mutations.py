"""Faults put into the system on purpose: the checker must find each of them within a thousand schedules."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

import trio

from ate.api.kinds import ACTORS, WORKERS
from ate.api.workflows import claims, steps
from ate.api.workflows import workers as worker_workflows
from ate.errors import AteError, NotFound
from ate.node.actor_dirs import ActorDirs
from ate.node.herder import Herder
from ate.node.local_state import LocalState
from ate.node.snapshots import SnapshotStore
from ate.proto import ateapi_pb2 as pb
from ate.store import Key, Tx
from ate.store.rows import SqliteTx
from tests.simulation.world.process import current

Mutation = Callable[[ExitStack], None]


def commit_before_durable(stack: ExitStack) -> None:
    """The node acknowledges a checkpoint while its upload is still under way."""
    save = SnapshotStore.save

    async def early(self: SnapshotStore, uri: str, directory: Any, manifest: Any) -> Any:
        async def later() -> None:
            await trio.sleep(0.5)
            try:
                await save(self, uri, directory, manifest)
            except (AteError, OSError):
                pass

        process = current.get()
        assert process is not None
        process.start_soon(later)
        return manifest

    stack.enter_context(mock.patch.object(SnapshotStore, "save", early))


def skip_version_check(stack: ExitStack) -> None:
    """The last step of a workflow overwrites whatever was written meanwhile."""

    async def finalize(ctx: Any, actor: Any, lease: Any, change: Any) -> Any:
        def update(tx: Tx) -> Any:
            worker = claims.release(tx, actor.uid)
            actor.value.status.ClearField("worker_assignment")
            change(actor.value)
            present = tx.get(ACTORS, actor.key)
            if present is None:
                raise NotFound("gone meanwhile")
            return tx.update(ACTORS, actor.key, actor.value, uid=present.uid, version=present.version), worker

        row, worker = await ctx.store.transact(update)
        if worker is not None:
            ctx.workers.apply(worker)
        return row

    async def write(ctx: Any, actor: Any, lease: Any, change: Any, **_: Any) -> Any:
        def update(tx: Tx) -> Any:
            change(actor.value)
            present = tx.get(ACTORS, actor.key)
            if present is None:
                raise NotFound("gone meanwhile")
            return tx.update(ACTORS, actor.key, actor.value, uid=present.uid, version=present.version)

        return await ctx.store.transact(update)

    stack.enter_context(mock.patch.object(steps, "write_and_release", finalize))
    stack.enter_context(mock.patch.object(steps, "write", write))


def release_twice(stack: ExitStack) -> None:
    """A place on a worker is given back, and a moment later given back again."""
    release = steps.write_and_release

    async def twice(ctx: Any, actor: Any, lease: Any, change: Any) -> Any:
        name = actor.value.status.worker_assignment.worker.name
        row = await release(ctx, actor, lease, change)

        async def again() -> None:
            await trio.sleep(1)

            def give_back(tx: Tx) -> None:
                worker = tx.get(WORKERS, Key("", name))
                if worker is not None and worker.value.status.allocated.actors > 0:
                    claims._write_allocated(tx, worker, pb.Resources(), -1)

            await ctx.store.transact(give_back)

        process = current.get()
        assert process is not None
        process.start_soon(again)
        return row

    stack.enter_context(mock.patch.object(steps, "write_and_release", twice))


def ignore_epoch(stack: ExitStack) -> None:
    """A worker that came back is taken for the one that went."""

    async def observe(ctx: Any, name: str) -> None:
        def raise_observed(tx: Tx) -> Any:
            current_row = tx.get(WORKERS, Key("", name))
            if current_row is None or current_row.value.status.observed_epoch >= current_row.value.epoch:
                return None
            current_row.value.status.observed_epoch = current_row.value.epoch
            return tx.update(
                WORKERS, current_row.key, current_row.value, uid=current_row.uid, version=current_row.version
            )

        row = await ctx.store.transact(raise_observed)
        if row is not None:
            ctx.workers.apply(row)

    stack.enter_context(mock.patch.object(worker_workflows, "observe_epoch", observe))


def drop_lease_fence(stack: ExitStack) -> None:
    """Whoever was overtaken goes on as if it still held the lease, in the store and on the nodes."""

    async def fence(self: Herder, actor_uid: str, call: Any) -> None:
        return None

    stack.enter_context(mock.patch.object(SqliteTx, "require_lease", lambda self, lease: None))
    stack.enter_context(mock.patch.object(Herder, "_fence", fence))


def wipe_paused_state(stack: ExitStack) -> None:
    """Whoever takes an actor down after a failed start takes what a pause left along."""
    wipe = ActorDirs.wipe
    stack.enter_context(mock.patch.object(ActorDirs, "wipe", lambda self, **options: wipe(self)))


def trust_unsynced_files(stack: ExitStack) -> None:
    """A checkpoint that waited when the machine lost power is taken for good without having been forced to disk."""
    put = LocalState.put

    async def forget_boot(self: LocalState, actor: Any) -> None:
        actor.boot_id = ""
        await put(self, actor)

    stack.enter_context(mock.patch.object(LocalState, "put", forget_boot))


MUTATIONS: dict[str, Mutation] = {
    "trust-unsynced-files": trust_unsynced_files,
    "wipe-paused-state": wipe_paused_state,
    "commit-before-durable": commit_before_durable,
    "skip-version-check": skip_version_check,
    "release-twice": release_twice,
    "ignore-epoch": ignore_epoch,
    "drop-lease-fence": drop_lease_fence,
}

"""What a node agent remembers of its actors across its own death: one row an actor, written around each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ate.proto import node_pb2 as pb
from ate.store import Key, Kind, Row, Store, Tx

LOCAL_ACTORS: Final = Kind("local-actor", pb.LocalActor, has_metadata=False, owner=lambda actor: actor.worker_uid)

STARTING: Final = pb.LocalActor.PHASE_STARTING
RUNNING: Final = pb.LocalActor.PHASE_RUNNING
SAVING: Final = pb.LocalActor.PHASE_SAVING
CHECKPOINTED: Final = pb.LocalActor.PHASE_CHECKPOINTED
IDLE: Final = pb.LocalActor.PHASE_IDLE


class LocalState:
    """Rows of LocalActor by actor uid. One flight at a time writes a row, so the last read is the truth."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def get(self, actor_uid: str) -> pb.LocalActor | None:
        row = await self._store.get(LOCAL_ACTORS, Key("", actor_uid))
        return None if row is None else row.value

    async def put(self, actor: pb.LocalActor) -> None:
        key = Key("", actor.actor_uid)

        def write(tx: Tx) -> None:
            row = tx.get(LOCAL_ACTORS, key)
            if row is None:
                tx.insert(LOCAL_ACTORS, key, actor)
            else:
                tx.update(LOCAL_ACTORS, key, actor, uid=row.uid, version=row.version)

        await self._store.transact(write)

    async def change(self, actor_uid: str, change: Callable[[pb.LocalActor], None]) -> None:
        """Applies `change` to the row if there is one."""
        actor = await self.get(actor_uid)
        if actor is not None:
            change(actor)
            await self.put(actor)

    async def remove(self, actor_uid: str) -> None:
        key = Key("", actor_uid)
        await self._store.transact(lambda tx: tx.delete(LOCAL_ACTORS, key) if tx.get(LOCAL_ACTORS, key) else None)

    async def page(self, after: str, limit: int) -> list[pb.LocalActor]:
        """Rows in uid order after `after`."""
        rows: list[Row[pb.LocalActor]] = await self._store.scan(LOCAL_ACTORS, after=Key("", after), limit=limit)
        return [row.value for row in rows]

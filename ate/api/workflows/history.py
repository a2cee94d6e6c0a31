"""What happened to an actor: its newest state changes, kept in one row beside it and written with the change itself.

A change takes three steps: `note` before the transaction (the trace and the operation belong to the task, and a
transaction may run on another thread), `standing` of the actor before it is changed, `record` after it was written.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Final

from ate import log
from ate.api.kinds import ACTOR_EVENTS
from ate.names import is_uuid
from ate.proto import ateapi_pb2 as api
from ate.proto import events_pb2 as pb
from ate.store import Key, Row, Tx
from ate.telemetry import trace

KEPT: Final = 40
"""State changes kept of an actor: ten times awake and asleep. The row then fits a page of the store, some 2.5 KB."""
_MAX_MESSAGE: Final = 512


@dataclass(frozen=True, slots=True)
class Note:
    """When and on whose behalf a change is made. `at` is Unix time in seconds."""

    at: float
    operation: str
    trace_id: str


@dataclass(frozen=True, slots=True)
class Standing:
    """The part of an actor's status that a state change is told from."""

    state: api.ActorState
    worker: str = ""
    node: str = ""


NOTHING: Final = Standing(api.ACTOR_STATE_UNSPECIFIED)
"""Before its creation."""


def note(at: float, operation: str = "") -> Note:
    """For a change by this task; `operation` is the one on an actor that the task works on, unless given."""
    here, bound = trace.current(), log.bound()
    operation = operation or (str(bound.get("operation", "")) if "actor" in bound else "")
    return Note(at, operation, here.trace_id if here is not None else "")


def standing(actor: api.Actor) -> Standing:
    assigned = actor.status.worker_assignment
    return Standing(actor.status.state, assigned.worker.name, assigned.node_name)


def record(tx: Tx, noted: Note, before: Standing, actor: Row[api.Actor]) -> None:
    """Writes the change to the history, if the state changed."""
    after = standing(actor.value)
    if after.state == before.state:
        return
    row = tx.get(ACTOR_EVENTS, actor.key)
    kept = row.value if row is not None and row.value.actor_uid == actor.uid else None
    if kept is None:
        kept = pb.ActorHistory(actor_uid=actor.uid, first=1)
    worker = after.worker or before.worker
    by_uuid = is_uuid(worker)
    entry = kept.entries.add(
        unix_nano=int(noted.at * 1e9),
        from_state=before.state,
        to_state=after.state,
        worker=bytes.fromhex(worker.replace("-", "")) if by_uuid else b"",
        worker_name="" if by_uuid else worker,
        node=after.node or before.node,
        operation=noted.operation,
        trace_id=bytes.fromhex(noted.trace_id),
    )
    if after.state == api.ACTOR_STATE_CRASHED:
        entry.message = actor.value.status.crash.message[:_MAX_MESSAGE]
    surplus = len(kept.entries) - KEPT
    if surplus > 0:
        del kept.entries[:surplus]
        kept.first += surplus
    if row is None:
        tx.insert(ACTOR_EVENTS, actor.key, kept, uid=actor.uid)
    else:
        tx.update(ACTOR_EVENTS, actor.key, kept, uid=row.uid, version=row.version)


def events_of(history: pb.ActorHistory, key: Key) -> list[pb.ActorEvent]:
    """The history as it is told, oldest first."""
    found = []
    for sequence, entry in enumerate(history.entries, history.first):
        event = pb.ActorEvent(
            sequence=sequence,
            from_state=entry.from_state,
            to_state=entry.to_state,
            worker=str(uuid.UUID(bytes=entry.worker)) if entry.worker else entry.worker_name,
            node=entry.node,
            operation=entry.operation,
            message=entry.message,
            trace_id=entry.trace_id.hex(),
            atespace=key.scope,
            actor_name=key.name,
        )
        event.time.FromNanoseconds(entry.unix_nano)
        found.append(event)
    return found


def drop(tx: Tx, key: Key) -> None:
    """The actor is gone."""
    if tx.get(ACTOR_EVENTS, key) is not None:
        tx.delete(ACTOR_EVENTS, key)

"""Rows of the SQLite backend: reading them, and one transaction that writes them. No threads, no tasks.

`sqlite.py` runs a `SqliteTx` on its writer thread and the reading functions on whichever connection suits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import apsw
from google.protobuf.message import Message

from ate.errors import Aborted, AlreadyExists, NotFound
from ate.names import new_uid
from ate.store.base import EventType, Key, Kind, Lease, Row, Tx, stamp

M = TypeVar("M", bound=Message)


def _copy(value: M) -> M:
    copy = type(value)()
    copy.CopyFrom(value)
    return copy


def _owner(kind: Kind[M], value: M) -> str | None:
    return kind.owner(value) or None if kind.owner is not None else None


def _due(kind: Kind[M], value: M) -> float | None:
    return kind.due(value) if kind.due is not None else None


def get(db: apsw.Connection, kind: Kind[M], key: Key) -> Row[M] | None:
    found = db.execute(
        "SELECT uid, version, body FROM rows WHERE kind=? AND scope=? AND name=?", (kind.name, key.scope, key.name)
    ).fetchone()
    return None if found is None else Row(key, found[0], found[1], kind.message.FromString(found[2]))


def scan(db: apsw.Connection, kind: Kind[M], scope: str | None, after: Key | None, limit: int) -> list[Row[M]]:
    where, values = "kind=?", [kind.name]
    if scope is not None:
        where, values = where + " AND scope=?", [*values, scope]
    if after is not None:
        where, values = where + " AND (scope, name) > (?,?)", [*values, after.scope, after.name]
    return _rows(db, kind, where, [*values, limit])


def scan_owned(db: apsw.Connection, kind: Kind[M], owner: str, after: Key | None, limit: int) -> list[Row[M]]:
    where, values = "kind=? AND owner=?", [kind.name, owner]
    if after is not None:
        where, values = where + " AND (scope, name) > (?,?)", [*values, after.scope, after.name]
    return _rows(db, kind, where, [*values, limit])


def scan_due(db: apsw.Connection, kind: Kind[M], now: float, limit: int) -> list[Row[M]]:
    return _rows(db, kind, "kind=? AND due<=?", [kind.name, now, limit], order="due")


def _rows(
    db: apsw.Connection, kind: Kind[M], where: str, values: Iterable[Any], *, order: str = "scope, name"
) -> list[Row[M]]:
    found = db.execute(
        f"SELECT scope, name, uid, version, body FROM rows WHERE {where} ORDER BY {order} LIMIT ?", tuple(values)
    ).fetchall()
    return [Row(Key(s, n), uid, version, kind.message.FromString(body)) for s, n, uid, version, body in found]


@dataclass(frozen=True, slots=True)
class HeldLease:
    """`expires` in Unix time, seconds."""

    lease: Lease
    expires: float


class SqliteTx(Tx):
    def __init__(self, connection: apsw.Connection, now: Callable[[], float], leases: Mapping[str, HeldLease]) -> None:
        self._db, self._now, self._leases = connection, now, leases

    def get(self, kind: Kind[M], key: Key) -> Row[M] | None:
        return get(self._db, kind, key)

    def insert(self, kind: Kind[M], key: Key, value: M, *, uid: str | None = None) -> Row[M]:
        value = _copy(value)
        uid = uid or new_uid()
        stamp(kind, value, uid=uid, version=1, now=self._now())
        try:
            self._db.execute(
                "INSERT INTO rows(kind, scope, name, uid, version, owner, due, body) VALUES (?,?,?,?,?,?,?,?)",
                (
                    kind.name,
                    key.scope,
                    key.name,
                    uid,
                    1,
                    _owner(kind, value),
                    _due(kind, value),
                    value.SerializeToString(),
                ),
            )
        except apsw.ConstraintError:
            raise AlreadyExists(f"{kind.name} {key} exists already")
        return self._publish(kind, EventType.ADDED, Row(key, uid, 1, value))

    def update(self, kind: Kind[M], key: Key, value: M, *, uid: str, version: int) -> Row[M]:
        value = _copy(value)
        stamp(kind, value, uid=uid, version=version + 1, now=self._now())
        self._db.execute(
            "UPDATE rows SET version=?, owner=?, due=?, body=?"
            " WHERE kind=? AND scope=? AND name=? AND uid=? AND version=?",
            (
                version + 1,
                _owner(kind, value),
                _due(kind, value),
                value.SerializeToString(),
                kind.name,
                key.scope,
                key.name,
                uid,
                version,
            ),
        )
        if self._db.changes() == 0:
            self._explain(kind, key, uid, version)
        return self._publish(kind, EventType.MODIFIED, Row(key, uid, version + 1, value))

    def delete(self, kind: Kind[M], key: Key, *, uid: str = "", version: int = 0) -> Row[M]:
        row = self.get(kind, key)
        if row is None or (uid and row.uid != uid) or (version and row.version != version):
            self._explain(kind, key, uid, version)
        assert row is not None
        self._db.execute("DELETE FROM rows WHERE kind=? AND scope=? AND name=?", (kind.name, key.scope, key.name))
        return self._publish(kind, EventType.DELETED, row)

    def scan(self, kind: Kind[M], *, scope: str | None = None, after: Key | None = None, limit: int) -> list[Row[M]]:
        return scan(self._db, kind, scope, after, limit)

    def scan_owned(self, kind: Kind[M], owner: str, *, after: Key | None = None, limit: int) -> list[Row[M]]:
        return scan_owned(self._db, kind, owner, after, limit)

    def require_lease(self, lease: Lease) -> None:
        held = self._leases.get(lease.key)
        if held is None or held.lease.fence != lease.fence:
            raise Aborted(f"the lease {lease.key} was taken over by another operation")

    def _publish(self, kind: Kind[M], type_: EventType, row: Row[M]) -> Row[M]:
        if kind.watched:
            self._db.execute(
                "INSERT INTO outbox(kind, scope, name, uid, version, type, body, at) VALUES (?,?,?,?,?,?,?,?)",
                (
                    kind.name,
                    row.key.scope,
                    row.key.name,
                    row.uid,
                    row.version,
                    int(type_),
                    row.value.SerializeToString(),
                    self._now(),
                ),
            )
        return row

    def _explain(self, kind: Kind[Any], key: Key, uid: str, version: int) -> None:
        """Raises the error for a write whose guards did not match."""
        found = self._db.execute(
            "SELECT uid, version FROM rows WHERE kind=? AND scope=? AND name=?", (kind.name, key.scope, key.name)
        ).fetchone()
        if found is None:
            raise NotFound(f"{kind.name} {key} not found")
        if uid and found[0] != uid:
            raise Aborted(f"{kind.name} {key} has uid {found[0]}, not {uid}: it was deleted and created again")
        raise Aborted(f"{kind.name} {key} is at version {found[1]}, not {version}: read it again and retry")

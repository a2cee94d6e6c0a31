"""The Store interface: what a backend must do, in terms that fit SQLite as well as PostgreSQL.

A row is a protobuf message with a key, a uid and a version. Writes happen in transactions: a plain function over a
`Tx` that the backend may run on another thread, and that either takes effect whole or not at all. Correctness rests on
the compare-and-swap of `Tx.update` (uid and version); leases only keep two callers from doing the same outside work,
and carry a fence so that a late holder is noticed. Changes of watched kinds are written to an outbox in the same
transaction; `Store.watch` reads it and can go on from a resume token.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

M = TypeVar("M", bound=Message)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Where a row stands in its kind: `scope` is the atespace, or empty for global resources."""

    scope: str
    name: str

    def __str__(self) -> str:
        return f"{self.scope}/{self.name}" if self.scope else self.name


@dataclass(frozen=True)
class Kind(Generic[M]):
    """A table, so to speak: the message its rows hold and how they are indexed.

    `name` is stored and must never change. `owner` gives the second key rows can be listed by (empty: none), e.g. the
    worker of an assignment. `due` gives the Unix time in seconds by which a row wants attention (None: never).
    `watched` kinds appear in the change feed. Where `has_metadata`, the message's field `metadata` is an
    ateapi.ResourceMetadata whose uid, version and times the store sets.
    """

    name: str
    message: type[M]
    watched: bool = False
    has_metadata: bool = True
    owner: Callable[[M], str] | None = None
    due: Callable[[M], float | None] | None = None


@dataclass(frozen=True, slots=True)
class Row(Generic[M]):
    """One stored row. `value` is the caller's own copy."""

    key: Key
    uid: str
    version: int
    value: M


class EventType(enum.IntEnum):
    """What happened to a row; the numbers are those of ateapi.WatchEventType."""

    ADDED = 1
    MODIFIED = 2
    DELETED = 3
    BOOKMARK = 4


@dataclass(frozen=True, slots=True)
class Event(Generic[M]):
    """One entry of the change feed. `row` is None for a BOOKMARK; a DELETED row carries its last state."""

    type: EventType
    row: Row[M] | None
    resume_token: str


@dataclass(frozen=True, slots=True)
class Lease:
    """A held lease. `fence` rises with every acquisition in the store; `Tx.require_lease` compares it."""

    key: str
    holder: str
    fence: int


class Tx(ABC):
    """One transaction. Synchronous; raising leaves nothing behind. Valid only inside the function it was given to."""

    @abstractmethod
    def get(self, kind: Kind[M], key: Key) -> Row[M] | None: ...

    @abstractmethod
    def insert(self, kind: Kind[M], key: Key, value: M, *, uid: str | None = None) -> Row[M]:
        """Adds a row with version 1 and a new uid (or `uid`). AlreadyExists when the key is taken."""

    @abstractmethod
    def update(self, kind: Kind[M], key: Key, value: M, *, uid: str, version: int) -> Row[M]:
        """Replaces the row if uid and version still match. NotFound when absent, Aborted when another write won."""

    @abstractmethod
    def delete(self, kind: Kind[M], key: Key, *, uid: str = "", version: int = 0) -> Row[M]:
        """Removes the row; guards that are set must match. NotFound when absent, Aborted on a mismatch."""

    @abstractmethod
    def scan(self, kind: Kind[M], *, scope: str | None = None, after: Key | None = None, limit: int) -> list[Row[M]]:
        """At most `limit` rows in key order, those after `after`; `scope` None lists every scope."""

    @abstractmethod
    def scan_owned(self, kind: Kind[M], owner: str, *, after: Key | None = None, limit: int) -> list[Row[M]]:
        """Like `scan`, only rows whose `kind.owner` gave `owner`."""

    @abstractmethod
    def require_lease(self, lease: Lease) -> None:
        """Aborted unless `lease` is still the newest of its key. Expiry alone does not matter: nobody took it."""


class Store(ABC):
    """What every role keeps its durable state in.

    A write that returned is durable (it survives power loss). A cancelled `transact` waits for the short write it
    submitted, so that the caller never has to wonder; other calls can be cancelled at any checkpoint.
    """

    page_key: bytes
    """Secret of this store, for signing page tokens."""

    @abstractmethod
    async def transact(self, change: Callable[[Tx], T]) -> T:
        """Runs `change` in one transaction and returns its result once that is durable; raises what it raised."""

    @abstractmethod
    async def get(self, kind: Kind[M], key: Key) -> Row[M] | None: ...

    @abstractmethod
    async def scan(
        self, kind: Kind[M], *, scope: str | None = None, after: Key | None = None, limit: int = 1000
    ) -> list[Row[M]]: ...

    @abstractmethod
    async def scan_owned(
        self, kind: Kind[M], owner: str, *, after: Key | None = None, limit: int = 1000
    ) -> list[Row[M]]: ...

    @abstractmethod
    async def scan_due(self, kind: Kind[M], now: float, *, limit: int = 1000) -> list[Row[M]]:
        """At most `limit` rows whose `kind.due` is at or before `now` (Unix time in seconds), earliest first."""

    @abstractmethod
    def watch(
        self, kind: Kind[M], *, scope: str | None = None, resume_token: str = ""
    ) -> AbstractAsyncContextManager[AsyncIterator[Event[M]]]:
        """Every change after `resume_token`, in order. Without one: all rows as ADDED, a BOOKMARK, then changes.

        OutOfRange when the token is older than the feed, or of another store: start again without one.
        """

    @abstractmethod
    async def acquire_lease(self, key: str, holder: str, ttl: float) -> Lease | None:
        """The lease, or None while someone else holds it unexpired. `ttl` in seconds."""

    @abstractmethod
    async def renew_lease(self, lease: Lease, ttl: float) -> bool:
        """False when the lease was lost to another holder."""

    @abstractmethod
    async def release_lease(self, lease: Lease) -> None: ...

    @abstractmethod
    async def clear(self) -> None:
        """Removes every row, lease and event. For tests (Debug.DebugClear)."""


def stamp(kind: Kind[Any], value: Message, *, uid: str, version: int, now: float) -> None:
    """Writes uid, version and times into `value.metadata` where the kind has it; `now` is Unix time in seconds."""
    if not kind.has_metadata:
        return
    metadata = value.metadata  # type: ignore[attr-defined]
    metadata.uid, metadata.version = uid, version
    nanos = int(now * 1e9)
    if version == 1:
        metadata.create_time.FromNanoseconds(nanos)
    metadata.update_time.FromNanoseconds(max(nanos, metadata.create_time.ToNanoseconds()))

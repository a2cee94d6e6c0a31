"""Workers in memory, fed by the store's change feed: what the scheduler looks at instead of the disk.

It may be a moment behind; the claim's transaction re-checks everything, and `apply` lets a writer put in what it just
wrote so that its own next choice is not stale.
"""

from __future__ import annotations

from collections.abc import Iterable

import trio

from ate.api.candidates import Candidates, Cpus
from ate.api.kinds import WORKERS
from ate.errors import OutOfRange
from ate.proto import ateapi_pb2 as pb
from ate.store import EventType, Row, Store


class WorkerCache:
    """`run` keeps it current; `ready` is set after the first listing."""

    def __init__(self, store: Store, cpus: Cpus | None = None) -> None:
        self._store = store
        self._workers: dict[str, Row[pb.Worker]] = {}
        self.candidates = Candidates(cpus)
        self.ready = trio.Event()
        self._changed = trio.Event()

    @property
    def number(self) -> int:
        return len(self._workers)

    def all(self) -> Iterable[pb.Worker]:
        """Each as last seen. Also from other threads: what is looked through is a copy."""
        return [row.value for row in list(self._workers.values())]

    def sandbox_class_of(self, name: str) -> str:
        """The class of a worker; empty when it is not known (any more)."""
        row = self._workers.get(name)
        return row.value.sandbox_class if row is not None else ""

    def apply(self, row: Row[pb.Worker]) -> None:
        """Takes a row that was just read or written, unless a newer one is known."""
        known = self._workers.get(row.key.name)
        if known is None or known.uid != row.uid or known.version < row.version:
            self._workers[row.key.name] = row
            self.candidates.put(row.value)
            self._wake()

    def forget(self, name: str) -> None:
        """The row was found missing."""
        self._workers.pop(name, None)
        self.candidates.remove(name)

    def node_changed(self, node: str) -> None:
        """The node's CPU is another one than before: its workers are sorted in anew."""
        for row in self._workers.values():
            if row.value.node_name == node:
                self.candidates.put(row.value)

    async def wait_change(self) -> None:
        """Returns at the next change of any worker."""
        await self._changed.wait()

    def _wake(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def run(self) -> None:
        """Follows the feed until cancelled, listing anew whenever it was left behind."""
        while True:
            listed: set[str] = set()
            try:
                async with self._store.watch(WORKERS) as feed:
                    async for event in feed:
                        if event.type is EventType.BOOKMARK and not self.ready.is_set():
                            self.ready.set()
                        if event.type is EventType.BOOKMARK:
                            for gone in set(self._workers) - listed:
                                self.forget(gone)
                        elif event.row is not None:
                            listed.add(event.row.key.name)
                            if event.type is EventType.DELETED:
                                known = self._workers.get(event.row.key.name)
                                if known is not None and known.uid == event.row.uid:
                                    self.forget(event.row.key.name)
                                self._wake()
                            else:
                                self.apply(event.row)
            except OutOfRange:
                continue

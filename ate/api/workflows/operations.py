"""One operation per resource at a time, here and (by lease) in any other process; it outlives the caller who asked.

A second caller for the same operation joins it and gets its result; one for another operation is ABORTED. A caller
that leaves (deadline, lost connection) does not stop the work: a half-done resume would cost more than a finished one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from ate.api.workflows import measures
from ate.errors import Aborted, DeadlineExceeded
from ate.flights import Flights
from ate.log import Logger, bind
from ate.store import Lease, Store
from ate.telemetry import trace

log = Logger("ate.api")
T = TypeVar("T")

LEASE_TTL = 30.0
"""Seconds; renewed every third of it. The reference's figure (section 3)."""
LONGEST = 600.0
"""Seconds after which an operation is given up (the longest RPC deadline); recovery enters it again."""


class Operations:
    """Runs operations in `nursery`, which lives as long as the role."""

    def __init__(self, store: Store, nursery: trio.Nursery, holder: str) -> None:
        self._store, self._holder = store, holder
        self._flights = Flights(nursery)
        self._held: dict[Lease, trio.CancelScope] = {}
        nursery.start_soon(self._keep)

    def busy(self, key: str) -> bool:
        """Whether an operation on `key` runs in this process."""
        return self._flights.get(key) is not None

    async def run(self, key: str, name: str, work: Callable[[Lease], Awaitable[T]]) -> T:
        """The result of `work`, or of the same operation already under way.

        Cancelling the caller leaves the work running. Aborted when another operation holds the resource.
        """
        flight = self._flights.join_or_start(key, name, lambda: self._named(key, name, work))
        if flight.what != name:
            raise Aborted(f"another operation ({flight.what}) is in progress for {key}: retry in a moment")
        return await flight.wait()

    async def _named(self, key: str, name: str, work: Callable[[Lease], Awaitable[T]]) -> T:
        """A task of its own: what it logs and records says which operation it was."""
        kind, _, resource = key.removeprefix("lease:").partition(":")
        measured = measures.operation(name if kind == "actor" else "")
        with bind(operation=name, **{kind: resource}), trace.span(f"operation.{name}"), measured:
            return await self._leased(key, work)

    async def _leased(self, key: str, work: Callable[[Lease], Awaitable[T]]) -> T:
        lease = await self._store.acquire_lease(key, self._holder, LEASE_TTL)
        if lease is None:
            raise Aborted(f"another operation is in progress for {key}: retry in a moment")
        scope = self._held[lease] = trio.CancelScope(deadline=trio.current_time() + LONGEST)
        try:
            with scope:
                return await work(lease)
        finally:
            lost = self._held.pop(lease, None) is None
            with trio.CancelScope(shield=True):
                await self._store.release_lease(lease)
        if lost:
            raise Aborted(f"the lease of {key} was lost to another operation")
        raise DeadlineExceeded(f"an operation on {key} did not end within {LONGEST:g} s")

    async def _keep(self) -> None:
        """Renews every lease held; ends the operation whose lease somebody else took."""
        while True:
            await trio.sleep(LEASE_TTL / 3)
            for lease, scope in list(self._held.items()):
                if not await self._store.renew_lease(lease, LEASE_TTL) and self._held.pop(lease, None) is not None:
                    scope.cancel()

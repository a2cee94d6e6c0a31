"""Who may be reached through the tunnel now, how many requests are under way, and when the last byte moved.

ateom admits an actor when its gate has opened, and stops admitting before a checkpoint; the tunnel asks for every
request. No I/O here, only trio's clock and cancel scopes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import trio

from ate.names import Ref


@dataclass(frozen=True, slots=True)
class Admitted:
    """The actor that is active on this worker."""

    ref: Ref
    uid: str


@dataclass(eq=False, slots=True)
class UnderWay:
    """One request: what cuts it off, and whether its final response has begun."""

    scope: trio.CancelScope
    answered: bool = False


class Admission:
    """At most one actor is admitted at a time."""

    def __init__(self) -> None:
        self.actor: Admitted | None = None
        self.in_flight = 0
        self.last_byte = trio.current_time()
        """trio's time at which a request's or response's byte last passed."""
        self._requests: set[UnderWay] = set()
        self._idle = trio.Event()
        self._idle.set()

    def admit(self, ref: Ref, uid: str) -> None:
        """From now on requests for this actor pass."""
        self.actor = Admitted(ref, uid)
        self.last_byte = trio.current_time()

    def stop(self) -> None:
        """From now on no request passes; those under way go on."""
        self.actor = None

    def matches(self, uid: str, ref: str) -> bool:
        """Whether a request with these headers (either may be empty, not both) is for the admitted actor."""
        actor = self.actor
        if actor is None or not (uid or ref):
            return False
        return uid in ("", actor.uid) and ref in ("", str(actor.ref))

    def quiet_since(self) -> float | None:
        """Since when no byte passed, in trio's time; None while a request waits for its answer, or nobody is admitted.

        A response that has begun, or an upgraded connection, counts by its bytes: an open stream may be idle.
        """
        if self.actor is None or any(not request.answered for request in self._requests):
            return None
        return self.last_byte

    @contextlib.contextmanager
    def under_way(self) -> Iterator[UnderWay]:
        """Counts one request while it is served; `cut` cancels its scope."""
        with trio.CancelScope() as scope:
            request = UnderWay(scope)
            self._requests.add(request)
            self.in_flight += 1
            self._idle = trio.Event() if self.in_flight == 1 else self._idle
            self.touch()
            try:
                yield request
            finally:
                self._requests.discard(request)
                self.in_flight -= 1
                self.touch()
                if self.in_flight == 0:
                    self._idle.set()

    def touch(self) -> None:
        self.last_byte = trio.current_time()

    async def drain(self, grace: float) -> int:
        """Stops admitting, lets requests under way end within `grace` seconds, then cuts the rest; how many were cut.

        Cancelled, it leaves the rest under way and nothing admitted.
        """
        self.stop()
        with trio.move_on_after(grace):
            await self._idle.wait()
        return await self.cut()

    async def cut(self) -> int:
        """Ends every request under way at once; how many there were."""
        cut = len(self._requests)
        for request in list(self._requests):
            request.scope.cancel()
        with trio.move_on_after(5):
            await self._idle.wait()
        return cut

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


class Admission:
    """At most one actor is admitted at a time."""

    def __init__(self) -> None:
        self.actor: Admitted | None = None
        self.in_flight = 0
        self.last_byte = trio.current_time()
        """trio's time at which a request's or response's byte last passed."""
        self._scopes: set[trio.CancelScope] = set()
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

    @contextlib.contextmanager
    def under_way(self) -> Iterator[trio.CancelScope]:
        """Counts one request while it is served; `cut` cancels its scope."""
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            self.in_flight += 1
            self._idle = trio.Event() if self.in_flight == 1 else self._idle
            self.touch()
            try:
                yield scope
            finally:
                self._scopes.discard(scope)
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
        cut = len(self._scopes)
        for scope in list(self._scopes):
            scope.cancel()
        with trio.move_on_after(5):
            await self._idle.wait()
        return cut

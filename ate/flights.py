"""Single flight: callers that want the same thing done share one run of it, which outlives each of them.

The api joins callers of one workflow here, the atelet repeats of one operation, the router all requests that wait for
one actor. A flight belongs to the nursery it was given; only that ends it early.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import trio

from ate.errors import Unavailable

T = TypeVar("T")


class _Value(Generic[T]):
    def __init__(self, value: T) -> None:
        self.value = value


class Flight(Generic[T]):
    """One run. `what` tells flights of one key apart."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.result: _Value[T] | Exception | None = None
        self._done = trio.Event()

    async def wait(self) -> T:
        """The result, or what the run raised. Cancelling this wait leaves the run alone."""
        await self._done.wait()
        assert self.result is not None
        if isinstance(self.result, Exception):
            # The traceback would grow with every waiter that raises it.
            raise self.result.with_traceback(None)
        return self.result.value


class Flights:
    """Flights by key, run in `nursery`."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._flights: dict[str, Flight[Any]] = {}

    def get(self, key: str) -> Flight[Any] | None:
        """The flight of `key` under way."""
        return self._flights.get(key)

    def join_or_start(self, key: str, what: str, work: Callable[[], Awaitable[T]]) -> Flight[T]:
        """The flight of `key` under way, whatever it does, or a new one."""
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = Flight(what)
            self._nursery.start_soon(self._fly, key, flight, work)
        return flight

    async def _fly(self, key: str, flight: Flight[Any], work: Callable[[], Awaitable[Any]]) -> None:
        try:
            try:
                flight.result = _Value(await work())
            except Exception as error:
                flight.result = error
        finally:
            if flight.result is None:  # cancelled with the nursery
                flight.result = Unavailable(f"stopped during {flight.what}")
            del self._flights[key]
            flight._done.set()

"""One provider's keys, kept: when they are read again, and what a token waits for meanwhile.

Keys are read at the start and then again when they are `FRESH` seconds old, behind the calls' back; a token that names
an unknown key waits for a fetch, which all such tokens share. Keys that cannot be read again count until they are
`LONGEST` seconds old, so that a provider's short outage locks nobody out and a withdrawn key is gone for sure after it.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import trio

from ate.api.access.discovery import Unreadable
from ate.api.access.key_set import VerifyingKey
from ate.errors import Unauthenticated, Unavailable
from ate.flights import Flights
from ate.log import Logger

log = Logger("ate.api")

FRESH: Final = 300.0
LONGEST: Final = 3600.0
_RETRY: Final = 1.0
"""Seconds after a failed fetch before the next."""


class ProviderKeys:
    """`fetch` reads them (Unreadable when it cannot), at most every `refetch` seconds; runs in `nursery`."""

    def __init__(
        self,
        name: str,
        fetch: Callable[[], Awaitable[Mapping[str, VerifyingKey]]],
        nursery: trio.Nursery,
        *,
        refetch: float,
    ) -> None:
        self._name, self._fetch, self._refetch = name, fetch, refetch
        self._flights = Flights(nursery)
        self._keys: Mapping[str, VerifyingKey] = {}
        self._read_at = self._tried_at = -math.inf
        self._failed = False

    def refresh(self) -> None:
        """Begins a fetch, unless one is under way or was a moment ago. Waits for nothing."""
        if trio.current_time() >= self._tried_at + (min(_RETRY, self._refetch) if self._failed else self._refetch):
            self._flights.join_or_start(self._name, "fetching keys", self._read)

    async def find(self, kid: str) -> VerifyingKey:
        """The key of that id. Unauthenticated when the provider has none, Unavailable when it cannot be asked."""
        key = self._known(kid)
        if key is not None and trio.current_time() < self._read_at + FRESH:
            return key
        self.refresh()
        if key is not None:
            return key
        flight = self._flights.get(self._name)
        if flight is not None:
            await flight.wait()
            key = self._known(kid)
        if key is not None:
            return key
        if self._failed:
            raise Unavailable(
                f"the keys of JWT provider {self._name} cannot be read now, so its tokens cannot be verified: try "
                "again soon; the api role's log says why"
            )
        raise Unauthenticated(
            f"the token is signed with a key that JWT provider {self._name} does not publish (its keys are read again "
            f"at most every {self._refetch:g} s)"
        )

    def _known(self, kid: str) -> VerifyingKey | None:
        return self._keys.get(kid) if trio.current_time() < self._read_at + LONGEST else None

    async def _read(self) -> None:
        self._tried_at = trio.current_time()
        try:
            self._keys = await self._fetch()
        except (Unreadable, Unavailable) as error:
            if not self._failed:
                log.warning("keys of a JWT provider cannot be read", provider=self._name, reason=str(error))
            self._failed = True
        else:
            if self._failed:
                log.info("keys of a JWT provider can be read again", provider=self._name)
            self._failed = False
            self._read_at = trio.current_time()
        self._tried_at = trio.current_time()

"""Connections to workers' tunnels: a worker must prove that it is that very worker before it gets a byte.

Python makes its SSL objects through `SSLContext.sslobject_class`; ours checks the peer right after the handshake. The
worker's uid travels as the TLS server name. Idle connections are kept for a while, by worker; the data plane owns both.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any, Final

from ate import names
from ate.errors import AteError
from ate.half_close import tell_breaks
from ate.identity import spiffe
from ate.identity.tls import Identity
from ate.router.resolver import Route
from ate.router.wire import Wire

CONNECT_TIMEOUT: Final = 5.0
KEPT_SECONDS: Final = 15.0
KEPT_MOST: Final = 256
"""Idle connections kept for one worker."""
UNANSWERED_MOST: Final = 20_000
"""Milliseconds without an acknowledgement after which a worker's host counts as gone."""

_Key = tuple[str, int, str]


class Unreachable(Exception):
    """No connection to the worker was made, so no byte of a request was sent."""


class UpstreamTls:
    """Client contexts for tunnels, made anew when the router's certificate was renewed."""

    def __init__(self, identity: Identity, trust_domain: str) -> None:
        self._identity = identity
        ateom = names.service_account_id(trust_domain, names.SERVICE_ACCOUNTS["ateom"])

        class Verified(ssl.SSLObject):
            def do_handshake(self) -> None:
                super().do_handshake()
                try:
                    spiffe.demand({ateom}, pod_uid=self.server_hostname or "-")(self.getpeercert(binary_form=True))
                except (AteError, ValueError) as error:
                    raise ssl.SSLError(f"the worker is not who it should be: {error}") from error

        self._verified = Verified

    def context(self) -> ssl.SSLContext:
        context: Any = tell_breaks(self._identity.http_client_context())
        context.sslobject_class = self._verified
        return context  # type: ignore[no-any-return]


class UpstreamPool:
    """Lives in the asyncio thread. A connection is taken by one exchange at a time."""

    def __init__(self, tls: UpstreamTls) -> None:
        self._tls = tls
        self._kept: dict[_Key, list[tuple[float, Wire]]] = {}
        self._sweeper: asyncio.TimerHandle | None = None

    async def take(self, route: Route) -> Wire:
        """A connection to the route's worker, kept or new. Raises Unreachable."""
        kept = self._kept.get(_key(route), [])
        while kept:
            wire = kept.pop()[1]
            if wire.idle:
                return wire
            wire.close()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                _, wire = await loop.create_connection(
                    lambda: Wire("worker"),
                    route.host,
                    route.port,
                    ssl=self._tls.context(),
                    server_hostname=route.worker_uid,
                )
        except TimeoutError as error:
            raise Unreachable(f"no connection within {CONNECT_TIMEOUT:g} s") from error
        except (OSError, AteError) as error:
            raise Unreachable(str(error)) from error
        if (raw := wire.transport.get_extra_info("socket")) is not None:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNANSWERED_MOST)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        return wire

    def keep(self, route: Route, wire: Wire) -> None:
        """Gives a connection back whose exchange has ended cleanly."""
        kept = self._kept.setdefault(_key(route), [])
        loop = asyncio.get_running_loop()
        if not wire.idle or len(kept) >= KEPT_MOST:
            wire.close()
            return
        kept.append((loop.time(), wire))
        if self._sweeper is None:
            self._sweeper = loop.call_later(KEPT_SECONDS / 3, self._sweep)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        oldest = loop.time() - KEPT_SECONDS
        for key, kept in list(self._kept.items()):
            for since, wire in list(kept):
                if since < oldest or not wire.idle:
                    kept.remove((since, wire))
                    wire.close()
            if not kept:
                del self._kept[key]
        self._sweeper = loop.call_later(KEPT_SECONDS / 3, self._sweep) if self._kept else None

    def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for kept in self._kept.values():
            for _, wire in kept:
                wire.close()
        self._kept.clear()


def _key(route: Route) -> _Key:
    return route.host, route.port, route.worker_uid

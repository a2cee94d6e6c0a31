"""Upgraded connections (WebSocket and the like): raw bytes both ways, each direction ending on its own, in trio.

asyncio cannot end one direction of a TLS connection, trio's SSLStream can be made to. So the worker's connection of an
upgrade request lives in trio from the start, and once the actor has switched, the client's socket moves there, too.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from ate.asyncio_room import AsyncioRoom
from ate.half_close import CHUNK, end_sending, receive
from ate.router.resolver import Route
from ate.router.upstream import CONNECT_TIMEOUT, Unreachable, UpstreamTls
from ate.router.wire import Broken, Source, Wire

_GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError)
_Stream = trio.SSLStream[trio.SocketStream]


class TrioWire(Source):
    """A worker's connection that lives in trio, with the face of `Wire` for the exchange before the switch."""

    def __init__(self, room: AsyncioRoom, stream: _Stream) -> None:
        self.side = "worker"
        self.buffer = bytearray()
        self.stream, self._room = stream, room
        self.last_byte = asyncio.get_running_loop().time()

    async def fill(self) -> bool:
        try:
            data = await self._room.in_trio(receive, self.stream)
        except _GONE as error:
            raise Broken(self.side) from error
        self.buffer += data
        self.last_byte = asyncio.get_running_loop().time()
        return bool(data)

    async def send(self, data: bytes) -> None:
        try:
            await self._room.in_trio(self.stream.send_all, data)
        except _GONE as error:
            raise Broken(self.side) from error

    def abort(self) -> None:
        """Closes without TLS's goodbye, at once."""
        self._room.trio_token.run_sync_soon(self.stream.transport_stream.socket.close)


class Upgrades:
    """Dials workers for upgrade requests, and joins both sides after the switch; called in the asyncio thread."""

    def __init__(self, room: AsyncioRoom, tls: UpstreamTls) -> None:
        self._room, self._tls = room, tls

    async def dial(self, route: Route) -> TrioWire:
        """A new connection to the route's worker. Raises Unreachable."""
        return TrioWire(self._room, await self._room.in_trio(self._dial, route))

    async def _dial(self, route: Route) -> _Stream:
        try:
            with trio.fail_after(CONNECT_TIMEOUT):
                raw = await trio.open_tcp_stream(route.host, route.port)
                try:
                    stream: _Stream = trio.SSLStream(raw, self._tls.context(), server_hostname=route.worker_uid)
                    await stream.do_handshake()
                except BaseException:
                    await trio.aclose_forcefully(raw)
                    raise
        except (OSError, trio.TooSlowError, *_GONE) as error:
            raise Unreachable(str(error.__cause__ or error)) from error
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return stream

    async def join(self, client: Wire, head: bytes, upstream: TrioWire) -> None:
        """Sends the switch to the client and carries bytes until both directions have ended. Owns both from now on."""
        client.on_leaving = None
        try:
            await client.flush()
            client.transport.pause_reading()
            descriptor = os.dup(client.transport.get_extra_info("socket").fileno())
        except (Broken, OSError):
            upstream.abort()
            client.close()
            return
        # Closes asyncio's descriptor of the socket only; the connection lives on in ours.
        client.transport.abort()
        early = bytes(client.buffer)
        await self._room.in_trio(_splice, descriptor, early, head + upstream.buffer, upstream.stream)


async def _splice(descriptor: int, early: bytes, first: bytes, worker: _Stream) -> None:
    client = trio.SocketStream(trio.socket.from_stdlib_socket(socket.socket(fileno=descriptor)))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    whole = False

    async def one_way(
        data: bytes,
        source: Callable[[], Awaitable[bytes]],
        sink: trio.abc.SendStream,
        end: Callable[[], Awaitable[None]],
    ) -> None:
        if data:
            await sink.send_all(data)
        while data := await source():
            await sink.send_all(data)
        await end()

    async def from_client() -> bytes:
        return bytes(await client.receive_some(CHUNK))

    async def from_worker() -> bytes:
        return await receive(worker)

    async def end_worker() -> None:
        await end_sending(worker)

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one_way, early, from_client, worker, end_worker)
            nursery.start_soon(one_way, first, from_worker, client, client.send_eof)
        whole = True
    except* _GONE:
        pass  # one side is gone in the middle; the other learns it below
    finally:
        if not whole:
            # A reset, so that nobody takes what broke off for complete.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await trio.aclose_forcefully(client)
        await trio.aclose_forcefully(worker)

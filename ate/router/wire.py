"""One connection in the asyncio thread: what was read and not yet used, back-pressure both ways, its end or its break.

`Wire` is an asyncio protocol with the few awaits the data plane needs; nothing is copied from HTTP libraries' streams,
so bytes pass as they came. Used for clients (proxy.py) and for workers (upstream.py).
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Final, cast

from ate import http_framing as framing
from ate.http_framing import Body

READ_AHEAD: Final = 128 * 1024
"""Bytes kept unread before the peer is made to wait; above the longest head."""


class Broken(Exception):
    """A side ended in the middle of a message: the other must not take what it got for complete."""

    def __init__(self, side: str) -> None:
        super().__init__(f"the {side}'s connection ended in the middle of a message")
        self.side = side


class Source:
    """Bytes from a `side` ("client" or "worker"): what was read and not yet used, and a way to wait for more."""

    side: str
    buffer: bytearray

    async def fill(self) -> bool:
        """Waits for more bytes; False at the end of what the peer sends. Raises Broken when it is gone."""
        raise NotImplementedError

    async def head(self) -> bytes | None:
        """The next message's head; None if the connection ended before its first byte. Raises Broken, BadMessage."""
        while not (length := framing.find_head(self.buffer)):
            # A blank line before a request is allowed by the protocol and sent by some old clients.
            if self.buffer.startswith(b"\r\n"):
                del self.buffer[:2]
            elif not await self.fill():
                if self.buffer:
                    raise Broken(self.side)
                return None
        head = bytes(self.buffer[:length])
        del self.buffer[:length]
        return head

    def take(self, body: Body) -> bytes:
        """The bytes at hand that belong to `body`. Raises BadMessage."""
        taken = body.take(self.buffer)
        if taken == len(self.buffer):
            data = bytes(self.buffer)
            self.buffer.clear()
        else:
            data = bytes(self.buffer[:taken])
            del self.buffer[:taken]
        return data


class Wire(Source, asyncio.Protocol):
    """A connection. At most one task reads and one writes at a time."""

    transport: asyncio.Transport

    def __init__(self, side: str, on_open: Callable[[Wire], None] | None = None, *, half_open: bool = False) -> None:
        self.side = side
        self.buffer = bytearray()
        self.ended = False
        """The peer sends no more."""
        self.lost = False
        self.last_byte = 0.0
        self.on_leaving: Callable[[], None] | None = None
        """Called when the peer ends or breaks the connection."""
        self._on_open, self._half_open = on_open, half_open
        self._loop = asyncio.get_running_loop()
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._reading_paused = self._writing_paused = False

    # -- asyncio's side ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass of it
        self.last_byte = self._loop.time()
        if self._on_open is not None:
            self._on_open(self)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        self.last_byte = self._loop.time()
        if len(self.buffer) > READ_AHEAD and not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()
        _wake(self._reader)

    def eof_received(self) -> bool:
        self.ended = True
        _wake(self._reader)
        self._left()
        return self._half_open

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        _wake(self._reader)
        _wake(self._writer)
        self._left()

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        _wake(self._writer)

    def _left(self) -> None:
        if self.on_leaving is not None:
            self.on_leaving()

    # -- the data plane's side --------------------------------------------------------------------------------------

    async def fill(self) -> bool:
        size = len(self.buffer)
        while len(self.buffer) == size:
            if self.ended:
                return False
            if self.lost:
                raise Broken(self.side)
            if self._reading_paused:
                self._reading_paused = False
                self.transport.resume_reading()
            self._reader = self._loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return True

    async def send(self, data: bytes) -> None:
        """Writes, and waits while too much is unsent. Raises Broken when the peer is gone."""
        if self.lost:
            raise Broken(self.side)
        self.transport.write(data)
        self.last_byte = self._loop.time()
        while self._writing_paused:
            if self.lost:
                raise Broken(self.side)
            self._writer = self._loop.create_future()
            try:
                await self._writer
            finally:
                self._writer = None

    async def flush(self) -> None:
        """Waits until everything written has gone to the kernel. Raises Broken when the peer is gone."""
        self.transport.set_write_buffer_limits(high=0)
        await self.send(b"")

    @property
    def idle(self) -> bool:
        """Whether nothing arrived and nobody left: the connection can take another request."""
        return not (self.ended or self.lost or self.buffer or self.transport.is_closing())

    def close(self) -> None:
        """Ends the connection when what was written is sent."""
        self.transport.close()

    def abort(self) -> None:
        """Ends the connection at once, as a break: a reset where TCP can say so."""
        raw = self.transport.get_extra_info("socket")
        if raw is not None and not self.transport.is_closing():
            try:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            except OSError:
                pass  # already gone
        self.transport.abort()


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)

"""Upgraded connections (WebSocket and the like): after the switch, raw bytes both ways with half-close, in asyncio.

aiohttp's client only upgrades WebSockets, so the request head is written by hand on a connection of its own.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Final

from aiohttp import web
from multidict import CIMultiDict

from ate.router.answers import Answer
from ate.router.resolver import Route

CONNECT_TIMEOUT: Final = 5.0
HEAD_TIMEOUT: Final = 60.0
MAX_HEAD: Final = 65536


class _Raw(asyncio.Protocol):
    """Takes over the client's transport after the switch and feeds what arrives to the actor."""

    def __init__(self, writer: asyncio.StreamWriter, transport: asyncio.Transport) -> None:
        self._writer, self._transport = writer, transport
        self.closed = asyncio.get_running_loop().create_future()
        self._writable = asyncio.Event()
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        self._writer.write(data)
        transport = self._writer.transport
        if transport.get_write_buffer_size() > 1 << 20:
            self._transport.pause_reading()
            asyncio.get_running_loop().create_task(self._resume())

    async def _resume(self) -> None:
        try:
            await self._writer.drain()
            self._transport.resume_reading()
        except (ConnectionError, RuntimeError):
            pass  # one side is gone: connection_lost says so

    def eof_received(self) -> bool:
        """The client stops sending; the actor may still answer."""
        if self._writer.can_write_eof():
            self._writer.write_eof()
        return True

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._writable.set()
        if not self.closed.done():
            self.closed.set_result(None)
        self._writer.close()

    async def writable(self) -> None:
        await self._writable.wait()


async def carry_upgrade(
    request: web.BaseRequest, route: Route, headers: Mapping[str, str], context: ssl.SSLContext
) -> web.StreamResponse | Answer:
    """The actor's own answer when it refuses; otherwise returns after both sides are done."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            reader, writer = await asyncio.open_connection(
                route.host, route.port, ssl=context, server_hostname=route.worker_uid, limit=MAX_HEAD
            )
    except (OSError, TimeoutError):
        return Answer(503, "the worker does not answer", 1)
    try:
        path = request.raw_path
        lines = [f"{request.method} {path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogateescape"))
        async with asyncio.timeout(HEAD_TIMEOUT):
            head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        if status == 421:
            return Answer(503, "the actor moved to another worker; send the request again", 1)
        if status != 101:
            return await _refused(head, status, reader)
        return await _switch(request, head, reader, writer)
    except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
        answer = Answer(503, "the connection to the actor broke before it answered", 1)
        return web.Response(status=answer.status, text=answer.body)
    finally:
        writer.close()


async def _refused(head: bytes, status: int, reader: asyncio.StreamReader) -> web.Response:
    """Passes on an ordinary answer to an upgrade request; bodies of these are short."""
    fields: CIMultiDict[str] = CIMultiDict()
    for line in head.decode("latin-1").split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if colon and name.lower() not in ("connection", "transfer-encoding", "content-length", "upgrade"):
            fields.add(name, value.strip())
    length = next((int(v) for n, v in _pairs(head) if n == "content-length"), 0)
    body = await reader.readexactly(length) if length else b""
    return web.Response(status=status, headers=fields, body=body)


def _pairs(head: bytes) -> list[tuple[str, str]]:
    lines = (line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:])
    return [(name.strip().lower(), value.strip()) for name, colon, value in lines if colon]


async def _switch(
    request: web.BaseRequest, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> web.StreamResponse:
    transport = request.transport
    if not isinstance(transport, asyncio.Transport):
        return web.Response(status=503, text="the client left")
    early = await request.content.readany() if not request.content.at_eof() and request.content.total_bytes else b""
    raw = _Raw(writer, transport)
    transport.set_protocol(raw)
    transport.write(head)
    if early:
        writer.write(early)
    transport.resume_reading()
    try:
        while data := await reader.read(65536):
            transport.write(data)
            await raw.writable()
        if transport.can_write_eof() and not transport.is_closing():
            transport.write_eof()
        await raw.closed
    finally:
        transport.close()
    # aiohttp no longer owns the connection: its handler ends here instead of sending another response.
    raise asyncio.CancelledError

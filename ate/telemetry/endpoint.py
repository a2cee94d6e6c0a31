"""The HTTP endpoint for metrics and probes: /metrics, /healthz and /readyz, one request a connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from ate import http_framing as framing
from ate.errors import FailedPrecondition
from ate.http_framing import BadMessage

Exposition = Callable[[], tuple[bytes, str]]

_TIMEOUT: Final = 10.0
_MOST: Final = 32
"""Requests answered at once; a scraper needs one."""
_PHRASES: Final = {200: b"OK", 400: b"Bad Request", 404: b"Not Found", 405: b"Method Not Allowed", 503: b"Unavailable"}
_TEXT: Final = "text/plain; charset=utf-8"


async def serve(
    host: str,
    port: int,
    exposition: Exposition,
    draining: trio.Event,
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves until cancelled; `task_status` gets `host:port`. The exposition is written in a thread."""
    try:
        listeners = await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        raise FailedPrecondition(f"--metrics-listen-addr {host}:{port}: {error.strerror or error}")
    limit = trio.CapacityLimiter(_MOST)

    async def handle(stream: trio.SocketStream) -> None:
        with trio.move_on_after(_TIMEOUT):
            try:
                async with limit, stream:
                    status, kind, body = await answer(await _head(stream), exposition, draining)
                    await stream.send_all(
                        b"HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
                        % (status, _PHRASES[status], kind.encode(), len(body), body)
                    )
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # the client left

    bound = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, handle, listeners)
        task_status.started(f"{host}:{bound}")


async def _head(stream: trio.SocketStream) -> bytes:
    """The request's head; empty when there is none."""
    buffer = bytearray()
    while True:
        try:
            size = framing.find_head(buffer)
        except BadMessage:
            return b""
        if size:
            return bytes(buffer[:size])
        data = await stream.receive_some()
        if not data:
            return b""
        buffer += data


async def answer(head: bytes, exposition: Exposition, draining: trio.Event) -> tuple[int, str, bytes]:
    """Status, content type and body for a request's head."""
    try:
        request = framing.parse_request(head)
    except BadMessage as error:
        return 400, _TEXT, error.reason.encode()
    path = request.target.split(b"?")[0]
    if request.method != b"GET":
        return 405, _TEXT, b"only GET is known here\n"
    if path == b"/metrics":
        body, kind = await trio.to_thread.run_sync(exposition)
        return 200, kind, body
    if path == b"/healthz":
        return 200, _TEXT, b"ok\n"
    if path == b"/readyz":
        return (503, _TEXT, b"draining\n") if draining.is_set() else (200, _TEXT, b"ok\n")
    return 404, _TEXT, b"try /metrics, /healthz or /readyz\n"

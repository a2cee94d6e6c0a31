"""The HTTP endpoint for metrics and probes: /metrics, /healthz and /readyz."""

from __future__ import annotations

from collections.abc import Callable

import trio

from ate.errors import FailedPrecondition
from ate.http_framing import RequestHead
from ate.http_once import OneRequest, Reply

Exposition = Callable[[], tuple[bytes, str]]


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
    bound = listeners[0].socket.getsockname()[1]
    handle = OneRequest(lambda request: answer(request, exposition, draining))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, handle, listeners)
        task_status.started(f"{host}:{bound}")


async def answer(request: RequestHead, exposition: Exposition, draining: trio.Event) -> Reply:
    path = request.target.split(b"?")[0]
    if request.method != b"GET":
        return Reply(405, b"only GET is known here\n")
    if path == b"/metrics":
        body, kind = await trio.to_thread.run_sync(exposition)
        return Reply(200, body, kind)
    if path == b"/healthz":
        return Reply(200, b"ok\n")
    if path == b"/readyz":
        return Reply(503, b"draining\n") if draining.is_set() else Reply(200, b"ok\n")
    return Reply(404, b"try /metrics, /healthz or /readyz\n")

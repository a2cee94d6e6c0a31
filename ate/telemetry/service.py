"""Telemetry of one process: `open_telemetry` starts what flags and environment ask for, and stops it with the process.

With neither an address for metrics nor a collector (OTEL_EXPORTER_OTLP_ENDPOINT) nothing is imported or started.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from ate.log import Logger

if TYPE_CHECKING:
    from ate.telemetry.sdk import Sdk

log = Logger("ate.telemetry")

ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
RATIO: Final = 0.1
"""Share of traces sampled; the reference's for the control plane and the nodes."""
ROUTER_RATIO: Final = 0.01
"""The same for traces that begin at the router: one for every request."""
STOP_SECONDS: Final = 5.0


@asynccontextmanager
async def open_telemetry(
    service: str,
    *,
    listen: tuple[str, int] | None = None,
    ratio: float = RATIO,
    attributes: Mapping[str, str] | None = None,
    draining: trio.Event | None = None,
    relay: Path | None = None,
) -> AsyncIterator[str]:
    """Metrics on `listen` (port 0: a free one) and export to the collector; yields the address of the endpoint, or "".

    The endpoint also answers /healthz, and /readyz with 503 once `draining` is set. At the end what is left is
    exported, within STOP_SECONDS; a collector that does not answer keeps nobody longer.
    """
    if listen is None and not os.environ.get(ENDPOINT):
        yield ""
        return
    from ate.telemetry import sdk
    from ate.telemetry.endpoint import serve

    running = sdk.start(service, ratio=ratio, prometheus=listen is not None, attributes=attributes or {}, relay=relay)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(_stop, running)
        nursery = await stack.enter_async_context(trio.open_nursery())
        stack.callback(nursery.cancel_scope.cancel)
        address = ""
        if listen is not None:
            stopping = trio.Event() if draining is None else draining
            address = await nursery.start(serve, *listen, running.exposition, stopping)
            log.info("metrics are served", address=address)
        yield address


async def _stop(running: Sdk) -> None:
    with trio.CancelScope(shield=True), trio.move_on_after(STOP_SECONDS):
        await trio.to_thread.run_sync(running.shut_down, abandon_on_cancel=True)

"""The router role: the resolver in trio, the data plane in the asyncio thread, a status port beside it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import trio
from aiohttp import web

from ate import __version__, names
from ate.asyncio_room import AsyncioRoom, open_asyncio_room
from ate.identity import spiffe
from ate.identity.tls import Identity
from ate.log import Logger
from ate.names import Ref
from ate.proto.ateapi_grpc import ControlStub
from ate.router.parking import ParkingRules
from ate.router.proxy import Proxy
from ate.router.resolver import Resolver, Route
from ate.router.upgrade import Upgrades
from ate.router.upstream import UpstreamPool, UpstreamTls
from ate.router.wire import Wire
from ate.rpc import Channel, Peer
from ate.telemetry import metrics

log = Logger("ate.router")

BACKLOG: Final = 1024
"""Connections the kernel holds until they are accepted."""


@dataclass(frozen=True)
class RouterConfig:
    """`listen_port` and `status_port` 0 pick free ones; `tunnel_port` is where every worker's tunnel listens."""

    api_host: str
    api_port: int
    listen_host: str = "127.0.0.1"
    listen_port: int = 8080
    status_port: int = 4040
    tunnel_port: int = 8443
    trust_domain: str = "cluster.local"
    parking: ParkingRules = field(default_factory=ParkingRules)
    drain_timeout: float = 10.0


class _DataPlane:
    """The listeners; every method runs in the asyncio thread."""

    def __init__(self, config: RouterConfig, proxy: Proxy, resolver: Resolver) -> None:
        self._config, self._proxy, self._resolver = config, proxy, resolver
        self._server: asyncio.AbstractServer | None = None
        self._status: web.AppRunner | None = None
        self._ready = True

    async def open(self) -> tuple[int, int]:
        """Starts listening; the ports of the data plane and of the status pages."""
        config = self._config
        self._server = server = await asyncio.get_running_loop().create_server(
            lambda: Wire("client", self._proxy.accept, half_open=True),
            config.listen_host,
            config.listen_port,
            backlog=BACKLOG,
        )
        self._status = web.AppRunner(self._status_app(), access_log=None, shutdown_timeout=1)
        await self._status.setup()
        await web.TCPSite(self._status, config.listen_host, config.status_port).start()
        return server.sockets[0].getsockname()[1], self._status.addresses[0][1]

    async def close(self) -> None:
        """Stops accepting, lets what is in flight finish within the drain timeout."""
        self._ready = False
        assert self._server is not None and self._status is not None
        self._server.close()
        cut = await self._proxy.drain(self._config.drain_timeout)
        if cut:
            log.warning("connections were still busy after the drain timeout and are broken off", connections=cut)
        await self._status.cleanup()

    def _status_app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/statusz", self._statusz)
        return app

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _readyz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok") if self._ready else web.Response(status=503, text="draining")

    async def _statusz(self, request: web.Request) -> web.Response:
        lot = self._resolver.lot
        parking = {**asdict(lot.rules), "waiting": lot.waiting, "rejected": lot.rejected}
        body: dict[str, Any] = {"build_tag": __version__, "mode": "ingress", "parking": parking}
        body["connections"] = self._proxy.open_connections
        return web.Response(text=json.dumps(body, indent=1), content_type="application/json")


async def run_router(
    config: RouterConfig,
    identity: Identity,
    stop: trio.Event,
    *,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves until `stop` is set, then drains; `task_status` gets the port of the data plane."""
    api = names.service_account_id(config.trust_domain, names.SERVICE_ACCOUNTS["api"])
    check = spiffe.demand({api})

    def verify(peer: Peer) -> None:
        check(peer.certificate)

    async with (
        open_asyncio_room() as room,
        Channel.tcp(config.api_host, config.api_port, tls=identity, verify_peer=verify) as channel,
        trio.open_nursery() as nursery,
    ):
        resolver = Resolver(ControlStub(channel), nursery, config.parking, config.tunnel_port, random.Random())
        nursery.start_soon(resolver.watch_workers)
        tls = UpstreamTls(identity, config.trust_domain)
        proxy = Proxy(_across(room, resolver), resolver.lot, UpstreamPool(tls), Upgrades(room, tls))
        plane = _DataPlane(config, proxy, resolver)
        port, status_port = await room.run(plane.open)
        log.info("router is serving", address=f"{config.listen_host}:{port}", status_port=status_port)
        task_status.started(port)
        with metrics.PARKING_ACTIVE.by(lambda: [(resolver.lot.waiting, {})]):
            await stop.wait()
        with trio.move_on_after(config.drain_timeout + 5):
            await room.run(plane.close)
        nursery.cancel_scope.cancel()


def _across(room: AsyncioRoom, resolver: Resolver) -> Callable[[Ref], Awaitable[Route]]:
    async def resolve(ref: Ref) -> Route:
        return await room.in_trio(resolver.resolve, ref)

    return resolve

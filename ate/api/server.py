"""The api role: opens the store, serves the services, and runs the loops that finish what was begun."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from ate import objects
from ate.api import atespaces
from ate.api.access import policies
from ate.api.access.audit import AuditLog
from ate.api.access.authentication import Authentication
from ate.api.access.gate import Gate
from ate.api.context import Context
from ate.api.control import Control
from ate.api.cpus import Cpus
from ate.api.events import EventLog
from ate.api.golden import Golden
from ate.api.minting import Minter, MintingConfig
from ate.api.nodes import open_nodes
from ate.api.recovery import Recovery
from ate.api.services import (
    ActorCrashes,
    ActorIdentity,
    ActorLogs,
    ActorSvids,
    ActorTrust,
    Debug,
    NodeRegistry,
    Provider,
    WorkerService,
)
from ate.api.timers import Timers
from ate.api.worker_cache import WorkerCache
from ate.api.workflows import measures
from ate.api.workflows.operations import LONGEST, Operations
from ate.identity.tls import CertificateOptional, Identity
from ate.log import Logger
from ate.names import new_uid
from ate.rpc import IServable, Server, open_tcp_listener
from ate.store import open_sqlite
from ate.telemetry import metrics

if TYPE_CHECKING:
    from ate.api.access.bearer import Tokens

log = Logger("ate.api")


@dataclass(frozen=True)
class ApiConfig:
    """`listen_port` 0 picks a free one. `drain_timeout` in seconds: how long calls in flight may take at a stop."""

    store: Path
    listen_host: str = "127.0.0.1"
    listen_port: int = 7443
    trust_domain: str = "cluster.local"
    minting: MintingConfig = MintingConfig()  # noqa: RUF009 - frozen
    audit: Path | None = None
    """Folder of the audit log; None: there is none."""
    debug: bool = False
    drain_timeout: float = 15.0
    authentication: Authentication | None = None
    """Whose tokens count as callers; None: a client certificate is required."""
    initial_owners: tuple[str, ...] = ()
    """Members (`ate.api.access.members`) who own everything from a first start on."""


async def run_api(
    config: ApiConfig,
    identity: Identity,
    stop: trio.Event,
    *,
    wall_clock: Callable[[], float] = time.time,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves until `stop` is set, then drains; `task_status` gets the port once it serves."""
    config.store.parent.mkdir(parents=True, exist_ok=True)
    async with (
        AsyncExitStack() as stack,
        open_sqlite(config.store, now=wall_clock) as store,
        open_nodes(store, identity, config.trust_domain) as nodes,
        _open_tokens(config.authentication) as tokens,
        trio.open_nursery() as nursery,
    ):
        cpus = Cpus()
        await cpus.load(store)
        workers = WorkerCache(store, cpus)
        operations = Operations(store, nursery, new_uid())
        ctx = Context(store, nodes, objects, workers, operations, cpus, wall_clock=wall_clock)
        await atespaces.ensure_golden(ctx)
        if config.initial_owners:
            await policies.ensure_owners(ctx, config.initial_owners)
        nursery.start_soon(workers.run)
        nursery.start_soon(Golden(ctx, nursery).run)
        nursery.start_soon(Recovery(ctx).run)
        nursery.start_soon(Timers(ctx).run)
        audit = stack.enter_context(closing(AuditLog(config.audit, now=wall_clock))) if config.audit else None
        if audit is not None:
            nursery.start_soon(_sync, audit)
        gate = Gate(config.trust_domain, store, audit, tokens)
        minter = Minter(config.minting, store, wall_clock)
        services: list[IServable] = [
            Control(ctx, minter),
            Provider(ctx),
            WorkerService(ctx, minter),
            ActorIdentity(minter),
            ActorTrust(minter),
            ActorSvids(minter),
            NodeRegistry(ctx),
            ActorCrashes(ctx),
            ActorLogs(ctx),
            EventLog(ctx),
        ]
        if config.debug:
            services.append(Debug(ctx))
        gate.covers(services)
        server = Server(services, interceptors=[gate], max_deadline=LONGEST)
        tls = identity if tokens is None else CertificateOptional(identity)
        listener = await open_tcp_listener(config.listen_host, config.listen_port, tls=tls)
        log.info("api is serving", address=f"{config.listen_host}:{listener.port}")
        await nursery.start(server.serve, [listener])
        task_status.started(listener.port)
        with metrics.WORKERPOOL_WORKERS.by(lambda: measures.workers_by_state(workers.all())):
            await stop.wait()
        await server.drain(config.drain_timeout)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def _open_tokens(authentication: Authentication | None) -> AsyncIterator[Tokens | None]:
    """None where no tokens are taken: then nothing of aiohttp and PyJWT is loaded."""
    if authentication is None:
        yield None
        return
    from ate.api.access.bearer import open_tokens

    async with open_tokens(authentication) as tokens:
        yield tokens


async def _sync(audit: AuditLog) -> None:
    """Power loss costs the audit log a second at most."""
    while True:
        await trio.sleep(1)
        await trio.to_thread.run_sync(audit.sync)

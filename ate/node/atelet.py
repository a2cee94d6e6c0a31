"""The atelet role: the node's agent. Serves the control plane and keeps the node's images, assets and snapshots."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trio

from ate import names
from ate.asyncio_room import open_asyncio_room
from ate.identity import spiffe
from ate.identity.tls import Identity
from ate.log import Logger
from ate.node.actor_logs import ActorLogs
from ate.node.assets import Assets
from ate.node.ateoms import open_ateoms
from ate.node.herder import Herder
from ate.node.image_collection import collect_images
from ate.node.images import ImageStore
from ate.node.local_state import LocalState
from ate.node.registration import Registration, adopt
from ate.node.snapshots import SnapshotStore
from ate.node.support import Crashes, Credentials, Support, open_support
from ate.proto.ateapi_grpc import WorkerServiceStub
from ate.proto.node_grpc import ActorCrashesStub, NodeRegistryStub
from ate.rpc import Call, Channel, Peer, Server, open_tcp_listener
from ate.store import open_sqlite

log = Logger("ate.node")


@dataclass(frozen=True)
class AteletConfig:
    """`advertise` is the host the control plane reaches this agent at; `listen_port` 0 picks a free one."""

    root: Path
    node_name: str
    api_host: str
    api_port: int
    listen_host: str = "127.0.0.1"
    listen_port: int = 0
    advertise: str = "127.0.0.1"
    trust_domain: str = "cluster.local"
    node_runsc: str = ""
    registry_plain_http: tuple[str, ...] = ()
    snapshot_cache_bytes: int = 4 << 30
    image_cache_bytes: int = 20 << 30


class _Gate:
    """Only the control plane may call a node agent."""

    def __init__(self, trust_domain: str) -> None:
        self._check = spiffe.demand({names.service_account_id(trust_domain, names.SERVICE_ACCOUNTS["api"])})

    async def __call__(self, call: Call, proceed) -> None:  # type: ignore[no-untyped-def]
        self._check(call.peer.certificate)
        await proceed()


async def run_atelet(
    config: AteletConfig,
    identity: Identity,
    stop: trio.Event,
    *,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves until `stop` is set; workers go on without it. `task_status` gets the port."""
    for name in ("atelet", "actors", "images", "assets", "snapshots", "logs", "ateoms"):
        (config.root / name).mkdir(parents=True, exist_ok=True, mode=0o755 if name == "images" else 0o700)
    api = names.service_account_id(config.trust_domain, names.SERVICE_ACCOUNTS["api"])
    check = spiffe.demand({api})

    def verify(peer: Peer) -> None:
        check(peer.certificate)

    async with (
        open_sqlite(config.root / "atelet" / "store.db") as store,
        open_asyncio_room() as room,
        open_ateoms(config.root) as ateoms,
        Channel.tcp(config.api_host, config.api_port, tls=identity, verify_peer=verify) as api_channel,
        trio.open_nursery() as nursery,
    ):
        state = LocalState(store)
        images = ImageStore(config.root / "images", room, plain_http=config.registry_plain_http)
        assets = Assets(config.root / "assets", config.node_runsc)
        snapshots = SnapshotStore(config.root / "snapshots", cache_bytes=config.snapshot_cache_bytes)
        herder = Herder(config.root, state, ateoms, images, assets, snapshots, nursery)
        await adopt(config.root, state, ateoms, herder)
        server = Server([herder, ActorLogs(config.root)], interceptors=[_Gate(config.trust_domain)])
        listener = await open_tcp_listener(config.listen_host, config.listen_port, tls=identity)
        await nursery.start(server.serve, [listener])
        support = Support(WorkerServiceStub(api_channel), state, config.node_name, config.trust_domain)
        support_server, support_listener = await open_support(
            config.root,
            identity,
            support,
            Crashes(support, ActorCrashesStub(api_channel)),
            Credentials(support, api_channel),
        )
        await nursery.start(support_server.serve, [support_listener])
        registration = Registration(
            config.root,
            config.node_name,
            f"{config.advertise}:{listener.port}",
            NodeRegistryStub(api_channel),
            herder,
            state,
            ateoms,
        )
        nursery.start_soon(registration.run)
        nursery.start_soon(collect_images, images, state, config.image_cache_bytes)
        log.info("atelet is serving", address=f"{config.listen_host}:{listener.port}", node=config.node_name)
        task_status.started(listener.port)
        await stop.wait()
        await server.drain(5.0)
        nursery.cancel_scope.cancel()

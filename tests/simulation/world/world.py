"""The cast: processes of every role wired together as the real roles wire themselves, and what they share.

A `World` holds what outlives processes: the store, object storage, the nodes' disks, the clock's offset.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import outcome
import trio
from cryptography.hazmat.primitives.asymmetric import ec

from ate import names
from ate.api import atespaces
from ate.api.access.gate import Gate
from ate.api.context import Context
from ate.api.control import Control
from ate.api.cpus import Cpus
from ate.api.golden import Golden
from ate.api.minting import Minter, MintingConfig
from ate.api.nodes import Nodes
from ate.api.recovery import Recovery
from ate.api.services import ActorCrashes, NodeRegistry, Provider, WorkerService
from ate.api.timers import Timers
from ate.api.worker_cache import WorkerCache
from ate.api.workflows.operations import LONGEST, Operations
from ate.errors import AlreadyExists, AteError, Unavailable
from ate.identity import ca, spiffe
from ate.names import Ref, new_uid
from ate.node.assets import Runtime
from ate.node.ateom import AteomConfig, AteomService
from ate.node.ateoms import Ateoms
from ate.node.herder import Herder
from ate.node.images import Image
from ate.node.local_state import LocalState
from ate.node.operations import Operations as WorkerOperations
from ate.node.registration import Registration, adopt
from ate.node.snapshots import SnapshotStore
from ate.node.support import Crashes, Support
from ate.node.tunnel import Admission, Tunnel
from ate.node.worker import Worker
from ate.objects import copy_prefix, delete_other_snapshots, delete_prefix
from ate.proto import ateapi_pb2 as pb
from ate.proto.ateapi_grpc import ControlStub, ProviderStub, WorkerServiceStub
from ate.proto.ateom_grpc import AteomStub
from ate.proto.node_grpc import ActorCrashesStub, NodeRegistryStub
from ate.router.parking import ParkingRules
from ate.router.resolver import Resolver
from ate.rpc import Channel, Peer, Server, open_channel_pool
from ate.store import Key, Kind, Lease, Store, Tx
from ate.store.sqlite import SqliteStore
from tests.simulation.world.machines import Machines
from tests.simulation.world.network import Network
from tests.simulation.world.process import Process, current
from tests.simulation.world.sandboxes import Observer, SimDriver, SimPool, SimSlots

T = TypeVar("T")
EPOCH = 1_700_000_000
DOMAIN = "cluster.local"
IMAGE = "ate.local/x@sha256:" + "a" * 64


@functools.cache
def _pool() -> ca.CaPool:
    return ca.CaPool((ca.make_authority("sim"),))


@functools.cache
def certificate(role: str, node: str = "", pod: str = "") -> bytes:
    """The DER that a role's connections show; a user for a role that is none."""
    account = names.SERVICE_ACCOUNTS.get(role)
    id_ = names.service_account_id(DOMAIN, account) if account else names.user_id(DOMAIN, role)
    identity = spiffe.PodIdentity(account or role, node, pod) if node else None
    key = ec.generate_private_key(ec.SECP256R1())
    return _pool().issue(key.public_key(), id_, holder=identity)[0]


class GuardedStore(Store):
    """The shared store as one process sees it: nothing of a dead or frozen process gets through."""

    def __init__(self, store: SqliteStore, process: Process, committed: Callable[[], None]) -> None:
        self._store, self._process, self._committed = store, process, committed
        self.page_key = store.page_key

    async def transact(self, change: Callable[[Tx], T]) -> T:
        await self._process.gate()
        result = await self._store.transact(change)
        self._committed()
        await self._process.gate()
        return result

    async def _read(self, read: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
        await self._process.gate()
        result = await read(*args, **options)
        await self._process.gate()
        return result

    async def get(self, kind: Kind[Any], key: Key) -> Any:
        return await self._read(self._store.get, kind, key)

    async def scan(self, kind: Kind[Any], **options: Any) -> Any:
        return await self._read(self._store.scan, kind, **options)

    async def scan_owned(self, kind: Kind[Any], owner: str, **options: Any) -> Any:
        return await self._read(self._store.scan_owned, kind, owner, **options)

    async def scan_due(self, kind: Kind[Any], now: float, **options: Any) -> Any:
        return await self._read(self._store.scan_due, kind, now, **options)

    def watch(self, kind: Kind[Any], **options: Any) -> Any:
        return self._store.watch(kind, **options)

    async def acquire_lease(self, key: str, holder: str, ttl: float) -> Lease | None:
        return await self._read(self._store.acquire_lease, key, holder, ttl)

    async def renew_lease(self, lease: Lease, ttl: float) -> bool:
        return await self._read(self._store.renew_lease, lease, ttl)

    async def release_lease(self, lease: Lease) -> None:
        await self._read(self._store.release_lease, lease)

    async def clear(self) -> None:
        raise AssertionError("not in a simulation")


class _Objects:
    delete_prefix = staticmethod(delete_prefix)
    copy_prefix = staticmethod(copy_prefix)
    delete_other_snapshots = staticmethod(delete_other_snapshots)


class _SimNodes(Nodes):
    """Real registrations; channels over the simulated network."""

    network: Network

    async def _channel(self, node_name: str) -> Channel:
        from ate.api.kinds import NODES

        if await self._store.get(NODES, Key("", node_name)) is None:
            raise Unavailable(f"no node agent has registered for node {node_name}")
        address = f"atelet/{node_name}"
        return await self._channels.get(address, lambda: self.network.channel(address, certificate("api")))


class _SimAteoms(Ateoms):
    network: Network

    async def stub(self, worker_uid: str) -> AteomStub:
        address = f"ateom/{worker_uid}"
        return AteomStub(await self._channels.get(worker_uid, lambda: self.network.channel(address)))

    async def alive(self, worker_uid: str) -> bool:
        await trio.lowlevel.checkpoint()
        process = current.get()
        assert process is not None
        await process.gate()
        return self.network.listens(f"ateom/{worker_uid}")


class _SimImages:
    async def ensure(self, reference: str) -> Image:
        await trio.sleep(0.001)
        config = {"config": {"Cmd": ["/x"]}}
        return Image(reference, "sha256:" + "a" * 64, config, (Path("/sim/layer"),))


class _SimAssets:
    async def ensure(self, wanted: Any) -> Runtime:
        await trio.lowlevel.checkpoint()
        return Runtime("gvisor", wanted.pause_image, {"runsc": Path("/sim/runsc")}, {"runsc": ("node://x", "b" * 64)})


class World:
    """Made once a schedule; `start_*` begin a process each, again after it died."""

    def __init__(self, rng: random.Random, store: SqliteStore, disk: Path, nursery: trio.Nursery) -> None:
        self.rng, self.store, self.disk, self.nursery = rng, store, disk, nursery
        self.network = Network(random.Random(rng.getrandbits(32)))
        self.observer = Observer()
        self.clock_offset = 0.0
        self.committed: Callable[[], None] = lambda: None
        self.processes: dict[str, Process] = {}
        self.workers: dict[str, Worker] = {}
        self.epochs: dict[str, int] = {}
        self.local_stores: dict[str, SqliteStore] = {}
        self.contexts: dict[str, Context] = {}
        self.machines = Machines(disk)

    def wall_clock(self) -> float:
        return EPOCH + trio.current_time() + self.clock_offset

    async def _start(self, name: str, main: Callable[[Process], Awaitable[None]]) -> Process:
        process = Process(name)
        self.processes[name] = process
        await self.nursery.start(process.run, lambda: main(process))
        return process

    # -- api ------------------------------------------------------------------------------------------------------

    async def start_api(self, number: int) -> Process:
        async def main(process: Process) -> None:
            store = GuardedStore(self.store, process, lambda: self.committed())
            async with open_channel_pool() as pool, trio.open_nursery() as nursery:
                nodes = _SimNodes(store, None, DOMAIN, pool)  # type: ignore[arg-type]
                nodes.network = self.network
                cpus = Cpus()
                await cpus.load(store)
                cache = WorkerCache(store, cpus)
                ctx = Context(
                    store, nodes, _Objects(), cache, Operations(store, nursery, new_uid()), cpus,
                    wall_clock=self.wall_clock,
                )  # fmt: skip
                self.contexts[process.name] = ctx
                await atespaces.ensure_golden(ctx)
                nursery.start_soon(cache.run)
                nursery.start_soon(Golden(ctx, nursery).run)
                nursery.start_soon(Recovery(ctx).run)
                nursery.start_soon(Timers(ctx).run)
                gate, minter = Gate(DOMAIN, store), Minter(MintingConfig(), store, self.wall_clock)
                services = [
                    Control(ctx, minter),
                    Provider(ctx),
                    WorkerService(ctx, minter),
                    NodeRegistry(ctx),
                    ActorCrashes(ctx),
                ]
                server = Server(services, interceptors=[gate], max_deadline=LONGEST)
                self.network.serve(process.name, process, server.serve_stream)
                await trio.sleep_forever()

        return await self._start(f"api/{number}", main)

    # -- nodes ----------------------------------------------------------------------------------------------------

    async def start_atelet(self, node: str) -> Process:
        root = self.disk / node
        self.machines.place(f"atelet/{node}", node)

        async def main(process: Process) -> None:
            for name in ("actors", "snapshots"):
                (root / name).mkdir(parents=True, exist_ok=True)
            state = LocalState(GuardedStore(self.local_stores[node], process, lambda: None))
            async with (
                open_channel_pool() as pool,
                self.network.channel("api", certificate("atelet", node)) as to_api,
                trio.open_nursery() as nursery,
            ):
                ateoms = _SimAteoms(root, pool)
                ateoms.network = self.network
                snapshots = SnapshotStore(root / "snapshots", cache_bytes=1 << 20)
                herder = Herder(root, state, ateoms, _SimImages(), _SimAssets(), snapshots, nursery)  # type: ignore[arg-type]
                await adopt(root, state, ateoms, herder)
                self.network.serve(process.name, process, Server([herder]).serve_stream)
                support = Support(WorkerServiceStub(to_api), state, node, DOMAIN)
                helpers = Server([support, Crashes(support, ActorCrashesStub(to_api))])
                self.network.serve(f"support/{node}", process, helpers.serve_stream)
                registration = Registration(
                    root, node, f"{node}:1", NodeRegistryStub(to_api), herder, state, ateoms
                )  # fmt: skip
                nursery.start_soon(registration.run)
                await trio.sleep_forever()

        return await self._start(f"atelet/{node}", main)

    async def start_ateom(self, node: str, uid: str) -> Process:
        """A worker's process; its epoch rises with each start, and the supervisor tells the api of it."""
        root = self.disk / node
        self.machines.place(f"ateom/{uid}", node)
        self.epochs[uid] = self.epochs.get(uid, 0) + 1

        async def main(process: Process) -> None:
            async with trio.open_nursery() as nursery:
                driver = SimDriver(process, self.observer, lambda: worker.active.uid if worker.active else "")
                admission = Admission()

                async def dial(port: int) -> trio.abc.Stream:
                    ours, theirs = trio.testing.memory_stream_pair()
                    process.start_soon(_actor, worker, driver, theirs)
                    await trio.sleep(0.0001)
                    return ours

                tunnel = Tunnel(None, lambda der: None, admission, dial)  # type: ignore[arg-type]
                worker = Worker(
                    nursery=nursery,
                    driver_for=lambda path: driver,
                    pool=SimPool(),  # type: ignore[arg-type]
                    slots=SimSlots(process),  # type: ignore[arg-type]
                    tunnel=tunnel,
                    logs=root / "logs",
                    prepare=False,
                    on_crash=None,
                )
                self.workers[uid] = worker
                config = AteomConfig(root, uid, "sim", "", None, None)  # type: ignore[arg-type]
                service = AteomService(worker, WorkerOperations(nursery), config)
                self.network.serve(f"ateom/{uid}", process, Server([service]).serve_stream)

                async def serve_tunnel(stream: trio.abc.Stream, peer: Peer) -> None:
                    await tunnel.serve_stream(stream)

                self.network.serve(f"tunnel/{uid}", process, serve_tunnel)
                await trio.sleep_forever()

        return await self._start(f"ateom/{uid}", main)

    async def announce(self, node: str, uid: str) -> None:
        """What the controller does for a worker process: creates its record, or raises its epoch. Until it worked."""
        async with self.network.channel("api", certificate("controller")) as channel:
            control = ControlStub(channel)
            while True:
                epoch = self.epochs[uid]
                try:
                    ref = pb.ObjectRef(name=uid)
                    try:
                        worker = await control.GetWorker(pb.GetWorkerRequest(worker=ref), timeout=10)
                    except AteError as error:
                        if error.code.name != "NOT_FOUND":
                            raise
                        fresh = pb.Worker(
                            metadata=pb.ResourceMetadata(name=uid), worker_pod_uid=uid, node_name=node,
                            ips=["127.0.0.1"], sandbox_class="gvisor", epoch=epoch,
                        )  # fmt: skip
                        await control.CreateWorker(pb.CreateWorkerRequest(worker=fresh), timeout=10)
                        return
                    if worker.epoch >= epoch:
                        return
                    worker.epoch = epoch
                    await control.UpdateWorker(pb.UpdateWorkerRequest(worker=worker), timeout=30)
                    return
                except AlreadyExists:
                    pass
                except AteError:
                    await trio.sleep(0.5)

    # -- the router and the clients -------------------------------------------------------------------------------

    async def start_router(self) -> Process:
        async def main(process: Process) -> None:
            async with (
                self.network.channel("api", certificate("router")) as channel,
                trio.open_nursery() as nursery,
            ):
                rng = random.Random(self.rng.getrandbits(32))
                self.router = Router(self.network, Resolver(ControlStub(channel), nursery, ParkingRules(), 1, rng))
                nursery.start_soon(self.router.resolver.watch_workers)
                await trio.sleep_forever()

        return await self._start("router", main)

    def client(self) -> Channel:
        """The channel of a person."""
        return self.network.channel("api", certificate("ann"))

    async def request(self, ref: Ref) -> tuple[str, int]:
        """A client's request, by way of the router's process. Unavailable when that dies under it."""
        process, router = self.processes["router"], self.router
        result: list[outcome.Outcome[tuple[str, int]]] = []
        done = trio.Event()

        async def serve() -> None:
            try:
                result.append(await outcome.acapture(router.request, ref))
            finally:
                done.set()

        process.start_soon(serve)
        async with trio.open_nursery() as nursery:

            async def until_dead() -> None:
                await process.ended.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(until_dead)
            await done.wait()
            nursery.cancel_scope.cancel()
        if not result or not process.alive:
            raise Unavailable("the router died")
        return result[0].unwrap()


class Router:
    """The data plane in brief: routes in memory, requests through the worker's tunnel, stale routes resolved again."""

    def __init__(self, network: Network, resolver: Resolver) -> None:
        self.resolver = resolver
        self._network = network
        self._routes: dict[Ref, Any] = {}

    async def request(self, ref: Ref) -> tuple[str, int]:
        """(uid of the actor that answered, its count). AteError when it cannot be had."""
        for _ in range(6):
            route = self._routes.get(ref)
            if route is None:
                route = self._routes[ref] = await self.resolver.resolve(ref)
            answer = await self._ask(ref, route)
            if answer is not None:
                return answer
            self._routes.pop(ref, None)
        raise Unavailable(f"actor {ref} moves too fast")

    async def _ask(self, ref: Ref, route: Any) -> tuple[str, int] | None:
        """None when the route was stale. Unavailable when the connection broke: the actor may have counted."""
        try:
            stream = await self._network.connect(f"tunnel/{route.worker_uid}", certificate("router"))
        except OSError:
            return None
        head = (
            f"GET / HTTP/1.1\r\nHost: x\r\nate-target-actor: {ref}\r\nX-Ate-Actor-Uid: {route.actor_uid}\r\n"
            "Connection: close\r\n\r\n"
        )
        data = b""
        try:
            await stream.send_all(head.encode())
            with trio.fail_after(30):
                while more := await stream.receive_some():
                    data += more
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            raise Unavailable("the connection to the worker broke")
        finally:
            await trio.aclose_forcefully(stream)
        if data.startswith(b"HTTP/1.1 421"):
            return None
        head, _, body = data.partition(b"\r\n\r\n")
        if not data.startswith(b"HTTP/1.1 200") or f"Content-Length: {len(body)}".encode() not in head:
            raise Unavailable(f"the worker answered {data[:60]!r}")
        uid, count = body.decode().split()
        return uid, int(count)


async def _actor(worker: Worker, driver: SimDriver, stream: trio.abc.Stream) -> None:
    """The program in the sandbox: counts requests in its RAM."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = await stream.receive_some()
        if not more:
            return
        data += more
    active = worker.active
    ram = driver.rams.get(id(active.slot.sandbox)) if active is not None and active.slot.sandbox is not None else None
    if ram is None or not ram.live:
        await stream.aclose()
        return
    ram.count += 1
    body = f"{ram.actor_uid} {ram.count}".encode()
    await trio.sleep(0.002)
    if not ram.live:
        await trio.aclose_forcefully(stream)
        return
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
    try:
        await stream.send_all(head + body)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    await stream.aclose()


async def apply_basics(world: World) -> None:
    """The runtime, the atespace and two templates."""
    async with world.client() as channel:
        provider, control = ProviderStub(channel), ControlStub(channel)
        config = pb.SandboxRuntimeConfig(
            metadata=pb.ResourceMetadata(name="g"), spec=pb.SandboxRuntimeConfigSpec(pause_image=IMAGE)
        )
        await provider.CreateSandboxConfig(pb.CreateSandboxConfigRequest(sandbox_config=config))
        atespace = pb.Atespace(metadata=pb.ResourceMetadata(name="demo"))
        await control.CreateAtespace(pb.CreateAtespaceRequest(atespace=atespace))
        template = pb.ActorTemplate(
            metadata=pb.ResourceMetadata(atespace="demo", name="t"),
            containers=[pb.Container(name="c", image=IMAGE)],
            sandbox_config=pb.SandboxConfig(sandbox_class=pb.SANDBOX_CLASS_GVISOR, config_name="g"),
            snapshots_config=pb.SnapshotsConfig(storage_location="file:///sim-objects"),
        )
        await control.CreateActorTemplate(pb.CreateActorTemplateRequest(actor_template=template))


__all__ = ["Router", "World", "apply_basics", "certificate"]

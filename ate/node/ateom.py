"""The ateom role: a worker that holds one sandbox, serves the node agent on a unix socket and the router by its tunnel.

It runs inside namespaces of its own (`isolation.py`, entered before trio starts), so whatever it makes dies with it. An
operation belongs to the worker and not to its caller: a caller that goes away finds the result when it asks again.
"""

from __future__ import annotations

import shutil
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

import trio

from ate import log
from ate.errors import NOT_STARTED, AteError, FailedPrecondition, InvalidArgument, Unavailable, with_reason
from ate.identity.spiffe import demand
from ate.names import OPERATION_ID_METADATA
from ate.node import metadata, workload_api
from ate.node.credentials import Credentials
from ate.node.metadata import Metadata
from ate.node.network import interfaces as kernel
from ate.node.network import open_network_pool
from ate.node.operations import Operations
from ate.node.rootfs import RootfsMounts
from ate.node.sandbox.cgroup import CgroupTree
from ate.node.sandbox.driver import SandboxDriver, Stats
from ate.node.sandbox.gvisor import GvisorDriver
from ate.node.sandbox.runsc import Runsc
from ate.node.slot import SlotMaker
from ate.node.tunnel import Admission, ContextProvider, Tunnel
from ate.node.worker import Active, Worker
from ate.node.workload_api import WorkloadApi
from ate.proto import ateom_pb2 as pb
from ate.proto.ateom_grpc import AteomBase
from ate.proto.node_grpc import ActorCredentialsStub
from ate.rpc import Call, RpcListener, Server, open_unix_listener, unary

_log = log.Logger(__name__)

REPLY_GRACE: Final = 10.0
"""Seconds for replies under way when the worker ends."""
DRAIN_GRACE_METADATA: Final = "ate-drain-grace-ms"
_Request: TypeAlias = (
    pb.RunWorkloadRequest | pb.RestoreWorkloadRequest | pb.CheckpointWorkloadRequest | pb.TerminateWorkloadRequest
)
_Reply = TypeVar("_Reply")
_COMING_UP: Final = frozenset({"RunWorkload", "RestoreWorkload"})


@dataclass(frozen=True)
class AteomConfig:
    """`tunnel_socket` listens in the host's network, opened before the namespaces were entered. Seconds throughout.

    `provider` gives the tunnel's TLS contexts (an `ate.identity.Identity` does), `router_id` is the only SPIFFE id let
    in. `stopping`, when set from outside, refuses new actors and ends the role once its actor is gone or
    `eviction_grace` is over. `on_crash(actor uid, reason)` is told of a sandbox that ended by itself.
    """

    root: Path
    worker_uid: str
    install_id: str
    router_id: str
    provider: ContextProvider
    tunnel_socket: socket.socket
    platform: str = "systrap"
    prepare: bool = True
    spare_networks: int = 2
    drain_grace: float = 10.0
    eviction_grace: float = 1800.0
    stopping: trio.Event | None = None
    on_crash: Callable[[str, str], Awaitable[None]] | None = None
    credentials: ActorCredentialsStub | None = None
    """Who mints credentials for the actor; None: there is no metadata endpoint."""

    @property
    def socket_path(self) -> Path:
        return self.root / "ateoms" / self.worker_uid / "ateom.sock"


def cgroup_tree(install_id: str, worker_uid: str) -> CgroupTree:
    """Control groups of this worker; pass its `remove` to `enter_worker_namespaces` as what the janitor does."""
    return CgroupTree.find(f"ate-{install_id}/{worker_uid}")


async def run_ateom(config: AteomConfig, *, task_status: trio.TaskStatus[Worker] = trio.TASK_STATUS_IGNORED) -> None:
    """Serves until cancelled or stopped; nothing of its sandbox is left when it returns. Started when it listens."""
    private = private_directory(config.root)
    volumes = config.root / "ateoms" / config.worker_uid / "slots"
    if volumes.exists():  # of an ateom of this worker that was killed
        await trio.to_thread.run_sync(shutil.rmtree, volumes)
    config.socket_path.parent.mkdir(parents=True, exist_ok=True)
    tree = cgroup_tree(config.install_id, config.worker_uid)
    admission = Admission()
    tunnel = Tunnel(_HttpContexts(config.provider), demand([config.router_id]), admission)
    drivers = _Drivers(private, config, tree)
    mounts = RootfsMounts(private / "r")
    try:
        async with (
            open_network_pool(private / "n", config.install_id, spare=config.spare_networks) as pool,
            trio.open_nursery() as nursery,
        ):
            worker = Worker(
                nursery=nursery,
                driver_for=drivers.get,
                pool=pool,
                slots=SlotMaker(pool, mounts, volumes, config.worker_uid.replace("-", "")[:6]),
                tunnel=tunnel,
                logs=config.root / "logs",
                prepare=config.prepare,
                on_crash=config.on_crash,
            )
            service = AteomService(worker, Operations(nursery), config)
            listener = trio.SocketListener(trio.socket.from_stdlib_socket(config.tunnel_socket))
            nursery.start_soon(tunnel.serve, listener)
            if config.credentials is not None:
                credentials = Credentials(lambda: worker.active, config.credentials)
                nursery.start_soon(Metadata(credentials).serve, metadata.listen())
                spiffe = Server([WorkloadApi(credentials)], interceptors=[workload_api.demand_header])
                gateway = metadata.listen(workload_api.PORT)
                await nursery.start(spiffe.serve, [RpcListener(gateway, "gateway", None, None)])
            rpc = await open_unix_listener(config.socket_path, mode=0o600)
            server = Server([service])
            await nursery.start(server.serve, [rpc])
            task_status.started(worker)
            _log.info("ateom ready", worker=config.worker_uid, cgroup=tree.version or "none")
            try:
                await service.until_stopped()
                # The reply to the last checkpoint must reach the agent: it says where the actor's state is.
                await server.drain(REPLY_GRACE)
            finally:
                await worker.close()
                nursery.cancel_scope.cancel()
    finally:
        mounts.close()
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(tree.remove)


class AteomService(AteomBase):
    """The RPCs: each is turned into one operation of the worker."""

    def __init__(self, worker: Worker, operations: Operations, config: AteomConfig) -> None:
        self._worker, self._operations, self._config = worker, operations, config

    async def until_stopped(self) -> None:
        """Returns when stopping was asked for and the actor is gone, or its grace is over."""
        if self._config.stopping is None:
            await trio.sleep_forever()
            return
        await self._config.stopping.wait()
        self._operations.cancel(_COMING_UP)
        with trio.move_on_after(self._config.eviction_grace):
            while self._worker.active is not None or self._operations.current is not None:
                await trio.sleep(0.05)

    @unary
    async def RunWorkload(self, request: pb.RunWorkloadRequest, call: Call) -> pb.RunWorkloadResponse:
        self._accepts(request)
        return await self._operate("RunWorkload", request, call, lambda: self._worker.run(request))

    @unary
    async def RestoreWorkload(self, request: pb.RestoreWorkloadRequest, call: Call) -> pb.RestoreWorkloadResponse:
        self._accepts(request)
        return await self._operate("RestoreWorkload", request, call, lambda: self._worker.restore(request))

    @unary
    async def CheckpointWorkload(
        self, request: pb.CheckpointWorkloadRequest, call: Call
    ) -> pb.CheckpointWorkloadResponse:
        _require(request)
        grace = self._grace(call)

        async def checkpoint() -> pb.CheckpointWorkloadResponse:
            saved = await self._worker.checkpoint(request, grace)
            self._operations.undo(_COMING_UP, request.actor_uid)
            return saved

        return await self._operate("CheckpointWorkload", request, call, checkpoint)

    @unary
    async def TerminateWorkload(self, request: pb.TerminateWorkloadRequest, call: Call) -> pb.TerminateWorkloadResponse:
        _require(request)
        self._operations.cancel(_COMING_UP, request.actor_uid)

        async def terminate() -> pb.TerminateWorkloadResponse:
            await self._worker.terminate(request.actor_uid)
            self._operations.undo(_COMING_UP, request.actor_uid)
            return pb.TerminateWorkloadResponse()

        return await self._operate("TerminateWorkload", request, call, terminate)

    @unary
    async def GetWorkloadStats(self, request: pb.GetWorkloadStatsRequest, call: Call) -> pb.GetWorkloadStatsResponse:
        active, stats = await self._worker.sample(request.actor_uid)
        if stats is None:
            raise FailedPrecondition(f"actor {active.ref} cannot be measured on this node: no control groups")
        return pb.GetWorkloadStatsResponse(sample=_sample(active, stats))

    @unary
    async def GetActiveWorkloadStats(
        self, request: pb.GetActiveWorkloadStatsRequest, call: Call
    ) -> pb.GetActiveWorkloadStatsResponse:
        active = self._worker.active
        if active is None:
            return pb.GetActiveWorkloadStatsResponse()
        try:
            _, stats = await self._worker.sample(active.uid)
        except AteError:
            stats = None
        return pb.GetActiveWorkloadStatsResponse(samples=[_sample(active, stats)])

    def _accepts(self, request: pb.RunWorkloadRequest | pb.RestoreWorkloadRequest) -> None:
        _require(request)
        if self._config.stopping is not None and self._config.stopping.is_set():
            stopping = Unavailable(f"worker {self._config.worker_uid} is stopping; it takes no new actor")
            raise with_reason(stopping, NOT_STARTED)
        current = self._operations.current
        if current is not None and current.kind in _COMING_UP and current.actor_uid != request.actor_uid:
            busy = Unavailable(f"worker {self._config.worker_uid} is starting actor {current.actor_uid}")
            raise with_reason(busy, NOT_STARTED)

    async def _operate(self, kind: str, request: _Request, call: Call, work: Callable[[], Awaitable[_Reply]]) -> _Reply:
        operation_id = call.metadata.get(OPERATION_ID_METADATA, "")
        identity = request.SerializeToString(deterministic=True)
        reply: _Reply = await self._operations.run(kind, request.actor_uid, identity, str(operation_id), work)
        return reply

    def _grace(self, call: Call) -> float:
        text = call.metadata.get(DRAIN_GRACE_METADATA, "")
        if not text:
            return self._config.drain_grace
        if not isinstance(text, str) or not text.isdecimal():
            raise InvalidArgument(f"metadata {DRAIN_GRACE_METADATA} is not a number of milliseconds: {text!r}")
        return int(text) / 1000


class _Drivers:
    """One driver for each runtime binary that requests name."""

    def __init__(self, private: Path, config: AteomConfig, tree: CgroupTree) -> None:
        self._private, self._config, self._tree = private, config, tree
        self._made: dict[Path, SandboxDriver] = {}

    def get(self, binary: Path) -> SandboxDriver:
        if binary not in self._made:
            runsc = Runsc(
                binary,
                self._private / f"s{len(self._made)}",
                platform=self._config.platform,
                facts_cache=self._config.root / "runsc-facts",
                private_mounts=True,
            )
            self._made[binary] = GvisorDriver(runsc, self._private / "b", self._tree)
        return self._made[binary]


class _HttpContexts:
    """The tunnel speaks HTTP/1.1: an identity that has contexts for it is asked for those."""

    def __init__(self, provider: ContextProvider) -> None:
        self._get = getattr(provider, "http_server_context", provider.server_context)

    def server_context(self) -> ssl.SSLContext:
        context: ssl.SSLContext = self._get()
        return context


def private_directory(root: Path) -> Path:
    """A memory file system that only this worker sees, at a short path; it goes with the worker's mount namespace.

    FailedPrecondition in a mount namespace whose mounts others would see.
    """
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split(" - ")[0].split()
        if fields[4] == "/" and any(option.startswith("shared:") for option in fields[6:]):
            raise FailedPrecondition("an ateom needs a mount namespace of its own: call enter_worker_namespaces first")
    for place in (Path("/mnt"), Path("/media"), Path("/srv"), Path("/opt")):
        if place.is_dir() and not root.resolve().is_relative_to(place):
            kernel.mount("ate", place, "tmpfs", 0, "mode=0700")
            return place
    raise FailedPrecondition("none of /mnt, /media, /srv and /opt can hold a worker's private files")


def _require(request: _Request) -> None:
    if not request.actor_uid:
        raise InvalidArgument("actor_uid is required")


def _sample(active: Active, stats: Stats | None) -> pb.WorkloadStatsSample:
    request = active.request
    sample = pb.WorkloadStatsSample(
        atespace=request.atespace,
        actor_name=request.actor_name,
        actor_uid=request.actor_uid,
        actor_template_atespace=request.actor_template_atespace,
        actor_template_name=request.actor_template_name,
        sandbox_class=pb.SANDBOX_CLASS_GVISOR,
        observed_at_unix_nano=time.time_ns(),
        epoch_unix_nano=active.epoch_unix_nano,
    )
    if stats is not None:
        sample.source = pb.STATS_SOURCE_CGROUP
        sample.memory_current_bytes = stats.memory_bytes
        sample.memory_peak_bytes = stats.memory_peak_bytes
        sample.memory_working_set_bytes = stats.working_set_bytes
        sample.cpu_usage_usec = max(0, stats.cpu_usec - active.cpu_base_usec)
    return sample

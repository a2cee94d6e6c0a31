"""The atelet role: the node's agent. Serves the control plane, keeps images, assets and snapshots, cleans up.

It makes its node known by a heartbeat that also names, in turn, the actors it keeps anything of; the answer says which
of those are gone for good or have left, and what they left here is collected.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import trio

from ate import names
from ate.asyncio_room import open_asyncio_room
from ate.errors import AteError, InvalidArgument
from ate.identity import spiffe
from ate.identity.tls import Identity
from ate.log import Logger
from ate.names import is_uuid
from ate.node.actor_dirs import ActorDirs
from ate.node.assets import Assets
from ate.node.ateoms import Ateoms, open_ateoms
from ate.node.herder import Herder
from ate.node.image_collection import collect_images
from ate.node.images import ImageStore
from ate.node.local_state import CHECKPOINTED, IDLE, LocalState
from ate.node.snapshots import SnapshotStore
from ate.node.support import Crashes, Support, open_support
from ate.proto import ateom_pb2, node_pb2
from ate.proto.ateapi_grpc import WorkerServiceStub
from ate.proto.node_grpc import ActorCrashesStub, ActorLogsBase, NodeRegistryStub
from ate.rpc import Call, Channel, Peer, Server, open_tcp_listener, server_streaming
from ate.store import open_sqlite

log = Logger("ate.node")

REPORTED_A_HEARTBEAT = 200


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


class _Logs(ActorLogsBase):
    def __init__(self, root: Path) -> None:
        self._root = root / "logs"

    @server_streaming
    async def ReadActorLogs(self, request: node_pb2.ReadActorLogsRequest, call: Call) -> None:
        """Kept lines, oldest first, of one container or all; with `follow` also those to come."""
        if not is_uuid(request.actor_uid):
            raise InvalidArgument(f"actor_uid: {request.actor_uid!r} is not a UUID")
        folder = self._root / request.actor_uid
        offsets: dict[str, tuple[int, int]] = {}
        while True:
            found: list[tuple[str, str, str]] = []
            wanted = f"{request.container}.jsonl" if request.container else "*.jsonl"
            for path in sorted(folder.glob(wanted)):
                found += _new_lines(path, offsets, older=path.name not in offsets)
            for _, container, line in sorted(found, key=lambda item: item[0]):
                await call.send(node_pb2.ReadActorLogsResponse(container=container, line=line))
            if not request.follow:
                return
            with trio.move_on_after(0.2):
                await call.draining.wait()
                return


def _new_lines(path: Path, offsets: dict[str, tuple[int, int]], *, older: bool) -> list[tuple[str, str, str]]:
    """(time, container, line) of what was added since the last look; the rotated file first on the first look."""
    chunks: list[bytes] = []
    rotated = path.with_name(path.name + ".1")
    if older and rotated.exists():
        chunks.append(rotated.read_bytes())
    with path.open("rb") as file:
        inode = path.stat().st_ino
        known_inode, at = offsets.get(path.name, (inode, 0))
        file.seek(at if known_inode == inode else 0)
        data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        offsets[path.name] = (inode, file.tell() - len(data) + len(whole))
        chunks.append(whole)
    lines = []
    for raw in b"".join(chunks).decode("utf-8", "replace").splitlines():
        try:
            time = str(json.loads(raw).get("time", ""))
        except (ValueError, AttributeError):
            time = ""
        lines.append((time, path.name.removesuffix(".jsonl"), raw))
    return lines


class _Registration:
    """The heartbeat, and the collection of what actors left."""

    def __init__(
        self, config: AteletConfig, port: int, channel: Channel, herder: Herder, state: LocalState, ateoms: Ateoms
    ):
        self._config, self._herder, self._state, self._ateoms = config, herder, state, ateoms
        self._address = f"{config.advertise}:{port}"
        self._registry = NodeRegistryStub(channel)
        self._boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._after = ""

    async def run(self) -> None:
        wait = 1.0
        while True:
            try:
                wait = float(await self._beat())
            except AteError as error:
                log.warning("heartbeat failed, trying again", error=error.message)
                wait = 1.0
            await trio.sleep(wait)

    async def _beat(self) -> int:
        page = await self._state.page(self._after, REPORTED_A_HEARTBEAT)
        self._after = page[-1].actor_uid if len(page) == REPORTED_A_HEARTBEAT else ""
        idle = [actor for actor in page if not self._herder.busy(actor.actor_uid)]
        request = node_pb2.RegisterNodeRequest(
            node_name=self._config.node_name,
            address=self._address,
            boot_id=self._boot_id,
            actors=[node_pb2.LocalActorRef(atespace=a.atespace, name=a.name, uid=a.actor_uid) for a in idle],
        )
        answer = await self._registry.RegisterNode(request, timeout=10)
        before = {actor.actor_uid: actor.operation_id for actor in idle}
        for uid in (*answer.deleted_actor_uids, *answer.departed_actor_uids):
            now = await self._state.get(uid)
            if now is not None and not self._herder.busy(uid) and now.operation_id == before.get(uid):
                await self._collect(now, gone=uid in answer.deleted_actor_uids)
        return answer.heartbeat_seconds or 5

    async def _collect(self, actor: node_pb2.LocalActor, *, gone: bool) -> None:
        if not gone and actor.phase == IDLE and not ActorDirs.of(self._config.root, actor.actor_uid).root.exists():
            return
        if actor.worker_uid and await self._ateoms.alive(actor.worker_uid):
            stub = await self._ateoms.stub(actor.worker_uid)
            dirs = ActorDirs.of(self._config.root, actor.actor_uid).to_proto()
            request = ateom_pb2.TerminateWorkloadRequest(
                atespace=actor.atespace, actor_name=actor.name, actor_uid=actor.actor_uid, actor_dirs=dirs
            )
            await stub.TerminateWorkload(request, timeout=50)
        await trio.to_thread.run_sync(ActorDirs.of(self._config.root, actor.actor_uid).wipe)
        if gone:
            await trio.to_thread.run_sync(_remove_logs, self._config.root / "logs" / actor.actor_uid)
            await self._state.remove(actor.actor_uid)
        else:
            actor.phase, actor.worker_uid = IDLE, ""
            await self._state.put(actor)
        log.info("collected what an actor left", actor_uid=actor.actor_uid, actor_deleted=gone)


def _remove_logs(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


async def _adopt(root: Path, state: LocalState, herder: Herder) -> None:
    """After a restart: what still runs is kept, a checkpoint that waits for its upload too, the rest is cleared."""
    after = ""
    while page := await state.page(after, 500):
        after = page[-1].actor_uid
        for actor in page:
            if actor.phase in (IDLE, CHECKPOINTED):
                continue
            if actor.worker_uid and await herder.runs(actor.worker_uid, actor.actor_uid):
                log.info("actor adopted", actor_uid=actor.actor_uid, worker=actor.worker_uid)
                continue
            dirs = ActorDirs.of(root, actor.actor_uid)
            await trio.to_thread.run_sync(lambda dirs=dirs: dirs.wipe(keep_local_checkpoints=True))  # type: ignore[misc]
            actor.phase, actor.worker_uid = IDLE, ""
            actor.operation_id = ""
            await state.put(actor)
    known: set[str] = set()
    after = ""
    while page := await state.page(after, 500):
        after = page[-1].actor_uid
        known |= {actor.actor_uid for actor in page}
    for path in (root / "actors").glob("*"):
        if path.name not in known and is_uuid(path.name):
            await trio.to_thread.run_sync(ActorDirs(path).wipe)


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
        await _adopt(config.root, state, herder)
        server = Server([herder, _Logs(config.root)], interceptors=[_Gate(config.trust_domain)])
        listener = await open_tcp_listener(config.listen_host, config.listen_port, tls=identity)
        await nursery.start(server.serve, [listener])
        support = Support(WorkerServiceStub(api_channel), config.node_name, config.trust_domain)
        support_server, support_listener = await open_support(
            config.root, identity, support, Crashes(support, ActorCrashesStub(api_channel))
        )
        await nursery.start(support_server.serve, [support_listener])
        registration = _Registration(config, listener.port, api_channel, herder, state, ateoms)
        nursery.start_soon(registration.run)
        nursery.start_soon(collect_images, images, state, config.image_cache_bytes)
        log.info("atelet is serving", address=f"{config.listen_host}:{listener.port}", node=config.node_name)
        task_status.started(listener.port)
        await stop.wait()
        await server.drain(5.0)
        nursery.cancel_scope.cancel()

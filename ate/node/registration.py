"""How a node makes itself known and keeps itself clean.

The heartbeat also names, in turn, the actors that the node keeps anything of; the answer says which of those are gone
for good or have left, and what they left here is collected. `adopt` does the same for a former run of the agent.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import trio

from ate.errors import AteError
from ate.log import Logger
from ate.names import is_uuid
from ate.node import boot
from ate.node.actor_dirs import ActorDirs
from ate.node.ateoms import Ateoms
from ate.node.cpu import cpu_features
from ate.node.herder import Herder
from ate.node.local_state import CHECKPOINTED, IDLE, SAVING, LocalState
from ate.proto import ateom_pb2, node_pb2
from ate.proto.node_grpc import NodeRegistryStub

log = Logger("ate.node")

REPORTED_A_HEARTBEAT = 200


class Registration:
    """The heartbeat, and the collection of what actors left."""

    def __init__(
        self,
        root: Path,
        node_name: str,
        address: str,
        registry: NodeRegistryStub,
        herder: Herder,
        state: LocalState,
        ateoms: Ateoms,
    ) -> None:
        """`address`: host:port at which the control plane reaches this node's agent."""
        self._root, self._node_name, self._address, self._registry = root, node_name, address, registry
        self._herder, self._state, self._ateoms = herder, state, ateoms
        self._boot_id = boot.boot_id()
        self._cpu_features = cpu_features()
        self._after = ""

    async def run(self) -> None:
        wait = 1.0
        while True:
            try:
                wait = float(await self._beat())
            except (AteError, OSError) as error:  # a full disk is no reason to leave the actors alone
                log.warning("heartbeat failed, trying again", error=str(error))
                wait = 1.0
            await trio.sleep(wait)

    async def _beat(self) -> int:
        page = await self._state.page(self._after, REPORTED_A_HEARTBEAT)
        self._after = page[-1].actor_uid if len(page) == REPORTED_A_HEARTBEAT else ""
        idle = [actor for actor in page if not self._herder.busy(actor.actor_uid)]
        request = node_pb2.RegisterNodeRequest(
            node_name=self._node_name,
            address=self._address,
            boot_id=self._boot_id,
            cpu_features=self._cpu_features,
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
        if not gone and actor.phase == IDLE and not ActorDirs.of(self._root, actor.actor_uid).root.exists():
            return
        if actor.worker_uid and await self._ateoms.alive(actor.worker_uid):
            stub = await self._ateoms.stub(actor.worker_uid)
            dirs = ActorDirs.of(self._root, actor.actor_uid).to_proto()
            request = ateom_pb2.TerminateWorkloadRequest(
                atespace=actor.atespace, actor_name=actor.name, actor_uid=actor.actor_uid, actor_dirs=dirs
            )
            await stub.TerminateWorkload(request, timeout=50)
        await trio.to_thread.run_sync(ActorDirs.of(self._root, actor.actor_uid).wipe)
        if gone:
            await trio.to_thread.run_sync(_remove_logs, self._root / "logs" / actor.actor_uid)
            await self._state.remove(actor.actor_uid)
        else:
            actor.phase, actor.worker_uid = IDLE, ""
            await self._state.put(actor)
        log.info("collected what an actor left", actor_uid=actor.actor_uid, actor_deleted=gone)


def _remove_logs(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


async def adopt(root: Path, state: LocalState, ateoms: Ateoms, herder: Herder) -> None:
    """After a restart: what still runs or is being saved is kept, as is a checkpoint that waits for its upload.

    The rest is cleared, a checkpoint that lost power before it was forced to disk included: nobody knows what is in it.
    """
    after = ""
    while page := await state.page(after, 500):
        after = page[-1].actor_uid
        for actor in page:
            if actor.phase == IDLE or (actor.phase == CHECKPOINTED and actor.boot_id in ("", boot.boot_id())):
                continue
            if actor.phase == CHECKPOINTED:
                log.error("the machine went down before a checkpoint was on disk", actor_uid=actor.actor_uid)
            elif actor.phase == SAVING and await ateoms.alive(actor.worker_uid):
                continue  # its worker tells whoever asks for the same checkpoint again
            elif actor.worker_uid and await herder.runs(actor.worker_uid, actor.actor_uid):
                log.info("actor adopted", actor_uid=actor.actor_uid, worker=actor.worker_uid)
                continue
            if not await _wiped(ActorDirs.of(root, actor.actor_uid), keep_local_checkpoints=True):
                continue
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
            await _wiped(ActorDirs(path))


async def _wiped(dirs: ActorDirs, **options: bool) -> bool:
    """False when the disk refuses: what is left stays for the next start of the actor or of this agent to clear."""
    try:
        await trio.to_thread.run_sync(lambda: dirs.wipe(**options))
    except OSError as error:
        log.warning("the leftovers of an actor cannot be cleared", folder=str(dirs.root), error=str(error))
        return False
    return True

"""AteomHerder: moves actors on and off this node's workers. The control plane calls it; it drives one ateom a call.

Each operation has an id; the newest one of an actor is remembered on disk with how far it got, so a repeat (after a
lost reply, or after this process was killed) joins the running one, goes on where it stopped, or is answered at once.
An operation outlives its caller. A start that fails leaves nothing behind and says so (reason NOT_STARTED); a
checkpoint that was taken is kept until it is where it belongs, however often the upload fails.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import trio

from ate.errors import (
    NOT_STARTED,
    STILL_RUNNING,
    Aborted,
    AteError,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
    with_reason,
)
from ate.flights import Flights
from ate.log import Logger
from ate.names import FENCE_METADATA, OPERATION_ID_METADATA
from ate.node import boot, bundles, phases
from ate.node.actor_dirs import ActorDirs
from ate.node.assets import Assets, Runtime
from ate.node.ateoms import Ateoms
from ate.node.images import ImageStore
from ate.node.local_state import CHECKPOINTED, IDLE, RUNNING, SAVING, STARTING, LocalState
from ate.node.phases import SCOPES, Identified, phase, sizes
from ate.node.preparation import Preparation
from ate.node.snapshots import AssetSource, Manifest, SnapshotStore
from ate.proto import atelet_pb2 as pb
from ate.proto import ateom_pb2, node_pb2
from ate.proto.atelet_grpc import AteomHerderBase
from ate.rpc import Call, unary

log = Logger("ate.node")

ATEOM_TIMEOUT = 290.0
ASK_ATTEMPTS = 3
_PASSING = (Unavailable, PermissionDenied, ResourceExhausted, Aborted)
"""Failures of a start that are not the actor's and end one day: a store away, credentials refused, a full disk, a
worker that stops."""


class Herder(AteomHerderBase):
    """See the module."""

    def __init__(
        self,
        root: Path,
        state: LocalState,
        ateoms: Ateoms,
        images: ImageStore,
        assets: Assets,
        snapshots: SnapshotStore,
        nursery: trio.Nursery,
    ) -> None:
        self._root, self._state, self._ateoms = root, state, ateoms
        self._snapshots = snapshots
        self._preparation = Preparation(images, assets, snapshots)
        self._flights = Flights(nursery)
        self._fences: dict[str, int] = {}
        """Highest fence by actor that its record does not have yet."""

    def busy(self, actor_uid: str) -> bool:
        """Whether an operation of the actor is under way."""
        return self._flights.get(actor_uid) is not None

    # -- the calls ------------------------------------------------------------------------------------------------

    @unary
    async def Run(self, request: pb.RunRequest, call: Call) -> pb.RunResponse:
        await self._once(request, call, "start", lambda op: self._start(request, op, None))
        return pb.RunResponse()

    @unary
    async def Restore(self, request: pb.RestoreRequest, call: Call) -> pb.RestoreResponse:
        await self._once(request, call, "start", lambda op: self._start(request, op, request))
        return pb.RestoreResponse()

    @unary
    async def Checkpoint(self, request: pb.CheckpointRequest, call: Call) -> pb.CheckpointResponse:
        grace = call.metadata.get("ate-drain-grace-ms")
        forwarded = {"ate-drain-grace-ms": str(grace)} if grace else {}
        await self._once(request, call, "checkpoint", lambda op: self._checkpoint(request, op, forwarded))
        return pb.CheckpointResponse()

    @unary
    async def UploadPausedCheckpoint(
        self, request: pb.UploadPausedCheckpointRequest, call: Call
    ) -> pb.UploadPausedCheckpointResponse:
        await self._fence(request.actor_uid, call)
        flight = self._flights.join_or_start(request.actor_uid, "upload", lambda: self._upload_paused(request))
        if flight.what != "upload":
            raise _busy(flight.what, request.actor_uid)
        await flight.wait()
        return pb.UploadPausedCheckpointResponse()

    @unary
    async def Terminate(self, request: pb.TerminateRequest, call: Call) -> pb.TerminateResponse:
        await self._fence(request.actor_uid, call)
        # Whatever the actor was doing here ends before it is taken down: a start under way would come back to life.
        while (flight := self._flights.get(request.actor_uid)) is not None:
            try:
                await flight.wait()
            except AteError as error:
                log.info("operation ended before the terminate", actor_uid=request.actor_uid, error=error.message)
        await self._once(request, call, "terminate", lambda op: self._terminate(request))
        return pb.TerminateResponse()

    async def _once(self, request: Identified, call: Call, what: str, work: Callable[[str], Awaitable[None]]) -> None:
        """Runs `work` unless the same operation runs already; then that one's result counts."""
        operation = str(call.metadata.get(OPERATION_ID_METADATA) or "")
        try:
            ActorDirs.of(self._root, request.actor_uid)
        except ValueError as error:
            raise InvalidArgument(f"actor_uid: {error}")
        await self._fence(request.actor_uid, call)
        label = f"{what} {operation}"
        flight = self._flights.join_or_start(
            request.actor_uid, label, lambda: phases.operation(request, what, operation, work)
        )
        if flight.what != label:
            raise _busy(flight.what, request.actor_uid)
        await flight.wait()

    async def _fence(self, actor_uid: str, call: Call) -> None:
        """Aborted when a later operation on the actor has been here: this call was held up on its way."""
        text = str(call.metadata.get(FENCE_METADATA) or "0")
        fence = int(text) if text.isdecimal() else 0
        record = await self._state.get(actor_uid)
        newest = max(record.fence if record is not None else 0, self._fences.get(actor_uid, 0))
        if fence < newest:
            raise Aborted(f"a later operation on actor {actor_uid} was here before this one")
        if fence:
            self._fences[actor_uid] = fence

    async def _put(self, record: node_pb2.LocalActor) -> None:
        record.fence = max(record.fence, self._fences.get(record.actor_uid, 0))
        await self._state.put(record)
        if self._fences.get(record.actor_uid, 0) <= record.fence:
            self._fences.pop(record.actor_uid, None)

    # -- starting -------------------------------------------------------------------------------------------------

    async def _start(
        self, request: pb.RunRequest | pb.RestoreRequest, op: str, restore: pb.RestoreRequest | None
    ) -> None:
        began = trio.current_time()
        known = await self._state.get(request.actor_uid)
        if known is not None and op and known.operation_id == op:
            there = bool(known.runtime_json) and await self.runs(known.worker_uid, request.actor_uid)
            if known.phase == IDLE or (known.phase == RUNNING and not there):
                # Started again it would be another one, with another memory, under the name of the first.
                undone = Unavailable(f"the start of actor {request.actor_uid} was done or failed before, and is over")
                raise with_reason(undone, NOT_STARTED)
            if there:
                if known.phase != RUNNING:  # this agent was killed in between
                    await self._drive(request, restore, ActorDirs.of(self._root, request.actor_uid), None, op)
                    known.phase = RUNNING
                await self._put(known)  # the fence, also where nothing else is new: whoever came before is late now
                return
        if known is not None and known.worker_uid not in ("", request.target_ateom_uid):
            await self._end_elsewhere(request, known.worker_uid)
        await self._ateoms.wait(request.target_ateom_uid)
        dirs = ActorDirs.of(self._root, request.actor_uid)
        record = node_pb2.LocalActor(
            actor_uid=request.actor_uid,
            atespace=request.atespace,
            name=request.actor_name,
            worker_uid=request.target_ateom_uid,
            operation_id=op,
            phase=STARTING,
            template_atespace=request.actor_template_atespace,
            template_name=request.actor_template_name,
        )
        await self._put(record)
        try:
            await trio.to_thread.run_sync(dirs.reset)
            runtime = await self._preparation.bring(request, restore, dirs, record)
            prepared = trio.current_time()
            await self._put(record)
            with phase("ateom_restore"):
                await self._drive(request, restore, dirs, runtime, op)
        except BaseException as error:
            with trio.CancelScope(shield=True), trio.move_on_after(60):
                await self._take_down(request)
            found = _single(error)
            if isinstance(found, _PASSING):
                raise with_reason(Unavailable(found.message, details=found.details), NOT_STARTED) from error
            if found is not None:
                raise found from error
            raise
        record.phase = RUNNING
        await self._put(record)
        log.info(
            "Actor restored" if restore else "Actor started",
            actor_uid=request.actor_uid,
            worker=record.worker_uid,
            prepare_ms=round((prepared - began) * 1e3, 2),
            ateom_ms=round((trio.current_time() - prepared) * 1e3, 2),
        )

    async def _end_elsewhere(self, request: pb.RunRequest | pb.RestoreRequest, worker_uid: str) -> None:
        """Ends what another worker here may still run of the actor: it is not started before that is certain."""
        if not await self._ateoms.alive(worker_uid):
            return
        dirs = ActorDirs.of(self._root, request.actor_uid).to_proto()
        stub = await self._ateoms.stub(worker_uid)
        try:
            await stub.TerminateWorkload(
                ateom_pb2.TerminateWorkloadRequest(**_identity(request), actor_dirs=dirs), timeout=50
            )
        except AteError as error:
            raise with_reason(Unavailable(f"worker {worker_uid} may still run the actor: {error.message}"), NOT_STARTED)

    async def _drive(
        self,
        request: pb.RunRequest | pb.RestoreRequest,
        restore: pb.RestoreRequest | None,
        dirs: ActorDirs,
        runtime: Runtime | None,
        op: str,
    ) -> None:
        """Has the worker start it. Without `runtime`: the worker is at it already, and is only asked how it went."""
        stub = await self._ateoms.stub(request.target_ateom_uid)
        fields: dict[str, Any] = {
            **_identity(request),
            "spec": bundles.workload(request.spec),
            "cpu_milli": request.cpu_milli,
            "memory_bytes": request.memory_bytes,
            "actor_dirs": dirs.to_proto(),
        }
        if runtime is not None:
            fields["runsc_path"] = str(runtime.runsc)
            fields["runtime_asset_paths"] = {name: str(path) for name, path in runtime.paths.items()}
        if request.HasField("idle_timeout"):
            fields["idle_timeout"] = request.idle_timeout
        call: dict[str, Any] = {"timeout": ATEOM_TIMEOUT, "metadata": {OPERATION_ID_METADATA: op}}
        if restore is None:
            await stub.RunWorkload(ateom_pb2.RunWorkloadRequest(**fields), **call)
            return
        await stub.RestoreWorkload(
            ateom_pb2.RestoreWorkloadRequest(
                snapshot_uri=restore.external_config.snapshot_uri,
                scope=ateom_pb2.SnapshotScope.Name(restore.scope),
                golden_snapshot_uri=restore.golden_snapshot_uri,
                **fields,
            ),
            **call,
        )
        await trio.to_thread.run_sync(_empty, dirs.restore)

    async def runs(self, worker_uid: str, actor_uid: str) -> bool:
        """Whether the worker still runs that actor. A worker that lives and cannot say is believed to."""
        for _ in range(ASK_ATTEMPTS):
            if not await self._ateoms.alive(worker_uid):
                return False
            stub = await self._ateoms.stub(worker_uid)
            try:
                await stub.GetWorkloadStats(ateom_pb2.GetWorkloadStatsRequest(actor_uid=actor_uid), timeout=10)
                return True
            except NotFound:
                return False
            except FailedPrecondition:
                return True  # it is there, and was not measured yet
            except (Unavailable, DeadlineExceeded) as error:
                log.info("a worker does not say whether it runs an actor", worker=worker_uid, error=error.message)
            await trio.sleep(0.1)
        return True

    # -- stopping -------------------------------------------------------------------------------------------------

    async def _terminate(self, request: pb.TerminateRequest) -> None:
        await self._take_down(request)
        if not request.keep_paused:
            await trio.to_thread.run_sync(ActorDirs.of(self._root, request.actor_uid).wipe)

    async def _take_down(self, request: pb.RunRequest | pb.RestoreRequest | pb.TerminateRequest) -> None:
        """Nothing of the actor runs here afterwards, and only paused state and logs are left of it."""
        record = await self._state.get(request.actor_uid)
        dirs = ActorDirs.of(self._root, request.actor_uid)
        workers = {request.target_ateom_uid, record.worker_uid if record else ""} - {""}
        for worker in sorted(workers):
            if not await self._ateoms.alive(worker):
                continue  # its process is gone, and with it all that it ran
            stub = await self._ateoms.stub(worker)
            await stub.TerminateWorkload(
                ateom_pb2.TerminateWorkloadRequest(**_identity(request), actor_dirs=dirs.to_proto()), timeout=50
            )
        await trio.to_thread.run_sync(lambda: dirs.wipe(keep_local_checkpoints=True))
        if record is not None:
            if record.phase in (SAVING, CHECKPOINTED):
                record.operation_id = ""  # idle under its id would say that it was saved
            record.phase, record.worker_uid = IDLE, ""
            await self._put(record)

    # -- saving ---------------------------------------------------------------------------------------------------

    async def _checkpoint(self, request: pb.CheckpointRequest, op: str, metadata: dict[str, str]) -> None:
        if not op:
            op = request.external_config.snapshot_uri or request.local_config.snapshot_name
        record = await self._state.get(request.actor_uid)
        if record is not None and record.operation_id == op and record.phase == IDLE:
            await self._put(record)
            return  # saved before; the reply was lost
        # A worker's own answer is only taken for the operation the record is about.
        here = record is not None and (
            (record.phase == RUNNING and record.worker_uid == request.target_ateom_uid)
            or (record.phase in (SAVING, CHECKPOINTED) and record.operation_id == op)
        )
        if record is None or not here:
            raise FailedPrecondition(f"actor {request.atespace}/{request.actor_name} does not run on this worker")
        dirs = ActorDirs.of(self._root, request.actor_uid)
        if record.phase != CHECKPOINTED:
            await self._have_saved(request, record, dirs, op, metadata)
        scope = SCOPES[request.scope]
        manifest = self._manifest(record, scope)
        if request.type == pb.CHECKPOINT_TYPE_LOCAL:
            folder = dirs.local_checkpoints / request.local_config.snapshot_name
            async with self._kept(record, dirs):
                await self._snapshots.save_local(folder, dirs.checkpoint, manifest)
        else:
            uri = request.external_config.snapshot_uri
            async with self._kept(record, dirs):
                stored = await self._snapshots.save(uri, dirs.checkpoint, manifest)
            files = {file.name: file.stored_size for file in stored.objects}
            sizes(record.template_atespace, record.template_name, files)
            log.info("Actor checkpointed", actor_uid=request.actor_uid, snapshot=uri)
        keep = request.type == pb.CHECKPOINT_TYPE_LOCAL
        record.phase, record.worker_uid = IDLE, ""
        del record.snapshot_files[:], record.data_snapshot_files[:]
        record.boot_id = ""
        await self._put(record)
        await trio.to_thread.run_sync(lambda: dirs.wipe(keep_local_checkpoints=keep))

    async def _have_saved(
        self,
        request: pb.CheckpointRequest,
        record: node_pb2.LocalActor,
        dirs: ActorDirs,
        op: str,
        metadata: dict[str, str],
    ) -> None:
        """Has the worker save the actor into its folder. STILL_RUNNING when that failed and cost nothing."""
        record.phase, record.operation_id = SAVING, op
        await self._put(record)
        stub = await self._ateoms.stub(request.target_ateom_uid)
        save = ateom_pb2.CheckpointWorkloadRequest(
            **_identity(request),
            spec=bundles.workload(request.spec),
            snapshot_uri=request.external_config.snapshot_uri,
            scope=ateom_pb2.SnapshotScope.Name(request.scope),
            actor_dirs=dirs.to_proto(),
        )
        try:
            with phase("ateom_checkpoint"):
                saved = await stub.CheckpointWorkload(
                    save, timeout=ATEOM_TIMEOUT, metadata={OPERATION_ID_METADATA: op, **metadata}
                )
        except (Unavailable, DeadlineExceeded):
            if await self._ateoms.alive(request.target_ateom_uid):
                raise  # it may be at it still: asked again, it says how it went
            raise NotFound(f"worker {request.target_ateom_uid} ended while it saved the actor")
        except AteError as error:
            if not await self.runs(request.target_ateom_uid, request.actor_uid):
                raise
            record.phase = RUNNING
            await self._put(record)
            raise with_reason(error, STILL_RUNNING)
        record.phase, record.boot_id = CHECKPOINTED, boot.boot_id()
        record.snapshot_files[:] = saved.snapshot_files
        record.data_snapshot_files[:] = saved.data_snapshot_files
        await self._put(record)

    @contextlib.asynccontextmanager
    async def _kept(self, record: node_pb2.LocalActor, dirs: ActorDirs) -> AsyncIterator[None]:
        """Makes a failure to store a checkpoint Unavailable, whatever it was: it is safe on the node, and tried again.

        It may wait for long, so it is forced to disk first: until then it is only good for this boot of the machine.
        """
        try:
            with phase("persist"):
                yield
        except DataLoss:
            raise
        except AteError as error:
            if record.boot_id:
                try:
                    await trio.to_thread.run_sync(dirs.sync_checkpoint)
                    record.boot_id = ""
                    await self._put(record)
                except OSError as failure:
                    log.warning("a checkpoint that waits is not on disk yet", folder=str(dirs.root), error=str(failure))
            raise Unavailable(f"{error.message} (the checkpoint is kept on the node and stored as soon as this works)")

    def _manifest(self, record: node_pb2.LocalActor, scope: str) -> Manifest:
        runtime = json.loads(record.runtime_json)
        data = tuple(record.data_snapshot_files)
        return Manifest(
            sandbox_class=runtime["sandboxClass"],
            assets={name: AssetSource(**asset) for name, asset in runtime["assets"].items()},
            pause_image=runtime["pauseImage"],
            atespace=record.atespace,
            actor_name=record.name,
            actor_uid=record.actor_uid,
            template_atespace=record.template_atespace,
            template_name=record.template_name,
            file_names=data if scope == "data" else tuple(record.snapshot_files),
            data_file_names=data,
            scope=scope,
        )

    async def _upload_paused(self, request: pb.UploadPausedCheckpointRequest) -> None:
        dirs = ActorDirs.of(self._root, request.actor_uid)
        folder = dirs.local_checkpoints / request.local_snapshot_name
        uri = request.destination_snapshot_uri
        if not folder.exists():
            try:  # uploaded before; the reply was lost
                manifest = await self._snapshots.read_manifest(uri)
                if manifest.actor_uid == request.actor_uid:
                    return
            except (NotFound, DataLoss):
                pass
            raise DataLoss(
                f"the paused state {request.local_snapshot_name} of actor {request.atespace}/{request.actor_name} "
                "is not on this node any more: revert the actor to its last good snapshot"
            )
        await self._snapshots.upload_local(folder, uri, SCOPES[request.desired_scope])
        await trio.to_thread.run_sync(dirs.wipe)


def _identity(request: Identified) -> dict[str, Any]:
    return {
        "atespace": request.atespace,
        "actor_name": request.actor_name,
        "actor_uid": request.actor_uid,
        "actor_template_atespace": request.actor_template_atespace,
        "actor_template_name": request.actor_template_name,
    }


def _busy(what: str, actor_uid: str) -> Unavailable:
    """Nothing was done, and it will be once the other operation ended: never a reason to give up an actor."""
    return Unavailable(f"another operation ({what}) is in progress for actor {actor_uid}: retry")


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def _single(error: BaseException) -> AteError | None:
    """The one AteError in an exception or group of concurrent failures; the first when there are several."""
    if isinstance(error, AteError):
        return error
    if isinstance(error, BaseExceptionGroup):
        found = [_single(inner) for inner in error.exceptions]
        return next((inner for inner in found if inner is not None), None)
    return None

"""What a worker does with the one actor it holds: run, checkpoint, restore, terminate, and notice its end.

Every method here is one operation, run one at a time by `operations.py`; each leaves the worker either with the actor
running and admitted or with nothing of it. Used by `ateom.py`.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import trio

from ate import log
from ate.errors import NOT_STARTED, AteError, FailedPrecondition, InvalidArgument, NotFound, Unavailable, with_reason
from ate.names import Ref
from ate.node import gate
from ate.node.assembly import Assembly, Request, read
from ate.node.container_logs import ContainerLog, pump
from ate.node.network import NetworkPool
from ate.node.sandbox import provenance
from ate.node.sandbox.driver import CheckpointFailed, Sandbox, SandboxDriver, SandboxError, Stats
from ate.node.slot import Slot, SlotMaker
from ate.node.spare import Spare
from ate.node.tunnel import Tunnel
from ate.node.volumes import durable
from ate.proto import ateom_pb2 as pb

_log = log.Logger(__name__)

PREPARE_AFTER_SECONDS: Final = 0.5


@dataclass(eq=False)
class Active:
    """The actor that runs here."""

    request: Request
    slot: Slot
    epoch_unix_nano: int
    cpu_base_usec: int = 0
    watch: trio.CancelScope = field(default_factory=trio.CancelScope)
    logs: dict[str, ContainerLog] = field(default_factory=dict)

    @property
    def uid(self) -> str:
        return self.request.actor_uid

    @property
    def ref(self) -> Ref:
        return Ref(self.request.atespace, self.request.actor_name)

    @property
    def sandbox(self) -> Sandbox:
        assert self.slot.sandbox is not None
        return self.slot.sandbox


@dataclass(frozen=True, slots=True)
class Saved:
    """The result of the last checkpoint, kept until the next Run or Restore for a caller whose reply was lost."""

    uid: str
    scope: int
    response: pb.CheckpointWorkloadResponse


class Worker:
    """Holds at most one actor. `driver_for` gives the driver of a runtime binary; `nursery` owns watchers and pumps."""

    def __init__(
        self,
        *,
        nursery: trio.Nursery,
        driver_for: Callable[[Path], SandboxDriver],
        pool: NetworkPool,
        slots: SlotMaker,
        tunnel: Tunnel,
        logs: Path,
        prepare: bool,
        on_crash: Callable[[str, str], Awaitable[None]] | None,
    ) -> None:
        self._nursery, self._driver_for, self._pool, self._slots = nursery, driver_for, pool, slots
        self._tunnel, self._logs, self._on_crash = tunnel, logs, on_crash
        self.active: Active | None = None
        self._saved: Saved | None = None
        self._crashed: tuple[str, str] | None = None
        self._spare = Spare(nursery, slots, driver_for, enabled=prepare)

    # --- operations ------------------------------------------------------------------------------------------------

    async def run(self, request: pb.RunWorkloadRequest) -> pb.RunWorkloadResponse:
        """Boots the actor. Repeated for the running actor it succeeds at once."""
        if not self._runs_already(request):
            assembly = read(request)
            await self._bring_up(request, assembly, None)
        return pb.RunWorkloadResponse()

    async def restore(self, request: pb.RestoreWorkloadRequest) -> pb.RestoreWorkloadResponse:
        """Starts the actor from its restore directory, as the scope says."""
        if self._runs_already(request):
            return pb.RestoreWorkloadResponse()
        assembly = read(request)
        if not request.actor_dirs.restore_dir:
            raise InvalidArgument("actor_dirs.restore_dir is required")
        if request.scope not in (
            pb.SNAPSHOT_SCOPE_FULL,
            pb.SNAPSHOT_SCOPE_DATA,
            pb.SNAPSHOT_SCOPE_DATA_ON_GOLDEN,
        ):
            raise InvalidArgument("scope is required")
        await self._bring_up(request, assembly, Path(request.actor_dirs.restore_dir))
        return pb.RestoreWorkloadResponse()

    async def checkpoint(self, request: pb.CheckpointWorkloadRequest, grace: float) -> pb.CheckpointWorkloadResponse:
        """Drains, saves and stops the actor. If saving fails and the sandbox lives, the actor goes on, admitted."""
        saved = self._saved
        if saved is not None and saved.uid == request.actor_uid and saved.scope == request.scope:
            return saved.response
        active = self._active(request.actor_uid)
        if request.scope not in (pb.SNAPSHOT_SCOPE_FULL, pb.SNAPSHOT_SCOPE_DATA):
            raise InvalidArgument("scope must be FULL or DATA")
        if not request.actor_dirs.checkpoint_dir:
            raise InvalidArgument("actor_dirs.checkpoint_dir is required")
        directory = Path(request.actor_dirs.checkpoint_dir)
        self._say("Actor checkpointing", active)
        cut = await self._tunnel.admission.drain(grace)
        if cut:
            _log.warning("requests cut off after the grace before a checkpoint", requests=cut, grace_seconds=grace)
        await self._tunnel.forget_connections()
        try:
            await trio.to_thread.run_sync(_make_empty, directory)
            response = await self._save(active, request.scope, directory)
        except BaseException as error:
            alive = error.sandbox_alive if isinstance(error, CheckpointFailed) else True
            if alive and self.active is active:
                self._tunnel.admission.admit(active.ref, active.uid)
            elif self.active is active:
                await self._take_down(active)
                self._crashed = (active.uid, str(error))
            raise
        self._saved = Saved(active.uid, request.scope, response)
        self._say("Actor checkpointed", active)
        await self._take_down(active, in_background=True)
        self._spare.prepare(active.slot.assembly, 0.0)
        return response

    async def terminate(self, actor_uid: str) -> None:
        """Stops the actor without saving it; nothing to do when it is not here."""
        active = self.active
        if active is None or active.uid != actor_uid:
            return
        self._tunnel.admission.stop()
        await self._tunnel.admission.cut()
        await self._tunnel.forget_connections()
        await self._take_down(active)
        self._say("Actor terminated", active)

    async def close(self) -> None:
        """Takes everything down at the worker's end."""
        with trio.CancelScope(shield=True):
            if self.active is not None:
                await self.terminate(self.active.uid)
            await self._spare.drop()

    def idle_at(self) -> float | None:
        """trio's time at which the actor has been quiet for its template's idle timeout; None: not as things stand."""
        active = self.active
        if active is None or not active.request.HasField("idle_timeout"):
            return None
        quiet_since = self._tunnel.admission.quiet_since()
        if quiet_since is None:
            return None
        return quiet_since + active.request.idle_timeout.ToNanoseconds() / 1e9

    async def sample(self, actor_uid: str) -> tuple[Active, Stats | None]:
        """Resource use of the actor; NotFound when it is not here."""
        active = self.active
        if active is None or active.uid != actor_uid:
            raise NotFound(f"actor {actor_uid} is not on this worker")
        if active.slot.sandbox is None:
            raise FailedPrecondition(f"actor {active.ref} is only starting: there is no sample yet")
        return active, await active.slot.driver.stats(active.sandbox)

    # --- coming up -------------------------------------------------------------------------------------------------

    def _runs_already(self, request: Request) -> bool:
        active = self.active
        if active is None:
            return False
        if active.uid != request.actor_uid:
            busy = Unavailable(f"this worker holds actor {active.ref} ({active.uid}); checkpoint or terminate it first")
            raise with_reason(busy, NOT_STARTED)
        if active.request == request:
            return True
        raise FailedPrecondition(f"actor {active.ref} runs here already, from another request")

    async def _bring_up(self, request: Request, assembly: Assembly, restore_dir: Path | None) -> None:
        self._saved = self._crashed = None
        scope = request.scope if isinstance(request, pb.RestoreWorkloadRequest) else 0
        memory = restore_dir if scope in (pb.SNAPSHOT_SCOPE_FULL, pb.SNAPSHOT_SCOPE_DATA_ON_GOLDEN) else None
        driver = self._driver_for(assembly.runsc)
        if memory is not None:
            provenance.check(memory, await driver.probe(), [bundle.name for bundle in assembly.bundles])
        spare = await self._spare.take(assembly) if memory is not None else None
        if spare is not None:
            try:
                await self._bring_up_in(spare, request, restore_dir, memory)
                return
            except SandboxError as error:
                _log.warning("a prepared sandbox failed; restoring into a new one", exc=error)
        slot = await self._slots.make(driver, assembly, ahead=False)
        await self._bring_up_in(slot, request, restore_dir, memory)

    async def _bring_up_in(self, slot: Slot, request: Request, restore_dir: Path | None, memory: Path | None) -> None:
        assembly = slot.assembly
        active = Active(request, slot, time.time_ns())
        # Active from here on: whatever happens now is taken down through it.
        self.active = active
        self._say("Actor restoring" if restore_dir else "Actor starting", active)
        try:
            self._pump_output(active)
            self._pool.activate(slot.network)
            archive = restore_dir / durable.ARCHIVE if restore_dir else None
            if archive is not None and assembly.durable_volumes and archive.exists():
                await durable.load(archive, slot.durable_dir, assembly.durable_volumes)
            await self._boot(active, memory)
        except BaseException as error:
            await self._take_down(active)
            if isinstance(error, BaseExceptionGroup) and (cause := _single(error)) is not error:
                raise cause from error
            raise
        stats = await slot.driver.stats(active.sandbox)
        active.cpu_base_usec = stats.cpu_usec if stats else 0
        self._nursery.start_soon(self._watch, active)
        self._tunnel.admission.admit(active.ref, active.uid)
        self._say("Actor restored" if restore_dir else "Actor started", active)
        self._spare.prepare(assembly, PREPARE_AFTER_SECONDS)

    async def _boot(self, active: Active, memory: Path | None) -> None:
        """Runtime command and gate side by side; a sandbox that ends meanwhile ends the wait with its last words."""
        slot = active.slot
        async with trio.open_nursery() as nursery:

            async def ready() -> None:
                await gate.wait_until_ready(slot.assembly.probes, started)
                gate_open.set()

            gate_open, started = trio.Event(), trio.Event()
            nursery.start_soon(ready)
            if memory is None:
                slot.sandbox = await slot.driver.create(slot.spec)
                await slot.driver.start(slot.sandbox)
            else:
                slot.sandbox = await slot.driver.restore(slot.spec, memory, slot.sandbox)
            slot.close_writers()
            started.set()

            async def fail_if_it_ends() -> None:
                reason = await slot.driver.wait_exit(active.sandbox)
                await trio.sleep(0.05)  # its last output is still on its way
                said = "; ".join(line for output in active.logs.values() for line in output.tail)
                raise SandboxError(f"{reason} before it was ready; it said: {said or 'nothing'}")

            nursery.start_soon(fail_if_it_ends)
            await gate_open.wait()
            nursery.cancel_scope.cancel()

    def _pump_output(self, active: Active) -> None:
        request = active.request
        for name, reader in active.slot.readers.items():
            labels = {
                "ate.atespace": request.atespace,
                "ate.actor.name": request.actor_name,
                "ate.actor.uid": request.actor_uid,
                "ate.template.atespace": request.actor_template_atespace,
                "ate.template.name": request.actor_template_name,
                "ate.actor.container.name": name,
            }
            output = ContainerLog(self._logs / active.uid / f"{name}.jsonl", labels)
            active.logs[name] = output
            self._nursery.start_soon(pump, reader, output)
        active.slot.readers.clear()  # the pumps own them now

    # --- going down ------------------------------------------------------------------------------------------------

    async def _save(self, active: Active, scope: int, directory: Path) -> pb.CheckpointWorkloadResponse:
        """Files of the checkpoint. Volumes go first, while a failure still costs nothing."""
        slot = active.slot
        data: list[str] = []
        if slot.assembly.durable_volumes:
            # Paused, so that volumes and memory are of one moment, and no file changes while it is read.
            await slot.driver.pause(active.sandbox)
            try:
                await durable.save(slot.durable_dir, slot.assembly.durable_volumes, directory / durable.ARCHIVE)
            except BaseException:
                with trio.CancelScope(shield=True):
                    await slot.driver.resume(active.sandbox)
                raise
            data.append(durable.ARCHIVE)
        if scope == pb.SNAPSHOT_SCOPE_DATA:
            return pb.CheckpointWorkloadResponse(snapshot_files=data, data_snapshot_files=data)
        active.watch.cancel()  # the sandbox is about to end, and not because it crashed
        try:
            # First, while a failure still costs nothing: after the checkpoint the sandbox is gone.
            names = [bundle.name for bundle in slot.assembly.bundles]
            provenance.write(directory, await slot.driver.probe(), names)
            files = await slot.driver.checkpoint(active.sandbox, directory)
        except BaseException as error:
            if not isinstance(error, CheckpointFailed) or error.sandbox_alive:
                with trio.CancelScope(shield=True):
                    if data:  # it was paused for its volumes; the driver may have let it go on already
                        with contextlib.suppress(AteError):
                            await slot.driver.resume(active.sandbox)
                active.watch = trio.CancelScope()
                self._nursery.start_soon(self._watch, active)
            raise
        return pb.CheckpointWorkloadResponse(
            snapshot_files=sorted([*files, *data, provenance.FILE]), data_snapshot_files=data
        )

    async def _take_down(self, active: Active, *, in_background: bool = False) -> None:
        """The worker is free when this returns; the old sandbox's last remains may go in the background."""
        with trio.CancelScope(shield=True):
            active.watch.cancel()
            self._tunnel.admission.stop()
            await self._tunnel.forget_connections()
            if self.active is active:
                self.active = None
            self._pool.deactivate(active.slot.network)
            if in_background:
                self._nursery.start_soon(self._slots.remove, active.slot)
            else:
                await self._slots.remove(active.slot)

    async def _watch(self, active: Active) -> None:
        """Notices that a sandbox ended by itself, and frees the worker of it."""
        reason = ""
        with active.watch:
            reason = await active.slot.driver.wait_exit(active.sandbox)
        if not reason or self.active is not active:
            return
        self._crashed = (active.uid, reason)
        _log.error("Actor crashed", exc=None, reason=reason, **_names(active))
        self._tunnel.admission.stop()
        await self._tunnel.admission.cut()
        await self._take_down(active)
        if self._on_crash is not None:
            await self._on_crash(active.uid, reason)

    def _active(self, actor_uid: str) -> Active:
        active = self.active
        if active is not None and active.uid == actor_uid:
            return active
        if self._crashed is not None and self._crashed[0] == actor_uid:
            raise FailedPrecondition(f"actor {actor_uid} crashed: {self._crashed[1]}")
        if active is not None:
            raise FailedPrecondition(f"this worker holds actor {active.ref} ({active.uid}), not {actor_uid}")
        raise NotFound(f"actor {actor_uid} is not on this worker")

    def _say(self, message: str, active: Active) -> None:
        _log.info(message, **_names(active))


def _names(active: Active) -> dict[str, Any]:
    return {"actor": str(active.ref), "actor_uid": active.uid, "sandbox": active.slot.spec.id}


def _make_empty(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _single(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that explains the others: the first that is not a cancellation."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            return _single(error)
        if not isinstance(error, trio.Cancelled):
            return error
    return group

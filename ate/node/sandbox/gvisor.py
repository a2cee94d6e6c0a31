"""The sandbox driver on gVisor's runsc: one sandbox process and its file servers per actor.

An actor of one container gets a sandbox whose root is that container: one runtime command restores it. With several,
`pause` is the root and each container takes a command of its own. Checkpoints are written uncompressed (compression is
the snapshot store's work) and hold memory, every file the containers changed, and nothing of volumes. Used by ateom.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

import trio

from ate import log
from ate.errors import AteError, InvalidArgument, ResourceExhausted
from ate.names import ACTOR_ADDRESS, GATEWAY_ADDRESS
from ate.node.network import ACTOR_MAC, ACTOR_PREFIX
from ate.node.sandbox import oci_spec, runsc_rpc
from ate.node.sandbox.cgroup import Cgroup, CgroupTree
from ate.node.sandbox.driver import (
    Capabilities,
    CheckpointFailed,
    ContainerSpec,
    Sandbox,
    SandboxError,
    SandboxSpec,
    Stats,
    UnusableImage,
)
from ate.node.sandbox.runsc import Runsc
from ate.process import CommandFailed

_log = log.Logger(__name__)

IMAGE_FILES: Final = ("checkpoint.img", "pages_meta.img", "pages.img")
_TEARDOWN_SECONDS: Final = 20.0
_FREE_MARGIN: Final = 4 << 20


class GvisorDriver:
    """`bundles` is a directory for the bundles of live sandboxes; `cgroups` the worker's tree (version '' for none)."""

    def __init__(self, runsc: Runsc, bundles: Path, cgroups: CgroupTree) -> None:
        self._runsc, self._bundles, self._cgroups = runsc, bundles, cgroups
        self._last_words: dict[str, str] = {}

    async def probe(self) -> Capabilities:
        facts = await self._runsc.facts()
        notes = []
        if not self._cgroups.version:
            notes.append("control groups cannot be written here: limits and statistics are not available")
        if "net-disconnect-ok" not in facts.flags:
            notes.append("this runsc cannot checkpoint with open TCP connections: they must end first")
        return Capabilities(
            runtime="runsc",
            version=facts.version,
            platform=self._runsc.platform,
            flags=facts.flags,
            checkpoint=True,
            resets_connections="net-disconnect-ok" in facts.flags,
            prepared=True,
            multi_container=True,
            background_pages="background" in facts.restore_flags,
            hides_sysctl_net=facts.hides_sysctl_net,
            cgroup=self._cgroups.version,
            notes=tuple(notes),
        )

    async def create(self, spec: SandboxSpec) -> Sandbox:
        async with self._nothing_left_on_failure(spec, "creating"):
            await self._make_root(spec)
            root = _root(spec)
            for container in spec.containers:
                if container is not root:
                    await self._runsc.command(
                        "create", "--bundle", str(self._bundle(spec, container)), _id(spec, container)
                    )
            return self._handle(spec)

    async def warm(self, sandbox: Sandbox) -> None:
        if (await self._runsc.facts()).version not in runsc_rpc.VERSIONS:
            return
        async with self._nothing_left_on_failure(sandbox.spec, "preparing", sandbox):
            await trio.to_thread.run_sync(
                runsc_rpc.connect_links,
                self._control(sandbox.spec),
                sandbox.spec.netns,
                ACTOR_ADDRESS,
                ACTOR_PREFIX,
                GATEWAY_ADDRESS,
                ACTOR_MAC,
            )
            sandbox.warm = True

    async def start(self, sandbox: Sandbox) -> None:
        spec = sandbox.spec
        async with self._nothing_left_on_failure(spec, "starting", sandbox):
            root = _root(spec)
            await self._runsc.command("start", spec.id)
            for container in spec.containers:
                if container is not root:
                    await self._runsc.command(
                        "start", _id(spec, container), stdio=spec.stdio.get(container.name), joining=self._procs(spec)
                    )
            sandbox.started = True

    async def pause(self, sandbox: Sandbox) -> None:
        await self._runsc.command("pause", sandbox.id)

    async def resume(self, sandbox: Sandbox) -> None:
        await self._runsc.command("resume", sandbox.id)

    async def checkpoint(self, sandbox: Sandbox, directory: Path) -> tuple[str, ...]:
        await trio.to_thread.run_sync(_require_space, sandbox, directory)
        try:
            # Shielded: a runsc that is killed half-way leaves a sandbox that is neither running nor saved.
            with trio.CancelScope(shield=True):
                await self._runsc.command(
                    "checkpoint", "--compression=none", "--image-path", str(directory), sandbox.id, timeout=600
                )
        except AteError as error:
            with trio.CancelScope(shield=True):
                alive = await self._resumed(sandbox)
            for name in IMAGE_FILES:
                (directory / name).unlink(missing_ok=True)
            full = "no space left" in str(error).lower()
            cause = f"the disk under {directory} is full" if full else str(error)
            raise CheckpointFailed(f"sandbox {sandbox.id} was not saved: {cause}", sandbox_alive=alive) from error
        return tuple(sorted(path.name for path in directory.iterdir() if path.name in IMAGE_FILES))

    async def restore(self, spec: SandboxSpec, directory: Path, prepared: Sandbox | None = None) -> Sandbox:
        if prepared is not None:
            spec = prepared.spec
        facts = await self._runsc.facts()
        image = ["--detach", "--image-path", str(directory)]
        if "background" in facts.restore_flags:
            image.append("--background")
        root = _root(spec)
        sandbox = prepared or await self._restore_root(spec, directory, image)
        async with self._nothing_left_on_failure(spec, "restoring", sandbox):
            _require_image(directory)
            if sandbox.warm:
                # Shielded, since a thread cannot be cancelled; it is bounded, and what it did is then taken down.
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(runsc_rpc.restore, self._control(spec), directory)
                    (state,) = self._state_files(spec, spec.id)
                    runsc_rpc.mark_running(state)
            elif prepared is not None:
                await self._runsc.command("restore", "--bundle", str(self._bundle(spec, root)), *image, spec.id)
            for container in spec.containers:
                if container is not root:
                    await self._runsc.command(
                        "restore",
                        "--bundle",
                        str(self._bundle(spec, container)),
                        *image,
                        _id(spec, container),
                        stdio=spec.stdio.get(container.name),
                        joining=self._procs(spec),
                    )
            sandbox.started = True
            return sandbox

    async def terminate(self, sandbox: Sandbox) -> None:
        if sandbox.ended:
            return
        with trio.CancelScope(shield=True):
            with contextlib.suppress(ProcessLookupError, OSError):
                signal.pidfd_send_signal(sandbox.pidfd, signal.SIGKILL)
            await self._sweep(sandbox.spec, sandbox.pids)
            if not sandbox.ended:
                sandbox.ended = True
                os.close(sandbox.pidfd)

    async def stats(self, sandbox: Sandbox) -> Stats | None:
        return self._group(sandbox.spec).stats() if self._cgroups.version else None

    async def logs(self, sandbox: Sandbox) -> str:
        return self._last_words.get(sandbox.id, "")

    async def wait_exit(self, sandbox: Sandbox) -> str:
        kills = self._out_of_memory_kills(sandbox.spec)
        descriptor = os.dup(sandbox.pidfd)
        gone: list[str] = []
        try:
            async with trio.open_nursery() as nursery:

                async def container_gone(container: ContainerSpec) -> None:
                    """Only where pause keeps the sandbox alive without it; else the sandbox's own end says it all."""
                    with contextlib.suppress(AteError):
                        status = await self._runsc.query("wait", _id(sandbox.spec, container), timeout=1e9)
                        gone.append(f"container {container.name!r} ended: {status.decode().strip()}")
                        nursery.cancel_scope.cancel()

                if len(sandbox.spec.containers) > 1:
                    for container in sandbox.spec.containers:
                        nursery.start_soon(container_gone, container)
                await trio.lowlevel.wait_readable(descriptor)
                nursery.cancel_scope.cancel()
        finally:
            os.close(descriptor)
        if self._out_of_memory_kills(sandbox.spec) > kills:
            return f"sandbox {sandbox.id} was killed for using more than its memory limit"
        return gone[0] if gone else f"the process of sandbox {sandbox.id} ended"

    # --- parts ---------------------------------------------------------------------------------------------------

    async def _make_root(self, spec: SandboxSpec, verb: str = "create", *options: str) -> None:
        root = _root(spec)
        if self._cgroups.version:
            try:
                self._group(spec).create(cpu_milli=spec.cpu_milli, memory_bytes=spec.memory_bytes)
            except OSError as error:
                raise SandboxError(f"the control group of sandbox {spec.id} could not be made: {error}") from error
        for container in {root.name: root, **{each.name: each for each in spec.containers}}.values():
            config = oci_spec.place(
                container.config,
                name=container.name,
                rootfs=container.rootfs,
                netns=spec.netns,
                sandbox_id=spec.id,
                root=container is root,
            )
            bundle = self._bundle(spec, container)
            bundle.mkdir(parents=True, exist_ok=True)
            (bundle / "config.json").write_text(json.dumps(config))
        await self._runsc.command(
            verb,
            "--bundle",
            str(self._bundle(spec, root)),
            *options,
            spec.id,
            stdio=spec.stdio.get(root.name),
            joining=self._procs(spec),
        )

    async def _restore_root(self, spec: SandboxSpec, directory: Path, image: Sequence[str]) -> Sandbox:
        """The sandbox from its image, in one command with its root container; the handle is the caller's to end."""
        async with self._nothing_left_on_failure(spec, "restoring"):
            _require_image(directory)
            await self._make_root(spec, "restore", *image)
            return self._handle(spec)

    def _handle(self, spec: SandboxSpec) -> Sandbox:
        state = json.loads(self._state_files(spec, _id(spec, _root(spec)))[0].read_text())
        pid = int(state["sandbox"]["pid"])
        try:
            return Sandbox(spec, (pid, *self._file_servers(spec)), os.pidfd_open(pid))
        except ProcessLookupError as error:
            raise SandboxError(f"the process of sandbox {spec.id} ended as soon as it was made") from error

    def _file_servers(self, spec: SandboxSpec) -> list[int]:
        pids = []
        for container in (_root(spec), *spec.containers):
            for path in self._state_files(spec, _id(spec, container)):
                with contextlib.suppress(OSError, ValueError):
                    pids.append(int(json.loads(path.read_text()).get("goferPid") or 0))
        return [pid for pid in set(pids) if pid > 0]

    def _state_files(self, spec: SandboxSpec, container_id: str) -> list[Path]:
        return [path for path in (self._runsc.state / f"{container_id}_sandbox:{spec.id}.state",) if path.exists()]

    def _control(self, spec: SandboxSpec) -> Path:
        return self._runsc.state / f"runsc-{spec.id}.sock"

    def _bundle(self, spec: SandboxSpec, container: ContainerSpec) -> Path:
        return self._bundles / spec.id / container.name

    def _group(self, spec: SandboxSpec) -> Cgroup:
        return self._cgroups.group(spec.id)

    def _procs(self, spec: SandboxSpec) -> tuple[Path, ...]:
        return self._group(spec).procs_files if self._cgroups.version else ()

    def _out_of_memory_kills(self, spec: SandboxSpec) -> int:
        with contextlib.suppress(OSError):
            return self._group(spec).out_of_memory_kills() if self._cgroups.version else 0
        return 0

    @contextlib.asynccontextmanager
    async def _nothing_left_on_failure(
        self, spec: SandboxSpec, doing: str, sandbox: Sandbox | None = None
    ) -> AsyncIterator[None]:
        try:
            yield
        except BaseException as error:
            with trio.CancelScope(shield=True):
                if sandbox is not None:
                    await self.terminate(sandbox)
                else:
                    await self._sweep(spec, ())
            if isinstance(error, CommandFailed | runsc_rpc.RpcFailed):
                words = error.stderr if isinstance(error, CommandFailed) else error.message
                self._last_words[spec.id] = words
                kind = UnusableImage if _blames_image(words) and doing == "restoring" else SandboxError
                raise kind(f"{doing} sandbox {spec.id} failed: {error.message}") from error
            raise

    async def _sweep(self, spec: SandboxSpec, pids: tuple[int, ...]) -> None:
        """Ends every process of the sandbox and removes its state, bundles and control group; bounded."""
        victims = {*pids, *self._file_servers(spec)}
        for path in self._state_files(spec, spec.id):
            with contextlib.suppress(OSError, ValueError, KeyError):
                victims.add(int(json.loads(path.read_text())["sandbox"]["pid"]))
        group = self._group(spec) if self._cgroups.version else None
        with trio.move_on_after(_TEARDOWN_SECONDS) as bounded:
            while True:
                for pid in victims:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                if group is not None:
                    group.kill()
                if all(_is_gone(pid) for pid in victims) and (group is None or group.remove()):
                    break
                await trio.sleep(0.005)
        if bounded.cancelled_caught:
            _log.error("processes of a sandbox do not end", sandbox=spec.id, pids=sorted(victims))
        # What `runsc delete` would remove; it would first wait a second or more for the zombies of a slow init.
        for container in (_root(spec), *spec.containers):
            for suffix in ("state", "lock"):
                (self._runsc.state / f"{_id(spec, container)}_sandbox:{spec.id}.{suffix}").unlink(missing_ok=True)
        (self._runsc.state / f"runsc-{spec.id}.sock").unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            await trio.to_thread.run_sync(shutil.rmtree, self._bundles / spec.id)

    async def _resumed(self, sandbox: Sandbox) -> bool:
        """After a failed checkpoint: whether the sandbox runs, made to run again if it was left paused."""
        with contextlib.suppress(AteError):
            status = json.loads(await self._runsc.query("state", sandbox.id))["status"]
            if status == "paused":
                await self._runsc.command("resume", sandbox.id)
                status = json.loads(await self._runsc.query("state", sandbox.id))["status"]
            ended = bool(select.select([sandbox.pidfd], [], [], 0)[0])
            return status == "running" and not ended
        return False


def _root(spec: SandboxSpec) -> ContainerSpec:
    if len(spec.containers) == 1:
        return spec.containers[0]
    if spec.pause is None:
        raise InvalidArgument(f"sandbox {spec.id} has {len(spec.containers)} containers but no pause container")
    return spec.pause


def _id(spec: SandboxSpec, container: ContainerSpec) -> str:
    # runsc takes any unique beginning for the whole, so no id may begin another: the name comes first.
    return spec.id if container is _root(spec) else f"{container.name}.{spec.id}"


def _is_gone(pid: int) -> bool:
    """Ended, reaped or not: a zombie holds nothing any more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return True


def _require_image(directory: Path) -> None:
    for name in IMAGE_FILES:
        if not (directory / name).is_file():
            raise UnusableImage(f"the snapshot in {directory} has no {name}; it cannot be restored")


def _blames_image(words: str) -> bool:
    lowered = words.lower()
    return any(part in lowered for part in ("image", "unexpected eof", "loading kernel", "restore-spec", "spec valid"))


def _require_space(sandbox: Sandbox, directory: Path) -> None:
    """Refuses before anything is frozen: a checkpoint that meets a full disk costs the sandbox its life."""
    needed = _FREE_MARGIN
    for pid in sandbox.pids[:1]:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("RssShmem:"):
                    needed += int(line.split()[1]) * 1024
    free = os.statvfs(directory)
    if free.f_bavail * free.f_frsize < needed:
        error = ResourceExhausted(f"{directory} has {free.f_bavail * free.f_frsize} bytes free, {needed} are needed")
        raise CheckpointFailed(f"sandbox {sandbox.id} was not saved: {error}", sandbox_alive=True) from error

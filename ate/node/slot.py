"""A place for one sandbox on a worker: its network, its mounted roots, the pipes of its containers, its volumes.

A slot is made for one actor, or ahead of time for whichever actor of a template comes next; then its volumes lie in the
worker's own directory and are filled when the actor is known. Owned by `worker.py`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import trio

from ate.errors import AteError
from ate.node.assembly import Assembly, Bundle
from ate.node.network import ActorNetwork, NetworkPool
from ate.node.rootfs import RootfsMounts
from ate.node.sandbox.driver import ContainerSpec, Sandbox, SandboxDriver, SandboxSpec, Stdio


@dataclass(eq=False)
class Slot:
    """`readers` are our ends of the containers' output; `own_volumes` is set where volumes lie in the slot."""

    driver: SandboxDriver
    assembly: Assembly
    spec: SandboxSpec
    network: ActorNetwork
    roots: tuple[Path, ...]
    readers: dict[str, int]
    own_volumes: Path | None
    sandbox: Sandbox | None = None
    _writers: list[int] = field(default_factory=list)

    @property
    def durable_dir(self) -> Path:
        """Where the durable volumes of this sandbox lie."""
        return self.own_volumes or self.assembly.durable_dir

    def close_writers(self) -> None:
        """Once the sandbox holds its ends of the pipes, ours must go, or the readers would never see the end."""
        for descriptor in self._writers:
            os.close(descriptor)
        self._writers.clear()

    def adopt(self, assembly: Assembly) -> None:
        """Gives a slot that was made ahead to an actor of the same template: copies the files of its own volumes in."""
        assert self.own_volumes is not None
        for source, target in zip(assembly.own_mounts, self._moved_sources(), strict=True):
            if source.parent != assembly.durable_dir and source.is_dir():
                shutil.copytree(source, target, dirs_exist_ok=True, symlinks=True)
        self.assembly = assembly

    def _moved_sources(self) -> list[Path]:
        return list(moved(self.assembly, self.own_volumes).values()) if self.own_volumes else []


def moved(assembly: Assembly, volumes: Path) -> dict[Path, Path]:
    """Where a slot of its own keeps each of the actor's mounts: durable volumes by name, others by number."""
    return {
        source: volumes / (source.name if source.parent == assembly.durable_dir else f".own/{number}")
        for number, source in enumerate(assembly.own_mounts)
    }


class SlotMaker:
    """Makes slots and takes them down. `directory` is on disk, for volumes of slots made ahead."""

    def __init__(self, pool: NetworkPool, mounts: RootfsMounts, directory: Path, prefix: str) -> None:
        self._pool, self._mounts, self._directory, self._prefix = pool, mounts, directory, prefix
        self._number = 0

    async def make(self, driver: SandboxDriver, assembly: Assembly, *, ahead: bool) -> Slot:
        """Everything a sandbox needs but the sandbox. Raises an AteError; nothing is left then."""
        self._number += 1
        name = f"{self._prefix}{self._number:06x}"
        own = self._directory / name if ahead and assembly.own_mounts else None
        sources = {str(old): str(new) for old, new in moved(assembly, own).items()} if own else {}
        roots: list[Path] = []
        readers: dict[str, int] = {}
        writers: list[int] = []
        network = await self._pool.take()
        try:
            for path in sources.values():
                Path(path).mkdir(parents=True)
                Path(path).chmod(0o777)

            def container(bundle: Bundle) -> ContainerSpec:
                points = {m["destination"] for m in bundle.config.get("mounts", ()) if m.get("type") == "bind"}
                root = self._mounts.acquire(bundle.layers, points)
                roots.append(root)
                shown = {}
                for destination, layers in bundle.image_volumes.items():
                    shown[destination] = str(self._mounts.acquire(layers))
                    roots.append(Path(shown[destination]))
                config = dict(bundle.config)
                config["mounts"] = [
                    {
                        **m,
                        "source": shown.get(m["destination"]) or sources.get(m.get("source", ""), m.get("source", "")),
                    }
                    for m in config.get("mounts", ())
                ]
                return ContainerSpec(bundle.name, config, root)

            containers = tuple(container(bundle) for bundle in assembly.bundles)
            pause = container(assembly.pause) if assembly.pause else None
            stdio = {}
            for each in containers:
                reader, writer = os.pipe()
                readers[each.name] = reader
                writers.append(writer)
                stdio[each.name] = Stdio(writer, writer)
            spec = SandboxSpec(
                id=name,
                containers=containers,
                netns=network.netns,
                pause=pause,
                stdio=stdio,
                cpu_milli=assembly.cpu_milli,
                memory_bytes=assembly.memory_bytes,
            )
        except BaseException:
            for descriptor in (*readers.values(), *writers):
                os.close(descriptor)
            await self._give_back(network, roots, own)
            raise
        return Slot(driver, assembly, spec, network, tuple(roots), readers, own, None, writers)

    async def remove(self, slot: Slot) -> None:
        """Ends the slot's sandbox and takes everything down; never raises an AteError, always finishes."""
        with trio.CancelScope(shield=True):
            slot.close_writers()
            if slot.sandbox is not None:
                with contextlib.suppress(AteError):
                    await slot.driver.terminate(slot.sandbox)
            for reader in slot.readers.values():
                os.close(reader)
            slot.readers.clear()
            await self._give_back(slot.network, list(slot.roots), slot.own_volumes)

    async def _give_back(self, network: ActorNetwork, roots: list[Path], own: Path | None) -> None:
        with trio.CancelScope(shield=True):
            await self._pool.release(network)
            for root in roots:
                self._mounts.release(root)
            if own is not None and own.exists():
                await trio.to_thread.run_sync(shutil.rmtree, own)

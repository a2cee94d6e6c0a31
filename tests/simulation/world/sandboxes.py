"""Sandboxes whose RAM is a number, and the networks and slots they would need. One driver a worker process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from ate.node.assembly import Assembly
from ate.node.network.pool import ActorNetwork
from ate.node.sandbox.driver import Capabilities, CheckpointFailed, Sandbox, SandboxSpec, Stats
from ate.node.slot import Slot
from tests.simulation.world.process import Process

RAM = "ram.img"


@dataclass(eq=False)
class Ram:
    """What runs: the actor whose process tree it is, and its count."""

    actor_uid: str
    count: int = 0
    live: bool = True
    worker: str = ""


@dataclass
class Observer:
    """Told of what sandboxes do; `ate.…` code never sees it."""

    started: Callable[[Ram, bool], None] = lambda ram, restored: None
    frozen: Callable[[Ram], None] = lambda ram: None


class SimDriver:
    """Stands for GvisorDriver. `active_uid` tells which actor the worker is bringing up."""

    def __init__(self, process: Process, observer: Observer, active_uid: Callable[[], str]) -> None:
        self._process, self._observer, self._active_uid = process, observer, active_uid
        self.rams: dict[int, Ram] = {}
        process.at_death(self._all_dead)

    def _all_dead(self) -> None:
        for ram in self.rams.values():
            ram.live = False

    async def probe(self) -> Capabilities:
        return Capabilities("sim", "1", "model", frozenset(), True, True, True, True, False, False, "")

    async def create(self, spec: SandboxSpec) -> Sandbox:
        await self._work(0.02)
        return Sandbox(spec, (), -1)

    async def warm(self, sandbox: Sandbox) -> None:
        await self._work(0.005)

    async def start(self, sandbox: Sandbox) -> None:
        await self._work(0.05)
        self._live(sandbox, 0, restored=False)

    def _live(self, sandbox: Sandbox, count: int, *, restored: bool) -> None:
        ram = Ram(self._active_uid(), count, worker=self._process.name)
        self.rams[id(sandbox)] = ram
        sandbox.started = True
        self._observer.started(ram, restored)

    async def pause(self, sandbox: Sandbox) -> None:
        await self._work(0.001)

    async def resume(self, sandbox: Sandbox) -> None:
        await self._work(0.001)

    async def checkpoint(self, sandbox: Sandbox, directory: Path) -> tuple[str, ...]:
        ram = self.rams[id(sandbox)]
        await self._work(0.03)
        if not ram.live:
            raise CheckpointFailed("sim: it has ended", sandbox_alive=False)
        (directory / RAM).write_text(json.dumps({"count": ram.count, "actor": ram.actor_uid}))
        ram.live = False
        self._observer.frozen(ram)
        await self._work(0.01)
        return (RAM,)

    async def restore(self, spec: SandboxSpec, directory: Path, prepared: Sandbox | None = None) -> Sandbox:
        await self._work(0.03)
        saved = json.loads((directory / RAM).read_text())
        sandbox = prepared or Sandbox(spec, (), -1)
        self._live(sandbox, saved["count"], restored=True)
        return sandbox

    async def terminate(self, sandbox: Sandbox) -> None:
        await self._work(0.01)
        ram = self.rams.pop(id(sandbox), None)
        if ram is not None:
            ram.live = False
        sandbox.ended = True

    async def stats(self, sandbox: Sandbox) -> Stats | None:
        await trio.lowlevel.checkpoint()
        return Stats(1, 1, 1, 1)

    async def logs(self, sandbox: Sandbox) -> str:
        return ""

    async def wait_exit(self, sandbox: Sandbox) -> str:
        await trio.sleep_forever()
        raise AssertionError

    async def _work(self, seconds: float) -> None:
        await self._process.gate()
        await trio.sleep(seconds)
        await self._process.gate()


@dataclass
class SimPool:
    """Stands for the pool of network namespaces."""

    taken: int = 0
    active: ActorNetwork | None = None

    async def take(self) -> ActorNetwork:
        await trio.sleep(0.001)
        self.taken += 1
        return ActorNetwork(Path("/sim"), f"sim{self.taken}")

    async def release(self, network: ActorNetwork) -> None:
        await trio.lowlevel.checkpoint()

    def activate(self, network: ActorNetwork) -> None:
        self.active = network

    def deactivate(self, network: ActorNetwork) -> None:
        self.active = None


@dataclass
class SimSlots:
    """Stands for SlotMaker."""

    process: Process
    made: int = 0
    slots: list[Slot] = field(default_factory=list)

    async def make(self, driver: Any, assembly: Assembly, *, ahead: bool) -> Slot:
        self.made += 1
        await trio.sleep(0.002)
        spec = SandboxSpec(f"s{self.made:06x}", (), Path("/sim"))
        return Slot(driver, assembly, spec, ActorNetwork(Path("/sim"), "sim"), (), {}, None)

    async def remove(self, slot: Slot) -> None:
        with trio.CancelScope(shield=True):
            if slot.sandbox is not None and self.process.alive:
                await slot.driver.terminate(slot.sandbox)

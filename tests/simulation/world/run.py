"""One schedule, from its seed: a busy hour of clients and faults, then calm, then everything must be as promised."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import trio
import trio.testing

import ate.objects.location
from ate import log
from ate.api.kinds import ACTORS
from ate.errors import AteError, NotFound, Unavailable
from ate.names import Ref
from ate.proto import ateapi_pb2 as pb
from ate.proto.ateapi_grpc import ControlStub
from ate.store import open_sqlite, rows
from tests.simulation.world.checker import Broken, Checker
from tests.simulation.world.determinism import deterministic
from tests.simulation.world.network import Chaos
from tests.simulation.world.objects import SimStore
from tests.simulation.world.process import StepCounter, current
from tests.simulation.world.world import World, apply_basics

NODES = ("n1", "n2")
WORKERS_A_NODE = 2
BUSY_SECONDS = 10.0
CALM_SECONDS = 120.0
"""Most virtual seconds until everything is in order: leases of the dead end, the longest pauses too."""
SETTLE_TRIES = 12
FAR = 4_000_000_000
"""Unix time of wake-ups that never come in a schedule."""
LONGEST_REQUEST = 180.0
"""Seconds: a parked request's longest wait, once more after a stale route, and the answer itself."""


@dataclass
class Result:
    """`broken` is empty when every invariant held. `trace` hashes what happened, to see that a seed repeats itself."""

    seed: int
    broken: str = ""
    steps: int = 0
    checks: int = 0
    answers: int = 0
    kills: int = 0
    trace: list[str] = field(default_factory=list)


def run_schedule(seed: int, mutate: Callable[[ExitStack], None] | None = None) -> Result:
    """Runs the schedule of `seed`; `mutate` may patch the system under test, to see that a fault in it is found."""
    rng = random.Random(seed)
    result = Result(seed)
    Broken.found.clear()
    counter = StepCounter()
    disk = Path(tempfile.mkdtemp(prefix="ate-sim-", dir="/dev/shm"))
    faults = _Faults(rng)
    try:
        with ExitStack() as stack:
            stack.enter_context(deterministic(rng, faults.disk))
            objects: dict[str, bytes] = {}
            store = type("Store", (SimStore,), {"bytes_of": objects, "fault": staticmethod(faults.object)})
            stack.enter_context(mock.patch.object(ate.objects.location, "FileStore", store))
            if mutate is not None:
                mutate(stack)
            schedule = _Schedule(rng, result, disk, objects, faults, fierce=mutate is not None)
            clock = trio.testing.MockClock(autojump_threshold=0)
            try:
                trio.run(schedule.run, clock=clock, instruments=[counter])
            except BaseException as error:
                found = _broken(error)
                if found is None:
                    raise
                result.broken = found
            if Broken.found:
                result.broken = Broken.found[0]
    finally:
        shutil.rmtree(disk, ignore_errors=True)
    result.steps, result.checks = counter.steps, schedule.checks
    return result


def _broken(error: BaseException) -> str | None:
    """The broken invariant in an error; a bug that ended a process counts as one."""
    if isinstance(error, Broken):
        return str(error)
    if isinstance(error, BaseExceptionGroup):
        found = [text for inner in error.exceptions if (text := _broken(inner)) is not None]
        return next((text for text in found if text[0].isdigit()), found[0] if found else None)
    if isinstance(error, Exception):
        import traceback

        return "a process ended by itself: " + "".join(traceback.format_exception(error))
    return None


@dataclass
class _Faults:
    """Faults of object storage and disks."""

    rng: random.Random
    object_rate: float = 0.0
    disk_rate: float = 0.0

    def object(self, before: bool) -> None:
        if self.rng.random() < self.object_rate:
            raise Unavailable("sim: object storage is away")

    def disk(self) -> None:
        process = current.get()
        if process is not None and process.name.startswith("atelet") and self.rng.random() < self.disk_rate:
            raise OSError(28, "No space left on device")


class _Schedule:
    def __init__(
        self,
        rng: random.Random,
        result: Result,
        disk: Path,
        objects: dict[str, bytes],
        faults: _Faults,
        *,
        fierce: bool,
    ) -> None:
        """`fierce`: every kind of fault at once, which finds what is there sooner, and what is rare not at all."""
        self.fierce = fierce
        self.rng, self.result, self.disk, self.objects, self.faults = rng, result, disk, objects, faults
        self.names = [f"a{n}" for n in range(rng.randint(1, 5))]
        self.uids: dict[str, set[str]] = {name: set() for name in self.names}
        self.busy = True

    @property
    def checks(self) -> int:
        return self.checker.checks

    def note(self, what: str) -> None:
        self.result.trace.append(f"{trio.current_time():.4f} {what}")

    async def run(self) -> None:
        async with self._world() as world:
            self.world = world
            await self._cast(world)
            await apply_basics(world)
            self._choose_faults()
            async with trio.open_nursery() as nursery:
                for number in range(self.rng.randint(2, 4)):
                    nursery.start_soon(self._client, random.Random(self.rng.getrandbits(32)), number)
                nursery.start_soon(self._adversary)
                await trio.sleep(BUSY_SECONDS)
                self.busy = False
                self.note("calm")
                self.world.network.chaos = self.world.network.calm
                self.faults.object_rate = self.faults.disk_rate = 0.0
                for process in world.processes.values():
                    process.kill_at = None
            await self._settle()
            world.nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def _world(self) -> Any:
        world: World | None = None
        clock = lambda: world.wall_clock() if world is not None else 0.0  # noqa: E731
        async with open_sqlite(":memory:", now=clock, threaded=False) as store, trio.open_nursery() as nursery:
            locals_: dict[str, Any] = {}
            async with AsyncStores(locals_):
                world = World(self.rng, store, self.disk, nursery)
                world.local_stores = locals_
                self.checker = Checker(store, self.objects, self.disk)
                world.committed = self.checker.committed
                world.observer.started = self.checker.started
                world.observer.frozen = self.checker.froze
                with world.machines.in_charge():
                    yield world

    async def _cast(self, world: World) -> None:
        for number in range(2):
            await world.start_api(number)
        self.worker_nodes: dict[str, str] = {}
        from ate.names import new_uid

        for node in NODES:
            await world.start_atelet(node)
            world.nursery.start_soon(self._supervise, f"atelet/{node}", lambda node=node: world.start_atelet(node))
            for _ in range(WORKERS_A_NODE):
                uid = new_uid()
                self.worker_nodes[uid] = node
                await world.start_ateom(node, uid)
                world.nursery.start_soon(self._supervise_worker, node, uid)
        for number in range(2):
            world.nursery.start_soon(self._supervise, f"api/{number}", lambda number=number: world.start_api(number))
        await world.start_router()
        world.nursery.start_soon(self._supervise, "router", world.start_router)

    async def _supervise(self, name: str, start: Callable[[], Any]) -> None:
        while True:
            await self.world.processes[name].ended.wait()
            await trio.sleep(self.rng.uniform(0.1, 3))
            self.note(f"start {name}")
            await start()

    async def _supervise_worker(self, node: str, uid: str) -> None:
        await self.world.announce(node, uid)
        while True:
            await self.world.processes[f"ateom/{uid}"].ended.wait()
            await trio.sleep(self.rng.uniform(0.1, 2))
            self.note(f"start ateom/{uid}")
            await self.world.start_ateom(node, uid)
            await self.world.announce(node, uid)

    # -- faults -----------------------------------------------------------------------------------------------------

    def _choose_faults(self) -> None:
        """Each schedule has some kinds of faults and not others: rare combinations come up by themselves."""
        rng = self.rng

        def sometimes(most: float) -> float:
            return rng.random() * most if self.fierce or rng.random() < 0.5 else 0.0

        self.world.network.chaos = Chaos(
            lose_request=sometimes(0.1), lose_reply=sometimes(0.1), twice=sometimes(0.1), late=sometimes(0.3),
            latest=rng.choice([0.1, 2.0, 20.0]),
        )  # fmt: skip
        self.faults.object_rate, self.faults.disk_rate = sometimes(0.1), sometimes(0.05)
        self.kill_rate = sometimes(1.0)
        self.freeze_rate = sometimes(0.3)
        self.step_rate = sometimes(0.2)
        self.power_rate = sometimes(0.1)

    async def _adversary(self) -> None:
        rng = self.rng
        while self.busy:
            await trio.sleep(rng.uniform(0.2, 3))
            if not self.busy:
                return
            if rng.random() < self.kill_rate:
                process = self.world.processes[rng.choice(sorted(self.world.processes))]
                if process.alive:
                    process.kill_at = process.steps + rng.randint(1, 400)
                    self.result.kills += 1
                    self.note(f"kill {process.name}")
            if rng.random() < self.freeze_rate:
                process = self.world.processes[rng.choice(sorted(self.world.processes))]
                process.freeze(rng.choice([1.0, 10.0, 45.0]))
                self.note(f"freeze {process.name}")
            if rng.random() < self.power_rate:
                node = rng.choice(NODES)
                self.note(f"power loss {node}")
                for name in self.world.machines.on(node):
                    self.world.processes[name].kill()
                self.world.machines.lose_power(node)
                self.result.kills += 1
            if rng.random() < self.step_rate:
                self.world.clock_offset += rng.choice([-15.0, 40.0, 3600.0])
                self.note("clock steps")

    # -- clients ----------------------------------------------------------------------------------------------------

    async def _client(self, rng: random.Random, number: int) -> None:
        async with self.world.client() as channel:
            control = ControlStub(channel)
            while self.busy:
                await trio.sleep(rng.expovariate(1.0))
                name = rng.choice(self.names)
                ref = pb.ObjectRef(atespace="demo", name=name)
                what = rng.choices(
                    ["request", "suspend", "pause", "resume", "update", "revert", "delete"], [10, 4, 2, 2, 4, 1, 0.5]
                )[0]
                began = trio.current_time()
                try:
                    with trio.fail_after(LONGEST_REQUEST + 60):
                        await self._do(control, what, name, ref)
                    said = "ok"
                except AteError as error:
                    said = f"{error.code.name} {error.message[:100]}"
                except trio.TooSlowError:
                    raise Broken(f"5: {what} of {name} never ended")
                self.note(f"client {number} {what} {name}: {said}")
                if what == "request":
                    self.checker.waited(what, trio.current_time() - began, LONGEST_REQUEST)

    async def _do(self, control: ControlStub, what: str, name: str, ref: pb.ObjectRef) -> None:
        await self._exists(control, name)
        if what == "request":
            await self._request(name)
        elif what == "suspend":
            answer = await control.SuspendActor(pb.SuspendActorRequest(actor=ref), timeout=100)
            self.checker.suspended(answer.actor)
        elif what == "pause":
            await control.PauseActor(pb.PauseActorRequest(actor=ref), timeout=100)
        elif what == "resume":
            await control.ResumeActor(pb.ResumeActorRequest(actor=ref), timeout=100)
        elif what == "update":
            actor = await control.GetActor(pb.GetActorRequest(actor=ref), timeout=30)
            # Far from now, and one more each time: by that the checker sees an update that was undone.
            actor.wake_time.seconds = max(actor.wake_time.seconds, FAR) + 1
            await control.UpdateActor(pb.UpdateActorRequest(actor=actor), timeout=30)
        elif what == "revert":
            await control.RevertActor(pb.RevertActorRequest(actor=ref), timeout=100)
        else:
            await control.DeleteActor(pb.DeleteActorRequest(actor=ref, any_state=True), timeout=100)

    async def _exists(self, control: ControlStub, name: str) -> None:
        actor = pb.Actor(
            metadata=pb.ResourceMetadata(atespace="demo", name=name),
            actor_template=pb.ObjectRef(atespace="demo", name="t"),
        )
        with suppress(AteError):
            await control.CreateActor(pb.CreateActorRequest(actor=actor), timeout=30)
        self._see(name)

    def _see(self, name: str) -> None:
        """Every uid the name has had: who may answer to it."""
        row = rows.get(self.world.store._reader, ACTORS, rows.Key("demo", name))
        if row is not None:
            self.uids[name].add(row.uid)

    async def _request(self, name: str) -> None:
        before = self.checker.asking()
        uid, count = await self.world.request(Ref("demo", name))
        self._see(name)
        self.result.answers += 1
        self.checker.answered(before, self.uids[name], uid, count)

    # -- the end ----------------------------------------------------------------------------------------------------

    async def _settle(self) -> None:
        """No more faults: within a time everything is in order, and every actor can be had again, with its memory."""
        disorder = "?"
        with trio.move_on_after(CALM_SECONDS):
            while disorder:
                await trio.sleep(5)
                folders = {path.name: node for node in NODES for path in (self.disk / node / "actors").glob("*")}
                disorder = self.checker.disorder(folders)
        if disorder:
            raise Broken(disorder)
        self.checker.committed()
        async with self.world.client() as channel:
            control = ControlStub(channel)
            present = pb.ListActorsResponse()
            for _ in range(SETTLE_TRIES):
                try:
                    present = await control.ListActors(pb.ListActorsRequest(atespace="demo"), timeout=30)
                    break
                except AteError:
                    await trio.sleep(10)
            # Those that hold a worker first: a paused one may need just that.
            for actor in sorted(present.actors, key=lambda actor: actor.status.state != pb.ACTOR_STATE_RUNNING):
                name = actor.metadata.name
                ref = pb.ObjectRef(atespace="demo", name=name)
                error: AteError | None = None
                for _ in range(SETTLE_TRIES):  # what was frozen before the calm may still hold things up
                    try:
                        actor = await control.GetActor(pb.GetActorRequest(actor=ref), timeout=30)
                        if actor.status.state == pb.ACTOR_STATE_CRASHED:
                            await control.RevertActor(pb.RevertActorRequest(actor=ref), timeout=100)
                        await self._request(name)
                        answer = await control.SuspendActor(pb.SuspendActorRequest(actor=ref), timeout=100)
                        self.checker.suspended(answer.actor)
                        break
                    except NotFound:
                        break  # a delete that nobody heard the end of
                    except AteError as failure:
                        error = failure
                        await trio.sleep(10)
                else:
                    assert error is not None
                    raise Broken(f"2: {name} cannot be had any more in a calm world: {error.code.name} {error.message}")


class AsyncStores:
    """The local store of each node, open for the whole schedule."""

    def __init__(self, stores: dict[str, Any]) -> None:
        self._stores = stores
        self._open: list[Any] = []

    async def __aenter__(self) -> None:
        for node in NODES:
            manager = open_sqlite(":memory:", threaded=False)
            self._open.append(manager)
            self._stores[node] = await manager.__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        for manager in reversed(self._open):
            await manager.__aexit__(None, None, None)


log.Logger("ate.sim")

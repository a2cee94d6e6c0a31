"""Promise: kill -9 of the api role, at any moment and under load, loses no write that it acknowledged.

Clients of C-core create, change, wake, put to sleep and delete actors while the role is killed 50 times. What a client
was told is what it finds afterwards; what it was not told has happened or has not, and is finished by the next process.
The change feed goes on where it was. Times are for bench/control_plane.py.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
import trio

from ate import names
from ate.errors import Aborted
from ate.identity import ca, spiffe
from ate.names import FENCE_METADATA
from ate.proto import ateapi_pb2 as pb
from ate.rpc import Call, Server, open_tcp_listener
from tests.simulation.cluster import template
from tests.system.api_peer import (
    DOMAIN,
    NODE,
    Caller,
    FakeLogs,
    RoomyNode,
    Snapshots,
    account,
    identity_of,
    in_thread,
    request_of,
)
from tests.system.api_process import ApiProcess

KILLS = 50
CLIENTS = 6
ACTORS_EACH = 3
SETTLED_SECONDS = 60.0
FAR = 4_000_000_000
"""Unix time of wake-ups that never come in this test."""
PASSING = (
    pb.ACTOR_STATE_RESUMING, pb.ACTOR_STATE_SUSPENDING, pb.ACTOR_STATE_PAUSING, pb.ACTOR_STATE_DELETING,
)  # fmt: skip
UNTOLD = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED, grpc.StatusCode.DEADLINE_EXCEEDED}
"""How a call ends that may have been done or not."""


class FencedNode(RoomyNode):
    """Refuses, as a real agent does, what an older holder of the actor's lease still asks for."""

    def _fence(self, uid: str, call: Call) -> None:
        fence = int(str(call.metadata[FENCE_METADATA]))
        newest = self.__dict__.setdefault("fences", {})
        if fence < newest.get(uid, 0):
            raise Aborted(f"fence {fence} is older than {newest[uid]}")
        newest[uid] = fence

    async def _start(self, request: Any, call: Call, memory: int) -> None:
        self._fence(request.actor_uid, call)
        await super()._start(request, call, memory)

    async def _checkpoint(self, request: Any, call: Call) -> Any:
        self._fence(request.actor_uid, call)
        return await super()._checkpoint(request, call)


@dataclass
class Known:
    """What a client was told of its actor, and the memory the actor has (RUNNING) or was saved with."""

    actor: pb.Actor
    memory: int = 0


class Client:
    """Owns its actors: nobody else asks for anything about them."""

    def __init__(self, caller: Caller, node: FencedNode, number: int, seed: int, stop: threading.Event) -> None:
        self.known: dict[str, Known | None] = {f"a{number}-{n}": None for n in range(ACTORS_EACH)}
        self.told = self.untold = 0
        self._caller, self._node, self._stop = caller, node, stop
        self._random = random.Random(seed)

    def run(self) -> None:
        while not self._stop.is_set():
            self._step(self._random.choice(sorted(self.known)))
        for name in self.known:
            self._settle(name, lambda found: None)

    def _step(self, name: str) -> None:
        known = self.known[name]
        if known is None:
            return self._create(name)
        asleep = known.actor.status.state == pb.ACTOR_STATE_SUSPENDED
        what = self._random.choices(["update", "delete", "move"], [3, 1, 8])[0]
        if what == "update":
            self._update(name, known)
        elif what == "delete":
            self._delete(name, known)
        elif asleep:
            self._resume(name, known)
        else:
            self._suspend(name, known)

    def _call(self, method: str, **fields: Any) -> Callable[[], Any]:
        return lambda: self._caller.once(method, request_of(method, **fields))

    def _try(self, name: str, call: Callable[[], Any], untold: Callable[[pb.Actor | None], None]) -> Any:
        """The reply. None when nobody said how it ended: then `untold` has judged what was found."""
        try:
            reply = call()
        except grpc.RpcError as error:
            assert error.code() in UNTOLD, f"{name}: {error.code().name} {error.details()}"
            self.untold += 1
            self._settle(name, untold)
            return None
        self.told += 1
        return reply

    def _settle(self, name: str, judge: Callable[[pb.Actor | None], None]) -> None:
        """Waits until the actor is at rest, then compares it with what this client was told."""
        before, found = self.known[name], self._at_rest(name)
        judge(found)
        after = self.known[name]
        if after is None:
            assert found is None, f"{name} came back: {found}"
            return
        assert found is not None, f"{name} is gone, last told {after.actor}"
        assert found.metadata.uid == after.actor.metadata.uid
        if before is not None and before.actor.metadata.uid == found.metadata.uid:
            assert found.metadata.version >= before.actor.metadata.version, f"{name} went back in time"
        assert found.wake_time == after.actor.wake_time, f"an acknowledged update of {name} is lost"
        assert found.status.state == after.actor.status.state, f"{name}: {found}"
        if found.status.state == pb.ACTOR_STATE_RUNNING:
            assert self._sandbox(found).memory == after.memory
        elif after.memory:
            assert Snapshots()[found.status.external_snapshot.snapshot_uri] == after.memory

    def _at_rest(self, name: str) -> pb.Actor | None:
        until = time.monotonic() + SETTLED_SECONDS
        request = request_of("GetActor", actor=ref(name))
        while True:
            try:
                found = self._caller.once("GetActor", request)
                if found.status.state not in PASSING:
                    return found  # type: ignore[no-any-return]
                why = str(found)
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.NOT_FOUND:
                    return None
                assert error.code() in UNTOLD
                why = str(error.details())
            assert time.monotonic() < until, f"{name} never came to rest: {why}"
            time.sleep(0.05)

    def _sandbox(self, actor: pb.Actor) -> Any:
        return self._node.workers[f"{actor.status.worker_assignment.worker.name}/{actor.metadata.uid}"]

    def _create(self, name: str) -> None:
        def untold(found: pb.Actor | None) -> None:
            self.known[name] = None if found is None else Known(found)

        made = self._try(name, self._call("CreateActor", actor=actor_of(name)), untold)
        if made is not None:
            self.known[name] = Known(made)

    def _update(self, name: str, known: Known) -> None:
        wanted = pb.Actor()
        wanted.CopyFrom(known.actor)
        wanted.wake_time.seconds = max(wanted.wake_time.seconds, FAR) + 1

        def untold(found: pb.Actor | None) -> None:
            assert found is not None
            if found.wake_time == wanted.wake_time:
                self.known[name] = Known(found, known.memory)

        made = self._try(name, self._call("UpdateActor", actor=wanted), untold)
        if made is not None:
            self.known[name] = Known(made, known.memory)

    def _delete(self, name: str, known: Known) -> None:

        def untold(found: pb.Actor | None) -> None:
            if found is None:
                self.known[name] = None

        if self._try(name, self._call("DeleteActor", actor=ref(name), any_state=True), untold) is not None:
            self.known[name] = None

    def _resume(self, name: str, known: Known) -> None:
        def untold(found: pb.Actor | None) -> None:
            assert found is not None
            if found.status.state == pb.ACTOR_STATE_RUNNING:
                self.known[name] = Known(found, known.memory)

        reply = self._try(name, self._call("ResumeActor", actor=ref(name)), untold)
        if reply is not None:
            sandbox = self._sandbox(reply.actor)
            assert sandbox.memory == known.memory, f"{name} woke with another memory"
            sandbox.memory += 1
            self.known[name] = Known(reply.actor, sandbox.memory)

    def _suspend(self, name: str, known: Known) -> None:
        def untold(found: pb.Actor | None) -> None:
            assert found is not None
            if found.status.state == pb.ACTOR_STATE_SUSPENDED:
                self.known[name] = Known(found, known.memory)

        reply = self._try(name, self._call("SuspendActor", actor=ref(name)), untold)
        if reply is not None:
            self.known[name] = Known(reply.actor, known.memory)


class Watcher:
    """Follows the change feed across every death of the role."""

    def __init__(self, caller: Caller) -> None:
        self.seen: dict[str, pb.Actor] = {}
        self.listings = 0
        self._caller, self._token = caller, ""

    def run(self, done: Callable[[], bool]) -> None:
        """Until `done`, which is asked after each event."""
        while not done():
            try:
                self._follow(done)
            except grpc.RpcError as error:
                assert error.code() in UNTOLD, error.details()
            time.sleep(0.02)

    def _follow(self, done: Callable[[], bool]) -> None:
        self.listings += not self._token
        with self._caller.stream("WatchActors", pb.WatchActorsRequest(resume_token=self._token)) as events:
            for event in events:
                self._token = event.resume_token or self._token
                name = event.actor.metadata.name
                if event.type == pb.WATCH_EVENT_TYPE_DELETED:
                    self.seen.pop(name, None)
                elif event.HasField("actor"):
                    last = self.seen.get(name)
                    if last is not None and last.metadata.uid == event.actor.metadata.uid:
                        assert event.actor.metadata.version >= last.metadata.version, f"the feed of {name} went back"
                    self.seen[name] = event.actor
                if done():
                    return


class Running(threading.Thread):
    """Runs `work`; what it fails of is kept, and ends the others."""

    def __init__(self, name: str, work: Callable[[], None], stop: threading.Event) -> None:
        super().__init__(name=name)
        self.failed: BaseException | None = None
        self._work, self._end_all = work, stop
        self.start()

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.failed = error
            self._end_all.set()


def actor_of(name: str) -> pb.Actor:
    return pb.Actor(metadata=pb.ResourceMetadata(atespace="demo", name=name), actor_template=ref("t"))


def ref(name: str) -> pb.ObjectRef:
    return pb.ObjectRef(atespace="demo", name=name)


def prepare(api: ApiProcess, node_port: int, user: Caller, controller: Caller, agent: Caller) -> None:
    agent("RegisterNode", node_name=NODE, address=f"127.0.0.1:{node_port}", boot_id="b")
    user("CreateAtespace", atespace=pb.Atespace(metadata=pb.ResourceMetadata(name="demo")))
    config = pb.SandboxRuntimeConfig(metadata=pb.ResourceMetadata(name="gvisor-default"))
    config.spec.pause_image = "ate.local/x@sha256:" + "a" * 64
    user("CreateSandboxConfig", sandbox_config=config)
    for number in range(3):
        uid = f"00000000-0000-4000-8000-{number:012}"
        worker = pb.Worker(
            metadata=pb.ResourceMetadata(name=uid), worker_pod_uid=uid, node_name=NODE, ips=["127.0.0.9"],
            sandbox_class="gvisor", epoch=1,
        )  # fmt: skip
        controller("CreateWorker", worker=worker)
        agent("SetWorkerCapacity", worker=pb.ObjectRef(name=uid), capacity=pb.WorkerResources(actors=20))
    storage = pb.SnapshotsConfig(storage_location=f"file://{api.folder}/objects")
    user("CreateActorTemplate", actor_template=template("t", snapshots_config=storage))


@pytest.mark.timeout(300)
def test_what_the_api_role_acknowledged_survives_fifty_deaths_under_load(tmp_path: Path) -> None:
    pool = ca.load_or_make(tmp_path / "pool.json")
    pod = spiffe.PodIdentity(names.SERVICE_ACCOUNTS["atelet"], NODE)
    agent = identity_of(pool, account("atelet"), pod)
    node = FencedNode(Snapshots(), delay=0.01)  # type: ignore[arg-type]

    async def serve_node(started: Callable[[int], None], stop: trio.Event) -> None:
        async with trio.open_nursery() as nursery:
            listener = await open_tcp_listener("127.0.0.1", 0, tls=agent)
            await nursery.start(partial(Server([node, FakeLogs()]).serve, [listener]))
            started(listener.port)
            await stop.wait()
            nursery.cancel_scope.cancel()

    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    api, stop = ApiProcess(tmp_path), threading.Event()

    def caller(identity: Any) -> Caller:
        return Caller(api.port, identity.credentials, pool.trust_bundle_pem)

    with in_thread(serve_node) as node_port:
        threads: list[Running] = []
        api.start()
        try:
            user = caller(identity_of(pool, names.user_id(DOMAIN, "ann")))
            prepare(api, node_port, user, caller(identity_of(pool, account("controller"))), caller(agent))
            watcher = Watcher(user)
            threads.append(Running("watcher", lambda: watcher.run(stop.is_set), stop))
            clients = [Client(user, node, number, rng.getrandbits(32), stop) for number in range(CLIENTS)]
            threads += [Running(f"client {number}", client.run, stop) for number, client in enumerate(clients)]
            for _ in range(KILLS):
                if stop.wait(rng.uniform(0.02, 0.5)):
                    break
                api.kill()
                api.start()
            stop.wait(0.5)
            stop.set()
            for thread in threads[1:]:
                thread.join(SETTLED_SECONDS + 60)
            for thread in threads:
                if thread.failed is not None:
                    raise AssertionError(f"{thread.name}, seed {seed}") from thread.failed
            assert all(client.told > 20 for client in clients), "there was no load"
            assert sum(client.untold for client in clients) > KILLS / 2, "the deaths did not hit anything"
            alive = {name for client in clients for name, known in client.known.items() if known}
            listed = user("ListActors", atespace="demo").actors
            assert {actor.metadata.name for actor in listed} == alive
            user("CreateActor", actor=actor_of("last"))  # an event that ends the quiet feed
            threads[0].join(60)
            assert watcher.listings == 1, "the feed had to be begun anew"
            watcher.run(lambda: "last" in watcher.seen)
            seen = {name: actor.metadata.version for name, actor in watcher.seen.items() if name in alive}
            assert seen == {actor.metadata.name: actor.metadata.version for actor in listed}, "the feed lost a change"
            claims = [
                claim
                for worker in user("ListWorkers").workers
                for claim in user(
                    "ListWorkerActorAssignments", worker=pb.ObjectRef(name=worker.metadata.name)
                ).actor_assignments
            ]
            running = [actor for actor in listed if actor.status.state == pb.ACTOR_STATE_RUNNING]
            assert len(claims) == len(running) == len(node.workers), "a place or a sandbox was left behind"
        finally:
            stop.set()
            api.kill()
            for thread in threads:
                thread.join(SETTLED_SECONDS + 60)

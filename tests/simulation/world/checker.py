"""The five invariants of design.md, checked from outside after every commit, every start and every answer.

The checker reads the store and object storage and is told what sandboxes do; it believes nothing any process says.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import zstandard

from ate.api import scheduling
from ate.api.kinds import ACTORS, ASSIGNMENTS, TAGS, WORKERS
from ate.node.snapshots import Manifest
from ate.proto import ateapi_pb2 as pb
from ate.store import rows
from ate.store.sqlite import SqliteStore
from tests.simulation.world.sandboxes import RAM, Ram

HOLDING = frozenset(
    {pb.ACTOR_STATE_RESUMING, pb.ACTOR_STATE_RUNNING, pb.ACTOR_STATE_SUSPENDING, pb.ACTOR_STATE_PAUSING}
)


_FALLEN = {pb.ACTOR_STATE_CRASHED, pb.ACTOR_STATE_REVERTING}


class Broken(Exception):
    """An invariant does not hold. `found` has every one of this run, also where a dying process swallowed it."""

    found: list[str] = []  # noqa: RUF012 - one run at a time

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.found.append(what)


@dataclass(frozen=True)
class Before:
    """What was known when a request was sent."""

    durable: dict[str, int]
    served: dict[str, int]
    falls: dict[str, int]


class Checker:
    def __init__(self, store: SqliteStore, objects: dict[str, bytes], disk: Path) -> None:
        self._db = store._writer
        self._objects, self._disk = objects, disk
        self.rams: list[Ram] = []
        self.frozen: dict[str, int] = {}
        """actor uid -> count at its last checkpoint."""
        self._updates: dict[str, int] = {}
        """actor uid -> its wake-up time, which clients only ever raise."""
        self.served: dict[str, int] = {}
        """actor uid -> the highest count a client got since its last roll-back."""
        self.durable: dict[str, int] = {}
        """actor uid -> what an acknowledged suspend saved."""
        self._falls: Counter[str] = Counter()
        """actor uid -> how often it crashed or was reverted."""
        self._external: dict[str, str] = {}
        self._states: dict[str, int] = {}
        self.checks = 0

    # -- what sandboxes do ------------------------------------------------------------------------------------------

    def started(self, ram: Ram, restored: bool) -> None:
        self.rams = [known for known in self.rams if known.live]
        twins = [known for known in self.rams if known.actor_uid == ram.actor_uid]
        if twins:
            raise Broken(f"1: actor {ram.actor_uid} starts on {ram.worker} while it lives on {twins[0].worker}")
        self.rams.append(ram)

    def froze(self, ram: Ram) -> None:
        self.frozen[ram.actor_uid] = ram.count

    # -- what the store says ----------------------------------------------------------------------------------------

    def committed(self) -> None:
        self.checks += 1
        actors = {row.uid: row for row in rows.scan(self._db, ACTORS, None, None, 1000)}
        claims = rows.scan(self._db, ASSIGNMENTS, None, None, 1000)
        workers = {row.key.name: row for row in rows.scan(self._db, WORKERS, None, None, 1000)}
        held = Counter(claim.key.scope for claim in claims)
        for name, worker in workers.items():
            allocated, capacity = worker.value.status.allocated.actors, max(worker.value.status.capacity.actors, 1)
            if allocated != held[name]:
                raise Broken(f"3: worker {name} says it holds {allocated} actors, and {held[name]} claim it")
            if allocated > capacity:
                raise Broken(f"1: worker {name} holds {allocated} actors and has room for {capacity}")
            if scheduling.amounts(worker.value.status.allocated.resources) != (0, 0) and not held[name]:
                raise Broken(f"3: worker {name} has room allocated to nobody")
        by_actor = Counter(claim.value.actor_uid for claim in claims)
        for claim in claims:
            actor = actors.get(claim.value.actor_uid)
            if actor is None:
                raise Broken(f"3: a claim on worker {claim.key.scope} is of an actor that is gone")
            if actor.value.status.worker_assignment.worker.name != claim.key.scope:
                raise Broken(f"3: actor {actor.key} does not know of its claim on {claim.key.scope}")
            if by_actor[actor.uid] > 1:
                raise Broken(f"1: actor {actor.key} has {by_actor[actor.uid]} claims")
        for uid, actor in actors.items():
            status = actor.value.status
            if status.HasField("worker_assignment") and not by_actor[uid]:
                raise Broken(f"3: actor {actor.key} thinks it has a place on {status.worker_assignment.worker.name}")
            if status.state in (pb.ACTOR_STATE_RESUMING, pb.ACTOR_STATE_RUNNING) and not by_actor[uid]:
                raise Broken(f"1: actor {actor.key} is {pb.ActorState.Name(status.state)} nowhere")
            self._snapshot(uid, actor.value)
            self._paused(uid, actor.value)
            if actor.value.wake_time.seconds < self._updates.get(uid, 0):
                raise Broken(f"2: an update of actor {actor.key} was undone by a write that had not seen it")
            self._updates[uid] = actor.value.wake_time.seconds
        for row in rows.scan(self._db, TAGS, None, None, 1000):
            if row.value.status.state == pb.TAG_STATE_READY:
                self._complete(row.value.status.snapshot.snapshot_uri, f"tag {row.key}")

    def _snapshot(self, uid: str, actor: pb.Actor) -> None:
        status, name = actor.status, f"actor {actor.metadata.atespace}/{actor.metadata.name}"
        before = self._states.get(uid)
        if before != status.state and _FALLEN & {before, status.state}:
            self.served.pop(uid, None)  # it goes back to its last good snapshot; until it has, its old self may answer
            self._falls[uid] += 1
        self._states[uid] = status.state
        uri = status.external_snapshot.snapshot_uri
        if not uri or status.state == pb.ACTOR_STATE_DELETING:
            return
        self._complete(uri, name)
        fresh = self._external.get(uid, uri if f"/{uid}/" not in uri else "") != uri
        if fresh and uid in self.frozen and self.count_of(uri) != self.frozen[uid]:
            raise Broken(f"2: {name} committed {uri} with {self.count_of(uri)}, it was frozen at {self.frozen[uid]}")
        self._external[uid] = uri

    def _paused(self, uid: str, actor: pb.Actor) -> None:
        """What an acknowledged pause left on its node is there until the actor has moved on."""
        status = actor.status
        if status.state not in (pb.ACTOR_STATE_PAUSED, pb.ACTOR_STATE_RESUMING) or not status.HasField(
            "local_snapshot"
        ):
            return
        for node in status.local_snapshot.node_vms_with_local_snapshots:
            folder = self._disk / node / "actors" / uid / "local-checkpoint" / status.local_snapshot.snapshot_name
            if not (folder / "manifest.json").exists():
                raise Broken(f"2: actor {actor.metadata.name} is paused on {node}, where its state is no more")

    def _complete(self, uri: str, whose: str) -> None:
        path = uri.removeprefix("file://")
        document = self._objects.get(f"{path}/manifest.json")
        if document is None:
            raise Broken(f"2: {whose} rests on snapshot {uri}, which is not complete")
        for stored in Manifest.from_json(document, uri).objects:
            if len(self._objects.get(f"{path}/{stored.stored_name}", b"")) != stored.stored_size:
                raise Broken(f"2: {whose} rests on snapshot {uri}, whose {stored.stored_name} is not there")

    def count_of(self, uri: str) -> int:
        """The count in a snapshot's RAM."""
        packed = self._objects[f"{uri.removeprefix('file://')}/{RAM}.zstd"]
        if packed.startswith(b"ATESPRSE"):
            raw = zstandard.ZstdDecompressor().decompressobj().decompress(packed[12:])
            raw = raw[raw.find(b"{") : raw.rfind(b"}") + 1]
        else:
            raw = zstandard.ZstdDecompressor().decompressobj().decompress(packed)
        try:
            return int(json.loads(raw)["count"])
        except ValueError:
            raise Broken(f"2: snapshot {uri} holds no memory")

    # -- what clients see -------------------------------------------------------------------------------------------

    def asking(self) -> Before:
        """What is known when a request is sent: its answer must be beyond that."""
        return Before(dict(self.durable), dict(self.served), dict(self._falls))

    def answered(self, before: Before, wanted_uids: set[str], uid: str, count: int) -> None:
        """A request was answered; `wanted_uids` are those the name had while it was under way."""
        if uid not in wanted_uids:
            raise Broken(f"4: a request for {wanted_uids} was answered by actor {uid}")
        if count <= before.durable.get(uid, 0):
            raise Broken(f"2: actor {uid} answered {count}, an acknowledged suspend had saved {before.durable[uid]}")
        fell = self._falls[uid] != before.falls.get(uid, 0)
        if count <= before.served.get(uid, 0) and not fell:
            raise Broken(f"2: actor {uid} answered {count} after {before.served[uid]}, and it never crashed")
        if not fell:
            self.served[uid] = max(count, self.served.get(uid, 0))

    def suspended(self, actor: pb.Actor) -> None:
        """A suspend was acknowledged with this actor."""
        uri = actor.status.external_snapshot.snapshot_uri
        if f"/{actor.metadata.uid}/" in uri and f"{uri.removeprefix('file://')}/manifest.json" in self._objects:
            saved = self.count_of(uri)
            self.durable[actor.metadata.uid] = max(saved, self.durable.get(actor.metadata.uid, 0))

    def waited(self, what: str, seconds: float, most: float) -> None:
        if seconds > most:
            raise Broken(f"5: {what} was answered after {seconds:.1f} s, its deadline was {most:.0f} s")

    # -- when all is calm -------------------------------------------------------------------------------------------

    def disorder(self, folders: dict[str, str]) -> str:
        """What is not in order yet, empty when all is: after some time without faults everything has an owner.

        `folders`: actor uid -> node, for files on nodes.
        """
        actors = {row.uid: row.value for row in rows.scan(self._db, ACTORS, None, None, 1000)}
        for ram in self.rams:
            assigned = actors[ram.actor_uid].status.worker_assignment if ram.actor_uid in actors else None
            if ram.live and (assigned is None or f"ateom/{assigned.worker.name}" != ram.worker):
                return f"3: a sandbox of actor {ram.actor_uid} lives on {ram.worker}, where it has no place"
        for uid, actor in actors.items():
            if actor.status.state not in (
                pb.ACTOR_STATE_SUSPENDED,
                pb.ACTOR_STATE_PAUSED,
                pb.ACTOR_STATE_RUNNING,
                pb.ACTOR_STATE_CRASHED,
            ):
                return f"actor {actor.metadata.name} is still {pb.ActorState.Name(actor.status.state)}"
            if actor.status.state == pb.ACTOR_STATE_RUNNING and not any(
                r.live and r.actor_uid == uid for r in self.rams
            ):
                return f"3: actor {actor.metadata.name} is RUNNING without a sandbox"
        for uid, node in folders.items():
            if uid not in actors:
                return f"3: node {node} keeps files of actor {uid}, which is gone"
        tags = {row.uid for row in rows.scan(self._db, TAGS, None, None, 1000)}
        for path in self._objects:
            owner = (
                path.split("/actors/")[-1].split("/")[0]
                if "/actors/" in path
                else path.split("/tags/")[-1].split("/")[0]
            )
            if owner not in actors and owner not in tags:
                return f"3: object {path} has no owner"
        return ""

"""What an actor asks of a worker and what a worker has: the rules of placement, pure.

A worker is eligible when its class, state, labels, node and room fit. `candidates.py` chooses among those; the claim
itself is a transaction that asks these rules again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from ate import quantity
from ate.proto import ateapi_pb2 as pb

CLASS_NAMES: Mapping[int, str] = {pb.SANDBOX_CLASS_GVISOR: "gvisor", pb.SANDBOX_CLASS_MICROVM: "microvm"}


@dataclass(frozen=True)
class Needs:
    """What an actor asks of a worker. `cpu_milli` and `memory_bytes` 0: nothing declared."""

    sandbox_class: str
    selectors: tuple[Mapping[str, str], ...] = ()
    cpu_milli: int = 0
    memory_bytes: int = 0
    pinned_nodes: frozenset[str] | None = None
    cpu_features: str = ""
    """Id of the set of CPU features that the memory to be restored may rely on; empty: any CPU."""
    excluded_workers: frozenset[str] = frozenset()
    preferred_nodes: tuple[frozenset[str], ...] = ()
    """Sets of nodes in falling order of preference: those with the snapshot, those with the image."""


def needs_of(template: pb.ActorTemplate, actor: pb.Actor) -> Needs:
    """The needs an actor and its template state; placement preferences are the caller's to add."""
    selectors = [
        dict(source.worker_selector.match_labels) for source in (template, actor) if source.HasField("worker_selector")
    ]
    cpu, memory = amounts(template.resources)
    return Needs(CLASS_NAMES[template.sandbox_config.sandbox_class], tuple(selectors), cpu, memory)


def amounts(resources: pb.Resources) -> tuple[int, int]:
    """Thousandths of a core and bytes; 0 where nothing is declared."""
    by_name = {limit.name: limit.quantity for limit in resources.limits}
    cpu = quantity.milli_cpu(by_name["cpu"]) if "cpu" in by_name else 0
    memory = quantity.in_bytes(by_name["memory"]) if "memory" in by_name else 0
    return cpu, memory


UNBOUNDED: Final = 1 << 62
"""Free amount of what a worker does not limit."""


@dataclass(frozen=True, slots=True)
class Free:
    """Room of a worker: places for actors, thousandths of a core, bytes."""

    actors: int
    cpu_milli: int
    memory_bytes: int

    def holds(self, needs: Needs) -> bool:
        return self.actors > 0 and self.cpu_milli >= needs.cpu_milli and self.memory_bytes >= needs.memory_bytes

    def without(self, needs: Needs) -> Free:
        """What is left once an actor with these needs has come."""

        return self._less(1, needs.cpu_milli, needs.memory_bytes)

    def back(self, needs: Needs) -> Free:
        """What is free once an actor with these needs has gone."""
        return self._less(-1, -needs.cpu_milli, -needs.memory_bytes)

    def _less(self, actors: int, cpu_milli: int, memory_bytes: int) -> Free:
        return Free(
            self.actors - actors,
            UNBOUNDED if self.cpu_milli == UNBOUNDED else self.cpu_milli - cpu_milli,
            UNBOUNDED if self.memory_bytes == UNBOUNDED else self.memory_bytes - memory_bytes,
        )

    def bucket(self) -> tuple[int, int]:
        """Cpu and memory as powers of two, rounded down: what workers are grouped by."""
        return max(self.cpu_milli, 0).bit_length(), max(self.memory_bytes, 0).bit_length()

    @staticmethod
    def in_bucket(bucket: tuple[int, int], needs: Needs) -> bool | None:
        """Whether workers of the bucket hold the needs: all (True), none (False), or some may (None)."""
        asked = (needs.cpu_milli, needs.memory_bytes)
        if any(need >= 1 << bits for need, bits in zip(asked, bucket, strict=True)):
            return False
        return True if all(need <= (1 << bits) >> 1 for need, bits in zip(asked, bucket, strict=True)) else None


def free(worker: pb.Worker) -> Free:
    """Room of a worker. A zero or absent cpu or memory capacity is unconstrained (contract.md)."""
    capacity, allocated = worker.status.capacity, worker.status.allocated
    have, used = amounts(capacity.resources), amounts(allocated.resources)
    cpu, memory = (h - u if h else UNBOUNDED for h, u in zip(have, used, strict=True))
    return Free(max(capacity.actors, 1) - allocated.actors, cpu, memory)


def open_to_actors(worker: pb.Worker) -> bool:
    """Whether anything is placed on the worker at all, room aside."""
    return worker.status.state == pb.WORKER_STATE_ACTIVE and worker.status.observed_epoch == worker.epoch


def eligible(worker: pb.Worker, needs: Needs) -> bool:
    """Whether the worker may host the actor, room and its node's CPU aside."""
    return (
        worker.sandbox_class == needs.sandbox_class
        and open_to_actors(worker)
        and (needs.pinned_nodes is None or worker.node_name in needs.pinned_nodes)
        and all(worker.labels.get(key) == value for labels in needs.selectors for key, value in labels.items())
    )


@dataclass
class Affinity:
    """Where an actor's snapshot and a template's image were last seen; only a preference, so memory is enough."""

    limit: int = 100_000
    _snapshots: OrderedDict[str, str] = field(default_factory=OrderedDict)
    _images: OrderedDict[str, set[str]] = field(default_factory=OrderedDict)
    _failed: OrderedDict[str, set[str]] = field(default_factory=OrderedDict)

    def ran(self, actor_uid: str, template_uid: str, node: str) -> None:
        """The actor started on `node`: its image and snapshot are there now."""
        self._snapshots[actor_uid] = node
        self._snapshots.move_to_end(actor_uid)
        self._images.setdefault(template_uid, set()).add(node)
        self._failed.pop(actor_uid, None)
        for table in (self._snapshots, self._images):
            if len(table) > self.limit:
                table.popitem(last=False)

    def failed(self, actor_uid: str, worker: str) -> None:
        """A start failed on `worker`: it is not the next choice for this actor."""
        self._failed.setdefault(actor_uid, set()).add(worker)
        if len(self._failed) > self.limit:
            self._failed.popitem(last=False)

    def preferred(self, actor_uid: str, template_uid: str) -> tuple[frozenset[str], ...]:
        node = self._snapshots.get(actor_uid)
        return (frozenset({node}) if node else frozenset(), frozenset(self._images.get(template_uid, ())))

    def excluded(self, actor_uid: str) -> frozenset[str]:
        return frozenset(self._failed.get(actor_uid, ()))

    def forget(self, actor_uids: Collection[str]) -> None:
        for uid in actor_uids:
            self._snapshots.pop(uid, None)
            self._failed.pop(uid, None)

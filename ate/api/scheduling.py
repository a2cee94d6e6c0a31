"""Which worker an actor goes to. Pure: workers and needs in, an ordered choice out; the claim itself is a transaction.

A worker is eligible when its class, state, labels, node and room fit. Among those, one on a node that already holds
the actor's snapshot or image comes first, then the least recently used.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

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


def has_room(worker: pb.Worker, needs: Needs) -> bool:
    """Room for one more actor. A zero or absent cpu or memory capacity is unconstrained (contract.md)."""
    capacity, allocated = worker.status.capacity, worker.status.allocated
    if allocated.actors >= max(capacity.actors, 1):
        return False
    for have, used, need in zip(
        amounts(capacity.resources), amounts(allocated.resources), (needs.cpu_milli, needs.memory_bytes), strict=True
    ):
        if have and used + need > have:
            return False
    return True


def eligible(worker: pb.Worker, needs: Needs) -> bool:
    """Whether the worker may host the actor at all, room aside."""
    return (
        worker.sandbox_class == needs.sandbox_class
        and worker.status.state == pb.WORKER_STATE_ACTIVE
        and worker.status.observed_epoch == worker.epoch
        and (needs.pinned_nodes is None or worker.node_name in needs.pinned_nodes)
        and all(worker.labels.get(key) == value for labels in needs.selectors for key, value in labels.items())
    )


def choose(workers: Iterable[pb.Worker], needs: Needs) -> pb.Worker | None:
    """The worker to try first, or None. Excluded workers are only taken when nothing else fits."""
    best: pb.Worker | None = None
    best_rank: tuple[int, ...] = ()
    for worker in workers:
        if not eligible(worker, needs) or not has_room(worker, needs):
            continue
        rank = _rank(worker, needs)
        if best is None or rank < best_rank:
            best, best_rank = worker, rank
    return best


def _rank(worker: pb.Worker, needs: Needs) -> tuple[int, ...]:
    distance = next(
        (at for at, nodes in enumerate(needs.preferred_nodes) if worker.node_name in nodes), len(needs.preferred_nodes)
    )
    excluded = worker.metadata.name in needs.excluded_workers
    return int(excluded), distance, worker.metadata.update_time.ToNanoseconds()


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

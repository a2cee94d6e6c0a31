"""Workers that can take an actor, indexed so that a choice costs the same among ten and among ten thousand.

Workers are grouped by what decides whether they fit: class, labels, the CPU of their node, and how much is free, in
powers of two. A choice looks at groups, then takes the least recently used worker of those that fit for certain; where
there is none, groups at the edge of what is asked for are searched one by one. No I/O; `WorkerCache` feeds it.
"""

from __future__ import annotations

import contextlib
import heapq
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from ate.api import scheduling
from ate.api.scheduling import Free, Needs
from ate.proto import ateapi_pb2 as pb

_SAMPLE = 32
"""Workers looked at for one on a node that holds the image: a preference may not cost a search of all."""


class Cpus(Protocol):
    """What is known of the nodes' CPUs; `ate.api.cpus` is the real one."""

    def of_node(self, node: str) -> str:
        """Id of the node's set of CPU features; empty when it told none."""

    def fits(self, needed: str, has: str) -> bool:
        """Whether a memory image taken on a CPU with the set `needed` runs on one with the set `has`."""


class AnyCpu:
    """All nodes alike."""

    def of_node(self, node: str) -> str:
        return ""

    def fits(self, needed: str, has: str) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class _Sort:
    """What workers of one group have in common but for their room."""

    sandbox_class: str
    labels: frozenset[tuple[str, str]]
    cpu: str


@dataclass(slots=True)
class _Group:
    """Workers with room, least recently used first."""

    workers: OrderedDict[str, pb.Worker] = field(default_factory=OrderedDict)
    by_node: dict[str, OrderedDict[str, pb.Worker]] = field(default_factory=dict)

    def put(self, worker: pb.Worker) -> None:
        for table in (self.workers, self.by_node.setdefault(worker.node_name, OrderedDict())):
            last = next(reversed(table.values()), None)
            table[worker.metadata.name] = worker
            if last is not None and _used(last) > _used(worker):  # only at a first listing, which comes by name
                for name in sorted(table, key=lambda name: _used(table[name])):
                    table.move_to_end(name)

    def drop(self, worker: pb.Worker) -> None:
        del self.workers[worker.metadata.name]
        here = self.by_node[worker.node_name]
        del here[worker.metadata.name]
        if not here:
            del self.by_node[worker.node_name]


@dataclass(slots=True)
class _Entry:
    worker: pb.Worker
    sort: _Sort
    group: tuple[_Sort, tuple[int, int]] | None


class Candidates:
    """`put` and `remove` keep it; `choose` reads it; `claiming` holds room while a claim is being written."""

    def __init__(self, cpus: Cpus | None = None) -> None:
        self._cpus = cpus or AnyCpu()
        self._entries: dict[str, _Entry] = {}
        self._groups: dict[tuple[_Sort, tuple[int, int]], _Group] = {}
        self._nodes: dict[_Sort, Counter[str]] = {}
        self._claims: dict[str, list[Needs]] = {}

    def put(self, worker: pb.Worker) -> None:
        """Takes in a worker's newest state."""
        name = worker.metadata.name
        self.remove(name)
        if not scheduling.open_to_actors(worker):
            return
        labels = frozenset(worker.labels.items())
        sort = _Sort(worker.sandbox_class, labels, self._cpus.of_node(worker.node_name))
        free = self._free(worker)
        key = (sort, free.bucket()) if free.actors > 0 else None
        self._entries[name] = _Entry(worker, sort, key)
        self._nodes.setdefault(sort, Counter())[worker.node_name] += 1
        if key is not None:
            self._groups.setdefault(key, _Group()).put(worker)

    def remove(self, name: str) -> None:
        entry = self._entries.pop(name, None)
        if entry is None:
            return
        nodes = self._nodes[entry.sort]
        nodes[entry.worker.node_name] -= 1
        if not nodes[entry.worker.node_name]:
            del nodes[entry.worker.node_name]
            if not nodes:
                del self._nodes[entry.sort]
        if entry.group is not None:
            group = self._groups[entry.group]
            group.drop(entry.worker)
            if not group.workers:
                del self._groups[entry.group]

    @contextlib.contextmanager
    def claiming(self, worker: pb.Worker, needs: Needs) -> Iterator[None]:
        """Counts the needs as taken while the claim is written, so that others in this process choose elsewhere."""
        name = worker.metadata.name
        self._claims.setdefault(name, []).append(needs)
        self._refresh(name)
        try:
            yield
        finally:
            self._claims[name].remove(needs)
            if not self._claims[name]:
                del self._claims[name]
            self._refresh(name)

    def choose(self, needs: Needs) -> pb.Worker | None:
        """The worker to try first, or None. Excluded workers are only taken when nothing else fits.

        Nodes that hold the actor's snapshot come first, then, among the workers looked at, those that hold its image,
        then the least recently used.
        """
        certain: list[_Group] = []
        edge: list[_Group] = []
        for (sort, bucket), group in self._groups.items():
            holds = Free.in_bucket(bucket, needs)
            if holds is not False and self._sort_fits(sort, needs):
                (certain if holds else edge).append(group)
        fallback: list[pb.Worker] = []
        with_snapshot, with_image = (*needs.preferred_nodes, frozenset[str](), frozenset[str]())[:2]
        if needs.pinned_nodes is not None:
            with_snapshot &= needs.pinned_nodes
        if with_snapshot:
            found = next(self._fitting([*certain, *edge], needs, with_snapshot, fallback), None)
            if found is not None:
                return found
        for groups in (certain, edge):
            fitting = self._fitting(groups, needs, needs.pinned_nodes, fallback)
            first = list(islice(fitting, _SAMPLE if with_image else 1))
            if first:
                return next((worker for worker in first if worker.node_name in with_image), first[0])
        return fallback[0] if fallback else None

    def fitting(self, needs: Needs) -> int:
        """How many workers would fit if they had room."""
        nodes = [counted for sort, counted in self._nodes.items() if self._sort_fits(sort, needs)]
        if needs.pinned_nodes is None:
            return sum(counted.total() for counted in nodes)
        return sum(counted[node] for counted in nodes for node in needs.pinned_nodes)

    def _fitting(
        self, groups: Iterable[_Group], needs: Needs, nodes: frozenset[str] | None, fallback: list[pb.Worker]
    ) -> Iterator[pb.Worker]:
        """Workers with room, least recently used first, on `nodes` if given; excluded ones go to `fallback`."""
        tables = [
            table
            for group in groups
            for table in (
                [group.workers] if nodes is None else [group.by_node[node] for node in nodes if node in group.by_node]
            )
        ]
        for worker in heapq.merge(*(table.values() for table in tables), key=_used):
            if not self._free(worker).holds(needs):
                continue
            if worker.metadata.name in needs.excluded_workers:
                fallback.append(worker)
                continue
            yield worker

    def _sort_fits(self, sort: _Sort, needs: Needs) -> bool:
        return (
            sort.sandbox_class == needs.sandbox_class
            and all((label, value) in sort.labels for wanted in needs.selectors for label, value in wanted.items())
            and self._cpus.fits(needs.cpu_features, sort.cpu)
        )

    def _free(self, worker: pb.Worker) -> Free:
        free = scheduling.free(worker)
        for needs in self._claims.get(worker.metadata.name, ()):
            free = free.without(needs)
        return free

    def _refresh(self, name: str) -> None:
        entry = self._entries.get(name)
        if entry is not None:
            self.put(entry.worker)


def _used(worker: pb.Worker) -> tuple[int, str]:
    """When the worker last changed: to whom room was given longest ago comes first."""
    return worker.metadata.update_time.ToNanoseconds(), worker.metadata.name

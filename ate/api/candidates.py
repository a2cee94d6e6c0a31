"""Workers that can take an actor, indexed so that a choice costs the same among ten and among ten thousand.

Workers are grouped by what decides whether they fit: class, labels, the CPU of their node, and how much is free, in
powers of two. A choice looks at groups, then takes the least recently used worker of those that fit for certain; where
there is none, groups at the edge of what is asked for are searched one by one. No I/O; `WorkerCache` feeds it.
"""

from __future__ import annotations

import contextlib
import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from sortedcontainers import SortedDict

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


_Used = tuple[int, str]
"""When a worker last changed, in Unix nanoseconds, and its name: to whom room was given longest ago comes first."""


def _used(worker: pb.Worker) -> _Used:
    return worker.metadata.update_time.ToNanoseconds(), worker.metadata.name


@dataclass(slots=True)
class _Group:
    """Workers with room, least recently used first: all, and those of each node."""

    entries: MutableMapping[_Used, _Entry] = field(default_factory=SortedDict)
    by_node: dict[str, MutableMapping[_Used, _Entry]] = field(default_factory=dict)

    def put(self, entry: _Entry) -> None:
        self.entries[entry.used] = entry
        here = self.by_node.get(entry.worker.node_name)
        if here is None:
            here = self.by_node[entry.worker.node_name] = SortedDict()
        here[entry.used] = entry

    def drop(self, entry: _Entry) -> None:
        del self.entries[entry.used]
        here = self.by_node[entry.worker.node_name]
        del here[entry.used]
        if not here:
            del self.by_node[entry.worker.node_name]


@dataclass(slots=True)
class _Entry:
    """`left` is what its stored state leaves free less what claims under way take."""

    worker: pb.Worker
    used: _Used
    sort: _Sort
    left: Free
    group: _Key | None = None


_Key = tuple[_Sort, tuple[int, int]]


class Candidates:
    """`put` and `remove` keep it; `choose` reads it; `claiming` holds room while a claim is being written."""

    def __init__(self, cpus: Cpus | None = None) -> None:
        self._cpus = cpus or AnyCpu()
        self._entries: dict[str, _Entry] = {}
        self._groups: dict[_Key, _Group] = {}
        self._nodes: dict[_Sort, Counter[str]] = {}
        self._claims: dict[str, list[Needs]] = {}

    def put(self, worker: pb.Worker) -> None:
        """Takes in a worker's newest state."""
        name = worker.metadata.name
        self.remove(name)
        if not scheduling.open_to_actors(worker):
            return
        left = scheduling.free(worker)
        for needs in self._claims.get(name, ()):
            left = left.without(needs)
        sort = _Sort(worker.sandbox_class, frozenset(worker.labels.items()), self._cpus.of_node(worker.node_name))
        entry = self._entries[name] = _Entry(worker, _used(worker), sort, left)
        self._nodes.setdefault(sort, Counter())[worker.node_name] += 1
        self._group(entry)

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
        self._ungroup(entry)

    def _group(self, entry: _Entry) -> None:
        """Puts the entry where its room says."""
        key = (entry.sort, entry.left.bucket()) if entry.left.actors > 0 else None
        if key == entry.group:
            return
        self._ungroup(entry)
        entry.group = key
        if key is not None:
            self._groups.setdefault(key, _Group()).put(entry)

    def _ungroup(self, entry: _Entry) -> None:
        if entry.group is None:
            return
        group = self._groups[entry.group]
        group.drop(entry)
        if not group.entries:
            del self._groups[entry.group]
        entry.group = None

    @contextlib.contextmanager
    def claiming(self, worker: pb.Worker, needs: Needs) -> Iterator[None]:
        """Counts the needs as taken while the claim is written, so that others in this process choose elsewhere."""
        name = worker.metadata.name
        self._claims.setdefault(name, []).append(needs)
        self._change(name, lambda left: left.without(needs))
        try:
            yield
        finally:
            self._claims[name].remove(needs)
            if not self._claims[name]:
                del self._claims[name]
            self._change(name, lambda left: left.back(needs))

    def _change(self, name: str, change: Callable[[Free], Free]) -> None:
        entry = self._entries.get(name)
        if entry is not None:
            entry.left = change(entry.left)
            self._group(entry)

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
            first: pb.Worker | None = None
            for worker in islice(self._fitting(groups, needs, needs.pinned_nodes, fallback), _SAMPLE):
                if not with_image or worker.node_name in with_image:
                    return worker
                first = first or worker
            if first is not None:
                return first
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
                [group.entries] if nodes is None else [group.by_node[node] for node in nodes if node in group.by_node]
            )
        ]
        for entry in heapq.merge(*(table.values() for table in tables), key=lambda entry: entry.used):
            if not entry.left.holds(needs):
                continue
            if entry.worker.metadata.name in needs.excluded_workers:
                fallback.append(entry.worker)
                continue
            yield entry.worker

    def _sort_fits(self, sort: _Sort, needs: Needs) -> bool:
        return (
            sort.sandbox_class == needs.sandbox_class
            and all((label, value) in sort.labels for wanted in needs.selectors for label, value in wanted.items())
            and self._cpus.fits(needs.cpu_features, sort.cpu)
        )

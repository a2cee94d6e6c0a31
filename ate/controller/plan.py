"""What to do about the workers of this machine: pools, processes and records in, steps out. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ate.proto import ateapi_pb2 as pb


@dataclass(frozen=True)
class Process:
    """A worker's process on this machine. `epoch` counts its starts; `ready` when its socket answers."""

    uid: str
    pool: str
    ip: str
    epoch: int
    alive: bool
    ready: bool


@dataclass(frozen=True)
class Start:
    """Start one more worker of the pool."""

    pool: str


@dataclass(frozen=True)
class Restart:
    """The process died: record the loss (a higher epoch), then start it again."""

    uid: str


@dataclass(frozen=True)
class Announce:
    """The process is ready and the control plane does not know it (or knows an older epoch or other labels)."""

    uid: str


@dataclass(frozen=True)
class Retire:
    """Drain the worker, suspend what runs on it, stop its process, remove its record."""

    uid: str


@dataclass(frozen=True)
class Forget:
    """A record of this node without any process behind it."""

    uid: str


Step = Start | Restart | Announce | Retire | Forget


def plan(
    pools: Mapping[str, pb.WorkerPool],
    processes: Mapping[str, Process],
    workers: Mapping[str, pb.Worker],
    retiring: frozenset[str] = frozenset(),
) -> Sequence[Step]:
    """The steps that bring processes and records in line with the pools. `retiring` workers are left to themselves.

    A pool shrinks by the workers without an actor first, then by the most recently used, so that the fewest actors
    have to move.
    """
    steps: list[Step] = []
    kept: set[str] = set()
    for name, pool in sorted(pools.items()):
        mine = [p for p in processes.values() if p.pool == name and p.uid not in retiring]
        mine.sort(key=lambda p: _keep_rank(p, workers.get(p.uid)))
        wanted = pool.spec.replicas
        steps += [Start(name)] * max(wanted - len(mine), 0)
        kept |= {process.uid for process in mine[:wanted]}
    for process in sorted(processes.values(), key=lambda p: p.uid):
        if process.uid in retiring:
            continue
        if process.uid not in kept:
            steps.append(Retire(process.uid))
        elif not process.alive:
            steps.append(Restart(process.uid))
        elif process.ready and _stale(pools[process.pool], process, workers.get(process.uid)):
            steps.append(Announce(process.uid))
    steps += [Forget(uid) for uid in sorted(workers) if uid not in processes and uid not in retiring]
    return steps


def _keep_rank(process: Process, worker: pb.Worker | None) -> tuple[int, int, str]:
    """Lower stays longer: workers with actors, then the longest unused, then by name."""
    if worker is None:
        return (2, 0, process.uid)
    return (0 if worker.status.allocated.actors else 1, worker.metadata.create_time.ToNanoseconds(), process.uid)


def labels_of(pool: pb.WorkerPool) -> dict[str, str]:
    """Labels a worker of the pool carries: the pool's own and the contract's pool label."""
    return {**pool.labels, "ate.dev/worker-pool": pool.metadata.name}


def _stale(pool: pb.WorkerPool, process: Process, worker: pb.Worker | None) -> bool:
    return worker is None or worker.epoch < process.epoch or dict(worker.labels) != labels_of(pool)

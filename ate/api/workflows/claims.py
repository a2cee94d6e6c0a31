"""Claiming room on a worker and giving it back: the transactions that keep two actors from one place. No I/O beyond.

A claim is an assignment row (scope: the worker, name: the actor's uid) together with the sums in the worker's status
and the assignment in the actor's status; all three change in one transaction or not at all.
"""

from __future__ import annotations

from ate.api import scheduling
from ate.api.kinds import ACTORS, ASSIGNMENTS, TEMPLATES, WORKERS, key_of
from ate.api.workflows import history
from ate.errors import Aborted, FailedPrecondition, Internal
from ate.proto import ateapi_pb2 as pb
from ate.store import Key, Lease, Row, Tx


class WorkerTaken(Exception):
    """The chosen worker is gone, no longer eligible, or full: choose another. `row` is its newest state, if any."""

    def __init__(self, row: Row[pb.Worker] | None) -> None:
        super().__init__()
        self.row = row


def bind(
    tx: Tx,
    actor: Row[pb.Actor],
    worker_name: str,
    needs: scheduling.Needs,
    resources: pb.Resources,
    lease: Lease,
    noted: history.Note,
) -> tuple[Row[pb.Actor], Row[pb.Worker], Row[pb.ActorAssignment]]:
    """Binds the actor to the worker and marks it RESUMING.

    WorkerTaken when the worker no longer fits; Aborted when the actor changed or already has a claim.
    """
    tx.require_lease(lease)
    worker = tx.get(WORKERS, Key("", worker_name))
    fits = (
        worker is not None and scheduling.eligible(worker.value, needs) and scheduling.free(worker.value).holds(needs)
    )
    if worker is None or not fits:
        raise WorkerTaken(worker)
    if tx.get(TEMPLATES, key_of(actor.value.actor_template)) is None:
        raise FailedPrecondition(f"actor template not found: {key_of(actor.value.actor_template)}")
    if tx.scan_owned(ASSIGNMENTS, actor.uid, limit=1):
        raise Aborted(f"actor {actor.key} already holds a place on a worker: retry in a moment")
    assignment = tx.insert(
        ASSIGNMENTS,
        Key(worker_name, actor.uid),
        pb.ActorAssignment(
            actor=pb.ObjectRef(atespace=actor.key.scope, name=actor.key.name),
            actor_uid=actor.uid,
            actor_template_ref=actor.value.actor_template,
            resources=resources,
            metadata=pb.ResourceMetadata(name=actor.uid),
            worker_epoch=worker.value.epoch,
        ),
    )
    worker = _write_allocated(tx, worker, resources, +1)
    before = history.standing(actor.value)
    status = actor.value.status
    status.state = pb.ACTOR_STATE_RESUMING
    status.worker_assignment.CopyFrom(
        pb.WorkerAssignment(
            worker_namespace=worker.value.worker_namespace,
            worker_pool=worker.value.worker_pool,
            worker_pod=worker.value.worker_pod,
            worker_pod_uid=worker.value.worker_pod_uid,
            worker_pod_ips=worker.value.ips,
            worker=pb.ObjectRef(name=worker_name),
            node_name=worker.value.node_name,
            worker_epoch=worker.value.epoch,
        )
    )
    actor = tx.update(ACTORS, actor.key, actor.value, uid=actor.uid, version=actor.version)
    history.record(tx, noted, before, actor)
    return actor, worker, assignment


def release(tx: Tx, actor_uid: str) -> Row[pb.Worker] | None:
    """Gives back every claim of the actor; the last worker's new row, for the cache. None when it held none."""
    worker = None
    for assignment in tx.scan_owned(ASSIGNMENTS, actor_uid, limit=10):
        tx.delete(ASSIGNMENTS, assignment.key)
        worker = tx.get(WORKERS, Key("", assignment.key.scope))
        if worker is not None:
            worker = _write_allocated(tx, worker, assignment.value.resources, -1)
    return worker


def hosts(tx: Tx, actor: Row[pb.Actor]) -> bool:
    """Whether the claim the actor's status speaks of still stands: row there, worker there, same epoch."""
    assigned = actor.value.status.worker_assignment
    worker = tx.get(WORKERS, Key("", assigned.worker.name))
    claim = tx.get(ASSIGNMENTS, Key(assigned.worker.name, actor.uid))
    return worker is not None and claim is not None and worker.value.epoch == assigned.worker_epoch


def _write_allocated(tx: Tx, worker: Row[pb.Worker], resources: pb.Resources, sign: int) -> Row[pb.Worker]:
    allocated = worker.value.status.allocated
    cpu, memory = scheduling.amounts(allocated.resources)
    add_cpu, add_memory = scheduling.amounts(resources)
    actors = allocated.actors + sign
    if actors < 0:
        raise Internal(f"worker {worker.key} would hold {actors} actors: its place was given back twice")
    limits = []
    for name, amount in (
        ("cpu", f"{max(cpu + sign * add_cpu, 0)}m"),
        ("memory", str(max(memory + sign * add_memory, 0))),
    ):
        if amount not in ("0m", "0"):
            limits.append(pb.Limits(name=name, quantity=amount))
    allocated.CopyFrom(pb.WorkerResources(actors=actors, resources=pb.Resources(limits=limits)))
    return tx.update(WORKERS, key_of(worker.value.metadata), worker.value, uid=worker.uid, version=worker.version)

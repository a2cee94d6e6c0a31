"""Workers: what may change of them, what their node says, and what their end does to the actors on them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from ate.proto import ateapi_pb2 as pb
from tests.system.api_peer import Api, refused
from tests.system.api_table import makers
from tests.system.api_table.lifecycle import name_of
from tests.system.api_table.makers import LONGEST, add_running, limits, on, own_worker, read_actor, ref, ref_of
from tests.system.api_table.resources import BAD_SHORT, BAD_UUID
from tests.system.api_table.rows import add, row


def bad_worker(verb: str, api: Api) -> None:
    sound = makers.worker(api.fresh("worker"), labels={f"k{number}": "v" for number in range(64)}, ips=["a", "b"])
    if verb == "Update":
        sound = api.user("CreateWorker", worker=sound)

    def tried(path: str, change: Callable[[pb.Worker], Any]) -> None:
        wrong = pb.Worker()
        wrong.CopyFrom(sound)
        change(wrong)
        with refused("INVALID_ARGUMENT", f"worker.{path}"):
            api.user(f"{verb}Worker", worker=wrong)

    tried("ips", lambda worker: worker.ips.append("c"))
    tried("sandbox_class", lambda worker: setattr(worker, "sandbox_class", "x" * 64))
    tried("node_name", lambda worker: setattr(worker, "node_name", LONGEST + "x"))
    tried("labels", lambda worker: worker.labels.update({"k64": "v"}))
    tried("labels[k0]", lambda worker: worker.labels.update({"k0": "v" * 64}))
    tried("labels[k0]", lambda worker: worker.labels.update({"k0": "v w"}))
    tried("epoch", lambda worker: setattr(worker, "epoch", -1))
    assert len(api.user(f"{verb}Worker", worker=sound).labels) == 64


add(
    "CreateWorker", "bounds of its fields: the edge is fine, one beyond INVALID_ARGUMENT", partial(bad_worker, "Create")
)
add(
    "UpdateWorker", "bounds of its fields: the edge is fine, one beyond INVALID_ARGUMENT", partial(bad_worker, "Update")
)


@row("CreateWorker", "is ACTIVE, its epoch observed, its capacity unset")
def _create(api: Api) -> None:
    made = api.user("CreateWorker", worker=makers.worker(api.fresh("worker"), epoch=7))
    assert made.status == pb.WorkerStatus(state=pb.WORKER_STATE_ACTIVE, observed_epoch=7)


@row("UpdateWorker", "the epoch rises and never falls")
def _epoch(api: Api) -> None:
    worker = api.user("CreateWorker", worker=makers.worker(api.fresh("worker"), epoch=5))
    worker.epoch = 4
    with refused("INVALID_ARGUMENT", "worker.epoch"):
        api.user("UpdateWorker", worker=worker)
    worker.epoch = 6
    after = api.user("UpdateWorker", worker=worker)
    assert after.epoch == after.status.observed_epoch == 6


@row("UpdateWorker", "a higher epoch crashes the actors of the one before, and frees their places")
def _restart(api: Api) -> None:
    worker = own_worker(api)
    actor = add_running(api, **on(worker))
    worker = api.user("GetWorker", worker=ref_of(worker))
    assert worker.status.allocated.actors == 1
    worker.epoch += 1
    after = api.user("UpdateWorker", worker=worker)
    assert after.status.allocated.actors == 0
    assert name_of(read_actor(api, actor)) == "CRASHED"
    assert not api.user("ListWorkerActorAssignments", worker=ref_of(worker)).actor_assignments


def references(rpc: str, api: Api) -> None:
    caller = api.atelet if rpc == "SetWorkerCapacity" else api.user
    body = {"capacity": pb.WorkerResources(actors=1)} if rpc == "SetWorkerCapacity" else {}
    with refused("INVALID_ARGUMENT", "worker"):
        caller(rpc, **body)
    for name in BAD_SHORT:
        with refused("INVALID_ARGUMENT", "worker.name"):
            caller(rpc, worker=ref("", name), **body)
    with refused("INVALID_ARGUMENT", "worker.atespace", "worker.name"):
        caller(rpc, worker=ref("any", ""), **body)
    with refused("NOT_FOUND", "no-such-worker"):
        caller(rpc, worker=ref("", "no-such-worker"), **body)


for name in ("DrainWorker", "SetWorkerCapacity"):
    add(name, "a missing or bad reference is INVALID_ARGUMENT, an unknown worker NOT_FOUND", partial(references, name))


@row("DrainWorker", "stops new placements and leaves those there; repeating it changes nothing")
def _drain(api: Api) -> None:
    worker = own_worker(api)
    actor = add_running(api, **on(worker))
    worker = api.user("GetWorker", worker=ref_of(worker))
    drained = api.user("DrainWorker", worker=ref_of(worker))
    assert drained.status.state == pb.WORKER_STATE_DRAINING
    assert drained.metadata.version == worker.metadata.version + 1
    assert api.user("DrainWorker", worker=ref_of(worker)) == drained
    assert read_actor(api, actor) == actor


@row("DeleteWorker", "crashes the actors still on it and takes their claims along")
def _delete(api: Api) -> None:
    worker = own_worker(api)
    actor = add_running(api, **on(worker))
    gone = api.user("DeleteWorker", worker=ref_of(worker))
    assert gone.metadata.uid == worker.metadata.uid and gone.status.state == pb.WORKER_STATE_DRAINING
    lost = read_actor(api, actor)
    assert name_of(lost) == "CRASHED" and "worker" in lost.status.crash.message
    assert not lost.status.HasField("worker_assignment")


# -- what the node says -------------------------------------------------------------------------------------------


@row("SetWorkerCapacity", "bounds of a capacity: the edge is fine, one beyond INVALID_ARGUMENT")
def _capacity_bounds(api: Api) -> None:
    worker = ref_of(own_worker(api))

    def tried(path: str, **fields: Any) -> None:
        with refused("INVALID_ARGUMENT", f"capacity{path}"):
            api.atelet("SetWorkerCapacity", worker=worker, capacity=pb.WorkerResources(**fields))

    with refused("INVALID_ARGUMENT", "capacity"):
        api.atelet("SetWorkerCapacity", worker=worker)
    tried(".actors")
    tried(".actors", actors=-1)
    tried(".resources.limits[0].quantity", actors=1, resources=limits(cpu="1000"))
    tried(".resources.limits[0].quantity", actors=1, resources=limits(memory="0"))
    tried(".resources.limits[0].quantity", actors=1, resources=limits(memory="x"))
    tried(".resources.limits[0].name", actors=1, resources=limits(disk="1"))
    twice = pb.Resources(limits=[pb.Limits(name="cpu", quantity="1")] * 2)
    tried(".resources.limits[1]", actors=1, resources=twice)
    with refused("INVALID_ARGUMENT", "worker.name", "capacity.actors", "capacity.resources.limits[0].name"):
        capacity = pb.WorkerResources(resources=limits(disk="1"))
        api.atelet("SetWorkerCapacity", worker=pb.ObjectRef(), capacity=capacity)
    most = pb.WorkerResources(actors=2**31 - 1, resources=limits(cpu="999.999", memory="7E"))
    answer = api.atelet("SetWorkerCapacity", worker=worker, capacity=most)
    assert answer.worker.status.capacity == most


@row("SetWorkerCapacity", "replaces the whole capacity; equal values change nothing")
def _capacity(api: Api) -> None:
    worker = api.user("CreateWorker", worker=makers.worker(api.fresh("worker")))
    first = pb.WorkerResources(actors=2, resources=limits(cpu="1", memory="1Gi"))
    after = api.atelet("SetWorkerCapacity", worker=ref_of(worker), capacity=first).worker
    assert after.status.capacity == first and after.metadata.version == 2
    assert api.atelet("SetWorkerCapacity", worker=ref_of(worker), capacity=first).worker == after
    second = pb.WorkerResources(actors=3)
    after = api.atelet("SetWorkerCapacity", worker=ref_of(worker), capacity=second).worker
    assert after.status.capacity == second and after.metadata.version == 3
    assert api.user("GetWorker", worker=ref_of(worker)) == after


@row("SetWorkerCapacity", "a worker of another node is NOT_FOUND; a caller of no node PERMISSION_DENIED")
def _other_node(api: Api) -> None:
    worker, capacity = own_worker(api), pb.WorkerResources(actors=9)
    with refused("NOT_FOUND", worker.metadata.name):
        api.far_atelet("SetWorkerCapacity", worker=ref_of(worker), capacity=capacity)
    with refused("PERMISSION_DENIED", "node"):
        api.homeless_atelet("SetWorkerCapacity", worker=ref_of(worker), capacity=capacity)
    assert api.user("GetWorker", worker=ref_of(worker)).status.capacity.actors == 1


@row("RequestActorSuspend", "what is missing or malformed is INVALID_ARGUMENT, all in one error")
def _suspend_bad(api: Api) -> None:
    good: dict[str, Any] = {"worker": ref("", "w"), "actor": ref("a", "b"), "actor_uid": str(uuid.uuid4())}
    for name in good:
        with refused("INVALID_ARGUMENT", name):
            api.atelet("RequestActorSuspend", **{key: value for key, value in good.items() if key != name})
    for wrong in BAD_UUID:
        with refused("INVALID_ARGUMENT", "actor_uid"):
            api.atelet("RequestActorSuspend", **{**good, "actor_uid": wrong})
    with refused("INVALID_ARGUMENT", "worker.name", "actor.name", "actor.atespace", "actor_uid"):
        api.atelet("RequestActorSuspend", worker=pb.ObjectRef(), actor=pb.ObjectRef())


@row("RequestActorSuspend", "suspends the actor its worker holds; repeated it is NOT_FOUND")
def _suspend(api: Api) -> None:
    worker = own_worker(api)
    actor = add_running(api, **on(worker))
    asked = {"worker": ref_of(worker), "actor": ref_of(actor), "actor_uid": actor.metadata.uid}
    assert name_of(api.atelet("RequestActorSuspend", **asked).actor) == "SUSPENDED"
    with refused("NOT_FOUND"):
        api.atelet("RequestActorSuspend", **asked)


@row("RequestActorSuspend", "another worker, node, actor or uid is NOT_FOUND and changes nothing")
def _suspend_others(api: Api) -> None:
    worker, other = own_worker(api), own_worker(api)
    actor = add_running(api, **on(worker))
    asked = {"worker": ref_of(worker), "actor": ref_of(actor), "actor_uid": actor.metadata.uid}
    for wrong in (
        {"worker": ref_of(other)},
        {"worker": ref("", "no-such-worker")},
        {"actor": ref(actor.metadata.atespace, "no-such-actor")},
        {"actor_uid": str(uuid.uuid4())},
    ):
        with refused("NOT_FOUND"):
            api.atelet("RequestActorSuspend", **{**asked, **wrong})
    with refused("NOT_FOUND"):
        api.far_atelet("RequestActorSuspend", **asked)
    with refused("PERMISSION_DENIED", "node"):
        api.homeless_atelet("RequestActorSuspend", **asked)
    assert read_actor(api, actor) == actor

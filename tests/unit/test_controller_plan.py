"""Promises of the controller's plan: pools, processes and records in, the right steps out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ate.controller.plan import Announce, Forget, Process, Restart, Retire, Start, labels_of, plan
from ate.proto import ateapi_pb2 as pb


def pool(replicas: int, name: str = "p", **labels: str) -> pb.WorkerPool:
    value = pb.WorkerPool(metadata=pb.ResourceMetadata(name=name), labels=labels)
    value.spec.replicas = replicas
    return value


def process(uid: str, *, alive: bool = True, ready: bool = True, epoch: int = 1, name: str = "p") -> Process:
    return Process(uid, name, "127.0.0.1", epoch, alive, ready)


def worker(uid: str, pool_: pb.WorkerPool, *, epoch: int = 1, actors: int = 0) -> pb.Worker:
    value = pb.Worker(metadata=pb.ResourceMetadata(name=uid), epoch=epoch, labels=labels_of(pool_))
    value.status.allocated.actors = actors
    return value


def test_a_new_pool_starts_its_workers() -> None:
    assert plan({"p": pool(2)}, {}, {}) == [Start("p"), Start("p")]


def test_a_ready_worker_is_announced_once() -> None:
    p = pool(1)
    assert plan({"p": p}, {"a": process("a", ready=False)}, {}) == []
    assert plan({"p": p}, {"a": process("a")}, {}) == [Announce("a")]
    assert plan({"p": p}, {"a": process("a")}, {"a": worker("a", p)}) == []


def test_a_dead_worker_is_restarted_and_its_higher_epoch_told() -> None:
    p = pool(1)
    assert plan({"p": p}, {"a": process("a", alive=False, ready=False)}, {"a": worker("a", p)}) == [Restart("a")]
    assert plan({"p": p}, {"a": process("a", epoch=2)}, {"a": worker("a", p)}) == [Announce("a")]


def test_changed_labels_of_a_pool_reach_its_workers() -> None:
    assert plan({"p": pool(1, zone="b")}, {"a": process("a")}, {"a": worker("a", pool(1))}) == [Announce("a")]


def test_a_shrinking_pool_lets_go_of_workers_without_an_actor_first() -> None:
    p = pool(1)
    processes = {uid: process(uid) for uid in "abc"}
    workers = {"a": worker("a", p), "b": worker("b", p, actors=1), "c": worker("c", p)}
    assert plan({"p": p}, processes, workers) == [Retire("a"), Retire("c")]


def test_workers_of_a_deleted_pool_retire_and_records_without_a_process_are_forgotten() -> None:
    p = pool(1)
    assert plan({}, {"a": process("a")}, {"a": worker("a", p), "b": worker("b", p)}) == [Retire("a"), Forget("b")]


def test_a_worker_that_is_retiring_is_left_alone() -> None:
    assert plan({}, {"a": process("a")}, {"a": worker("a", pool(1))}, frozenset("a")) == []


@given(st.integers(0, 6), st.sets(st.sampled_from("abcdefgh")))
def test_following_the_plan_always_ends_with_as_many_workers_as_asked(replicas: int, present: set[str]) -> None:
    p = pool(replicas)
    steps = plan({"p": p}, {uid: process(uid) for uid in present}, {})
    change = sum(isinstance(s, Start) for s in steps) - sum(isinstance(s, Retire) for s in steps)
    assert len(present) + change == replicas

"""Promises of the api role's metrics: what an operation, a search for a worker and a crash are counted as."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio.testing

from ate.api.workflows import measures, revert
from ate.errors import AteError, Internal, ResourceExhausted
from ate.names import Ref
from ate.proto import ateapi_pb2 as pb
from ate.telemetry import metrics
from tests.simulation.cluster import open_cluster

Points = dict[str, list[dict[str, str]]]


@pytest.fixture
def clock(autojump_clock: trio.testing.MockClock) -> trio.testing.MockClock:
    return autojump_clock


@pytest.fixture
def points() -> Iterator[Points]:
    """What is written to the api's instruments: their names to the labels of every point."""
    found: Points = {}

    def write_to(name: str) -> None:
        instrument.write = lambda value, labels: found.setdefault(name, []).append(dict(labels))

    ours = (
        metrics.LIFECYCLE_DURATION, metrics.ASSIGNMENT_DURATION, metrics.ELIGIBLE_WORKERS, metrics.ACTOR_CRASHES,
    )  # fmt: skip
    for instrument in ours:
        write_to(instrument.name)
    yield found
    for instrument in ours:
        instrument.write = None


TEMPLATE = {"ate.template.atespace": "demo", "ate.template.name": "t"}
PLACE = {"ate.workerpool.namespace": "", "ate.workerpool.name": "main", "ate.sandbox.class": "gvisor"}


async def test_an_actors_life_is_measured_with_its_labels(clock: object, points: Points) -> None:
    async with open_cluster() as cluster:
        await cluster.add_worker(worker_pool="main")
        await cluster.add_template()
        await cluster.add_actor("a")
        await cluster.resume("a")
        await cluster.suspend("a")
        await cluster.resume("a")
        await revert.revert(cluster.ctx, Ref("demo", "a"))
        await revert.delete(cluster.ctx, Ref("demo", "a"), any_state=False, options=pb.DeleteOptions())
        create, boot, suspend, latest, reverted, deleted = points["ate.actor.lifecycle.operation.duration"]
        named = "ate.actor.operation.name"
        assert create == {named: "create", **TEMPLATE}
        assert boot == {
            named: "resume", **TEMPLATE, **PLACE, "ate.snapshot.kind": "boot", "ate.snapshot.scope": "unknown",
        }  # fmt: skip
        assert suspend == {named: "suspend", **TEMPLATE, **PLACE, "ate.snapshot.scope": "full"}
        assert latest == boot | {"ate.snapshot.kind": "latest", "ate.snapshot.scope": "full"}
        assert (reverted[named], deleted[named]) == ("revert", "delete")
        assert points["ate.scheduler.assignment.duration"] == [{"ate.scheduler.outcome": "assigned", **PLACE}] * 2
        assert points["ate.scheduler.eligible_workers"] == [{"ate.scheduling.constraint": "none", **PLACE}] * 2


async def test_failures_and_crashes_are_counted_as_what_they_are(clock: object, points: Points) -> None:
    async with open_cluster(recover=False) as cluster:
        await cluster.add_template()
        await cluster.add_actor("a")
        with pytest.raises(ResourceExhausted):
            await cluster.resume("a")
        assert points["ate.actor.lifecycle.operation.duration"][-1]["error.type"] == "RESOURCE_EXHAUSTED"
        assert points["ate.scheduler.assignment.duration"] == [
            {"ate.scheduler.outcome": "no_free_worker", "ate.sandbox.class": "gvisor"}
        ]
        assert points["ate.scheduler.eligible_workers"] == [
            {"ate.scheduling.constraint": "none", "ate.sandbox.class": "gvisor"}
        ]
        await cluster.add_worker(worker_pool="main")

        def broken(what: str) -> None:
            if what == "start":
                raise Internal("no")

        cluster.node.before = broken
        with pytest.raises(AteError):
            await cluster.resume("a")
        assert points["ate.actor.lifecycle.operation.duration"][-1]["error.type"] == "INTERNAL"
        assert points["ate.actor.crashes"] == [{"ate.actor.operation.name": "resume", **TEMPLATE, **PLACE}]


def test_workers_are_counted_by_what_they_can_take() -> None:
    def worker(pool: str, **status: object) -> pb.Worker:
        made = pb.Worker(worker_pool=pool, sandbox_class="gvisor", epoch=1)
        made.status.state, made.status.observed_epoch = pb.WORKER_STATE_ACTIVE, 1
        made.status.MergeFrom(pb.WorkerStatus(**status))  # type: ignore[arg-type]
        return made

    def holding(actors: int) -> pb.WorkerResources:
        return pb.WorkerResources(actors=actors)

    workers = [
        worker("a"),
        worker("a"),
        worker("a", allocated=holding(1)),
        worker("b", capacity=holding(2), allocated=holding(1)),
        worker("b", state=pb.WORKER_STATE_DRAINING),
    ]
    counted = {
        (labels["ate.workerpool.name"], labels["ate.worker.state"]): number
        for number, labels in measures.workers_by_state(workers)
    }
    assert counted == {("a", "idle"): 2, ("a", "at_capacity"): 1, ("b", "partial"): 1, ("b", "unschedulable"): 1}

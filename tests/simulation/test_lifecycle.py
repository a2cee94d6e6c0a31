"""Promises of what happens to actors by itself: they wake at their time, and their life ends when it is to end."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from google.protobuf.duration_pb2 import Duration

from ate.api import actors
from ate.errors import NotFound
from ate.proto import ateapi_pb2 as pb
from tests.simulation.cluster import Cluster, open_cluster

SUSPENDED, RUNNING = pb.ACTOR_STATE_SUSPENDED, pb.ACTOR_STATE_RUNNING


@pytest.fixture
def clock(autojump_clock: trio.testing.MockClock) -> trio.testing.MockClock:
    return autojump_clock


async def wake_in(cluster: Cluster, name: str, seconds: float) -> pb.Actor:
    actor = await cluster.get(name)
    actor.wake_time.FromNanoseconds(int((cluster.ctx.wall_clock() + seconds) * 1e9))
    return await actors.update(cluster.ctx, pb.UpdateActorRequest(actor=actor))


async def test_a_sleeping_actor_wakes_at_its_time_and_the_time_is_cleared(clock: object) -> None:
    async with open_cluster() as cluster:
        await cluster.add_worker()
        await cluster.add_template()
        await cluster.add_actor("a")
        await wake_in(cluster, "a", 100)
        await trio.sleep(98)
        assert (await cluster.get("a")).status.state == SUSPENDED
        await trio.sleep(4)
        actor = await cluster.get("a")
        assert actor.status.state == RUNNING and not actor.HasField("wake_time")


async def test_a_time_in_the_past_wakes_at_once(clock: object) -> None:
    async with open_cluster() as cluster:
        await cluster.add_worker()
        await cluster.add_template()
        await cluster.add_actor("a")
        await wake_in(cluster, "a", -1000)
        await cluster.until("a", RUNNING, seconds=3)


async def test_a_request_before_the_time_does_not_cost_the_wake_up(clock: object) -> None:
    async with open_cluster() as cluster:
        await cluster.add_worker()
        await cluster.add_template()
        await cluster.add_actor("a")
        await wake_in(cluster, "a", 100)
        await cluster.resume("a")
        await cluster.suspend("a")
        await trio.sleep(102)
        await cluster.until("a", RUNNING, seconds=1)


async def test_a_time_that_finds_the_actor_awake_is_spent(clock: object) -> None:
    async with open_cluster() as cluster:
        await cluster.add_worker()
        await cluster.add_template()
        await cluster.add_actor("a")
        await wake_in(cluster, "a", 100)
        await cluster.resume("a")
        await trio.sleep(110)
        assert not (await cluster.get("a")).HasField("wake_time")
        await cluster.suspend("a")
        await trio.sleep(60)
        assert (await cluster.get("a")).status.state == SUSPENDED


async def test_one_who_finds_no_worker_at_its_time_wakes_once_there_is_one(clock: object) -> None:
    async with open_cluster() as cluster:
        await cluster.add_template()
        await cluster.add_actor("a")
        await wake_in(cluster, "a", 10)
        await trio.sleep(200)
        assert (await cluster.get("a")).status.state == SUSPENDED
        await cluster.add_worker()
        await cluster.until("a", RUNNING, seconds=35)


@pytest.mark.parametrize("asleep", [True, False])
async def test_an_actor_is_deleted_at_the_end_of_its_lifetime_with_all_it_has(asleep: bool, clock: object) -> None:
    async with open_cluster() as cluster:
        await cluster.add_worker()
        await cluster.add_template(lifecycle=pb.Lifecycle(max_lifetime=Duration(seconds=500)))
        await cluster.add_template("mortal-not")
        actor = await cluster.add_actor("a")
        await cluster.add_actor("stays", "mortal-not")
        assert actor.expire_time.seconds == actor.metadata.create_time.seconds + 500
        await cluster.resume("a")
        await cluster.suspend("a")
        if not asleep:
            await cluster.resume("a")
        await trio.sleep(498 - trio.current_time())
        await cluster.get("a")
        await trio.sleep(5)
        with pytest.raises(NotFound):
            await cluster.get("a")
        assert cluster.node.workers == {} and cluster.snapshots == {}
        assert not (await cluster.get("stays")).HasField("expire_time")


async def test_another_template_means_another_lifetime(clock: object) -> None:
    async with open_cluster() as cluster:
        await cluster.add_template(lifecycle=pb.Lifecycle(max_lifetime=Duration(seconds=500)))
        await cluster.add_template("longer", lifecycle=pb.Lifecycle(max_lifetime=Duration(seconds=5000)))
        actor = await cluster.add_actor("a")
        actor.actor_template.name = "longer"
        actor.ClearField("expire_time")
        changed = await actors.update(cluster.ctx, pb.UpdateActorRequest(actor=actor))
        assert changed.expire_time.seconds == changed.metadata.create_time.seconds + 5000

"""Promises under a crowd: a thousand resumes at once on a hundred workers, and no two of them in one place."""

from __future__ import annotations

from collections import Counter

import pytest
import trio
import trio.testing

from ate.api.kinds import ASSIGNMENTS
from ate.api.workflows import resume
from ate.errors import Aborted, ResourceExhausted
from ate.names import Ref
from ate.proto import ateapi_pb2 as pb
from tests.simulation.cluster import open_cluster

ACTORS, WORKERS = 1000, 100


@pytest.fixture
def clock(autojump_clock: trio.testing.MockClock) -> trio.testing.MockClock:
    return autojump_clock


async def test_of_a_thousand_resumes_at_once_as_many_run_as_there_are_workers_and_the_rest_hear_why(
    clock: object,
) -> None:
    async with open_cluster() as cluster:
        await cluster.add_template()
        workers = [await cluster.add_worker() for _ in range(WORKERS)]
        names = [f"a{number}" for number in range(ACTORS)]
        for name in names:
            await cluster.add_actor(name)
        said: Counter[str] = Counter()

        async def one(name: str) -> None:
            try:
                await resume.resume(cluster.ctx, Ref("demo", name))
                said["served"] += 1
            except ResourceExhausted:
                said["exhausted"] += 1
            except Aborted:
                said["aborted"] += 1

        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(one, name)
        assert said == {"served": WORKERS, "exhausted": ACTORS - WORKERS}
        claims = await cluster.ctx.store.scan(ASSIGNMENTS, limit=ACTORS)
        assert Counter(claim.key.scope for claim in claims) == dict.fromkeys(workers, 1), "one place, one actor"


async def test_a_crowd_that_waits_is_served_by_its_deadline(clock: object) -> None:
    async with open_cluster() as cluster:
        await cluster.add_template()
        for _ in range(WORKERS):
            await cluster.add_worker()
        names = [f"a{number}" for number in range(ACTORS)]
        for name in names:
            await cluster.add_actor(name)
        most, served = 0, 0

        async def one(name: str) -> None:
            nonlocal most, served
            with trio.fail_after(60):
                while True:
                    try:
                        await cluster.resume(name)
                        break
                    except ResourceExhausted:
                        await cluster.ctx.workers.wait_change()
            most = max(most, len(cluster.node.workers))
            await trio.sleep(0.1)
            served += 1
            asleep = await cluster.suspend(name)
            assert asleep.status.state == pb.ACTOR_STATE_SUSPENDED

        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(one, name)
        assert served == ACTORS and most <= WORKERS
        assert await cluster.ctx.store.scan(ASSIGNMENTS) == []

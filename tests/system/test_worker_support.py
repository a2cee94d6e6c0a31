"""Promises between a worker and its node's agent: its capacity counts in scheduling, and a worker that is told to stop
has its actor put to sleep first.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from ate.errors import ResourceExhausted
from ate.proto import ateapi_pb2 as pb
from tests.system.install import Install, open_install


async def capacity_known(install: Install) -> bool:
    answer = await install.api.control.ListWorkers(pb.ListWorkersRequest(), timeout=30)
    return all(worker.status.capacity.actors == 1 for worker in answer.workers)


async def test_capacity_gates_placement_and_a_stopped_worker_suspends_its_actor(tmp_path: Path) -> None:
    async with open_install(tmp_path / "root") as install:
        small = pb.WorkerPool(metadata=pb.ResourceMetadata(name="p"), spec=pb.WorkerPoolSpec(replicas=1))
        small.spec.template.resources.limits["cpu"] = "500m"
        await install.api.provider.CreateWorkerPool(pb.CreateWorkerPoolRequest(worker_pool=small), timeout=30)
        demo = pb.Atespace(metadata=pb.ResourceMetadata(name="demo"))
        await install.api.control.CreateAtespace(pb.CreateAtespaceRequest(atespace=demo), timeout=30)
        await install.until(lambda: install.ready_workers(1))
        await install.until(lambda: capacity_known(install))
        await install.add_template("counter")
        cpu = pb.Resources(limits=[pb.Limits(name="cpu", quantity="2")])
        await install.add_template("big", golden=False, resources=cpu)
        await install.add_actor("b", "big")
        with pytest.raises(ResourceExhausted, match="no free workers"):
            await install.resume("b")

        await install.add_actor("a")
        assert [(await install.count("a"))["ram"] for _ in range(2)] == [1, 2]
        worker = (await install.get("a")).status.worker_assignment.worker.name
        os.kill(install.worker_pids(worker)[0], signal.SIGTERM)

        async def asleep() -> bool:
            return (await install.get("a")).status.state == pb.ACTOR_STATE_SUSPENDED

        await install.until(asleep)

        async def counts_on() -> bool:
            status, _ = await install.raw("a", "/count")
            return status == 200

        await install.until(counts_on)
        assert (await install.count("a"))["ram"] == 3, "it was put to sleep, not killed"

"""Promise: any role may be killed at any moment. Within 30 seconds every actor is RUNNING, SUSPENDED or CRASHED with
its last good snapshot, a crashed one reverts, and no count that a suspend acknowledged is lost.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import trio

from ate.errors import AteError
from ate.proto import ateapi_pb2 as pb
from tests.system.install import Install, open_install

ROLES = ("api", "atelet", "controller", "router", "identity-broker", "ateom")


async def strike(install: Install, role: str, moment: str) -> None:
    name = f"{role}-{moment}"
    await install.add_actor(name)
    await install.count(name)
    await install.suspend(name)
    assert (await install.count(name))["ram"] == 2
    acknowledged = 1
    if moment == "asleep":
        await install.suspend(name)
        acknowledged = 2
        install.kill(role)
    elif moment == "running":
        worker = (await install.get(name)).status.worker_assignment.worker.name
        if role == "ateom":
            os.kill(install.worker_pids(worker)[0], signal.SIGKILL)
        else:
            install.kill(role)
    else:
        if moment == "resuming":
            await install.suspend(name)
            acknowledged = 2

        async def lose(what: object) -> None:
            try:
                await what(name)  # type: ignore[operator]
            except AteError:
                pass  # the caller of a role that was killed may be told so; the actor must not suffer

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lose, install.suspend if moment == "suspending" else install.resume)
            await trio.sleep(0.06)
            install.kill(role)
    await install.settled(name)

    seen: list[object] = []

    async def counts() -> bool:
        status, body = await install.raw(name, "/count")
        seen[:] = [status, body]
        actor = await install.settled(name)
        if actor.status.state == pb.ACTOR_STATE_CRASHED:
            assert actor.status.external_snapshot.snapshot_uri, "a crash keeps the last good snapshot"
            await install.revert(name)
        return status == 200

    try:
        await install.until(counts)
    except trio.TooSlowError:
        raise AssertionError(f"{name} does not answer any more: {seen}") from None
    answer = await install.count(name)
    assert acknowledged < answer["ram"] <= 4, f"{name}: {answer}"
    await install.delete(name)


@pytest.mark.parametrize("role", ROLES)
async def test_a_killed_role_loses_nothing_that_was_acknowledged(role: str, tmp_path: Path) -> None:
    async with open_install(tmp_path / "root") as install:
        await install.set_up()
        for moment in ("running", "asleep", "suspending", "resuming"):
            await strike(install, role, moment)

"""Promise: any role may be killed at any moment. Within 30 seconds every actor is RUNNING, SUSPENDED or CRASHED with
its last good snapshot, a crashed one reverts, and no count that a suspend acknowledged is lost.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import trio

from ate.errors import AteError
from ate.proto import ateapi_pb2 as pb
from tests.system.install import Install, open_install

ROLES = ("api", "atelet", "controller", "router", "identity-broker", "ateom")


STRIKES = 8
"""Tries to be there while an operation is under way: it takes a tenth of a second."""
OUTSIDE = ("api", "controller", "router", "identity-broker", "atelet")
"""Roles that a running actor does not need."""


async def strike(install: Install, role: str, moment: str) -> None:
    """Kills the role at the moment, and demands the one count, or one of the two, that the actor may then have."""
    name = f"{role}-{moment}"
    await install.add_actor(name)
    await install.count(name)
    await install.suspend(name)
    assert (await install.count(name))["ram"] == 2
    saved, ran = 1, 2
    """Counts of the last acknowledged snapshot, and of the memory beyond it."""
    if moment == "asleep":
        await install.suspend(name)
        saved = 2
        kill(install, role)
    elif moment == "running":
        kill(install, role, (await install.get(name)).status.worker_assignment.worker.name)
    elif moment == "resuming":
        await install.suspend(name)
        saved = 2
        await kill_during(install, role, name, pb.ACTOR_STATE_RESUMING)
    else:
        acknowledged = await kill_during(install, role, name, pb.ACTOR_STATE_SUSPENDING)
        saved = 2 if acknowledged else 1
    actor = await install.settled(name)
    reverted, seen = False, (0, "")

    async def counts() -> bool:
        nonlocal reverted, seen
        actor = await install.settled(name)
        if actor.status.state == pb.ACTOR_STATE_CRASHED:
            assert actor.status.external_snapshot.snapshot_uri, "a crash keeps the last good snapshot"
            await install.revert(name)
            reverted = True
        seen = await install.raw(name, "/count")
        return seen[0] == 200

    try:
        await install.until(counts)
    except trio.TooSlowError:
        raise AssertionError(f"{name} does not answer any more: {seen}") from None
    found = json.loads(seen[1])
    assert found["ram"] == found["file"], "memory and file system are of different moments"
    if moment == "running" and role in OUTSIDE:
        assert not reverted, f"{name} did not need {role} and crashed: {actor.status.crash.message}"
    # What a suspend saved without anybody being told of it may be what the crash kept.
    allowed = {ran} if not reverted else {saved, ran} if moment == "suspending" else {saved}
    assert found["ram"] in allowed, f"{name} has {found} (reverted: {reverted}), not one of {allowed}"
    assert (await install.count(name))["ram"] == found["ram"] + 1
    await install.delete(name)


def kill(install: Install, role: str, worker: str = "") -> None:
    """kill -9; of an ateom, the innermost process of that worker, which holds the sandbox."""
    if role == "ateom" and worker:
        os.kill(install.worker_pids(worker)[-1], signal.SIGKILL)
    else:
        install.kill(role)


async def kill_during(install: Install, role: str, name: str, state: pb.ActorState) -> bool:
    """Suspends or resumes the actor and kills the role once the state was seen; whether the call was acknowledged."""
    call, undo = install.suspend, install.resume
    if state == pb.ACTOR_STATE_RESUMING:
        call, undo = undo, call
    for _ in range(STRIKES):
        acknowledged = ended = False

        async def ask() -> None:
            nonlocal acknowledged, ended
            try:
                await call(name)
                acknowledged = True
            except AteError:
                pass  # the caller of a role that was killed may be told so; the actor must not suffer
            ended = True

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            while not ended:
                actor = await install.get(name)
                if actor.status.state == state:
                    kill(install, role, actor.status.worker_assignment.worker.name)
                    break
        if actor.status.state == state:
            return acknowledged
        assert acknowledged, "nothing was killed yet"
        await undo(name)
    raise AssertionError(f"{name} was never seen {pb.ActorState.Name(state)}")


@pytest.mark.parametrize("role", ROLES)
async def test_a_killed_role_loses_nothing_that_was_acknowledged(role: str, tmp_path: Path) -> None:
    async with open_install(tmp_path / "root") as install:
        await install.set_up()
        for moment in ("running", "asleep", "suspending", "resuming"):
            await strike(install, role, moment)

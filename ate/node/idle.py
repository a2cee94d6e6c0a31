"""Puts an actor to sleep after its quiet time: the worker that carries its bytes knows when the last one passed.

Part of the ateom role; the wish goes through the node's agent to the control plane, which does the suspend like any
other.
"""

from __future__ import annotations

import trio

from ate.errors import AteError, NotFound
from ate.log import Logger
from ate.node.support import SUSPEND_TIMEOUT
from ate.node.worker import Worker
from ate.proto import atelet_pb2 as pb
from ate.proto.atelet_grpc import AteomSupportStub
from ate.rpc import Channel

log = Logger("ate.node")

LOOK = 1.0
"""Seconds between looks while nothing is due: how late a sleep may begin."""
_PAUSE_FIRST, _PAUSE_MOST = 1.0, 30.0


async def suspend_when_idle(channel: Channel, worker: Worker) -> None:
    """Runs for the life of a worker. A wish that cannot be granted is repeated, unless the actor got busy meanwhile."""
    stub = AteomSupportStub(channel)
    pause = _PAUSE_FIRST
    while True:
        active, due = worker.active, worker.idle_at()
        if active is None or due is None or due > trio.current_time():
            await trio.sleep(LOOK if due is None else min(max(due - trio.current_time(), 0.01), LOOK))
            continue
        log.info("the actor is idle: asking for its suspend", actor_uid=active.uid)
        request = pb.RequestActorSuspendRequest(
            actor_atespace=active.ref.atespace, actor_name=active.ref.name, actor_uid=active.uid
        )
        try:
            await stub.RequestActorSuspend(request, timeout=SUSPEND_TIMEOUT)
            pause = _PAUSE_FIRST
        except NotFound:
            log.info("the idle actor has left this worker already", actor_uid=active.uid)
        except AteError as error:
            log.warning("the idle actor is not asleep yet", actor_uid=active.uid, error=error.message)
            await trio.sleep(pause)
            pause = min(pause * 2, _PAUSE_MOST)

"""Finds where an actor runs, waking it if need be: one resume flight an actor, shared by all requests that wait for it.

The flight outlives any one waiter: a client that leaves does not undo a resume under way. A flight that finds no worker
parks: it tries again when a worker changed (it watches the workers) or after a growing pause, the longest waiting
first, until its budget is spent or nobody waits any more.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import trio

from ate.errors import AteError, DeadlineExceeded, OutOfRange, ResourceExhausted, Unavailable
from ate.flights import Flights
from ate.log import Logger
from ate.names import Ref
from ate.proto import ateapi_pb2 as pb
from ate.proto.ateapi_grpc import ControlStub
from ate.router.answers import AT_CAPACITY
from ate.router.parking import ParkingLot, ParkingRules
from ate.telemetry import metrics

log = Logger("ate.router")

RESUME_TIMEOUT = 120.0
"""Seconds for one ResumeActor: a cold boot with an image pull may take long, and nobody gains by giving up on it."""

WATCH_PAUSE = 0.5
"""Seconds before a watch that ended is opened again; flights try by the clock meanwhile."""


class Full(ResourceExhausted):
    """The parking lot has no room."""


@dataclass(frozen=True)
class Route:
    """Where an actor answers: its worker's tunnel. `worker_uid` and `actor_uid` are checked on the way."""

    host: str
    port: int
    worker_uid: str
    actor_uid: str
    epoch: int
    template: Ref = Ref("", "")  # noqa: RUF009 - a frozen value
    """Of the actor, for those who count."""


class Resolver:
    """Lives in trio; `resolve` is called from the data plane on a miss."""

    def __init__(
        self, control: ControlStub, nursery: trio.Nursery, rules: ParkingRules, tunnel_port: int, rng: random.Random
    ) -> None:
        self._control, self._rules, self._tunnel_port, self._rng = control, rules, tunnel_port, rng
        self._flights = Flights(nursery)
        self._waiters: dict[Ref, int] = {}
        self._line: dict[Ref, trio.Event] = {}
        """All flights, the oldest first. The event is set while one tries, and replaced when it has to wait."""
        self.lot = ParkingLot(rules)

    async def resolve(self, ref: Ref) -> Route:
        """The actor's route, once it runs.

        Raises what the last try raised when the budget is spent, Full at once when too many wait, DeadlineExceeded
        when a resume under way takes longer than a request may wait.
        """
        started = trio.current_time()
        if not self.lot.enter():
            metrics.PARKING_REJECTED.add({})
            raise Full(AT_CAPACITY)
        self._waiters[ref] = self._waiters.get(ref, 0) + 1
        joined = self._flights.get(str(ref)) is not None
        outcome, route, served = "error", None, False
        try:
            deadline = started + self._rules.budget
            flight = self._flights.join_or_start(str(ref), "resume", lambda: self._resume(ref, deadline))
            with trio.move_on_after(self._rules.longest_wait):
                route = await flight.wait()
                outcome, served = "served", True
                return route
            outcome = "timeout"
            raise DeadlineExceeded(f"actor {ref} did not wake within {self._rules.longest_wait:g} s; it still may")
        except trio.Cancelled:
            outcome = "canceled"
            raise
        except AteError as error:
            if self._rules.retried(error):
                outcome = "budget_exhausted"
            raise
        finally:
            waited = trio.current_time() - started
            metrics.PARKING_WAIT.record(waited, {metrics.PARKING_OUTCOME: outcome})
            routed(waited, route, "joined" if joined else "triggered", outcome)
            self._waiters[ref] -= 1
            if not self._waiters[ref]:
                del self._waiters[ref]
            self.lot.leave(waited, served=served)

    async def _resume(self, ref: Ref, deadline: float) -> Route:
        request = pb.ResumeActorRequest(actor=pb.ObjectRef(atespace=ref.atespace, name=ref.name))
        self._line[ref] = _trying()  # its place in line is as old as its first request
        attempt = 0
        try:
            while True:
                attempt += 1
                try:
                    answer = await self._control.ResumeActor(request, timeout=RESUME_TIMEOUT)
                    return self._route(answer.actor)
                except AteError as error:
                    if not self._rules.retried(error) or trio.current_time() >= deadline or ref not in self._waiters:
                        raise
                self._line[ref] = trio.Event()
                # Whoever waits behind this actor may fit where it did not.
                self._wake_next(behind=ref)
                await self._turn(ref, attempt, deadline)
        finally:
            del self._line[ref]

    async def _turn(self, ref: Ref, attempt: int, deadline: float) -> None:
        """Waits until it is this flight's turn to try: no later than its deadline."""
        turn = self._line[ref]
        while True:
            left = deadline - trio.current_time()
            with trio.move_on_after(min(self._rules.pause(attempt, self._rng), left)):
                await turn.wait()
            if turn.is_set() or trio.current_time() >= deadline:
                turn.set()
                return
            # Time to try again, but whoever waits longest goes first; it wakes those behind when it finds no room.
            self._wake_next()

    def _wake_next(self, behind: Ref | None = None) -> None:
        """Lets the longest waiting flight try (the first behind `behind`), if there is one."""
        passed = behind is None
        for ref, turn in self._line.items():
            if passed and not turn.is_set():
                turn.set()
                return
            passed = passed or ref == behind

    def _route(self, actor: pb.Actor) -> Route:
        assigned = actor.status.worker_assignment
        if not assigned.worker_pod_ips:
            raise Unavailable(f"actor {actor.metadata.atespace}/{actor.metadata.name} runs on a worker without address")
        return Route(
            host=assigned.worker_pod_ips[0],
            port=self._tunnel_port,
            worker_uid=assigned.worker_pod_uid,
            actor_uid=actor.metadata.uid,
            epoch=assigned.worker_epoch,
            template=Ref(actor.actor_template.atespace, actor.actor_template.name),
        )

    async def watch_workers(self) -> None:
        """Wakes parked flights whenever a worker changed; runs until cancelled."""
        token = ""
        while True:
            try:
                async with self._control.WatchWorkers.open() as stream:
                    await stream.send_message(pb.WatchWorkersRequest(resume_token=token), end=True)
                    async for event in stream:
                        token = event.resume_token or token
                        self._wake_next()
            except OutOfRange:
                token = ""
            except AteError as error:
                log.debug("worker watch ended, opening it again", error=error.message)
            await trio.sleep(WATCH_PAUSE)


def routed(seconds: float, route: Route | None, resume: str, outcome: str) -> None:
    """Counts a request whose way was found, or not. `resume`: none, triggered or joined."""
    if metrics.ROUTE_DURATION.write is not None:
        labels = {metrics.ROUTER_RESUME: resume, metrics.ROUTER_OUTCOME: outcome}
        if route is not None:
            labels |= {metrics.TEMPLATE_ATESPACE: route.template.atespace, metrics.TEMPLATE_NAME: route.template.name}
        metrics.ROUTE_DURATION.record(seconds, labels)


def _trying() -> trio.Event:
    turn = trio.Event()
    turn.set()
    return turn

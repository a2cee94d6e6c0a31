"""Every metric of the platform: names, units, labels and buckets, as in section 9 of the reference.

An instrument is written to where something happens; while nobody exports, that is one comparison. Names become
Prometheus names as OpenTelemetry maps them: dots to underscores, the unit and `_total` of counters at the end. Labels
never name an actor: their number must not grow with the number of actors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

Labels = Mapping[str, str]
Observe = Callable[[], Iterable[tuple[float, Labels]]]

TEMPLATE_ATESPACE: Final = "ate.template.atespace"
TEMPLATE_NAME: Final = "ate.template.name"
POOL_NAMESPACE: Final = "ate.workerpool.namespace"
POOL_NAME: Final = "ate.workerpool.name"
SANDBOX_CLASS: Final = "ate.sandbox.class"
OPERATION: Final = "ate.actor.operation.name"
SNAPSHOT_KIND: Final = "ate.snapshot.kind"
SNAPSHOT_SCOPE: Final = "ate.snapshot.scope"
SNAPSHOT_PHASE: Final = "ate.snapshot.phase"
ERROR_TYPE: Final = "error.type"
WORKER_STATE: Final = "ate.worker.state"
SCHEDULER_OUTCOME: Final = "ate.scheduler.outcome"
RPC_METHOD: Final = "rpc.method"
RPC_STATUS: Final = "rpc.response.status_code"
SCHEDULING_CONSTRAINT: Final = "ate.scheduling.constraint"
ROUTER_OUTCOME: Final = "ate.router.outcome"
ROUTER_RESUME: Final = "ate.router.resume"
PARKING_OUTCOME: Final = "outcome"
IMAGE_CACHE_OUTCOME: Final = "ate.imagecache.outcome"
FILE_NAME: Final = "file.name"


class Instrument:
    """One metric. `write` is set by `sdk` while somebody exports."""

    def __init__(self, name: str, unit: str, description: str) -> None:
        self.name, self.unit, self.description = name, unit, description
        self.write: Callable[[float, Labels], None] | None = None


class Counter(Instrument):
    """Only rises."""

    def add(self, labels: Labels, amount: float = 1) -> None:
        if self.write is not None:
            self.write(amount, labels)


class Histogram(Instrument):
    """How values are spread over `buckets` (upper bounds)."""

    def __init__(self, name: str, unit: str, description: str, buckets: tuple[float, ...]) -> None:
        super().__init__(name, unit, description)
        self.buckets = buckets

    def record(self, value: float, labels: Labels) -> None:
        if self.write is not None:
            self.write(value, labels)


class Observed(Instrument):
    """Goes up and down with something that is looked at when the metric is read, from another thread."""

    def __init__(self, name: str, unit: str, description: str) -> None:
        super().__init__(name, unit, description)
        self._sources: list[Observe] = []

    @contextlib.contextmanager
    def by(self, source: Observe) -> Iterator[None]:
        """Has `source` looked at for the length of the block."""
        self._sources.append(source)
        try:
            yield
        finally:
            self._sources.remove(source)

    def read(self) -> list[tuple[float, Labels]]:
        return [point for source in list(self._sources) for point in source()]


_LIFECYCLE: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0)
_SCHEDULER: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_SNAPSHOT: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_ROUTE: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_PARKING: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_WORKERS: Final = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
_SIZES: Final = (1e6, 1e7, 1e8, 2.5e8, 5e8, 1e9, 2.5e9, 5e9, 1e10)
_RPC: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""What OpenTelemetry's conventions advise for RPCs; the reference names none."""

# -- every role -----------------------------------------------------------------------------------------------------

RPC_SERVER_DURATION: Final = Histogram("rpc.server.call.duration", "s", "Time of a call on its server.", _RPC)
RPC_CLIENT_DURATION: Final = Histogram("rpc.client.call.duration", "s", "Time of a call at its caller.", _RPC)

# -- api ------------------------------------------------------------------------------------------------------------

ACTOR_CRASHES: Final = Counter("ate.actor.crashes", "{crash}", "Actors that went CRASHED.")
WORKERPOOL_WORKERS: Final = Observed(
    "ate.workerpool.workers", "{worker}", "Workers by state: idle, partial, at_capacity or unschedulable."
)
LIFECYCLE_DURATION: Final = Histogram(
    "ate.actor.lifecycle.operation.duration", "s", "Time of an operation on an actor.", _LIFECYCLE
)
ASSIGNMENT_DURATION: Final = Histogram(
    "ate.scheduler.assignment.duration", "s", "Time to find a worker for an actor and claim it.", _SCHEDULER
)

ELIGIBLE_WORKERS: Final = Histogram(
    "ate.scheduler.eligible_workers", "{worker}", "Workers that fit an actor, whether they have room or not.", _WORKERS
)

# -- controller -----------------------------------------------------------------------------------------------------

DESIRED_WORKERS: Final = Observed("ate.workerpool.desired_workers", "{worker}", "Workers a pool asks for.")
READY_WORKERS: Final = Observed("ate.workerpool.ready_workers", "{worker}", "Workers of a pool that are ready.")

# -- router ---------------------------------------------------------------------------------------------------------

ROUTE_DURATION: Final = Histogram(
    "atenet.router.route.duration", "s", "Time until it was known where a request goes.", _ROUTE
)
PARKING_ACTIVE: Final = Observed("atenet.router.parking.active", "{request}", "Requests that wait for their actor.")
PARKING_WAIT: Final = Histogram("atenet.router.parking.wait.duration", "s", "Time requests waited.", _PARKING)
PARKING_REJECTED: Final = Counter("atenet.router.parking.rejected", "{request}", "Requests the full lot turned away.")

# -- atelet ---------------------------------------------------------------------------------------------------------

RESTORE_DURATION: Final = Histogram("ate.actor.restore.duration", "s", "Time of a start by phase.", _SNAPSHOT)
CHECKPOINT_DURATION: Final = Histogram("ate.actor.checkpoint.duration", "s", "Time of a save by phase.", _SNAPSHOT)
SNAPSHOT_SIZE: Final = Histogram("atelet.snapshot.size", "By", "Size of a snapshot's file.", _SIZES)
IMAGE_CACHE_REQUESTS: Final = Counter("ate.imagecache.requests", "{request}", "Images asked of the node's store.")

ALL: Final[tuple[Instrument, ...]] = tuple(value for value in list(vars().values()) if isinstance(value, Instrument))

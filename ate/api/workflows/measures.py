"""The api role's metrics: how long operations on actors and the search for workers take, crashes, workers by state.

An operation collects its labels on the way: the workflows say what they learn (`actor`, `template`, `snapshot`) and
need not know who asked. A contextvar holds them, so that whoever runs inside the operation adds to the right one;
while nobody reads metrics there is none, and saying something costs one look.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import trio

from ate.api import scheduling
from ate.errors import AteError, ResourceExhausted
from ate.proto import ateapi_pb2 as pb
from ate.telemetry import metrics

OPERATIONS: Final = frozenset({"create", "resume", "suspend", "pause", "revert", "delete"})
_SCOPES: Final = {pb.SNAPSHOT_CONTENT_SCOPE_FULL: "full", pb.SNAPSHOT_CONTENT_SCOPE_DATA: "data"}
_PLACE: Final[tuple[str, ...]] = (metrics.POOL_NAMESPACE, metrics.POOL_NAME, metrics.SANDBOX_CLASS)
_facts: contextvars.ContextVar[dict[str, str] | None] = contextvars.ContextVar("ate_measured", default=None)


@contextlib.contextmanager
def operation(name: str) -> Iterator[None]:
    """Measures one operation on an actor; other names are not measured."""
    if metrics.LIFECYCLE_DURATION.write is None or name not in OPERATIONS:
        yield
        return
    facts = {metrics.OPERATION: name}
    token = _facts.set(facts)
    began = trio.current_time()
    try:
        with _failures(facts):
            yield
    finally:
        _facts.reset(token)
        metrics.LIFECYCLE_DURATION.record(trio.current_time() - began, facts)


@contextlib.contextmanager
def assignment() -> Iterator[None]:
    """Measures the search for a worker, inside an operation."""
    facts = _facts.get()
    if facts is None:
        yield
        return
    labels: dict[str, str] = {}
    began = trio.current_time()
    outcome = "error"
    try:
        with _failures(labels):
            yield
        outcome = "assigned"
    except ResourceExhausted:
        outcome = "no_free_worker"
        del labels[metrics.ERROR_TYPE]
        raise
    finally:
        labels[metrics.SCHEDULER_OUTCOME] = outcome
        labels |= {label: facts[label] for label in _PLACE if label in facts}
        metrics.ASSIGNMENT_DURATION.record(trio.current_time() - began, labels)


def eligible(count: Callable[[], int], needs: scheduling.Needs) -> None:
    """How many workers there were to choose from, inside an operation."""
    facts = _facts.get()
    if facts is None:
        return
    selected = any(needs.selectors)
    constraint = "required_nodes" if needs.pinned_nodes is not None else "selector" if selected else "none"
    labels = {label: facts[label] for label in _PLACE if label in facts}
    metrics.ELIGIBLE_WORKERS.record(count(), {**labels, metrics.SCHEDULING_CONSTRAINT: constraint})


@contextlib.contextmanager
def _failures(labels: dict[str, str]) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        if isinstance(error, AteError):
            labels[metrics.ERROR_TYPE] = error.code.name
        else:
            labels[metrics.ERROR_TYPE] = "INTERNAL" if isinstance(error, Exception) else "CANCELLED"
        raise


def actor(value: pb.Actor) -> None:
    """The operation is on this actor, which is placed as it says."""
    facts = _facts.get()
    if facts is not None:
        facts.update(_of(value))


def template(value: pb.ActorTemplate) -> None:
    facts = _facts.get()
    if facts is not None:
        facts[metrics.SANDBOX_CLASS] = scheduling.CLASS_NAMES.get(value.sandbox_config.sandbox_class, "")


def snapshot(scope: int, kind: str = "") -> None:
    """What is saved, or what a start is from: golden, latest, local or boot."""
    facts = _facts.get()
    if facts is not None:
        facts[metrics.SNAPSHOT_SCOPE] = _SCOPES.get(scope, "unknown")  # type: ignore[call-overload]
        if kind:
            facts[metrics.SNAPSHOT_KIND] = kind


def crashed(value: pb.Actor, operation: str, sandbox_class: str) -> None:
    """Counts a crash; `value` is the actor before it gave back its place, `operation` what was being done to it."""
    labels = {**_of(value), metrics.OPERATION: operation or "none", metrics.SANDBOX_CLASS: sandbox_class}
    metrics.ACTOR_CRASHES.add(labels)


def _of(value: pb.Actor) -> dict[str, str]:
    found = {
        metrics.TEMPLATE_ATESPACE: value.actor_template.atespace,
        metrics.TEMPLATE_NAME: value.actor_template.name,
    }
    assigned = value.status.worker_assignment
    if assigned.worker.name:
        found |= {metrics.POOL_NAMESPACE: assigned.worker_namespace, metrics.POOL_NAME: assigned.worker_pool}
    return found


def workers_by_state(workers: Iterable[pb.Worker]) -> list[tuple[float, metrics.Labels]]:
    """How many workers of a pool and class are idle, partial, at_capacity or unschedulable."""
    counted = Counter((w.worker_namespace, w.worker_pool, w.sandbox_class, _state(w)) for w in workers)
    names = (metrics.POOL_NAMESPACE, metrics.POOL_NAME, metrics.SANDBOX_CLASS, metrics.WORKER_STATE)
    return [(number, dict(zip(names, key, strict=True))) for key, number in counted.items()]


def _state(worker: pb.Worker) -> str:
    if not scheduling.open_to_actors(worker):
        return "unschedulable"
    if worker.status.allocated.actors == 0:
        return "idle"
    free = scheduling.free(worker)
    return "partial" if free.actors > 0 and free.cpu_milli > 0 and free.memory_bytes > 0 else "at_capacity"

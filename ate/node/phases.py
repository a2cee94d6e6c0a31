"""How long the parts of a start or a save take on this node: metrics, and spans of the trace it belongs to.

`operation` and `measured` go around the whole, `phase` around a part, however deep; parts may run side by side. The
labels travel in a contextvar, so that code in between need not carry them.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import trio

from ate.log import bind
from ate.proto import atelet_pb2 as pb
from ate.telemetry import metrics, trace

SCOPES: Final = {
    pb.SNAPSHOT_SCOPE_FULL: "full",
    pb.SNAPSHOT_SCOPE_DATA: "data",
    pb.SNAPSHOT_SCOPE_DATA_ON_GOLDEN: "data",
}
"""What a snapshot's manifest and the metrics call the wire's scopes."""
Identified = pb.RunRequest | pb.RestoreRequest | pb.CheckpointRequest | pb.TerminateRequest
_measured: contextvars.ContextVar[tuple[metrics.Histogram, dict[str, str]] | None] = contextvars.ContextVar(
    "ate_phases", default=None
)


@contextlib.contextmanager
def measured(histogram: metrics.Histogram, **labels: str) -> Iterator[None]:
    """The phase `total`. Labels: template_atespace, template_name, kind, scope, sandbox_class."""
    names = {
        "template_atespace": metrics.TEMPLATE_ATESPACE,
        "template_name": metrics.TEMPLATE_NAME,
        "kind": metrics.SNAPSHOT_KIND,
        "scope": metrics.SNAPSHOT_SCOPE,
        "sandbox_class": metrics.SANDBOX_CLASS,
    }
    token = _measured.set((histogram, {names[name]: value for name, value in labels.items() if value}))
    try:
        with phase("total"):
            yield
    finally:
        _measured.reset(token)


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """A part of what is measured around it; one that fails counts too. Outside of anything measured, nothing."""
    measuring = _measured.get()
    if measuring is None:
        yield
        return
    histogram, labels = measuring
    began = trio.current_time()
    try:
        with trace.span(f"phase.{name}"):
            yield
    finally:
        histogram.record(trio.current_time() - began, {**labels, metrics.SNAPSHOT_PHASE: name})


def sizes(template_atespace: str, template_name: str, files: dict[str, int]) -> None:
    """The sizes in bytes of a snapshot's files, by name."""
    template = {metrics.TEMPLATE_ATESPACE: template_atespace, metrics.TEMPLATE_NAME: template_name}
    for name, size in files.items():
        metrics.SNAPSHOT_SIZE.record(size, {**template, metrics.FILE_NAME: name})


async def operation(request: Identified, what: str, op: str, work: Callable[[str], Awaitable[None]]) -> None:
    """Does the work as a task whose log lines say what it is at, and whose time is measured."""
    named = bind(
        actor=f"{request.atespace}/{request.actor_name}",
        worker=request.target_ateom_uid,
        operation=what,
        operation_id=op,
    )
    template = {
        "template_atespace": request.actor_template_atespace,
        "template_name": request.actor_template_name,
    }
    measuring: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if isinstance(request, pb.CheckpointRequest):
        kind = "local" if request.type == pb.CHECKPOINT_TYPE_LOCAL else "latest"
        measuring = measured(
            metrics.CHECKPOINT_DURATION, **template, kind=kind, scope=SCOPES.get(request.scope, "unknown")
        )
    elif not isinstance(request, pb.TerminateRequest):
        kind, scope = "boot", ""
        if isinstance(request, pb.RestoreRequest):
            own = f"/actors/{request.actor_uid}/" in request.external_config.snapshot_uri
            local = request.type == pb.CHECKPOINT_TYPE_LOCAL
            kind, scope = "local" if local else "latest" if own else "golden", SCOPES.get(request.scope, "unknown")
        class_ = request.sandbox_assets.sandbox_class
        measuring = measured(metrics.RESTORE_DURATION, **template, kind=kind, scope=scope, sandbox_class=class_)
    with named, measuring:
        await work(op)

"""How long the parts of a start or a save take on this node: metrics, and spans of the trace it belongs to.

`measured` goes around the whole, `phase` around a part, however deep; parts may run side by side. The labels travel in
a contextvar, so that code in between need not carry them.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

import trio

from ate.telemetry import metrics, trace

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

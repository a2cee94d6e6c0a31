"""What is measured and traced of RPCs: `ate/rpc` calls `on_server` and `on_client` for every call it carries.

Both give None where there is nothing to do: nobody exports, and the call is part of no trace.
"""

from __future__ import annotations

import time
from typing import Final

from ate.telemetry import metrics, trace

UNKNOWN: Final = "_OTHER"
"""Method label of calls to methods that do not exist: callers may not make up labels."""
_SERVER_FAULTS: Final = frozenset(
    {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
)
"""Codes that make a server's span an error (OpenTelemetry's conventions for gRPC); for a client, all but OK do."""


class ObservedCall:
    """One call, from its first header to its status."""

    __slots__ = ("_began", "_method", "_metric", "_span", "context")

    def __init__(
        self,
        metric: metrics.Histogram,
        method: str,
        span: trace.Span | None,
        context: trace.TraceContext | None,
    ) -> None:
        self._metric, self._method, self._span, self.context = metric, method, span, context
        self._began = time.perf_counter()
        if span is not None:
            span.attributes.update({"rpc.system.name": "grpc", metrics.RPC_METHOD: method})

    def headers(self) -> list[tuple[str, str]]:
        """The trace context for the wire; empty without a trace."""
        if self.context is None:
            return []
        parent = [(trace.TRACEPARENT, self.context.traceparent())]
        return [*parent, (trace.TRACESTATE, self.context.state)] if self.context.state else parent

    def end(self, code: str, *, message: str = "") -> None:
        """`code` is the status's name."""
        labels = {metrics.RPC_METHOD: self._method, metrics.RPC_STATUS: code}
        self._metric.record(time.perf_counter() - self._began, labels)
        if self._span is not None:
            self._span.attributes[metrics.RPC_STATUS] = code
            fault = code in _SERVER_FAULTS if self._span.kind == "server" else code != "OK"
            self._span.finish(f"{code}: {message}" if fault else "")


def on_server(method: str, headers: list[tuple[str, str]], *, known: bool) -> ObservedCall | None:
    """Puts the task of a call that has come in into its trace. `method` is `/package.Service/Method`."""
    incoming: trace.TraceContext | None = None
    for name, value in headers:
        if name == trace.TRACEPARENT:
            state = next((value for name, value in headers if name == trace.TRACESTATE), "")
            incoming = trace.received(value, state)
            break
    exporting = trace.exporting()
    if not exporting and metrics.RPC_SERVER_DURATION.write is None:
        if incoming is not None:
            trace.enter(incoming)
        return None
    name = method.strip("/") if known else UNKNOWN
    context = incoming if incoming is not None or not exporting else trace.new()
    span: trace.Span | None = None
    if context is not None:
        if exporting and context.sampled:
            own = context
            if incoming is not None:
                own = trace.TraceContext(incoming.trace_id, trace.new_span_id(), True, incoming.state)
            span = trace.Span(name, "server", own, incoming, {})
            context = own
        trace.enter(context)
    return ObservedCall(metrics.RPC_SERVER_DURATION, name, span, context)


def on_client(method: str) -> ObservedCall | None:
    """A call this task makes."""
    context = trace.current()
    if context is None and not trace.exporting() and metrics.RPC_CLIENT_DURATION.write is None:
        return None
    name = method.strip("/")
    span = trace.begin(name, "client") if context is not None else None
    return ObservedCall(metrics.RPC_CLIENT_DURATION, name, span, span.context if span is not None else context)

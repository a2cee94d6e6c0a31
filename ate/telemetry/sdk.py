"""The OpenTelemetry SDK behind `trace` and `metrics`: exporters, their threads, and how they stop.

Imported only when telemetry was asked for: it costs some 200 ms and 20 MB. Spans are made by `trace` and handed to the
SDK's batch processor when they end, which never blocks; metrics are the SDK's own. Its threads end with `shut_down`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from ate import __version__
from ate.telemetry import metrics, trace
from ate.telemetry.service import ENDPOINT

_KINDS: Final = {"internal": SpanKind.INTERNAL, "server": SpanKind.SERVER, "client": SpanKind.CLIENT}
_SCOPE: Final = InstrumentationScope("ate", __version__)
_FLUSH_MS: Final = 3000
"""Most time for the last export at a stop."""


class Sdk:
    """Everything that was started. `prometheus` is asked for the text of /metrics."""

    def __init__(self, prometheus: Any, provider: MeterProvider | None, spans: BatchSpanProcessor | None) -> None:
        self.prometheus, self._provider, self._spans = prometheus, provider, spans

    def exposition(self) -> tuple[bytes, str]:
        """The metrics in Prometheus's text format, and its content type."""
        from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

        return generate_latest(self.prometheus), CONTENT_TYPE_PLAIN_0_0_4

    def shut_down(self) -> None:
        """Exports what is left and ends the threads. Blocks, some seconds at worst."""
        trace.install(None, trace.Sampler())
        for instrument in metrics.ALL:
            instrument.write = None
        if self._spans is not None:
            self._spans.force_flush(_FLUSH_MS)
            self._spans.shutdown()  # type: ignore[no-untyped-call]
        if self._provider is not None:
            self._provider.shutdown(timeout_millis=_FLUSH_MS)


def start(
    service: str, *, ratio: float, prometheus: bool, attributes: Mapping[str, str], relay: Path | None = None
) -> Sdk:
    """Starts what was asked for: a registry for Prometheus, and exporters where ENDPOINT is set.

    `ratio` is the share of traces that is sampled unless OTEL_TRACES_SAMPLER says otherwise; `relay` is a unix socket
    that leads to the collector, for a process that cannot reach it by network.
    """
    logging.getLogger("urllib3").setLevel(logging.WARNING)
    environment = os.environ
    resource = Resource({"service.name": service, "service.version": __version__, **attributes})
    resource = resource.merge(OTELResourceDetector().detect())
    readers: list[MetricReader] = []
    registry: Any = None
    if prometheus:
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from prometheus_client import CollectorRegistry, ProcessCollector

        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        readers.append(PrometheusMetricReader(scope_info_enabled=False, registry=registry))
    collector = bool(environment.get(ENDPOINT))
    spans: BatchSpanProcessor | None = None
    if collector and environment.get("OTEL_METRICS_EXPORTER", "otlp") != "none" and relay is None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        readers.append(PeriodicExportingMetricReader(OTLPMetricExporter()))
    if collector and environment.get("OTEL_TRACES_EXPORTER", "otlp") != "none":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        session = None
        if relay is not None:
            from ate.telemetry.relay import session_through

            session = session_through(relay)
        spans = BatchSpanProcessor(OTLPSpanExporter(session=session))
        trace.install(_export_to(spans, resource), trace.Sampler.from_environment(environment, ratio))
    provider = MeterProvider(readers, resource=resource, shutdown_on_exit=False) if readers else None
    if provider is not None:
        _connect(provider)
    return Sdk(registry, provider, spans)


def _connect(provider: MeterProvider) -> None:
    meter = provider.get_meter("ate", __version__)
    for instrument in metrics.ALL:
        about = {"unit": instrument.unit, "description": instrument.description}
        if isinstance(instrument, metrics.Counter):
            instrument.write = meter.create_counter(instrument.name, **about).add
        elif isinstance(instrument, metrics.Histogram):
            instrument.write = meter.create_histogram(
                instrument.name, explicit_bucket_boundaries_advisory=instrument.buckets, **about
            ).record
        elif isinstance(instrument, metrics.Observed):
            meter.create_observable_up_down_counter(instrument.name, [_reader_of(instrument)], **about)


def _reader_of(instrument: metrics.Observed) -> Any:
    def read(options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(value, labels) for value, labels in instrument.read()]

    return read


def _export_to(processor: BatchSpanProcessor, resource: Resource) -> Any:
    def export(span: trace.Span) -> None:
        processor.on_end(
            ReadableSpan(
                name=span.name,
                context=_context(span.context, remote=False),
                parent=None if span.parent is None else _context(span.parent, remote=span.kind == "server"),
                resource=resource,
                attributes=span.attributes,
                kind=_KINDS[span.kind],
                instrumentation_scope=_SCOPE,
                status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
                start_time=span.start,
                end_time=span.end,
            )
        )

    return export


def _context(context: trace.TraceContext, *, remote: bool) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if context.sampled else TraceFlags.DEFAULT)
    state = TraceState.from_header([context.state]) if context.state else None
    return SpanContext(int(context.trace_id, 16), int(context.span_id, 16), remote, flags, state)

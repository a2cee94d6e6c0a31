"""A small OTLP/HTTP collector for tests: it keeps the spans and the names of the metrics that were sent to it."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Span:
    """Ids in hexadecimal; `parent` is empty for the first span of a trace."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent: str
    attributes: dict[str, str]
    resource: dict[str, str]


@dataclass
class Collector:
    port: int = 0
    spans: list[Span] = field(default_factory=list)
    metrics: dict[str, set[str]] = field(default_factory=dict)
    """Names by service."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def trace(self, trace_id: str) -> list[Span]:
        return [span for span in list(self.spans) if span.trace_id == trace_id]

    def take_spans(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            about = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    attributes = {pair.key: pair.value.string_value for pair in span.attributes}
                    ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
                    self.spans.append(Span(about["service.name"], span.name, *ids, attributes, about))

    def take_metrics(self, body: bytes) -> None:
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            service = next(p.value.string_value for p in resource.resource.attributes if p.key == "service.name")
            names = {metric.name for scope in resource.scope_metrics for metric in scope.metrics}
            self.metrics.setdefault(service, set()).update(names)


@contextmanager
def running_collector() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.headers["content-type"] == "application/x-protobuf"
            take = {"/v1/traces": collector.take_spans, "/v1/metrics": collector.take_metrics}[self.path]
            take(body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()

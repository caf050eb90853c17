"""An OTLP/HTTP receiver on the loopback that keeps what it is sent."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import HistogramDataPoint
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Receiver:
    """`bodies` by path; a record of a request that the server answered is there once the exporter was flushed."""

    endpoint: str = ""
    bodies: dict[str, list[bytes]] = field(default_factory=dict)
    headers: list[dict[str, str]] = field(default_factory=list)

    def take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        self.bodies.setdefault(path, []).append(body)
        self.headers.append(headers)

    @property
    def raw(self) -> bytes:
        return b"".join(body for bodies in self.bodies.values() for body in bodies)

    @property
    def spans(self) -> list[Span]:
        requests = [ExportTraceServiceRequest.FromString(body) for body in self.bodies.get("/v1/traces", [])]
        resources = [resource for request in requests for resource in request.resource_spans]
        return [span for resource in resources for scope in resource.scope_spans for span in scope.spans]

    @property
    def resource(self) -> dict[str, object]:
        request = ExportTraceServiceRequest.FromString(self.bodies["/v1/traces"][0])
        return attributes(request.resource_spans[0].resource.attributes)

    @property
    def histograms(self) -> dict[str, list[HistogramDataPoint]]:
        """Of the last export: totals."""
        request = ExportMetricsServiceRequest.FromString(self.bodies["/v1/metrics"][-1])
        scopes = [scope for resource in request.resource_metrics for scope in resource.scope_metrics]
        return {metric.name: list(metric.histogram.data_points) for scope in scopes for metric in scope.metrics}


def attributes(pairs: Iterable[KeyValue]) -> dict[str, object]:
    return {pair.key: plain(pair.value) for pair in pairs}


def plain(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    assert kind is not None
    return [plain(item) for item in value.array_value.values] if kind == "array_value" else getattr(value, kind)


@contextmanager
def receiver() -> Iterator[Receiver]:
    kept = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            kept.take(self.path, dict(self.headers), body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Not to standard error."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        kept.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield kept
        finally:
            server.shutdown()
            thread.join()

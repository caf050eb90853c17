"""Two spans from one record: the exchange, and under it the generation; gathered until they are exported."""

from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from openai_kv.metrics import GenerationStats, HttpStats
from openai_kv.otel.attributes import (
    failed,
    forwarded_attributes,
    forwarded_error,
    forwarded_name,
    forwards,
    generation_attributes,
    generation_name,
    http_attributes,
    http_name,
)

SCOPE = "openai_kv"
BATCH = 512
ERROR = Status(StatusCode.ERROR)


class Gathered(SpanProcessor):
    """Ended spans, in order."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


class SpanWriter:
    """One thread only. The SDK chooses the sampler: by `OTEL_TRACES_SAMPLER`, else as the parent was sampled."""

    def __init__(self, resource: Resource, exporter: OTLPSpanExporter) -> None:
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._gathered = Gathered()
        provider.add_span_processor(self._gathered)
        self._tracer = provider.get_tracer(SCOPE)
        self._exporter = exporter

    @property
    def is_full(self) -> bool:
        return len(self._gathered.spans) >= BATCH

    def write(self, stats: HttpStats, model: str) -> None:
        """Times are the record's: the exchange is over."""
        start = nanoseconds(stats.arrival_time)
        span = self._tracer.start_span(
            http_name(stats), parent(stats), SpanKind.SERVER, http_attributes(stats), start_time=start
        )
        if failed(stats):
            span.set_status(ERROR)
        if stats.generation is not None:
            self._write_generation(stats.generation, stats, model, set_span_in_context(span))
        elif forwards(stats):
            self._write_forwarded(stats, set_span_in_context(span))
        span.end(start + nanoseconds(stats.seconds))

    def _write_generation(self, stats: GenerationStats, http: HttpStats, model: str, context: Context) -> None:
        start = nanoseconds(http.arrival_time)
        attributes = generation_attributes(stats, http, model)
        span = self._tracer.start_span(generation_name(stats), context, SpanKind.INTERNAL, attributes, start_time=start)
        if stats.error_code is not None:
            span.set_status(ERROR)
        span.end(start + nanoseconds(stats.total_seconds))

    def _write_forwarded(self, stats: HttpStats, context: Context) -> None:
        start, attributes = nanoseconds(stats.arrival_time), forwarded_attributes(stats)
        span = self._tracer.start_span(forwarded_name(stats), context, SpanKind.CLIENT, attributes, start_time=start)
        if forwarded_error(stats) is not None:
            span.set_status(ERROR)
        span.end(start + nanoseconds(stats.seconds))

    def export(self) -> int:
        """Send what was gathered; how many exchanges were lost because that failed."""
        spans, self._gathered.spans = self._gathered.spans, []
        if not spans or self._exporter.export(spans) is SpanExportResult.SUCCESS:
            return 0
        return num_exchanges(spans)

    def close(self) -> None:
        self._exporter.shutdown()


def num_exchanges(spans: Sequence[ReadableSpan]) -> int:
    return sum(span.kind is SpanKind.SERVER for span in spans)


def parent(stats: HttpStats) -> Context:
    """The client's trace, if its headers name one."""
    headers = {"traceparent": stats.traceparent, "tracestate": stats.tracestate}
    carrier = {name: value for name, value in headers.items() if value is not None}
    return TraceContextTextMapPropagator().extract(carrier, Context())


def nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)

"""Spans and histograms with their OTLP/HTTP exporters, set up from one base URL and the OTEL_* variables."""

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource

from openai_kv import __version__
from openai_kv.metrics import HttpStats
from openai_kv.otel.histograms import Histograms
from openai_kv.otel.spans import SpanWriter

CLOSE_MILLISECONDS = 3000


class Telemetry:
    """One thread only. Headers, timeouts, certificates and the interval of metrics are the SDK's OTEL_* variables."""

    def __init__(self, endpoint: str) -> None:
        base = endpoint.rstrip("/")
        resource = make_resource()
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{base}/v1/metrics"))
        self._meters = MeterProvider([reader], resource, shutdown_on_exit=False)
        self._histograms = Histograms(self._meters)
        self._spans = SpanWriter(resource, OTLPSpanExporter(f"{base}/v1/traces"))

    def record(self, stats: HttpStats, model: str) -> None:
        self._spans.write(stats, model)
        if stats.generation is not None:
            self._histograms.record(stats.generation, stats, model)

    @property
    def is_full(self) -> bool:
        """It is time to flush."""
        return self._spans.is_full

    def flush(self) -> int:
        """Send the spans; how many exchanges were lost because that failed. Metrics are totals and lose nothing."""
        return self._spans.export()

    def close(self) -> None:
        self._spans.close()
        self._meters.shutdown(CLOSE_MILLISECONDS)


def make_resource() -> Resource:
    """OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over our own."""
    ours = Resource.create({"service.name": "openai-kv", "service.version": __version__})
    return ours.merge(OTELResourceDetector().detect())

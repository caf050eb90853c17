"""OpenTelemetry: spans of exchanges and generations, and gen_ai.* histograms, over OTLP/HTTP."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from openai_kv.errors import ConfigError, RecordsLostError
from openai_kv.hookspecs import hookimpl
from openai_kv.metrics import HttpStats, ServerInfo
from openai_kv.metrics_exporter import MetricsExporter

if TYPE_CHECKING:
    from openai_kv.otel.telemetry import Telemetry


class OtelExporter(MetricsExporter):
    """Runs if `otel.endpoint` is set, the base URL of an OTLP/HTTP receiver; the rest are OTEL_* variables."""

    name = "otel"

    def __init__(self, endpoint: str = "") -> None:
        if not endpoint:
            raise ConfigError("the exporter otel runs if otel.endpoint is set")
        self._telemetry = make_telemetry(endpoint)
        self._model = ""

    def start(self, info: ServerInfo) -> None:
        self._model = info.model_name

    def on_http_request(self, stats: HttpStats) -> None:
        self._telemetry.record(stats, self._model)
        if self._telemetry.is_full:
            self.flush()

    def flush(self) -> None:
        lost = self._telemetry.flush()
        if lost:
            raise RecordsLostError(lost)

    def close(self) -> None:
        self._telemetry.close()


def make_telemetry(endpoint: str) -> "Telemetry":
    """Raises ConfigError where the extra is not installed."""
    try:
        from openai_kv.otel.telemetry import Telemetry  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(f"otel.endpoint is set, but {error.name} is missing: pip install 'openai-kv[otel]'") from None
    return Telemetry(endpoint)


@hookimpl
def register_metrics_exporters(register: Callable[[type[MetricsExporter]], None]) -> None:
    register(OtelExporter)

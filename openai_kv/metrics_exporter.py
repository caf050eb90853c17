"""The contract of metrics exporters: a class whose hooks hear of everything that is worth a number."""

from typing import ClassVar

from openai_kv.metrics import (
    EvictionStats,
    HttpStats,
    LookupStats,
    RequestStats,
    ServerInfo,
    StepStats,
    TransferStats,
)

METRICS_CONTRACT_VERSION = 1  # docs/plugins.md says what may change under the same number


class MetricsExporter:
    """Base of exporters: override what you need; constructor arguments are the plugin's options.

    Every exporter has a thread of its own, which makes all calls, one after the other, from a bounded queue: one that
    blocks holds up nobody, and what it has no room for is dropped and counted; one that raises is counted.
    """

    name: ClassVar[str]

    def start(self, info: ServerInfo) -> None:
        """Once the model is loaded; only HTTP exchanges and plugin errors may come before."""

    def on_step(self, stats: StepStats) -> None: ...

    def on_lookup(self, stats: LookupStats) -> None: ...

    def on_eviction(self, stats: EvictionStats) -> None: ...

    def on_transfer(self, stats: TransferStats) -> None: ...

    def on_request_finished(self, stats: RequestStats) -> None: ...

    def on_http_request(self, stats: HttpStats) -> None: ...

    def on_rejected(self, reason: str) -> None:
        """A request was refused for load: `max_num_queued_reqs` or `max_num_queued_tokens`."""

    def on_abort(self, reason: str) -> None:
        """A request was aborted: disconnect, slow_reader, deadline or shutdown."""

    def on_plugin_error(self, plugin: str, hook: str) -> None:
        """A plugin, maybe this one, raised or answered nonsense in `hook`."""

    def on_dropped(self, plugin: str, total: int) -> None:
        """Exporter `plugin` has lost `total` records since the start; told now and then, and before each `scrape`."""

    def flush(self) -> None:
        """Deliver what was gathered: about a second after a record, and before `close`.

        Raises RecordsLostError for what can't be delivered.
        """

    def scrape(self) -> bytes | None:
        """The body of GET /metrics (Prometheus text format 0.0.4), or None if this exporter isn't pulled from."""
        return None

    def close(self) -> None:
        """The last call; the server waits for it a few seconds."""

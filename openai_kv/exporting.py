"""Hands every record to every metrics exporter; none of them can stop the server."""

import logging
from collections import Counter
from collections.abc import Callable, Sequence

from openai_kv.metrics import EvictionStats, HttpStats, MetricsExporter, RequestStats, ServerInfo, StepStats

logger = logging.getLogger(__name__)


class ExporterGroup:
    """A MetricsExporter's hooks, called on all exporters, guarded; what raised is counted and logged once a hook."""

    def __init__(self, exporters: Sequence[MetricsExporter] = ()) -> None:
        self._exporters = tuple(exporters)
        self.errors: Counter[tuple[str, str]] = Counter()

    def start(self, info: ServerInfo) -> None:
        self._each("start", lambda exporter: exporter.start(info))

    def on_step(self, stats: StepStats) -> None:
        self._each("on_step", lambda exporter: exporter.on_step(stats))

    def on_request_finished(self, stats: RequestStats) -> None:
        self._each("on_request_finished", lambda exporter: exporter.on_request_finished(stats))

    def on_eviction(self, stats: EvictionStats) -> None:
        self._each("on_eviction", lambda exporter: exporter.on_eviction(stats))

    def on_http_request(self, stats: HttpStats) -> None:
        self._each("on_http_request", lambda exporter: exporter.on_http_request(stats))

    def on_rejected(self, reason: str) -> None:
        self._each("on_rejected", lambda exporter: exporter.on_rejected(reason))

    def on_abort(self, reason: str) -> None:
        self._each("on_abort", lambda exporter: exporter.on_abort(reason))

    def on_plugin_error(self, plugin: str, hook: str) -> None:
        """A plugin raised or answered nonsense in `hook`."""
        self.errors[plugin, hook] += 1
        if self.errors[plugin, hook] == 1:
            logger.error("plugin %s failed in %s; the server goes on without its answer", plugin, hook)
        for exporter in self._exporters:
            try:
                exporter.on_plugin_error(plugin, hook)
            except (Exception, SystemExit):
                if not self.errors[exporter.name, "on_plugin_error"]:
                    logger.exception("metrics exporter %s raised in on_plugin_error", exporter.name)
                self.errors[exporter.name, "on_plugin_error"] += 1

    def scrape(self) -> bytes | None:
        """The first exporter's answer that has one."""
        pages: list[bytes | None] = []
        self._each("scrape", lambda exporter: pages.append(_page(exporter)))
        return next((page for page in pages if page is not None), None)

    def _each(self, hook: str, call: Callable[[MetricsExporter], None]) -> None:
        for exporter in self._exporters:
            try:
                call(exporter)
            except (Exception, SystemExit):
                if not self.errors[exporter.name, hook]:
                    logger.exception("metrics exporter %s raised in %s", exporter.name, hook)
                self.on_plugin_error(exporter.name, hook)


def _page(exporter: MetricsExporter) -> bytes | None:
    page: object = exporter.scrape()
    if not (page is None or isinstance(page, bytes)):
        raise TypeError(f"scrape answered {type(page).__name__}, not bytes")
    return page

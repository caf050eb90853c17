"""Hands every record to every metrics exporter's own thread; nothing an exporter does is felt by the server."""

import logging
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from openai_kv.errors import RecordsLostError
from openai_kv.exporter_thread import ExporterThread
from openai_kv.metrics import (
    EvictionStats,
    HttpStats,
    LookupStats,
    RequestStats,
    ServerInfo,
    StepStats,
    TransferStats,
)
from openai_kv.metrics_exporter import MetricsExporter

logger = logging.getLogger(__name__)
CAPACITY = 16384  # a prompt of 128k tokens may evict 8192 blocks at once; full of steps it holds some 20 MB
FLUSH_SECONDS = 1.0


class ExporterGroup:
    """A MetricsExporter's hooks, called on all exporters that have them; calls come from any thread and never wait.

    `errors` by plugin and hook, `dropped` records by exporter. Both are told to all exporters, and logged whenever
    there is a digit more of them; only an exporter's first error of a kind with its traceback.
    """

    def __init__(
        self,
        exporters: Sequence[MetricsExporter] = (),
        *,
        capacity: int = CAPACITY,
        flush_seconds: float = FLUSH_SECONDS,
    ) -> None:
        self.errors: Counter[tuple[str, str]] = Counter()
        self.dropped = {exporter.name: 0 for exporter in exporters}
        self._traced: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        self._threads = [
            ExporterThread(exporter, self._failed, capacity=capacity, flush_seconds=flush_seconds)
            for exporter in exporters
        ]

    def start(self, info: ServerInfo) -> None:
        self._tell("start", info)

    def on_step(self, stats: StepStats) -> None:
        self._tell("on_step", stats)

    def on_lookup(self, stats: LookupStats) -> None:
        self._tell("on_lookup", stats)

    def on_eviction(self, stats: EvictionStats) -> None:
        self._tell("on_eviction", stats)

    def on_transfer(self, stats: TransferStats) -> None:
        self._tell("on_transfer", stats)

    def on_request_finished(self, stats: RequestStats) -> None:
        self._tell("on_request_finished", stats)

    def on_http_request(self, stats: HttpStats) -> None:
        self._tell("on_http_request", stats)

    def on_rejected(self, reason: str) -> None:
        self._tell("on_rejected", reason)

    def on_abort(self, reason: str) -> None:
        self._tell("on_abort", reason)

    def on_plugin_error(self, plugin: str, hook: str) -> None:
        """A plugin raised or answered nonsense in `hook`."""
        if self._count_error(plugin, hook) == 1:
            logger.error("plugin %s failed in %s; the server goes on without its answer", plugin, hook)
        self._tell("on_plugin_error", plugin, hook)

    def scrape(self) -> list[Future[bytes | None]]:
        """The page of each exporter that has one, with all that was reported until now.

        As with `flush` and `close`, ExporterUnavailableError where an exporter raises or can't be asked.
        """
        self._tell_dropped()
        return [thread.ask("scrape") for thread in self._threads if thread.hears("scrape")]

    def flush(self) -> list[Future[None]]:
        """Done when each exporter has had, and flushed, what was reported until now."""
        return [thread.ask("flush") for thread in self._threads]

    def close(self) -> dict[str, Future[None]]:
        """Done, by exporter, when it has had everything and is closed; what is reported from now on is ignored."""
        return {thread.name: thread.close() for thread in self._threads}

    def num_waiting(self) -> dict[str, int]:
        """Records that an exporter hasn't taken yet, where there are any."""
        return {thread.name: thread.num_waiting for thread in self._threads if thread.num_waiting}

    def _tell(self, hook: str, *arguments: Any) -> None:
        for thread in self._threads:
            if not thread.put(hook, *arguments):
                self._lose(thread.name, 1)

    def _lose(self, name: str, count: int) -> None:
        with self._lock:
            before = self.dropped[name]
            total = self.dropped[name] = before + count
        if worth_a_line(before, total):
            logger.warning("metrics exporter %s is too slow or can't deliver: it has lost %d records", name, total)
            self._tell_dropped()

    def _tell_dropped(self) -> None:
        """Totals, so that it does no harm where one of them finds no room."""
        for name, total in self.dropped.items():
            for thread in self._threads:
                thread.put("on_dropped", name, total)

    def _failed(self, thread: ExporterThread, hook: str, error: BaseException) -> None:
        """An exporter raised. What it raises at hearing of failures is told to nobody: they could go on for ever."""
        if isinstance(error, RecordsLostError):
            self._lose(thread.name, error.count)
            return
        count = self._count_error(thread.name, hook)
        if worth_a_line(count - 1, count):
            kind = type(error).__name__
            trace = None if (thread.name, kind) in self._traced else error
            self._traced.add((thread.name, kind))
            logger.error(
                "metrics exporter %s raised %s in %s; errors there: %d", thread.name, kind, hook, count, exc_info=trace
            )
        if hook != "on_plugin_error":
            self._tell("on_plugin_error", thread.name, hook)

    def _count_error(self, plugin: str, hook: str) -> int:
        with self._lock:
            self.errors[plugin, hook] += 1
            return self.errors[plugin, hook]


def worth_a_line(before: int, now: int) -> bool:
    """A count in the log: the first time, and then by digits."""
    return not before or len(str(before)) < len(str(now))

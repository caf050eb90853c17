"""A line of JSON for each request: `openai-kv serve --plugins-dir plugins --metrics-exporters prometheus jsonl`."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from openai_kv import MetricsExporter, RequestStats, hookimpl


class JsonLines(MetricsExporter):
    """Counts and times, no text. Writing may block as long as it likes: nobody but this exporter waits."""

    name = "jsonl"

    def __init__(self, path: str = "requests.jsonl") -> None:
        self._file = Path(path).expanduser().open("a", encoding="utf-8")

    def on_request_finished(self, stats: RequestStats) -> None:
        print(json.dumps(asdict(stats)), file=self._file)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


@hookimpl
def register_metrics_exporters(register: Callable[[type[MetricsExporter]], None]) -> None:
    register(JsonLines)

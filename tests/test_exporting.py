import pytest

from openai_kv.exporting import ExporterGroup
from openai_kv.metrics import HttpStats, MetricsExporter


class Broken(MetricsExporter):
    name = "broken"

    def on_http_request(self, stats: HttpStats) -> None:
        raise ValueError("no")

    def scrape(self) -> bytes | None:
        raise ValueError("no page")


class Recording(MetricsExporter):
    name = "recording"

    def __init__(self) -> None:
        self.seen: list[object] = []

    def on_http_request(self, stats: HttpStats) -> None:
        self.seen.append(stats)

    def on_plugin_error(self, plugin: str, hook: str) -> None:
        self.seen.append((plugin, hook))

    def scrape(self) -> bytes | None:
        return b"text"


def test_a_raising_exporter_stops_nobody_and_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    recording = Recording()
    group = ExporterGroup([Broken(), recording])
    stats = HttpStats("GET", "/health", 200, 0.1)
    group.on_http_request(stats)
    group.on_http_request(stats)
    assert recording.seen == [("broken", "on_http_request"), stats] * 2
    assert group.errors["broken", "on_http_request"] == 2
    assert sum("broken raised" in record.message for record in caplog.records) == 1


def test_an_exporter_that_fails_at_hearing_of_failures_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    class Hopeless(Broken):
        def on_plugin_error(self, plugin: str, hook: str) -> None:
            raise SystemExit(1)

    group = ExporterGroup([Hopeless()])
    for _ in range(3):
        group.on_plugin_error("policy", "admit")
    assert group.errors["broken", "on_plugin_error"] == 3
    assert sum("broken raised" in record.message for record in caplog.records) == 1


class Garbling(Recording):
    name = "garbling"

    def scrape(self) -> bytes | None:
        return 5  # type: ignore[return-value]


def test_the_page_is_of_the_first_exporter_that_can_make_one() -> None:
    group = ExporterGroup([Broken(), Garbling(), Recording()])
    assert group.scrape() == b"text"
    assert group.errors["broken", "scrape"] == group.errors["garbling", "scrape"] == 1
    assert ExporterGroup([Broken()]).scrape() is None

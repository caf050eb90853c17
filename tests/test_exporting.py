"""Exporters that block, raise or exit: counted, and felt by nobody. Counts and events, no clocks."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any

import pytest

from openai_kv.errors import ExporterUnavailableError, RecordsLostError
from openai_kv.exporting import ExporterGroup
from openai_kv.metrics import HttpStats
from openai_kv.metrics_exporter import MetricsExporter
from tests.harness import Run, Shape, build_engine, exported, fake_runner, make_request

STATS = HttpStats("GET", "/health", 200, 0.1)


class Recording(MetricsExporter):
    """`seen` in the order in which it came."""

    name = "recording"

    def __init__(self) -> None:
        self.seen: list[object] = []
        self.heard = threading.Semaphore(0)

    def on_http_request(self, stats: HttpStats) -> None:
        self.seen.append(stats)
        self.heard.release()

    def on_plugin_error(self, plugin: str, hook: str) -> None:
        self.seen.append((plugin, hook))

    def on_dropped(self, plugin: str, total: int) -> None:
        self.seen.append((plugin, total))

    def flush(self) -> None:
        self.seen.append("flush")

    def scrape(self) -> bytes | None:
        return b"text"

    def close(self) -> None:
        self.seen.append("close")


class Raising(MetricsExporter):
    name = "raising"

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def on_http_request(self, stats: HttpStats) -> None:
        raise self.error

    def on_step(self, stats: object) -> None:
        raise self.error

    def scrape(self) -> bytes | None:
        raise self.error


class Blocked(MetricsExporter):
    """Stays in the first hook that is called until `go` is set."""

    name = "blocked"

    def __init__(self) -> None:
        self.entered, self.go = threading.Event(), threading.Event()
        self.seen: list[object] = []

    def on_http_request(self, stats: HttpStats) -> None:
        self.entered.set()
        self.go.wait()
        self.seen.append(stats)

    def on_step(self, stats: object) -> None:
        self.on_http_request(STATS)

    def scrape(self) -> bytes | None:
        return b"late"


@contextmanager
def blocked(*others: MetricsExporter, capacity: int = 3) -> Iterator[tuple[ExporterGroup, Blocked]]:
    """A group whose first exporter is in a hook, its queue empty, until the end."""
    exporter = Blocked()
    group = ExporterGroup([exporter, *others], capacity=capacity)
    group.on_http_request(STATS)
    assert exporter.entered.wait(20)
    try:
        yield group, exporter
    finally:
        exporter.go.set()


def get(future: Future[Any]) -> Any:
    return future.result(20)


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), KeyboardInterrupt()])
def test_a_raising_exporter_stops_nobody_and_is_counted(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    recording = Recording()
    group = ExporterGroup([Raising(error), recording], flush_seconds=1000)
    for _ in range(3):
        group.on_http_request(STATS)
    exported(group)  # now the one has raised, and the other is told
    exported(group)
    assert recording.seen.count(STATS) == recording.seen.count(("raising", "on_http_request")) == 3
    assert group.errors == {("raising", "on_http_request"): 3}
    assert sum("raising raised" in record.message for record in caplog.records) == 1


def test_a_full_disk_is_one_traceback_and_then_counts(caplog: pytest.LogCaptureFixture) -> None:
    class FullDisk(Raising):
        def flush(self) -> None:
            raise self.error

        def close(self) -> None:
            raise self.error

    group = ExporterGroup([FullDisk(OSError(28, "No space left on device"))], flush_seconds=1000)
    for _ in range(12):
        group.on_http_request(STATS)
        exported(group)
    wait(group.close().values(), 20)
    lines = [message.removeprefix("metrics exporter raising raised OSError in ") for message in caplog.messages]
    assert sorted(lines) == [
        "close; errors there: 1",
        "flush; errors there: 1",
        "flush; errors there: 10",
        "on_http_request; errors there: 1",
        "on_http_request; errors there: 10",
    ]
    assert [record.exc_info is not None for record in caplog.records].count(True) == 1


def test_an_exporter_that_fails_at_hearing_of_failures_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    class Hopeless(MetricsExporter):
        def __init__(self, name: str) -> None:
            self.name = name  # type: ignore[misc]

        def on_plugin_error(self, plugin: str, hook: str) -> None:
            raise SystemExit(1)

    group = ExporterGroup([Hopeless("one"), Hopeless("two")])
    for _ in range(3):
        group.on_plugin_error("policy", "admit")
    exported(group)
    names = ("policy", "admit"), ("one", "on_plugin_error"), ("two", "on_plugin_error")
    assert group.errors == dict.fromkeys(names, 3)
    assert sum("one raised" in record.message for record in caplog.records) == 1


def test_a_blocked_exporter_loses_what_its_queue_cannot_hold_and_nobody_waits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recording = Recording()
    with blocked(recording, capacity=50) as (group, exporter):
        assert recording.heard.acquire(timeout=20)
        for _ in range(162):
            group.on_http_request(STATS)
            assert recording.heard.acquire(timeout=20)  # the other one keeps up
        assert group.dropped == {"blocked": 112, "recording": 0}
        assert recording.seen.count(STATS) == 163
        assert [entry for entry in recording.seen if entry == ("blocked", 100)] == [("blocked", 100)]
        told = [record.args for record in caplog.records if "is too slow" in record.message]
        assert told == [("blocked", 1), ("blocked", 10), ("blocked", 100)]
        exporter.go.set()
        get(group.close()["blocked"])  # a flush would find no room while the queue is full
        assert len(exporter.seen) == 51


def test_the_engine_goes_on_beside_exporters_that_block_raise_and_exit() -> None:
    shape, prompt = Shape(), list(range(10, 33))
    alone = Run(build_engine(fake_runner(shape), shape)).generate(make_request(prompt, 40))
    with blocked(Raising(SystemExit(1)), capacity=5) as (group, _):
        run = Run(build_engine(fake_runner(shape), shape, exporters=group))
        assert run.generate(make_request(prompt, 40)) == alone
        get(group.close()["raising"])
        assert group.dropped["blocked"] == 35
        assert group.errors["raising", "on_step"] + group.dropped["raising"] == 40


def test_what_an_exporter_cannot_deliver_counts_as_dropped() -> None:
    class Failing(MetricsExporter):
        name = "failing"

        def flush(self) -> None:
            raise RecordsLostError(7)

        def on_http_request(self, stats: HttpStats) -> None: ...

    recording = Recording()
    group = ExporterGroup([Failing(), recording], flush_seconds=1000)
    exported(group)
    exported(group)
    assert get(group.scrape()[0]) == b"text"
    assert group.dropped == {"failing": 14, "recording": 0} and not group.errors
    assert recording.seen[-2:] == [("failing", 14), ("recording", 0)], "told before each scrape"


def test_the_page_has_what_was_reported_before_it() -> None:
    class Counting(Recording):
        def scrape(self) -> bytes:
            return str(self.seen.count(STATS)).encode()

    group = ExporterGroup([Counting()])
    for number in range(1, 50):
        group.on_http_request(STATS)
        assert get(group.scrape()[0]) == str(number).encode()


class Garbling(Recording):
    name = "garbling"

    def scrape(self) -> bytes | None:
        return 5  # type: ignore[return-value]


class Deaf(MetricsExporter):
    name = "deaf"


def test_pages_are_asked_only_of_those_who_have_one() -> None:
    group = ExporterGroup([Raising(ValueError("no page")), Deaf(), Garbling(), Recording()])
    raised, garbled, page = group.scrape()
    assert get(page) == b"text"
    for failed in (raised, garbled):
        with pytest.raises(ExporterUnavailableError, match="raised in scrape"):
            get(failed)
    assert group.errors["raising", "scrape"] == group.errors["garbling", "scrape"] == 1


def test_pages_of_a_blocked_exporter_are_bounded_and_can_be_given_up() -> None:
    with blocked() as (group, exporter):
        pages = [group.scrape()[0] for _ in range(5)]
        assert [page.done() for page in pages] == [False, False, False, True, True]
        with pytest.raises(ExporterUnavailableError, match="no room"):
            pages[3].result()
        assert pages[0].cancel()
        exporter.go.set()
        assert get(pages[1]) == b"late"


def test_a_flush_follows_records_even_if_more_of_them_come() -> None:
    recording = Recording()
    group = ExporterGroup([recording], flush_seconds=0)
    for _ in range(3):
        group.on_http_request(STATS)
    wait(group.close().values(), 20)
    assert recording.seen == [STATS, "flush"] * 3 + ["flush", "close"]


def test_nothing_comes_after_close() -> None:
    recording = Recording()
    group = ExporterGroup([recording], flush_seconds=1000)
    group.on_http_request(STATS)
    closed = group.close()
    group.on_http_request(STATS)
    assert get(closed["recording"]) is None
    assert isinstance(group.scrape()[0].exception(), ExporterUnavailableError)
    assert recording.seen == [STATS, "flush", "close"]
    assert group.num_waiting() == {}


def test_close_can_be_given_up_on() -> None:
    with blocked() as (group, _):
        group.on_http_request(STATS)
        closed = group.close()
        assert not closed["blocked"].done()
        assert group.num_waiting() == {"blocked": 3}
        assert closed["blocked"].cancel()

"""Exporters behind the whole server: what they hear of, and what the server does about bad ones."""

import asyncio
import json
import threading
from pathlib import Path

import pytest

from openai_kv.default_plugins.prometheus import PrometheusExporter
from openai_kv.exporting import ExporterGroup
from openai_kv.metrics import HttpStats, MetricsExporter, StepStats
from openai_kv.plugins import load_plugins
from openai_kv.server import health
from openai_kv.server.run import Signals, close_exporters
from tests.server.serving import Site, check_error, site

HTTP = HttpStats("GET", "/health", 200, 0.1)
EXAMPLES = Path(__file__).parents[2] / "plugins"


class Blocked(MetricsExporter):
    """Every hook waits for `go`."""

    name = "blocked"

    def __init__(self) -> None:
        self.entered, self.go = threading.Event(), threading.Event()

    def on_step(self, stats: StepStats) -> None:
        self.go.wait()

    def on_http_request(self, stats: HttpStats) -> None:
        self.entered.set()
        self.go.wait()

    def close(self) -> None:
        self.go.wait()


class BlockedPage(Blocked):
    def scrape(self) -> bytes | None:
        self.go.wait()
        return b"late"


async def test_a_blocked_exporter_is_not_felt() -> None:
    blocked = Blocked()
    async with site(exporters=[blocked, PrometheusExporter()]) as server:
        for count in range(1, 4):
            assert (await server.chat()).status_code == 200
            page = (await server.client.get("/metrics")).text
            assert (
                f'vllm:request_success_total{{engine="0",finished_reason="length",model_name="fake"}} {count}.0' in page
            )
        assert 'openai_kv_exporter_dropped_total{plugin="blocked"} 0.0' in page
        blocked.go.set()


async def test_a_page_that_does_not_come_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "SCRAPE_SECONDS", 0.01)
    blocked = BlockedPage()
    async with site(exporters=[blocked]) as server:
        await server.chat()
        check_error(await server.client.get("/metrics"), 500, "internal_error")
        blocked.go.set()
        await server.exported()
        assert (await server.client.get("/metrics")).text == "late"


class PageRaises(MetricsExporter):
    name = "raises"

    def scrape(self) -> bytes | None:
        raise OSError("no page")


class NoPage(MetricsExporter):
    name = "no page"

    def scrape(self) -> bytes | None:
        return None


def replace_exporters(server: Site, *exporters: MetricsExporter, capacity: int = 100) -> ExporterGroup:
    group = ExporterGroup(exporters, capacity=capacity)
    object.__setattr__(server.context, "exporters", group)
    return group


async def test_an_exporter_that_fails_is_no_missing_page_and_another_may_have_one() -> None:
    async with site(exporters=[PageRaises()]) as server:
        assert (await server.client.get("/metrics")).text == "up 1\n", "of the exporter that records"
        replace_exporters(server, PageRaises(), NoPage())
        check_error(await server.client.get("/metrics"), 500, "internal_error")
        replace_exporters(server, NoPage())
        check_error(await server.client.get("/metrics"), 404, "unknown_url")


async def test_a_full_queue_is_no_missing_page() -> None:
    blocked = BlockedPage()
    async with site() as server:
        group = replace_exporters(server, blocked, capacity=1)
        group.on_http_request(HTTP)
        assert await asyncio.to_thread(blocked.entered.wait, 20)
        group.on_http_request(HTTP)
        check_error(await server.client.get("/metrics"), 500, "internal_error")
        blocked.go.set()


async def test_generations_are_told_with_their_exchange() -> None:
    async with site() as server:
        chat = await server.chat(seed=5, stop=["never"])
        await server.post("/generate", {"prompt": "hello", "max_tokens": 4, "stream": True})
        await server.post("/v1/completions", {"model": "fake", "prompt": ["a b", "c d e"], "max_tokens": 3})
        await server.chat(top_p=7)
        await server.exported()
        told = [stats.generation for stats in server.exporter.http]
    assert told[3] is None and server.exporter.http[3].error_code == "decimal_above_max_value"
    first, native, two = told[:3]
    assert first is not None and native is not None and two is not None
    assert (first.operation, first.response_id) == ("chat", chat.json()["id"])
    assert (first.seed, first.stop, first.stream, first.hit_kind) == (5, ("never",), False, "miss")
    assert (native.operation, native.request_model, native.stream) == ("text_completion", "fake", True)
    assert (two.num_output_tokens, two.longest_output_tokens) == (6, 3)
    assert two.finish_reasons == ("length", "length")
    for generation, stats in zip(told[:3], server.exporter.http, strict=False):
        assert generation is not None and generation.first_token_seconds is not None
        assert 0 < generation.first_token_seconds <= generation.total_seconds <= stats.seconds


async def test_the_example_writes_a_line_a_request(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    options = {"jsonl": {"path": str(path)}}
    async with site(exporters=load_plugins(str(EXAMPLES)).create_exporters(["jsonl"], options)) as server:
        for _ in range(2):
            await server.chat(cache_salt="pepper", session_id="s")
        await server.exported()
        lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["hit_kind"] for line in lines] == ["miss", "exact"]
    assert {line["finish_reason"] for line in lines} == {"length"}
    assert {line["info"]["session_id"] for line in lines} == {"s"}
    assert "pepper" not in path.read_text() and "cache?" not in path.read_text()


async def test_at_the_end_exporters_get_their_time_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    signals, blocked = Signals(), Blocked()
    await close_exporters(ExporterGroup(), signals)
    group = ExporterGroup([blocked])
    closing = asyncio.create_task(close_exporters(group, signals))
    await asyncio.sleep(0)
    blocked.go.set()
    await closing
    assert "not waited for" not in caplog.text


async def test_a_second_signal_gives_up_on_them(caplog: pytest.LogCaptureFixture) -> None:
    signals, blocked = Signals(), Blocked()
    group = ExporterGroup([blocked])
    for _ in range(3):
        group.on_http_request(HTTP)
    signals.second.set()
    await close_exporters(group, signals)
    assert "metrics exporter blocked is not waited for" in caplog.text
    assert "in all" not in caplog.text
    blocked.go.set()


async def test_at_the_end_the_log_says_how_much_was_lost(caplog: pytest.LogCaptureFixture) -> None:
    blocked = Blocked()
    group = ExporterGroup([blocked, NoPage()], capacity=1)
    for _ in range(9):
        group.on_http_request(HTTP)
    lost = group.dropped["blocked"]
    blocked.go.set()
    await close_exporters(group, Signals())
    assert lost > 1
    told = [record.getMessage() for record in caplog.records if "in all" in record.message]
    assert told == [f"metrics exporter blocked has lost {lost} records in all"]

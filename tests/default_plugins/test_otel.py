"""Spans and histograms of a whole server, as an OTLP receiver gets them."""

import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from openai_kv.default_plugins.otel import OtelExporter
from openai_kv.default_plugins.prometheus import PrometheusExporter
from openai_kv.errors import ConfigError
from openai_kv.metrics import HttpStats
from openai_kv.plugins import load_plugins
from tests.otel.receiver import Receiver, attributes, receiver
from tests.server.remote import answering, remote
from tests.server.serving import CHAT, Site, live_site

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}


@asynccontextmanager
async def traced(**options: Any) -> AsyncIterator[tuple[Site, httpx.AsyncClient, Receiver]]:
    with receiver() as received:
        async with (
            live_site(exporters=[OtelExporter(received.endpoint)], **options) as (server, url),
            httpx.AsyncClient(base_url=url) as client,
        ):
            yield server, client, received


def one(spans: list[Span], kind: "Span.SpanKind.ValueType") -> Span:
    (span,) = [span for span in spans if span.kind == kind]
    return span


async def test_a_chat_is_a_span_under_its_exchange_under_the_clients_own() -> None:
    before = time.time_ns()
    async with traced() as (server, client, received):
        await client.post("/v1/chat/completions", json=CHAT)
        answer = await client.post(
            "/v1/chat/completions", json={**CHAT, "session_id": "s1"}, headers={**TRACEPARENT, "user-agent": "test"}
        )
        await server.exported()
        assert len(received.spans) == 4
        spans = [span for span in received.spans if span.trace_id.hex() == TRACE]
        exchange, chat = one(spans, Span.SPAN_KIND_SERVER), one(spans, Span.SPAN_KIND_INTERNAL)
        assert exchange.parent_span_id.hex() == PARENT and exchange.trace_state == "vendor=1"
        assert (exchange.name, chat.name) == ("POST /v1/chat/completions", "chat fake")
        assert chat.parent_span_id == exchange.span_id
        assert before < exchange.start_time_unix_nano == chat.start_time_unix_nano
        assert chat.start_time_unix_nano < chat.end_time_unix_nano <= exchange.end_time_unix_nano < time.time_ns()
        assert exchange.status.code == chat.status.code == Status.STATUS_CODE_UNSET
        url = client.base_url
        assert attributes(exchange.attributes) == {
            "http.request.method": "POST",
            "http.route": "/v1/chat/completions",
            "http.response.status_code": 200,
            "url.scheme": "http",
            "url.path": "/v1/chat/completions",
            "server.address": url.host,
            "server.port": url.port,
        }
        found = attributes(chat.attributes)
        queue_seconds = found.pop("openai_kv.queue_seconds")
        assert isinstance(queue_seconds, float) and queue_seconds > 0
        usage = answer.json()["usage"]
        assert found == {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "openai_kv",
            "gen_ai.request.model": "fake",
            "gen_ai.request.max_tokens": 8,
            "gen_ai.request.temperature": 0,
            "gen_ai.request.top_p": 1,
            "gen_ai.request.frequency_penalty": 0,
            "gen_ai.request.presence_penalty": 0,
            "gen_ai.request.stream": False,
            "gen_ai.output.type": "text",
            "gen_ai.response.id": answer.json()["id"],
            "gen_ai.response.model": "fake",
            "gen_ai.response.finish_reasons": ["length"],
            "gen_ai.usage.input_tokens": usage["prompt_tokens"],
            "gen_ai.usage.output_tokens": 8,
            "gen_ai.usage.cache_read.input_tokens": usage["prompt_tokens"],
            "gen_ai.usage.cache_write.input_tokens": 0,
            "gen_ai.usage.reasoning.output_tokens": 0,
            "gen_ai.conversation.id": "s1",
            "server.address": url.host,
            "server.port": url.port,
            "openai_kv.cache.hit_kind": "exact",
            "openai_kv.preemptions": 0,
        }


async def test_what_an_upstream_is_asked_is_a_client_span() -> None:
    async with remote(answering(b"{}")) as far, remote(answering(b"{}", "404 Not Found")) as lost:
        known = {"gpt-*": {"base_url": f"{far.url}/v1"}, "lost": {"base_url": lost.url}}
        async with traced(upstreams=known) as (server, client, received):
            for path, model in (("chat/completions", "gpt-1"), ("embeddings", "gpt-2"), ("completions", "lost")):
                await client.post(f"/v1/{path}", json={"model": model}, headers=TRACEPARENT)
            await client.post("/v1/chat/completions/input_tokens", json={"model": "gpt-1"})
            await server.exported()
        spans = {span.name: span for span in received.spans if span.kind == Span.SPAN_KIND_CLIENT}
        assert spans.keys() == {"chat gpt-*", "embeddings gpt-*", "text_completion lost"}
        exchanges = {span.span_id for span in received.spans if span.kind == Span.SPAN_KIND_SERVER}
        assert {span.parent_span_id for span in spans.values()} < exchanges
        assert {span.trace_id.hex() for span in spans.values()} == {TRACE}
        assert attributes(spans["chat gpt-*"].attributes) == {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "openai",
            "gen_ai.request.model": "gpt-*",
            "server.address": "127.0.0.1",
            "server.port": int(far.url.rpartition(":")[2]),
        }
        failed = spans["text_completion lost"]
        assert (attributes(failed.attributes)["error.type"], failed.status.code) == ("404", Status.STATUS_CODE_ERROR)


async def test_models_are_told_by_their_configured_names() -> None:
    async with traced(model_names=("fake", "any-*")) as (server, client, received):
        for model in ("fake", "any-1", "any-2"):
            await client.post("/v1/chat/completions", json={**CHAT, "model": model})
        await client.post("/v1/embeddings", json={"model": "any-3", "input": "x"})
        await client.post("/generate", json={"prompt": "x", "max_tokens": 1})
        await server.exported()
    names = Counter(span.name for span in received.spans if span.kind == Span.SPAN_KIND_INTERNAL)
    assert names == {"chat fake": 1, "chat any-*": 2, "embeddings any-*": 1, "text_completion fake": 1}
    (vector,) = [span for span in received.spans if span.name.startswith("embeddings")]
    told = {name for name in attributes(vector.attributes) if name.startswith("gen_ai.re")}
    assert told == {"gen_ai.request.model", "gen_ai.response.model", "gen_ai.response.id"}


async def test_histograms() -> None:
    async with traced() as (server, client, received):
        server.runner.inner.fail_at = {1}
        for path, body in (
            ("/v1/chat/completions", CHAT),
            ("/v1/chat/completions", CHAT),
            ("/generate", {"prompt": "x", "max_tokens": 1}),
        ):
            await client.post(path, json=body)
    url = client.base_url
    points = {
        (name, found["gen_ai.operation.name"], found.get("error.type")): point
        for name, histogram in received.histograms.items()
        for point in histogram
        if (found := attributes(point.attributes))
    }
    assert {key: point.count for key, point in points.items()} == {
        ("gen_ai.server.request.duration", "chat", "internal_error"): 1,
        ("gen_ai.server.request.duration", "chat", None): 1,
        ("gen_ai.server.request.duration", "text_completion", None): 1,
        ("gen_ai.server.time_to_first_token", "chat", None): 1,
        ("gen_ai.server.time_to_first_token", "text_completion", None): 1,
        ("gen_ai.server.time_per_output_token", "chat", None): 1,
    }
    bounds = {name: list(point.explicit_bounds) for (name, _, _), point in points.items()}
    assert bounds == {
        "gen_ai.server.request.duration": [0.01 * 2**power for power in range(14)],
        "gen_ai.server.time_to_first_token": [
            0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10
        ],
        "gen_ai.server.time_per_output_token": [
            0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5
        ],
    }  # fmt: skip
    assert attributes(points["gen_ai.server.time_to_first_token", "chat", None].attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai_kv",
        "gen_ai.request.model": "fake",
        "gen_ai.response.model": "fake",
        "server.address": url.host,
        "server.port": url.port,
    }


async def test_failures_are_errors_by_the_envelopes_code() -> None:
    async with traced() as (server, client, received):
        server.runner.inner.fail_at = {4}
        await client.post("/v1/chat/completions", json={**CHAT, "stream": True})
        await client.post("/v1/chat/completions", json={**CHAT, "top_p": 7})
        await client.get("/nowhere")
        await server.exported()
    by_name = {(span.name, attributes(span.attributes).get("error.type"), span.status.code) for span in received.spans}
    unset, error = Status.STATUS_CODE_UNSET, Status.STATUS_CODE_ERROR
    assert by_name == {
        ("POST /v1/chat/completions", "internal_error", error),
        ("chat fake", "internal_error", error),
        ("POST /v1/chat/completions", None, unset),
        ("GET", None, unset),
    }
    (failed,) = [span for span in received.spans if span.kind == Span.SPAN_KIND_INTERNAL]
    found = attributes(failed.attributes)
    assert found["gen_ai.usage.output_tokens"] == 3 and "gen_ai.response.finish_reasons" not in found
    assert isinstance(found["gen_ai.response.time_to_first_chunk"], float)


async def test_a_client_that_left_is_told_as_such() -> None:
    async with traced() as (server, client, received):
        server.runner.hold()
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/v1/chat/completions", json=CHAT, timeout=0.2)
        await server.exporter.until(lambda: len(server.exporter.http) == 1)
        await server.exported()
        server.runner.release()
        chat = one(received.spans, Span.SPAN_KIND_INTERNAL)
        assert attributes(chat.attributes)["error.type"] == "disconnect"
        assert chat.status.code == Status.STATUS_CODE_ERROR


async def test_no_prompt_no_output_no_key_and_no_salt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_KV_API_KEYS", "alicekey")
    messages = [{"role": "user", "content": "secretprompt"}]
    body = {**CHAT, "messages": messages, "cache_salt": "saltysalt", "user": "someone", "metadata": {"a": "metavalue"}}
    async with traced(headers={"authorization": "Bearer alicekey"}) as (server, client, received):
        answer = await client.post("/v1/chat/completions", json=body, headers={"authorization": "Bearer alicekey"})
        content = answer.json()["choices"][0]["message"]["content"]
        await client.get("/v1/models/secretprompt", headers={"authorization": "Bearer alicekey"})
    assert len(content) > 4 and received.histograms and len(received.spans) == 3
    for secret in ("secretprompt", "saltysalt", "alicekey", "someone", "metavalue", content):
        assert secret.encode() not in received.raw
    namespaces = {stats.info.namespace for stats in server.exporter.requests}
    assert all(len(name) == 64 for name in namespaces)


async def test_the_standard_variables_are_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=blue")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    async with traced() as (server, client, received):
        await client.get("/health")
        await server.exported()
        assert [headers["x-tenant"] for headers in received.headers] == ["blue"]
        assert received.resource["service.name"] == "openai-kv"
        assert received.resource["deployment.environment.name"] == "test"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    async with traced() as (server, client, received):
        await client.get("/health")
        await server.exported()
        assert received.resource["service.name"] == "mine"


async def test_with_the_receiver_down_requests_go_on_and_the_drops_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
    exporters = [PrometheusExporter(), OtelExporter(endpoint)]
    async with live_site(exporters=exporters) as (server, url), httpx.AsyncClient(base_url=url) as client:
        for _ in range(3):
            assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
        await server.exported()
        page = (await client.get("/metrics")).text
        assert 'openai_kv_exporter_dropped_total{plugin="otel"} 3.0' in page
        assert 'openai_kv_exporter_dropped_total{plugin="prometheus"} 0.0' in page
        assert server.context.exporters.errors == {}


def test_a_full_batch_does_not_wait_for_the_flush() -> None:
    with receiver() as received:
        exporter = OtelExporter(received.endpoint)
        for _ in range(512):
            exporter.on_http_request(HttpStats("GET", "/health", 200, 0.1, arrival_time=1.0))
        assert len(received.spans) == 512
        exporter.flush()
        exporter.close()
        assert len(received.bodies["/v1/traces"]) == 1


def test_it_takes_an_endpoint_and_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = load_plugins()
    with pytest.raises(ConfigError, match=r"runs if otel.endpoint is set"):
        registry.create_exporters(["otel"], {})
    monkeypatch.delitem(sys.modules, "openai_kv.otel.telemetry", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    with pytest.raises(ConfigError, match=r"otel.endpoint is set, but .* is missing: pip install 'openai-kv\[otel\]'"):
        registry.create_exporters(["otel"], {"otel": {"endpoint": "http://127.0.0.1:4318"}})

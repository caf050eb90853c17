"""Records as attributes, case by case; tests/default_plugins/test_otel.py sends them."""

from dataclasses import replace

import pytest

from openai_kv.metrics import GenerationStats, HttpStats
from openai_kv.otel.attributes import generation_attributes, generation_name, http_attributes, http_name

HTTP = HttpStats("POST", "/v1/completions", 200, 0.5, server_address="127.0.0.1", server_port=8000)
GENERATION = GenerationStats(
    operation="text_completion", request_model="asked", response_id="cmpl-1", stream=True, num_choices=2,
    output_type="text", max_tokens=16, temperature=0.5, top_p=0.9, top_k=40, frequency_penalty=0.25,
    presence_penalty=-0.5, stop=("END",), seed=7, session_id="s", finish_reasons=("stop", "length"), hit_kind="radix",
    num_prompt_tokens=20, num_output_tokens=9, num_cached_tokens=12, cache_write_tokens=8, num_reasoning_tokens=0,
    longest_output_tokens=5, num_preemptions=1, queue_seconds=0.125, first_token_seconds=0.25, total_seconds=0.5,
    error_code=None,
)  # fmt: skip


def test_a_generation() -> None:
    assert generation_name(GENERATION) == "text_completion asked"
    assert generation_attributes(GENERATION, HTTP, "canonical") == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "openai_kv",
        "gen_ai.request.model": "asked",
        "gen_ai.response.model": "canonical",
        "server.address": "127.0.0.1",
        "server.port": 8000,
        "gen_ai.request.max_tokens": 16,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.top_k": 40,
        "gen_ai.request.frequency_penalty": 0.25,
        "gen_ai.request.presence_penalty": -0.5,
        "gen_ai.request.stop_sequences": ("END",),
        "gen_ai.request.seed": 7,
        "gen_ai.request.stream": True,
        "gen_ai.request.choice.count": 2,
        "gen_ai.output.type": "text",
        "gen_ai.response.id": "cmpl-1",
        "gen_ai.response.finish_reasons": ("stop", "length"),
        "gen_ai.response.time_to_first_chunk": 0.25,
        "gen_ai.usage.input_tokens": 20,
        "gen_ai.usage.output_tokens": 9,
        "gen_ai.usage.cache_read.input_tokens": 12,
        "gen_ai.usage.cache_write.input_tokens": 8,
        "gen_ai.usage.reasoning.output_tokens": 0,
        "gen_ai.conversation.id": "s",
        "openai_kv.cache.hit_kind": "radix",
        "openai_kv.queue_seconds": 0.125,
        "openai_kv.preemptions": 1,
    }


def test_what_says_nothing_is_left_out() -> None:
    bare = replace(
        GENERATION, top_k=-1, stop=(), seed=None, stream=False, num_choices=1, session_id=None, finish_reasons=(),
        queue_seconds=None, first_token_seconds=None, error_code="queue_full",
    )  # fmt: skip
    left = generation_attributes(bare, replace(HTTP, server_port=0), "canonical")
    gone = {
        "server.port", "gen_ai.request.top_k", "gen_ai.request.stop_sequences", "gen_ai.request.seed",
        "gen_ai.request.choice.count", "gen_ai.response.finish_reasons", "gen_ai.response.time_to_first_chunk",
        "gen_ai.conversation.id", "openai_kv.queue_seconds",
    }  # fmt: skip
    assert generation_attributes(GENERATION, HTTP, "canonical").keys() - left.keys() == gone
    assert left["error.type"] == "queue_full" and left["gen_ai.request.stream"] is False


@pytest.mark.parametrize(
    ("changes", "name", "error"),
    [
        ({}, "POST /v1/completions", None),
        ({"status": 400, "error_code": "invalid_value"}, "POST /v1/completions", None),
        ({"status": 503, "error_code": "draining"}, "POST /v1/completions", "draining"),
        ({"status": 200, "error_code": "internal_error"}, "POST /v1/completions", "internal_error"),
        ({"status": 499, "error_code": "disconnect"}, "POST /v1/completions", None),
        ({"status": 404, "route": "unmatched", "error_code": "unknown_url"}, "POST", None),
        ({"method": "OTHER", "status": 405}, "HTTP /v1/completions", None),
    ],
)
def test_an_exchange(changes: dict[str, object], name: str, error: str | None) -> None:
    stats = replace(HTTP, **changes)  # type: ignore[arg-type]
    found = http_attributes(stats)
    assert http_name(stats) == name
    assert found.get("error.type") == error
    assert found["http.response.status_code"] == stats.status
    assert found["http.request.method"] == ("_OTHER" if stats.method == "OTHER" else "POST")
    assert ("http.route" in found) == ("url.path" in found) == (stats.route != "unmatched")


def test_a_path_with_client_text_in_it_is_not_told() -> None:
    assert "url.path" not in http_attributes(replace(HTTP, route="/v1/models/{id}"))

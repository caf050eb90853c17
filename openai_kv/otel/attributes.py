"""Records as attributes of the HTTP and GenAI semantic conventions (late 2026, status Development).

Never among them: prompts, outputs, keys, salts.
"""

from collections.abc import Mapping

from openai_kv.metrics import GenerationStats, HttpStats

Value = str | bool | int | float | tuple[str, ...]
Attributes = dict[str, Value]
PROVIDER = "openai_kv"
UNMATCHED = "unmatched"
EMBEDDINGS = "embeddings"
UPSTREAM_PROVIDER = "openai"  # whose protocol it speaks; who it is in truth can't be known
OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": EMBEDDINGS,
}


def given(values: Mapping[str, Value | None]) -> Attributes:
    """What has a value: an attribute that says nothing is left out."""
    return {name: value for name, value in values.items() if value not in (None, "", ())}


def http_name(stats: HttpStats) -> str:
    method = "HTTP" if stats.method == "OTHER" else stats.method
    return method if stats.route == UNMATCHED else f"{method} {stats.route}"


def http_attributes(stats: HttpStats) -> Attributes:
    """`url.path` only where it is the route: any other is the client's own text."""
    route = None if stats.route == UNMATCHED else stats.route
    return given(
        {
            "http.request.method": "_OTHER" if stats.method == "OTHER" else stats.method,
            "http.route": route,
            "http.response.status_code": stats.status,
            "url.scheme": "http",
            "url.path": route if route and "{" not in route else None,
            "error.type": stats.error_code if failed(stats) else None,
            **server(stats),
        }
    )


def failed(stats: HttpStats) -> bool:
    """By the HTTP conventions a 4xx is no error of the server's span; an error in mid-stream is one."""
    return stats.error_code is not None and not 400 <= stats.status < 500


def server(stats: HttpStats) -> Mapping[str, Value | None]:
    return {"server.address": stats.server_address, "server.port": stats.server_port or None}


def forwards(stats: HttpStats) -> bool:
    """It is a generation that an upstream was asked for."""
    return stats.upstream is not None and stats.route in OPERATIONS


def forwarded_name(stats: HttpStats) -> str:
    return f"{OPERATIONS[stats.route]} {stats.upstream}"


def forwarded_attributes(stats: HttpStats) -> Attributes:
    """Of the CLIENT span. The model is the configured pattern: the client's own text knows no bounds."""
    return given(
        {
            "gen_ai.operation.name": OPERATIONS[stats.route],
            "gen_ai.provider.name": UPSTREAM_PROVIDER,
            "gen_ai.request.model": stats.upstream,
            "server.address": stats.upstream_address,
            "server.port": stats.upstream_port or None,
            "error.type": forwarded_error(stats),
        }
    )


def forwarded_error(stats: HttpStats) -> str | None:
    """Our code, or the upstream's status: for a client a 4xx is an error too."""
    return stats.error_code or (str(stats.status) if stats.status >= 400 else None)


def generation_name(stats: GenerationStats) -> str:
    return f"{stats.operation} {stats.request_model}"


def generation_attributes(stats: GenerationStats, http: HttpStats, model: str) -> Attributes:
    """Of the INTERNAL span; `model` is the canonical name of what answered."""
    return given(
        {
            **who(stats, http, model),
            **request(stats),
            **response(stats),
            "error.type": stats.error_code,
            "gen_ai.conversation.id": stats.session_id,
            "openai_kv.cache.hit_kind": stats.hit_kind,
            "openai_kv.queue_seconds": stats.queue_seconds,
            "openai_kv.preemptions": stats.num_preemptions,
        }
    )


def who(stats: GenerationStats, http: HttpStats, model: str) -> Attributes:
    """What spans and histograms share."""
    return given(
        {
            "gen_ai.operation.name": stats.operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": stats.request_model,
            "gen_ai.response.model": model,
            **server(http),
        }
    )


def request(stats: GenerationStats) -> Mapping[str, Value | None]:
    """Nothing for a vector: none of it has a part in one."""
    if stats.operation == EMBEDDINGS:
        return {}
    return {
        "gen_ai.request.max_tokens": stats.max_tokens,
        "gen_ai.request.temperature": stats.temperature,
        "gen_ai.request.top_p": stats.top_p,
        "gen_ai.request.top_k": stats.top_k if stats.top_k > 0 else None,
        "gen_ai.request.frequency_penalty": stats.frequency_penalty,
        "gen_ai.request.presence_penalty": stats.presence_penalty,
        "gen_ai.request.stop_sequences": stats.stop,
        "gen_ai.request.seed": stats.seed,
        "gen_ai.request.stream": stats.stream,
        "gen_ai.request.choice.count": None if stats.num_choices == 1 else stats.num_choices,
        "gen_ai.output.type": stats.output_type,
    }


def response(stats: GenerationStats) -> Mapping[str, Value | None]:
    return {
        "gen_ai.response.id": stats.response_id,
        "gen_ai.response.finish_reasons": () if stats.operation == EMBEDDINGS else stats.finish_reasons,
        "gen_ai.response.time_to_first_chunk": stats.first_token_seconds if stats.stream else None,
        "gen_ai.usage.input_tokens": stats.num_prompt_tokens,
        "gen_ai.usage.output_tokens": stats.num_output_tokens,
        "gen_ai.usage.cache_read.input_tokens": stats.num_cached_tokens,
        "gen_ai.usage.cache_write.input_tokens": stats.cache_write_tokens,
        "gen_ai.usage.reasoning.output_tokens": stats.num_reasoning_tokens,
    }

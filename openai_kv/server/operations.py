"""What the description tells of each route beyond its path and who may ask: body, answer, errors of its own."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from openai_kv.server import answers
from openai_kv.server.admin import RESET_BODY
from openai_kv.server.call import Schema
from openai_kv.server.fields import Check
from openai_kv.server.protocol import (
    chat_body,
    completion_body,
    detokenize_body,
    embedding_body,
    generate_body,
    pin_body,
    tokenize_body,
)
from openai_kv.server.responses.endpoints import QUERY as RESPONSE_QUERY
from openai_kv.server.responses.fields import countable_body, response_body
from openai_kv.server.snapshot import BLOCKS_QUERY, TREE_QUERY


@dataclass(frozen=True, slots=True)
class Operation:
    """`errors`: statuses over those of every route of its method and access. `query`: its parameters, all optional."""

    summary: str = ""
    body: Schema | None = None
    answer: Mapping[str, Any] = field(default_factory=dict)
    errors: tuple[int, ...] = ()
    media: str = "application/json"
    streams: bool = False
    optional_body: bool = False
    query: Mapping[str, Check] = field(default_factory=dict)


OPERATIONS: Mapping[str, Operation] = {
    "POST /v1/chat/completions": Operation(
        "Answer a chat", chat_body, answers.CHAT, errors=(404, 429, 502, 503), streams=True
    ),
    "POST /v1/completions": Operation(
        "Continue one text or several", completion_body, answers.COMPLETION, errors=(404, 429, 502, 503), streams=True
    ),
    "POST /v1/chat/completions/input_tokens": Operation(
        "Count the tokens of a chat", chat_body, answers.INPUT_TOKENS, errors=(404, 502)
    ),
    "POST /v1/responses": Operation(
        "Answer, in the form of the Responses API", response_body, answers.RESPONSE, (404, 429, 502, 503), streams=True
    ),
    "POST /v1/responses/input_tokens": Operation(
        "Count the tokens of a response's input", countable_body, answers.INPUT_TOKENS, errors=(404, 502)
    ),
    "GET /v1/responses/{id}": Operation(
        "A stored response", answer=answers.RESPONSE, errors=(400, 404), query=RESPONSE_QUERY
    ),
    "DELETE /v1/responses/{id}": Operation("Forget a response", answer=answers.FORGOTTEN, errors=(404,)),
    "POST /v1/embeddings": Operation(
        "A vector for each text", embedding_body, answers.EMBEDDINGS, errors=(404, 429, 502)
    ),
    "POST /generate": Operation(
        "Generate, and tell what the cache did", generate_body, answers.GENERATION, errors=(404, 429), streams=True
    ),
    "POST /tokenize": Operation("Text or a chat to token ids", tokenize_body, answers.TOKENS, errors=(404,)),
    "POST /detokenize": Operation(
        "Token ids to text", detokenize_body, answers.record(prompt=answers.TEXT), errors=(404,)
    ),
    "GET /tokenizer_info": Operation("The tokenizer", answer=answers.record(), errors=(503,)),
    "GET /v1/models": Operation("Models served here and by upstreams", answer=answers.MODELS, errors=(503,)),
    "GET /v1/models/{id}": Operation("One model", answer=answers.MODEL, errors=(404, 503)),
    "GET /health": Operation("Alive", answer=answers.record(status=answers.TEXT), errors=(503,)),
    "GET /ready": Operation("Ready for requests", answer=answers.record(status=answers.TEXT), errors=(503,)),
    "GET /version": Operation("Versions", answer=answers.VERSION),
    "GET /metrics": Operation("Prometheus metrics", answer=answers.TEXT, media="text/plain", errors=(404,)),
    "GET /cache/stats": Operation("The cache in figures", answer=answers.CACHE_STATS, errors=(503,)),
    "POST /cache/reset": Operation(
        "Empty the cache: its own tiers, or those given. Remote ones, which others may share, go only if named",
        lambda _: RESET_BODY,
        answers.RESET,
        errors=(404,),
        optional_body=True,
    ),
    "GET /cache/tree": Operation(
        "What the cache holds, as a tree", answer=answers.CACHE_TREE, errors=(400, 503), query=TREE_QUERY
    ),
    "GET /cache/blocks": Operation(
        "The cache's blocks", answer=answers.CACHE_BLOCKS, errors=(400, 503), query=BLOCKS_QUERY
    ),
    "POST /cache/pin": Operation("Pin a prefix", pin_body, answers.PIN, errors=(404, 429)),
    "GET /cache/pin": Operation("What is pinned", answer=answers.PINS, errors=(503,)),
    "DELETE /cache/pin/{id}": Operation("Take a pin away", answer=answers.UNPINNED, errors=(404, 503)),
    "GET /plugins": Operation("Installed plugins", answer=answers.PLUGINS),
    "GET /openapi.json": Operation("This description", answer=answers.record(openapi=answers.TEXT), errors=(503,)),
}

"""Bodies that are nearly right: every field of every route gets values it may not expect."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openai_kv.config import ServerSettings
from openai_kv.server.app import endpoints
from openai_kv.server.dispatch import Access
from openai_kv.server.openapi import describe
from openai_kv.server.shared_fields import Limits
from tests.server.serving import CHAT, site

PATHS = describe(endpoints(Access.KEY), Limits(ServerSettings(), 256, 512, 8), has_keys=False)["paths"]
PROMPT = {"model": "fake", "prompt": "a b", "max_tokens": 3}
RESPONSE = {"model": "fake", "input": "a b", "max_output_tokens": 3}
BODIES: Mapping[str, Mapping[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/chat/completions/input_tokens": CHAT,
    "/v1/completions": PROMPT,
    "/v1/responses": RESPONSE,
    "/v1/responses/input_tokens": RESPONSE,
    "/v1/embeddings": {"model": "fake", "input": "a b"},
    "/generate": PROMPT,
    "/tokenize": {"prompt": "a b"},
    "/cache/pin": {"prompt": "a b"},
    "/detokenize": {"tokens": [1, 2]},
}
ENDS = tuple(f"event: response.{status}\n" for status in ("completed", "incomplete", "failed"))
NUMBERS = (-(2**63), -1, 0, 1, 1.0, 3, 0.5, 2**31, 2**63, 1e308, 255, 256, 511, 512)
SCALARS = (
    st.none()
    | st.booleans()
    | st.sampled_from(NUMBERS)
    | st.text(max_size=8)
    | st.floats(allow_nan=False, allow_infinity=False)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool", "x"])},
        optional={
            "content": st.text(max_size=20) | VALUES,
            "tool_calls": VALUES,
            "name": VALUES,
            "tool_call_id": VALUES,
        },
    ),
    min_size=1,
    max_size=3,
)
ITEMS = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["message", "function_call", "function_call_output", "reasoning", "x"])},
        optional={
            "role": st.sampled_from(["system", "user", "assistant", "x"]),
            "content": st.text(max_size=20) | VALUES,
            "call_id": st.just("a") | VALUES,
            "name": st.just("f") | VALUES,
            "arguments": st.just("{}") | VALUES,
            "output": st.text(max_size=20) | VALUES,
        },
    ),
    min_size=1,
    max_size=3,
)
LIKELY: Mapping[str, st.SearchStrategy[Any]] = {
    "messages": MESSAGES,
    "input": ITEMS,
    "model": st.just("fake"),
    "stream": st.booleans(),
    "max_tokens": st.integers(0, 600),
}


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A route and a good body with up to three fields added, changed or left out."""
    path = draw(st.sampled_from(sorted(path for path, item in PATHS.items() if "post" in item)))
    schema = PATHS[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    body = dict(BODIES.get(path, {}))
    for name in draw(st.lists(st.sampled_from(sorted(schema.get("properties", {"x": {}}))), max_size=3, unique=True)):
        body[name] = draw(LIKELY.get(name, VALUES) | VALUES)
    if body and draw(st.integers(0, 3)) == 0:
        del body[draw(st.sampled_from(sorted(body)))]
    return path, body


def check(path: str, body: dict[str, Any], response: httpx.Response) -> None:
    shown = json.dumps(body)
    assert str(response.status_code) in PATHS[path]["post"]["responses"], shown
    assert response.status_code < 500, shown
    if response.status_code >= 400:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}, shown
    if response.headers["content-type"].startswith("text/event-stream"):
        last = response.text.rstrip("\n").rpartition("\n\n")[2]
        assert last == "data: [DONE]" or last.startswith(ENDS), shown


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(batch=st.lists(requests(), min_size=10, max_size=20))
async def test_no_body_is_our_fault_and_none_leaves_a_block_behind(batch: list[tuple[str, dict[str, Any]]]) -> None:
    async with site() as server:
        answers = await asyncio.gather(*(server.post(path, body) for path, body in batch))
        for (path, body), answer in zip(batch, answers, strict=True):
            check(path, body, answer)
        await server.settle()

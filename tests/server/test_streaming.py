import json
from typing import Any

import httpx
import pytest
from sse_starlette import ServerSentEvent
from starlette.types import Message, Receive, Scope, Send

from openai_kv.server.envelope import encode
from openai_kv.server.streaming import DONE, event
from tests.server.serving import CHAT, site

PAYLOADS: list[dict[str, Any]] = [
    {"text": "two\nlines\r\nand\ra tab\t", "nested": {"none": None, "yes": True, "list": [1, -2.5, 0.1]}},
    {"text": "ü 字 🙂 \u2028 \x85 \x00 </script>"},
    {"number": 2**64 + 1, "text": "ü"},
    {"1": {2: "a key that is a number"}},
]

FOUR = {"n": 4, "temperature": 1, "stream": True, "return_token_ids": True}


@pytest.mark.parametrize("payload", PAYLOADS)
def test_json_is_what_the_standard_library_writes(payload: dict[str, Any]) -> None:
    assert encode(payload).decode() == json.dumps(payload, ensure_ascii=False, separators=(",", ":"))


@pytest.mark.parametrize("name", [None, "response.created"])
@pytest.mark.parametrize("payload", PAYLOADS)
def test_an_event_is_framed_as_sse_starlette_does(payload: dict[str, Any], name: str | None) -> None:
    text = encode(payload).decode()
    assert event(payload, name) == ServerSentEvent(text, event=name, sep="\n").encode()


async def test_what_a_step_has_for_a_client_leaves_in_one_write() -> None:
    bodies: list[bytes] = []
    async with site() as server:

        async def counting(scope: Scope, receive: Receive, send: Send) -> None:
            async def count(message: Message) -> None:
                bodies.extend([message["body"]] if message["type"] == "http.response.body" else [])
                await send(message)

            await server.app(scope, receive, count)

        async with httpx.AsyncClient(transport=httpx.ASGITransport(counting), base_url="http://test") as client:
            await client.post("/v1/chat/completions", json={**CHAT, **FOUR})
        steps = len(server.runner.inner.rows)
    assert bodies[-1] == DONE
    assert len(bodies) <= steps + 1
    assert b"".join(bodies).count(b"data: ") > 2 * len(bodies)

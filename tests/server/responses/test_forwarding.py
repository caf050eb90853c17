"""Responses of an upstream's model."""

import json

import httpx
import openai
import pytest

from tests.server.remote import answering, remote, streaming
from tests.server.responses.asking import ASK, PATH, named_events
from tests.server.serving import live_site
from tests.server.test_forward import upstreams

GPT = {**ASK, "model": "gpt-x", "previous_response_id": "resp_theirs", "background": True}
CREATED = b'event: response.created\ndata: {"type":"response.created","sequence_number":0}\n\n'


async def test_they_pass_unchanged() -> None:
    body = b'{"id": "resp_1",  "mystery": [1.0]}'
    async with remote(answering(body)) as far, live_site(**upstreams(far.url)) as (server, url):
        async with httpx.AsyncClient() as client:
            for path in (PATH, f"{PATH}/input_tokens"):
                answer = await client.post(url + path, json=GPT)
                assert (answer.status_code, answer.content) == (200, body)
                assert far.received[-1].line == f"POST {path} HTTP/1.1"
                assert json.loads(far.received[-1].body) == GPT
        assert len(server.context.responses) == 0, "what is theirs they keep"


async def test_a_stream_that_breaks_off_ends_with_an_error_event() -> None:
    async with remote(streaming(CREATED, end=False)) as far, live_site(**upstreams(far.url)) as (_, url):
        async with httpx.AsyncClient() as client:
            text = (await client.post(url + PATH, json={**GPT, "stream": True})).text
        assert text.encode().startswith(CREATED) and "[DONE]" not in text
        (error,) = named_events(text.removeprefix(CREATED.decode()))
        assert (error["type"], error["code"]) == ("error", "upstream_unreachable")
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as sdk:
            stream = await sdk.responses.create(model="gpt-x", input="Hi", stream=True)
            with pytest.raises(openai.APIError, match="broke off"):
                async for _ in stream:
                    pass

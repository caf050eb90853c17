"""`litellm`, with our server behind its `openai/` prefix."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.service import FRANCE, Service
from tests.server.scripted import live_scripted
from tests.server.serving import MESSAGES
from tests.server.test_tools import CALL, TEXTS, TOOLS

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def litellm() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or it asks the network when imported
        yield pytest.importorskip("litellm")


def ask(service: Service, content: str = FRANCE, **params: Any) -> dict[str, Any]:
    return {
        "model": f"openai/{service.model}",
        "api_base": service.base_url,
        "api_key": "none",
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        **params,
    }


@pytest.mark.model
def test_completion(litellm: Any, service: Service) -> None:
    first, second = (litellm.completion(**ask(service)) for _ in range(2))
    assert first.choices[0].message.content == second.choices[0].message.content == service.answer()
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert second.usage.prompt_tokens_details.cached_tokens == second.usage.prompt_tokens


@pytest.mark.model
def test_streamed_completion(litellm: Any, service: Service) -> None:
    chunks = [*litellm.completion(**ask(service), stream=True, stream_options={"include_usage": True})]
    assert len(chunks) > 5
    whole = litellm.stream_chunk_builder(chunks)
    assert whole.choices[0].message.content == service.answer()
    assert (whole.choices[0].finish_reason, whole.usage.completion_tokens) == ("stop", 8)


@pytest.mark.model
async def test_async_completions(litellm: Any, service: Service) -> None:
    whole = await litellm.acompletion(**ask(service, n=2, logprobs=True, top_logprobs=2))
    assert [choice.message.content for choice in whole.choices] == 2 * [service.answer()]
    assert [len(choice.logprobs.content) for choice in whole.choices] == [8, 8]
    pieces = [
        chunk.choices[0].delta.content or "" async for chunk in await litellm.acompletion(**ask(service), stream=True)
    ]
    assert "".join(pieces) == service.answer()


@pytest.mark.model
def test_text_completion(litellm: Any, service: Service) -> None:
    answer = litellm.text_completion(
        model=f"text-completion-openai/{service.model}",
        api_base=service.base_url,
        api_key="none",
        prompt="The capital of France is",
        max_tokens=5,
        temperature=0,
    )
    ours = service.post(
        "/v1/completions", model=service.model, prompt="The capital of France is", max_tokens=5, temperature=0
    )
    assert answer.choices[0].text == ours["choices"][0]["text"]


@pytest.mark.model
def test_errors_are_the_exceptions_it_has_for_openai(litellm: Any, service: Service) -> None:
    with pytest.raises(litellm.ContextWindowExceededError, match="maximum context length is"):
        litellm.completion(**ask(service, "x" * 50_000))
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**ask(service) | {"model": "openai/another"})
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        litellm.completion(**ask(service, temperature=3))


async def test_tools(litellm: Any) -> None:
    async with live_scripted(TEXTS["hermes"]) as (_, url):
        body = {"model": "openai/fake", "api_base": f"{url}/v1", "api_key": "none", "messages": MESSAGES}
        whole = await litellm.acompletion(**body, tools=TOOLS, max_tokens=300)
        stream = await litellm.acompletion(**body, tools=TOOLS, max_tokens=300, stream=True)
        streamed = litellm.stream_chunk_builder([chunk async for chunk in stream])
    for answer in (whole, streamed):
        calls = answer.choices[0].message.tool_calls
        assert answer.choices[0].finish_reason == "tool_calls"
        assert [call.function.name for call in calls] == ["get_weather", "now"]
        assert [json.loads(call.function.arguments) for call in calls] == [CALL, {}]

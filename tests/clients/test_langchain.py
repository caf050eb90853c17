"""`langchain-openai`: ChatOpenAI and OpenAI."""

from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from tests.clients.service import FRANCE, Service
from tests.server.scripted import live_scripted, say
from tests.server.test_tools import CALL, TEXTS, TOOLS
from tests.tiny_tokenizer import tiny_tokenizer

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("default")]


class Capital(BaseModel):
    """A capital city."""

    name: Literal["Paris", "Rome", "Madrid"]
    founded: int = Field(ge=-999, le=1999)


@pytest.fixture(scope="module")
def langchain() -> Any:
    return pytest.importorskip("langchain_openai")


def chat(langchain: Any, base_url: str, model: str, **params: Any) -> Any:
    return langchain.ChatOpenAI(base_url=base_url, model=model, api_key="none", temperature=0, **params)


@pytest.mark.model
def test_invoke(langchain: Any, service: Service) -> None:
    model = chat(langchain, service.base_url, service.model, logprobs=True, top_logprobs=2)
    first, second = model.invoke(FRANCE), model.invoke(FRANCE)
    assert first.content == second.content == service.answer()
    usage = second.usage_metadata
    assert usage["input_token_details"]["cache_read"] == usage["input_tokens"]
    assert len(second.response_metadata["logprobs"]["content"]) == usage["output_tokens"]


@pytest.mark.model
async def test_streams(langchain: Any, service: Service) -> None:
    model = chat(langchain, service.base_url, service.model, stream_usage=True)
    pieces = [*model.stream(FRANCE)]
    later = [piece async for piece in model.astream(FRANCE)]
    whole, again = sum(pieces[1:], pieces[0]), sum(later[1:], later[0])
    assert len(pieces) > 5
    assert whole.content == again.content == service.answer()
    assert again.usage_metadata["input_token_details"]["cache_read"] == again.usage_metadata["input_tokens"]


@pytest.mark.model
def test_batch_and_stop(langchain: Any, service: Service) -> None:
    model = chat(langchain, service.base_url, service.model, stop=["Paris"])
    answers = model.batch([FRANCE, "What is the capital of Italy?"])
    assert answers[0].content == service.answer().partition("Paris")[0]
    assert answers[1].content == service.answer("What is the capital of Italy?", stop=["Paris"])


@pytest.mark.model
def test_structured_output(langchain: Any, service: Service) -> None:
    model = chat(langchain, service.base_url, service.model, max_tokens=60)
    capital = model.with_structured_output(Capital, method="json_schema").invoke(FRANCE)
    assert isinstance(capital, Capital)
    strict = model.with_structured_output(Capital, method="json_schema", strict=True).invoke(FRANCE)
    assert isinstance(strict, Capital)


@pytest.mark.model
def test_text_completion(langchain: Any, service: Service) -> None:
    prompt = "The capital of France is"
    params = {"model": service.model, "max_tokens": 5, "temperature": 0}
    model = langchain.OpenAI(base_url=service.base_url, api_key="none", **params)
    ours = service.post("/v1/completions", prompt=prompt, **params)
    assert model.invoke(prompt) == ours["choices"][0]["text"]


async def test_a_round_of_tools(langchain: Any) -> None:
    messages = pytest.importorskip("langchain_core.messages")
    async with live_scripted(TEXTS["hermes"]) as (server, url):
        model = chat(langchain, f"{url}/v1", "fake", max_tokens=300).bind_tools(TOOLS)
        first = await model.ainvoke("And the weather?")
        assert [(call["name"], call["args"]) for call in first.tool_calls] == [("get_weather", CALL), ("now", {})]
        pieces = [piece async for piece in model.astream("And the weather?")]
        assert sum(pieces[1:], pieces[0]).tool_calls[0]["args"] == CALL
        say(server, "Cold.", tiny_tokenizer())
        results = [messages.ToolMessage("5 degrees", tool_call_id=call["id"]) for call in first.tool_calls]
        second = await model.ainvoke([messages.HumanMessage("And the weather?"), first, *results])
        assert (second.content, second.tool_calls) == ("Cold.", [])


async def test_structured_output_by_a_function(langchain: Any) -> None:
    async with live_scripted("Well.") as (_, url):
        model = chat(langchain, f"{url}/v1", "fake", max_tokens=300)
        capital = await model.with_structured_output(Capital, method="function_calling").ainvoke(FRANCE)
    assert isinstance(capital, Capital)

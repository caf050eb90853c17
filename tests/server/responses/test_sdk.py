"""The `openai` SDK's own calls and helpers."""

import asyncio
import json
from typing import Any

import openai
import pytest
from openai.lib.responses_tool_runner import AsyncRegisteredFunction, AsyncResponsesToolRunner

from tests.server.responses.asking import ASK
from tests.server.responses.test_answers import TOOLS
from tests.server.scripted import FAMILIES, say, scripted
from tests.server.serving import live_site
from tests.server.test_sdk_structured import REPORT, GetWeather, Report, sdk
from tests.server.test_tools import CALL, TEXTS
from tests.tiny_tokenizer import tiny_tokenizer

ANY_TOOLS: Any = TOOLS


async def test_create_retrieve_count_and_delete() -> None:
    async with scripted("A store of answers.") as server:
        responses = sdk(server).responses
        first = await responses.create(model="fake", input="What is a cache?", instructions="Be brief.")
        assert (first.output_text, first.status) == ("A store of answers.", "completed")
        second = await responses.create(model="fake", input="And then?", previous_response_id=first.id)
        assert first.usage is not None and second.usage is not None
        assert second.usage.input_tokens_details.cached_tokens > 0
        counted = await responses.input_tokens.count(model="fake", input="And then?", previous_response_id=first.id)
        assert (counted.input_tokens, counted.object) == (second.usage.input_tokens, "response.input_tokens")
        assert await responses.retrieve(first.id) == first
        await responses.delete(first.id)
        with pytest.raises(openai.NotFoundError) as gone:
            await responses.retrieve(first.id)
        assert gone.value.code == "response_not_found"
        with pytest.raises(openai.NotFoundError) as unknown:
            await responses.create(model="fake", input="And then?", previous_response_id=first.id)
        assert (unknown.value.code, unknown.value.param) == ("previous_response_not_found", "previous_response_id")
        with pytest.raises(openai.BadRequestError) as refused:
            await responses.create(model="fake", input="Hi", background=True)
        assert refused.value.param == "background"


async def test_events() -> None:
    async with scripted("A store of answers.") as server:
        stream = await sdk(server).responses.create(model="fake", input="What is a cache?", stream=True)
        events = [event async for event in stream]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        last = events[-1]
        assert last.type == "response.completed" and last.response.output_text == text == "A store of answers."


async def test_sync_client() -> None:
    def talk(url: str) -> tuple[str, str]:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            whole = client.responses.create(**ASK)
            with client.responses.stream(**ASK) as stream:
                pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
        return whole.output_text, "".join(pieces)

    async with live_site() as (server, url):
        whole, streamed = await asyncio.to_thread(talk, url)
        assert whole == streamed != ""
        await server.settle()


async def test_parse_and_the_streaming_helper_give_objects() -> None:
    async with scripted(REPORT) as server:
        parsed = await sdk(server).responses.parse(model="fake", input="Report.", text_format=Report)
        assert parsed.output_parsed is not None
        assert parsed.output_parsed.model_dump(mode="json") == json.loads(REPORT)
        async with sdk(server).responses.stream(model="fake", input="Report.", text_format=Report) as stream:
            kinds = {event.type async for event in stream}
            final = await stream.get_final_response()
        assert {"response.output_text.delta", "response.output_text.done", "response.completed"} <= kinds
        assert final.output_parsed == parsed.output_parsed


async def test_a_model_that_would_rather_talk_gives_an_object_too() -> None:
    async with scripted("Zürich is a city.") as server:
        parsed = await sdk(server).responses.parse(model="fake", input="Report.", text_format=Report)
        assert isinstance(parsed.output_parsed, Report)


async def test_pydantic_tools_come_back_as_objects() -> None:
    tool = openai.pydantic_function_tool(GetWeather, name="get_weather")["function"]
    tools: Any = [{"type": "function", **tool}]
    text = '<tool_call>{"name": "get_weather", "arguments": {"city": "Zürich", "days": 2}}</tool_call>'
    async with scripted(text) as server:
        parsed = await sdk(server).responses.parse(model="fake", input="Weather?", tools=tools)
        (call,) = parsed.output
        assert call.type == "function_call"
        assert GetWeather.model_validate(call.parsed_arguments) == GetWeather(city="Zürich", days=2)


@pytest.mark.parametrize("by_id", [True, False])
async def test_a_round_of_tools(by_id: bool) -> None:
    """Call, result, answer: as an agent's loop sends them."""
    async with scripted(TEXTS["hermes"]) as server:
        client, question = sdk(server), {"role": "user", "content": "Weather?"}
        async with client.responses.stream(model="fake", input=[question], tools=ANY_TOOLS) as stream:  # type: ignore[list-item]
            arguments: dict[int, str] = {}
            async for event in stream:
                if event.type == "response.function_call_arguments.delta":
                    arguments[event.output_index] = event.snapshot
            first = await stream.get_final_response()
        calls = [item for item in first.output if item.type == "function_call"]
        assert [call.arguments for call in calls] == list(arguments.values())
        assert [json.loads(call.arguments) for call in calls] == [CALL, {}]
        results: Any = [
            {"type": "function_call_output", "call_id": call.call_id, "output": "5 degrees"} for call in calls
        ]
        history: Any = [question, *first.output, *results]
        options: Any = {"previous_response_id": first.id} if by_id else {}
        second = await client.responses.create(
            model="fake", input=results if by_id else history, tools=ANY_TOOLS, tool_choice="none", **options
        )
        assert [item.type for item in second.output] == ["message"]
        assert second.usage is not None and second.usage.input_tokens_details.cached_tokens > 0


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_tool_runner_runs_until_there_is_an_answer(streamed: bool) -> None:
    async with scripted(TEXTS["hermes"]) as server:
        asked: list[tuple[str, dict[str, object]]] = []

        def function(name: str) -> AsyncRegisteredFunction:
            async def execute(arguments: dict[str, object]) -> str:
                asked.append((name, arguments))
                say(server, "It is cold.", tiny_tokenizer(FAMILIES["hermes"]))
                return "5 degrees"

            return AsyncRegisteredFunction(next(tool for tool in ANY_TOOLS if tool["name"] == name), execute)

        runner = AsyncResponsesToolRunner(functions=[function("get_weather"), function("now")])
        final = await runner.run(sdk(server), {"model": "fake", "input": "Weather?"}, max_steps=3, stream=streamed)
        assert asked == [("get_weather", CALL), ("now", {})]
        assert final.output_text == "It is cold."

"""The `openai` SDK's own helpers for schemas, tools and streams."""

import json
from enum import StrEnum
from typing import Any

import openai
from pydantic import BaseModel, Field

from tests.server.scripted import FAMILIES, scripted
from tests.server.serving import CHAT, MESSAGES, Site
from tests.server.test_tools import CALL, TEXTS, TOOLS


class Unit(StrEnum):
    C = "C"
    F = "F"


class Reading(BaseModel):
    degrees: int = Field(ge=-99, le=99)
    unit: Unit


class Report(BaseModel):
    city: str
    readings: list[Reading] = Field(max_length=2)
    note: str | None


class GetWeather(BaseModel):
    """The weather of a city."""

    city: str
    days: int


SDK_TOOLS: Any = TOOLS
ASK: Any = {"model": "fake", "messages": MESSAGES, "max_tokens": 900}
REPORT = '{"city": "Zürich", "readings": [{"degrees": -5, "unit": "C"}], "note": null}'


def sdk(server: Site) -> openai.AsyncOpenAI:
    client: Any = server.client
    return openai.AsyncOpenAI(base_url="http://test/v1", api_key="none", max_retries=0, http_client=client)


async def test_parse_gives_a_pydantic_object() -> None:
    async with scripted(REPORT) as server:
        answer = await sdk(server).chat.completions.parse(
            **ASK,
            response_format=Report,
        )
        report = answer.choices[0].message.parsed
        assert report is not None
        assert report.model_dump(mode="json") == json.loads(REPORT)


async def test_parse_of_a_model_that_would_rather_talk() -> None:
    async with scripted("Zürich is a city.") as server:
        answer = await sdk(server).chat.completions.parse(
            **ASK,
            response_format=Report,
        )
        assert isinstance(answer.choices[0].message.parsed, Report)


async def test_the_streaming_helper_parses_as_it_goes() -> None:
    async with scripted(REPORT) as server:
        kinds = set()
        async with sdk(server).chat.completions.stream(
            **ASK,
            response_format=Report,
        ) as stream:
            async for event in stream:
                kinds.add(event.type)
            final = await stream.get_final_completion()
        assert {"chunk", "content.delta", "content.done"} <= kinds
        assert isinstance(final.choices[0].message.parsed, Report)


async def test_pydantic_tools_come_back_as_objects() -> None:
    tool = openai.pydantic_function_tool(GetWeather, name="get_weather")
    text = '<tool_call>{"name": "get_weather", "arguments": {"city": "Zürich", "days": 2}}</tool_call>'
    async with scripted(text) as server:
        for wanted in ("auto", "required"):
            answer = await sdk(server).chat.completions.parse(
                **ASK,
                tools=[tool],
                tool_choice=wanted,
            )
            (call,) = answer.choices[0].message.tool_calls or []
            assert call.function.parsed_arguments == GetWeather(city="Zürich", days=2)


async def test_the_streaming_helper_puts_calls_together() -> None:
    async with scripted(TEXTS["hermes"], FAMILIES["hermes"]) as server:
        arguments: dict[int, list[str]] = {}
        async with sdk(server).chat.completions.stream(
            **ASK,
            tools=SDK_TOOLS,
        ) as stream:
            async for event in stream:
                if event.type == "tool_calls.function.arguments.delta":
                    arguments.setdefault(event.index, []).append(event.arguments_delta)
            final = await stream.get_final_completion()
        calls = final.choices[0].message.tool_calls or []
        assert [call.function.name for call in calls] == ["get_weather", "now"]
        assert ["".join(parts) for parts in arguments.values()] == [call.function.arguments for call in calls]
        assert final.choices[0].finish_reason == "tool_calls"


async def test_a_round_of_tools() -> None:
    """Call, result, answer: as an agent's loop sends them."""
    async with scripted(TEXTS["hermes"]) as server:
        client = sdk(server)
        body: dict[str, Any] = {**CHAT, "tools": TOOLS, "max_tokens": 300}
        first = (await client.chat.completions.create(**body)).choices[0].message
        assert [json.loads(call.function.arguments) for call in first.tool_calls or []] == [CALL, {}]
        results = [{"role": "tool", "tool_call_id": call.id, "content": "5 degrees"} for call in first.tool_calls or []]
        messages = [*MESSAGES, first.model_dump(exclude_none=True), *results]
        second = await client.chat.completions.create(**{**body, "messages": messages, "tool_choice": "none"})
        assert second.choices[0].message.tool_calls is None

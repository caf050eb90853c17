"""`instructor`: a pydantic object for an answer."""

import json
from collections.abc import Iterable
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel, Field

from tests.server.scripted import live_scripted
from tests.server.serving import MESSAGES

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("default")]
ROME = {"name": "Rome", "founded": -753}
MADRID = {"name": "Madrid", "founded": 865}
ASK: Any = {"model": "fake", "messages": MESSAGES, "max_tokens": 300}


class Capital(BaseModel):
    """A capital city."""

    name: Literal["Paris", "Rome", "Madrid"]
    founded: int = Field(ge=-999, le=1999)


@pytest.fixture(scope="module")
def instructor() -> Any:
    return pytest.importorskip("instructor")


def sdk(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def call(arguments: dict[str, Any]) -> str:
    return f'<tool_call>{{"name": "Capital", "arguments": {json.dumps(arguments)}}}</tool_call>'


@pytest.mark.parametrize("mode", ["JSON_SCHEMA", "JSON"])
async def test_json_modes(instructor: Any, mode: str) -> None:
    async with live_scripted(json.dumps(ROME)) as (_, url), sdk(url) as client:
        patched = instructor.from_openai(client, mode=instructor.Mode[mode])
        capital, answer = await patched.create_with_completion(**ASK, response_model=Capital, max_retries=0)
    assert isinstance(capital, Capital)
    assert capital.model_dump() == ROME
    assert json.loads(answer.choices[0].message.content) == ROME


async def test_a_model_that_would_rather_talk(instructor: Any) -> None:
    async with live_scripted("Rome, of course.") as (_, url), sdk(url) as client:
        patched = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
        capital = await patched.create(**ASK, response_model=Capital, max_retries=0)
    assert isinstance(capital, Capital)


async def test_partial_objects_of_a_stream(instructor: Any) -> None:
    async with live_scripted(json.dumps(ROME)) as (_, url), sdk(url) as client:
        patched = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
        seen = [partial async for partial in patched.create_partial(**ASK, response_model=Capital)]
    assert len(seen) > 2
    assert seen[-1].model_dump() == ROME


async def test_a_tool(instructor: Any) -> None:
    async with live_scripted(call(ROME)) as (_, url), sdk(url) as client:
        patched = instructor.from_openai(client, mode=instructor.Mode.TOOLS)
        capital = await patched.create(**ASK, response_model=Capital, max_retries=0)
    assert isinstance(capital, Capital)
    assert capital.model_dump() == ROME


async def test_parallel_tools(instructor: Any) -> None:
    async with live_scripted(call(ROME) + call(MADRID)) as (_, url), sdk(url) as client:
        patched = instructor.from_openai(client, mode=instructor.Mode.PARALLEL_TOOLS)
        capitals = await patched.create(**ASK, response_model=Iterable[Capital], max_retries=0)
    assert [capital.model_dump() for capital in capitals] == [ROME, MADRID]

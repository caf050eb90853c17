"""Requests for responses, and what comes back."""

import json
from typing import Any

import httpx

from tests.server.serving import Site

PATH = "/v1/responses"
ASK: dict[str, Any] = {"model": "fake", "input": "What is a cache?", "max_output_tokens": 8, "temperature": 0}


async def ask(server: Site, **changes: Any) -> httpx.Response:
    return await server.post(PATH, {**ASK, **changes})


async def answer(server: Site, **changes: Any) -> dict[str, Any]:
    response = await ask(server, **changes)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def named_events(text: str) -> list[dict[str, Any]]:
    """The data of each event, whose `event:` line and number are as they should be."""
    found = []
    for number, block in enumerate(block for block in text.split("\n\n") if block and not block.startswith(":")):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert (name, number) == (f"event: {event['type']}", event["sequence_number"])
        found.append(event)
    return found


def kinds(events: list[dict[str, Any]]) -> list[str]:
    """Without the prefix; a run of deltas is one."""
    names = [event["type"].removeprefix("response.") for event in events]
    return [name for index, name in enumerate(names) if index == 0 or name != names[index - 1] or "delta" not in name]


def text_of(response: dict[str, Any]) -> str:
    return "".join(item["content"][0]["text"] for item in response["output"] if item["type"] == "message")

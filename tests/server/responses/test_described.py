"""What /openapi.json says of responses is what the server does."""

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.server.responses.asking import ASK, PATH, answer
from tests.server.responses.test_answers import TOOLS
from tests.server.scripted import scripted
from tests.server.serving import Site


async def described(server: Site) -> dict[str, Any]:
    paths: dict[str, Any] = (await server.client.get("/openapi.json")).json()["paths"]
    return paths


def schema_of(content: dict[str, Any]) -> Draft202012Validator:
    return Draft202012Validator(content["content"]["application/json"]["schema"])


async def test_answers() -> None:
    async with scripted("ok") as server:
        paths = await described(server)
        made = await answer(server)
        schema_of(paths[PATH]["post"]["responses"]["200"]).validate(made)
        url = f"{PATH}/{made['id']}"
        one = paths[f"{PATH}/{{id}}"]
        schema_of(one["get"]["responses"]["200"]).validate((await server.client.get(url)).json())
        schema_of(one["delete"]["responses"]["200"]).validate((await server.client.delete(url)).json())
        assert set(one["get"]["responses"]) == {"200", "400", "401", "404", "500"}
        assert set(paths[PATH]["post"]["responses"]) >= {"404", "429", "502", "503"}


@pytest.mark.parametrize(
    ("change", "valid"),
    [
        ({}, True),
        ({"input": [{"role": "user", "content": "a"}]}, True),
        ({"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]}]}, True),
        ({"input": [{"type": "message", "role": "user", "content": [{"type": "input_image"}]}]}, False),
        ({"input": [{"type": "message", "role": "user", "content": [{"text": "a"}]}]}, False),
        ({"input": [{"type": "function_call_output", "call_id": "a", "output": "b"}]}, True),
        ({"input": [{"type": "function_call", "call_id": "a", "name": "f"}]}, False),
        ({"input": [{"type": "item_reference", "id": "a"}]}, False),
        ({"input": []}, False),
        ({"tools": TOOLS}, True),
        ({"tools": []}, True),
        ({"tools": [{"type": "web_search"}]}, False),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "now"}}, True),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, False),
        ({"text": {"format": {"type": "json_object"}, "verbosity": "low"}}, True),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, False),
        ({"reasoning": {"effort": "low", "summary": "auto"}}, True),
        ({"reasoning": {"summary": "concise"}}, False),
        ({"background": False}, True),
        ({"background": True}, False),
        ({"max_tokens": 3}, False),
        ({"top_k": 3, "seed": 1, "cache_salt": "a", "stop": ["x"]}, True),
        ({"model": None}, False),
    ],
)
async def test_bodies(change: dict[str, Any], valid: bool) -> None:
    body = {**ASK, **change}
    async with scripted("ok") as server:
        schema = schema_of((await described(server))[PATH]["post"]["requestBody"])
        assert schema.is_valid(body) == valid
        response = await server.post(PATH, body)
        assert response.status_code == (200 if valid else 400), response.text

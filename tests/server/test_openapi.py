import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from openai_kv.engine.async_engine import EngineState
from openai_kv.server.app import endpoints
from openai_kv.server.dispatch import Access
from openai_kv.server.operations import OPERATIONS
from tests.server.serving import CHAT, Site, check_error, site


async def description(server: Site) -> dict[str, Any]:
    document: dict[str, Any] = (await server.client.get("/openapi.json")).json()
    return document


async def test_it_is_valid_and_lists_every_route() -> None:
    async with site() as server:
        document = await description(server)
    OpenAPIV31SpecValidator(document).validate()
    table = endpoints(metrics_access=Access.KEY)
    routes = {f"{method} {path.replace(':path', '')}" for path, methods in table.items() for method in methods}
    described = {
        f"{method.upper()} {path}"
        for path, item in document["paths"].items()
        for method in item
        if method != "parameters"
    }
    assert described == routes == set(OPERATIONS)
    depth = next(item for item in document["paths"]["/cache/tree"]["get"]["parameters"] if item["name"] == "depth")
    assert depth["schema"] == {"type": "integer", "minimum": 0, "maximum": 64}


async def test_who_may_ask_and_what_may_go_wrong() -> None:
    async with site() as server:
        document = await description(server)
    assert document["security"] == []
    paths = document["paths"]
    chat, health, plugins = (
        paths["/v1/chat/completions"]["post"],
        paths["/health"]["get"],
        paths["/plugins"]["get"],
    )
    assert set(chat["responses"]) == {"200", *map(str, (400, 401, 404, 408, 413, 415, 429, 500, 502, 503))}
    assert set(chat["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    assert (set(health["responses"]), health["security"]) == ({"200", "500", "503"}, [])
    assert "403" in plugins["responses"] and "security" not in plugins
    assert paths["/v1/models/{id}"]["parameters"][0]["name"] == "id"


async def test_what_the_cache_tells_is_as_described() -> None:
    async with site() as server:
        paths = (await description(server))["paths"]
        pin = await server.post("/cache/pin", {"prompt_token_ids": [1, 2, 3, 4, 5], "ttl": "90s"})
        answers = {"/cache/pin": [("post", pin), ("get", await server.client.get("/cache/pin"))]}
        answers |= {path: [("get", await server.client.get(path))] for path in ("/cache/tree", "/cache/blocks")}
        for path, given in answers.items():
            for method, answer in given:
                described = paths[path][method]["responses"]["200"]["content"]["application/json"]["schema"]
                Draft202012Validator(described).validate(answer.json())
        body = paths["/cache/pin"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert [Draft202012Validator(body).is_valid({"ttl": ttl}) for ttl in ("90s", "0s", 90)] == [True, False, False]


async def test_it_needs_a_key_and_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_KV_API_KEYS", "alice")
    async with site() as server:
        check_error(await server.client.get("/openapi.json"), 401, "invalid_api_key")
        server.engine.state = EngineState.LOADING
        loading = await server.client.get("/openapi.json", headers={"authorization": "Bearer alice"})
        check_error(loading, 503, "model_loading")
        server.engine.state = EngineState.READY
        described = await server.client.get("/openapi.json", headers={"authorization": "Bearer alice"})
        assert described.json()["security"] == [{"key": []}]


@pytest.mark.parametrize(
    ("change", "valid"),
    [
        ({}, True),
        ({"temperature": 2}, True),
        ({"temperature": 2.1}, False),
        ({"temperature": None, "stop": None}, True),
        ({"top_k": 3.0}, True),
        ({"top_k": 3.5}, False),
        ({"stop": "a"}, True),
        ({"stop": ["a"] * 17}, False),
        ({"stop": ""}, False),
        ({"cache_salt": "a/b"}, False),
        ({"cache_salt": "a.b"}, True),
        ({"logit_bias": {"5": 100}}, True),
        ({"logit_bias": {"x": 1}}, False),
        ({"metadata": {"a": "b"}}, True),
        ({"metadata": {"a": 1}}, False),
        ({"chat_template_kwargs": {"any": [1]}}, True),
        ({"chat_template_kwargs": {"messages": []}}, False),
        ({"stream": True, "stream_options": {"include_usage": True}}, True),
        ({"stream": True, "stream_options": {"include": True}}, False),
        ({"messages": []}, False),
        ({"response_format": {"type": "json_object"}}, True),
        ({"response_format": {"type": "yaml"}}, False),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}}, False),
        ({"reasoning_effort": "high"}, True),
        ({"reasoning_effort": "some"}, False),
        ({"tools": []}, False),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, False),
        ({"tools": [{"type": "custom", "function": {"name": "a"}}]}, False),
        ({"tool_choice": "auto"}, True),
        ({"tool_choice": "always"}, False),
        ({"tool_choice": {"type": "allowed_tools"}}, False),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}, True),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, False),
        ({"messages": [{"role": "nobody", "content": "a"}]}, False),
        ({"model": None}, False),
        ({"tempature": 1}, False),
        ({"audio": {}}, False),
        ({"audio": None}, True),
    ],
)
async def test_the_schema_says_what_the_server_does(change: dict[str, Any], valid: bool) -> None:
    body = {**CHAT, **change}
    async with site() as server:
        paths = (await description(server))["paths"]
        schema = paths["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert Draft202012Validator(schema).is_valid(body) == valid
        assert (await server.post("/v1/chat/completions", body)).status_code == (200 if valid else 400), json.dumps(
            body
        )

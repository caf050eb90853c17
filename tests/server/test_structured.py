"""`response_format` on all three generation routes."""

import json
from typing import Any

import jsonschema
import pytest

from tests.server.serving import check_error, events, site

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "born": {"type": "string", "format": "date"},
    },
    "required": ["age", "born"],
    "additionalProperties": False,
}
PATH = "response_format.json_schema.schema"


def of(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **more}}


async def test_the_answer_is_one_object() -> None:
    async with site() as server:
        choice = (await server.chat(response_format={"type": "json_object"}, max_tokens=300)).json()["choices"][0]
        assert isinstance(json.loads(choice["message"]["content"]), dict)
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)
        await server.settle()


@pytest.mark.parametrize("strict", [True, False, None])
async def test_the_answer_satisfies_the_schema_and_streams_the_same(strict: bool | None) -> None:
    async with site() as server:
        wanted = {"response_format": of(SCHEMA, strict=strict), "max_tokens": 300}
        whole = (await server.chat(**wanted)).json()["choices"][0]["message"]["content"]
        jsonschema.validate(json.loads(whole), SCHEMA)
        *chunks, _ = events((await server.chat(**wanted, stream=True)).text)
        assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == whole
        await server.settle()


async def test_completions_and_generate_take_it_too() -> None:
    async with site() as server:
        body = {
            "model": "fake",
            "prompt": "An age:",
            "response_format": of(SCHEMA),
            "max_tokens": 300,
            "temperature": 0,
        }
        completion = (await server.post("/v1/completions", {**body, "prompt": ["a", "b"]})).json()
        for choice in completion["choices"]:
            jsonschema.validate(json.loads(choice["text"]), SCHEMA)
        generation = (await server.post("/generate", body)).json()
        jsonschema.validate(json.loads(generation["text"]), SCHEMA)


async def test_type_text_changes_nothing() -> None:
    async with site() as server:
        plain = (await server.chat()).json()["choices"]
        assert (await server.chat(response_format={"type": "text"})).json()["choices"] == plain


async def test_what_is_not_enforced_is_a_warning() -> None:
    async with site() as server:
        schema = {"type": "object", "properties": {"a": {"type": "string", "format": "uri"}}, "minProperties": 1}
        response = await server.chat(response_format=of(schema), max_tokens=300)
        assert response.status_code == 200
        assert response.headers["x-openai-kv-warnings"] == (
            f"unenforced_keyword={PATH}.properties.a.format,unenforced_keyword={PATH}.minProperties"
        )
        assert "x-openai-kv-warnings" not in (await server.chat(response_format=of(SCHEMA))).headers


@pytest.mark.parametrize(
    ("response_format", "code", "param"),
    [
        ("json", "invalid_type", "response_format"),
        ({}, "missing_required_parameter", "response_format.type"),
        ({"type": "yaml"}, "invalid_value", "response_format.type"),
        ({"type": "json_schema"}, "missing_required_parameter", "response_format.json_schema"),
        ({"type": "json_object", "schema": {}}, "unknown_parameter", "response_format.schema"),
        ({**of({}), "type": "text"}, "invalid_parameter_combination", "response_format.json_schema"),
        (of({}, name="a b"), "invalid_value", "response_format.json_schema.name"),
        ({"type": "json_schema", "json_schema": {"name": "a"}}, "missing_required_parameter", PATH),
        (of([]), "invalid_type", PATH),  # type: ignore[arg-type]
        (of({"properties": {"a": {"type": "text"}}}), "invalid_json_schema", f"{PATH}.properties.a.type"),
        (of({"$ref": "https://example.com/s"}), "invalid_json_schema", f"{PATH}.$ref"),
        (of({"type": "integer", "minimum": 2, "maximum": 1}), "invalid_json_schema", PATH),
        (of({"items": {"not": {}}}, strict=True), "invalid_json_schema", f"{PATH}.items.not"),
        (of({"description": "x" * 70000}), "invalid_json_schema", PATH),
        (of({"const": json.loads("[" * 33 + "]" * 33)}), "invalid_json_schema", PATH),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
async def test_what_is_wrong_with_it_is_named(response_format: Any, code: str, param: str) -> None:
    async with site() as server:
        for stream in (False, True):
            check_error(await server.chat(response_format=response_format, stream=stream), 400, code, param)


async def test_limits_are_settings() -> None:
    async with site(server__max_schema_bytes=100, server__max_schema_depth=2) as server:
        message = check_error(await server.chat(response_format=of(SCHEMA)), 400, "invalid_json_schema", PATH)[
            "message"
        ]
        assert "deeper than 2" in message
        long = of({"enum": ["x" * 200]})
        assert (
            "at most 100"
            in check_error(await server.chat(response_format=long), 400, "invalid_json_schema", PATH)["message"]
        )

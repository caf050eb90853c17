"""What is refused, and in which words."""

import json
from typing import Any

import pytest

from tests.server.responses.asking import ASK, PATH, ask
from tests.server.responses.test_answers import TOOLS
from tests.server.scripted import scripted
from tests.server.serving import check_error, site


def item(**fields: object) -> dict[str, Any]:
    return {"input": [fields]}


def content(**part: object) -> dict[str, Any]:
    return item(role="user", content=[part])


IMAGE = {"type": "input_image", "image_url": "data:,"}
WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"background": True}, "unsupported_parameter", "background"),
    ({"conversation": "conv_1"}, "unsupported_parameter", "conversation"),
    ({"prompt": {"id": "p"}}, "unsupported_parameter", "prompt"),
    ({"context_management": [{"type": "compaction"}]}, "unsupported_parameter", "context_management"),
    ({"reasoning": {"summary": "detailed"}}, "unsupported_parameter", "reasoning.summary"),
    ({"prompt_cache_options": {"prewarm": True}}, "unsupported_parameter", "prompt_cache_options.prewarm"),
    ({"prompt_cache_options": {"ttl": "30d"}}, "invalid_value", "prompt_cache_options.ttl"),
    ({"messages": []}, "unknown_parameter", "messages"),
    ({"max_tokens": 3}, "unknown_parameter", "max_tokens"),
    ({"n": 2}, "unknown_parameter", "n"),
    ({"max_output_tokens": 0}, "integer_below_min_value", "max_output_tokens"),
    ({"temperature": 3}, "decimal_above_max_value", "temperature"),
    ({"include": ["everything"]}, "invalid_value", "include[0]"),
    ({"input": None}, "missing_required_parameter", "input"),
    ({"input": []}, "empty_array", "input"),
    ({"input": 3}, "invalid_type", "input"),
    (content(**IMAGE), "unsupported_parameter", "input[0].content[0].type"),
    (content(type="input_text"), "missing_required_parameter", "input[0].content[0].text"),
    (content(text="a"), "missing_required_parameter", "input[0].content[0].type"),
    (item(role="tool", content="a"), "invalid_value", "input[0].role"),
    (item(role="user"), "missing_required_parameter", "input[0].content"),
    (item(type="item_reference", id="msg_1"), "unsupported_parameter", "input[0].type"),
    (item(type="function_call", name="f", arguments="{}"), "missing_required_parameter", "input[0].call_id"),
    (
        item(type="function_call_output", call_id="a", output=[IMAGE]),
        "unsupported_parameter",
        "input[0].output[0].type",
    ),
    (item(type="reasoning", encrypted_content="x"), "unsupported_parameter", "input[0].encrypted_content"),
    ({"tools": [{"type": "web_search"}]}, "unsupported_parameter", "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "missing_required_parameter", "tools[0].name"),
    ({"tools": [TOOLS[1], TOOLS[1]]}, "invalid_value", "tools[1].name"),
    ({"tools": TOOLS, "tool_choice": {"type": "web_search"}}, "unsupported_parameter", "tool_choice.type"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "later"}}, "invalid_value", "tool_choice.name"),
    ({"tools": TOOLS, "tool_choice": 3}, "invalid_type", "tool_choice"),
    ({"tool_choice": "required"}, "invalid_parameter_combination", "tool_choice"),
    ({"text": {"format": {"type": "grammar"}}}, "unsupported_parameter", "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "missing_required_parameter", "text.format.schema"),
]


@pytest.mark.parametrize(("changes", "code", "param"), WRONG, ids=lambda value: str(value)[:50])
async def test_what_is_wrong_is_named(changes: dict[str, Any], code: str, param: str) -> None:
    async with scripted("ok") as server:
        for stream in (False, True):
            check_error(await ask(server, **changes, stream=stream), 400, code, param)
        assert server.engine.num_active == 0


NAMED_LATER = {"type": "function", "name": "later"}
DEEPER: list[tuple[dict[str, Any], str, str]] = [
    (
        {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [NAMED_LATER]}},
        "invalid_value",
        "tool_choice.tools[0].name",
    ),
    (
        {
            "tools": [
                {
                    "type": "function",
                    "name": "f",
                    "strict": True,
                    "parameters": {"properties": {"function": {"type": "x"}}},
                }
            ]
        },
        "invalid_json_schema",
        "tools[0].parameters.properties.function.type",
    ),
    (
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "x"}}}},
        "invalid_json_schema",
        "text.format.schema.type",
    ),
    ({"input": "x" * 3000}, "context_length_exceeded", "input"),
]


@pytest.mark.parametrize(("changes", "code", "param"), DEEPER, ids=lambda value: str(value)[:50])
async def test_what_a_chat_finds_is_said_in_the_words_of_a_response(
    changes: dict[str, Any], code: str, param: str
) -> None:
    async with scripted("ok") as server:
        error = check_error(await ask(server, **changes), 400, code, param)
        assert "function.parameters" not in error["message"] and "response_format" not in error["message"]


async def test_names_of_the_chat_are_put_right() -> None:
    async with site() as server:
        for wrong, right in (
            ("messages", "input"),
            ("max_completion_tokens", "max_output_tokens"),
            ("guided_json", "text"),
        ):
            error = check_error(await ask(server, **{wrong: 1}), 400, "unknown_parameter", wrong)
            assert error["message"].endswith(f"Did you mean '{right}'?")


async def test_warnings_name_our_fields() -> None:
    wanted = {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object", "minProperties": 1}}}
    tools = [{"type": "function", "name": "f", "function": {}}]
    turns = [{"role": "user", "content": "x" * 1500}] * 2
    async with scripted("{}", server__strict_parameters=False) as server:
        response = await ask(server, text=wanted, tools=tools, input=turns, truncation="auto")
        told = "unknown_parameter=tools[0].function,unenforced_keyword=text.format.schema.minProperties"
        assert response.headers["x-openai-kv-warnings"] == told


async def test_a_template_that_refuses_names_the_input() -> None:
    template = "{{ raise_exception('No system here') if messages[0].role == 'system' }}{{ messages[0].content }}"
    async with scripted("ok", template) as server:
        check_error(await ask(server, instructions="Be brief."), 400, "template_error", "input")
        check_error(await ask(server, tools=TOOLS), 400, "template_error", "tools")


async def test_options_of_a_stream_need_one() -> None:
    async with site() as server:
        refused = await ask(server, stream_options={"include_obfuscation": False})
        check_error(refused, 400, "invalid_parameter_combination", "stream_options")
        streamed = await ask(server, stream_options={"include_obfuscation": False}, stream=True)
        assert streamed.status_code == 200


async def test_the_model_is_needed_and_known() -> None:
    async with site() as server:
        check_error(await server.post(PATH, {"input": "Hi"}), 400, "missing_required_parameter", "model")
        check_error(await ask(server, model="other"), 404, "model_not_found", "model")


async def test_what_is_echoed_is_json() -> None:
    """A number beyond every double became Infinity, in the answer too."""
    body = json.dumps({**ASK, "tools": [{**TOOLS[0], "parameters": {"maximum": 5}}]}).replace("5", "1e999")
    async with scripted("ok") as server:
        response = await server.client.post(PATH, content=body, headers={"content-type": "application/json"})
        check_error(response, 400, "invalid_json")

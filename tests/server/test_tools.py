"""Tools: what a request may ask for, and calls in whole answers and in streams, for every family."""

import json
from collections import defaultdict
from typing import Any

import httpx
import jsonschema
import pytest

from openai_kv.parsing.hermes import HermesParser
from openai_kv.server.chat_output import ChatOutput
from openai_kv.server.chat_reader import Deltas
from openai_kv.server.tool_fields import ToolChoice
from tests.server.scripted import FAMILIES, scripted
from tests.server.serving import check_error, events, site

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


def tool(name: str, parameters: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


TOOLS = [tool("get_weather", WEATHER), tool("now")]
CALL = {"city": "Zürich", "days": 2}
ARGUMENTS = json.dumps(CALL, ensure_ascii=False)
# Two calls with some text, as each family writes them.
TEXTS = {
    "hermes": f'Hm.\n<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    "mistral": f'Hm. [TOOL_CALLS][{{"name": "get_weather", "arguments": {ARGUMENTS}}}, '
    '{"name": "now", "arguments": {}}]',
    "pythonic": '[get_weather(city="Zürich", days=2), now()]',
    "llama3_json": f'{{"name": "get_weather", "parameters": {ARGUMENTS}}}; {{"name": "now", "parameters": {{}}}}',
}
CONTENTS = {"hermes": "Hm.", "mistral": "Hm.", "pythonic": None, "llama3_json": None}
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def choice_of(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


def calls_of(choice: dict[str, Any]) -> list[tuple[str, Any]]:
    functions = [call["function"] for call in choice["message"].get("tool_calls", [])]
    return [(function["name"], json.loads(function["arguments"])) for function in functions]


def merged(text: str) -> tuple[dict[str, Any], str]:
    """The message that the deltas of a stream add up to, and its finish reason."""
    message: dict[str, Any] = {"content": ""}
    calls: dict[int, dict[str, Any]] = defaultdict(lambda: {"name": "", "arguments": ""})
    *chunks, done = events(text)
    assert done == "[DONE]"
    seen: list[int] = []
    for choice in (chunk["choices"][0] for chunk in chunks):
        delta = choice["delta"]
        assert delta.get("role") or "" not in delta.values(), "no empty delta but the first"
        message["content"] += delta.get("content", "")
        for part in delta.get("tool_calls", []):
            assert ("id" in part) == (part["index"] not in calls)
            seen.append(part["index"])
            calls[part["index"]]["name"] += part["function"].get("name", "")
            calls[part["index"]]["arguments"] += part["function"]["arguments"]
    assert seen == sorted(seen), "calls are not interleaved"
    return {**message, "calls": list(calls.values())}, chunks[-1]["choices"][0]["finish_reason"]


@pytest.mark.parametrize("family", TEXTS)
async def test_calls_of_every_family_whole_and_streamed(family: str) -> None:
    async with scripted(TEXTS[family], FAMILIES[family]) as server:
        choice = choice_of(await server.chat(tools=TOOLS, max_tokens=300))
        assert calls_of(choice) == [("get_weather", CALL), ("now", {})]
        assert choice["message"]["content"] == CONTENTS[family]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("tool_calls", None)
        ids = [call["id"] for call in choice["message"]["tool_calls"]]
        assert len(set(ids)) == 2
        assert all(len(call_id) == (9 if family == "mistral" else 29) for call_id in ids)
        streamed, reason = merged((await server.chat(tools=TOOLS, max_tokens=300, stream=True)).text)
        whole = [call["function"] for call in choice["message"]["tool_calls"]]
        assert streamed == {"content": choice["message"]["content"] or "", "calls": whole}
        assert reason == "tool_calls"
        await server.settle()


def test_arguments_stream_as_they_come() -> None:
    choice = ToolChoice("auto", ("get_weather", "now"))
    deltas = Deltas(ChatOutput(choice, HermesParser(), one_call=False, thinks=False, starts_inside=False))
    told = [delta for char in TEXTS["hermes"] for delta in deltas.take(char, None)]
    calls = [part for delta in told for part in delta.get("tool_calls", [])]
    arguments = [part["function"]["arguments"] for part in calls if part["index"] == 0]
    assert arguments == ["", *ARGUMENTS]


@pytest.mark.parametrize("family", TEXTS)
async def test_no_tools_or_tool_choice_none_leaves_the_text_as_it_is(family: str) -> None:
    async with scripted(TEXTS[family], FAMILIES[family]) as server:
        for more in ({}, {"tools": TOOLS, "tool_choice": "none"}):
            choice = choice_of(await server.chat(**more, max_tokens=300))
            assert choice["message"] == {"role": "assistant", "content": TEXTS[family], "refusal": None}
            assert choice["finish_reason"] == "stop"


async def test_all_tools_are_in_the_prompt_whatever_the_choice() -> None:
    async with scripted("ok") as server:
        counts = set()
        for wanted in ("none", "auto", "required", NAMED):
            response = await server.chat(tools=TOOLS, tool_choice=wanted, max_tokens=1)
            counts.add(response.json()["usage"]["prompt_tokens"])
        assert len(counts) == 1


@pytest.mark.parametrize("family", TEXTS)
async def test_required_makes_a_model_call_that_would_rather_talk(family: str) -> None:
    async with scripted("I would rather talk.", FAMILIES[family]) as server:
        choice = choice_of(await server.chat(tools=TOOLS, tool_choice="required", max_tokens=400))
        calls = calls_of(choice)
        assert calls and choice["finish_reason"] == "tool_calls"
        for name, arguments in calls:
            jsonschema.validate(arguments, {"get_weather": WEATHER, "now": {"maxProperties": 0}}[name])


@pytest.mark.parametrize("family", TEXTS)
async def test_a_name_is_called_once_and_the_reason_is_stop(family: str) -> None:
    async with scripted("I would rather talk.", FAMILIES[family]) as server:
        choice = choice_of(await server.chat(tools=TOOLS, tool_choice=NAMED, max_tokens=400))
        ((name, arguments),) = calls_of(choice)
        assert name == "get_weather" and choice["finish_reason"] == "stop"
        jsonschema.validate(arguments, WEATHER)
        assert choice["message"]["content"] is None
        _, reason = merged((await server.chat(tools=TOOLS, tool_choice=NAMED, max_tokens=400, stream=True)).text)
        assert reason == "stop"


async def test_allowed_tools() -> None:
    only_now = [{"type": "function", "function": {"name": "now"}}]
    async with scripted(TEXTS["hermes"]) as server:
        wanted = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": only_now}}
        choice = choice_of(await server.chat(tools=TOOLS, tool_choice=wanted, max_tokens=300))
        assert calls_of(choice) == [("now", {})]
        assert "get_weather" in choice["message"]["content"]
        wanted["allowed_tools"] = {"mode": "required", "tools": only_now}
        choice = choice_of(await server.chat(tools=TOOLS, tool_choice=wanted, max_tokens=300))
        assert {name for name, _ in calls_of(choice)} == {"now"}


@pytest.mark.parametrize("family", TEXTS)
async def test_without_parallel_calls_the_first_is_the_last(family: str) -> None:
    async with scripted(TEXTS[family], FAMILIES[family]) as server:
        asked = {"tools": TOOLS, "parallel_tool_calls": False, "max_tokens": 300}
        response = await server.chat(**asked)
        choice = choice_of(response)
        assert calls_of(choice) == [("get_weather", CALL)]
        assert choice["finish_reason"] == "tool_calls"
        if family in ("hermes", "mistral"):
            first = TEXTS[family].encode().index(b"now")
            assert response.json()["usage"]["completion_tokens"] < first
        streamed, _ = merged((await server.chat(**asked, stream=True)).text)
        assert [call["name"] for call in streamed["calls"]] == ["get_weather"]


async def test_strict_binds_the_arguments_from_the_marker_on() -> None:
    text = 'Hm. <tool_call>\n{"name": "get_weather", "arguments": {"days": 99, "town": 3}}\n</tool_call>'
    strict = [tool("get_weather", WEATHER, strict=True), tool("now")]
    async with scripted(text) as server:
        choice = choice_of(await server.chat(tools=strict, max_tokens=400))
        ((_, arguments),) = calls_of(choice)
        jsonschema.validate(arguments, WEATHER)
        assert choice["message"]["content"].startswith("Hm.")
        loose = choice_of(await server.chat(tools=TOOLS, max_tokens=400))
        assert calls_of(loose) == [("get_weather", {"days": 99, "town": 3})]


async def test_strict_without_a_marker_is_a_warning() -> None:
    async with scripted(TEXTS["pythonic"], FAMILIES["pythonic"]) as server:
        response = await server.chat(tools=[TOOLS[1], tool("get_weather", WEATHER, strict=True)], max_tokens=300)
        assert response.headers["x-openai-kv-warnings"] == "unenforced_strict=tools[1]"
        assert len(calls_of(choice_of(response))) == 2


async def test_a_format_binds_the_content_and_not_the_calls() -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"const": {"ok": True}}}}
    for family, text in TEXTS.items():
        called = text.removeprefix("Hm.").strip()
        async with scripted(called, FAMILIES[family]) as server:
            choice = choice_of(await server.chat(tools=TOOLS, response_format=wanted, max_tokens=300))
            assert calls_of(choice) == [("get_weather", CALL), ("now", {})], family
        async with scripted('{"ok": true}', FAMILIES[family]) as server:
            choice = choice_of(await server.chat(tools=TOOLS, response_format=wanted, max_tokens=300))
            assert choice["message"]["content"] == '{"ok": true}' and choice["finish_reason"] == "stop"


async def test_a_call_that_does_not_parse_is_content() -> None:
    for text in ("<tool_call>oops</tool_call>", '<tool_call>{"name": "now", "arguments": {"a": oops}}</tool_call>'):
        async with scripted(text) as server:
            choice = choice_of(await server.chat(tools=TOOLS, max_tokens=300))
            assert choice["message"]["content"] == text
            assert "tool_calls" not in choice["message"] and choice["finish_reason"] == "stop"


async def test_a_call_that_breaks_stays_in_a_stream_as_far_as_it_came() -> None:
    broken = '<tool_call>{"name": "now", "arguments": {"a": oops}}</tool_call>'
    async with scripted(broken + TEXTS["hermes"].removeprefix("Hm.")) as server:
        streamed, reason = merged((await server.chat(tools=TOOLS, max_tokens=400, stream=True)).text)
        assert streamed["calls"][0] == {"name": "now", "arguments": '{"a": oops}'}
        assert [call["name"] for call in streamed["calls"]] == ["now", "get_weather", "now"]
        assert reason == "tool_calls"
        choice = choice_of(await server.chat(tools=TOOLS, max_tokens=400))
        assert choice["message"]["content"] == broken and len(calls_of(choice)) == 2


async def test_a_call_that_is_cut_is_returned_as_far_as_it_came() -> None:
    async with scripted(TEXTS["hermes"]) as server:
        cut = TEXTS["hermes"].encode().index(b'"days"')
        choice = choice_of(await server.chat(tools=TOOLS, max_tokens=cut))
        (call,) = choice["message"]["tool_calls"]
        assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Zürich", '}
        assert choice["finish_reason"] == "length"


async def test_special_tokens_of_the_markup_are_seen_by_the_parser_only() -> None:
    specials = ["[TOOL_CALLS]", "[ARGS]", "<unk>"]
    text = f"Hm.<unk>[TOOL_CALLS]get_weather[ARGS]{ARGUMENTS}"
    async with scripted(text, FAMILIES["mistral"], specials=specials) as server:
        choice = choice_of(await server.chat(tools=TOOLS, max_tokens=300))
        assert (choice["message"]["content"], calls_of(choice)) == ("Hm.", [("get_weather", CALL)])
        plain = choice_of(await server.chat(max_tokens=300))
        assert plain["message"]["content"] == f"Hm.get_weather{ARGUMENTS}"
        none = choice_of(await server.chat(tools=TOOLS, tool_choice="none", max_tokens=300))
        assert none["message"]["content"] == f"Hm.[TOOL_CALLS]get_weather[ARGS]{ARGUMENTS}"
        required = choice_of(await server.chat(tools=TOOLS, tool_choice="required", max_tokens=400))
        assert calls_of(required) and required["message"]["content"] is None


async def test_parsers_can_be_chosen_or_switched_off() -> None:
    async with scripted(TEXTS["hermes"], FAMILIES["none"]) as server:
        choice = choice_of(await server.chat(tools=TOOLS, max_tokens=300))
        assert choice["message"]["content"] == TEXTS["hermes"]
        check_error(await server.chat(tools=TOOLS, tool_choice="required"), 400, "unsupported_parameter", "tool_choice")
        response = await server.chat(tools=[tool("now", strict=True)])
        assert response.headers["x-openai-kv-warnings"] == "unenforced_strict=tools[0]"


async def test_a_template_that_ignores_tools_is_named() -> None:
    async with site() as server:
        check_error(await server.chat(tools=TOOLS), 400, "template_error", "tools")
        plain, none = await server.chat(), await server.chat(tools=TOOLS, tool_choice="none")
        assert none.json()["choices"] == plain.json()["choices"], "what may not be called needs no template"


FUNCTION = "tools[0].function"
LATER = {"type": "function", "function": {"name": "later"}}
WRONG = [
    ({"tools": []}, "empty_array", "tools"),
    ({"tools": [tool("now")] * 2}, "invalid_value", "tools[1].function.name"),
    ({"tools": [tool("a b")]}, "invalid_value", f"{FUNCTION}.name"),
    ({"tools": [{"type": "function", "function": {}}]}, "missing_required_parameter", f"{FUNCTION}.name"),
    ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "unsupported_parameter", "tools[0].type"),
    ({"tools": [tool(f"f{index}") for index in range(5)]}, "array_above_max_length", "tools"),
    ({"tools": TOOLS, "tool_choice": "always"}, "invalid_value", "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "custom"}}, "unsupported_parameter", "tool_choice.type"),
    ({"tools": TOOLS, "tool_choice": {"function": {"name": "now"}}}, "missing_required_parameter", "tool_choice.type"),
    (
        {"tools": TOOLS, "tool_choice": LATER},
        "invalid_value",
        "tool_choice.function.name",
    ),
    (
        {
            "tools": TOOLS,
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [NAMED, LATER]},
            },
        },
        "invalid_value",
        "tool_choice.allowed_tools.tools[1].function.name",
    ),
    ({"tool_choice": "required"}, "invalid_parameter_combination", "tool_choice"),
    ({"tool_choice": NAMED}, "invalid_parameter_combination", "tool_choice"),
    (
        {"tools": [tool("now", {"type": "object", "properties": {"a": {"type": "text"}}}, strict=True)]},
        "invalid_json_schema",
        f"{FUNCTION}.parameters.properties.a.type",
    ),
    (
        {"tools": [tool("now", {"type": "object", "minProperties": 1}, strict=True)]},
        "invalid_json_schema",
        f"{FUNCTION}.parameters.minProperties",
    ),
]


@pytest.mark.parametrize(("changes", "code", "param"), WRONG, ids=lambda value: str(value)[:50])
async def test_what_is_wrong_is_named(changes: dict[str, Any], code: str, param: str) -> None:
    async with scripted("ok", server__max_tools=4) as server:
        for stream in (False, True):
            check_error(await server.chat(**changes, stream=stream), 400, code, param)


async def test_keywords_that_bind_nothing_are_warnings_where_a_call_is_asked_for() -> None:
    async with scripted("ok") as server:
        tools = [tool("now", {"type": "object", "minProperties": 1})]
        response = await server.chat(tools=tools, tool_choice="required", max_tokens=300)
        assert response.headers["x-openai-kv-warnings"] == f"unenforced_keyword={FUNCTION}.parameters.minProperties"
        assert "x-openai-kv-warnings" not in (await server.chat(tools=tools)).headers


@pytest.mark.parametrize("stream", [False, True])
async def test_exporters_are_told_the_reason_that_the_client_is(stream: bool) -> None:
    async with scripted(TEXTS["hermes"]) as server:
        body = {"tools": TOOLS, "max_tokens": 200, "stream": stream, "n": 2}
        await server.chat(**body)
        await server.chat(**{**body, "max_tokens": 3})
        await server.exported()
        told = [stats.generation.finish_reasons for stats in server.exporter.http if stats.generation]
    assert told == [("tool_calls", "tool_calls"), ("length", "length")]

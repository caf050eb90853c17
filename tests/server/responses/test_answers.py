"""Whole answers: the response around the output of a chat."""

import json
from typing import Any
from unittest.mock import patch

import jsonschema
import pytest

from openai_kv.tokenizer import Tokenizer
from tests.server.responses.asking import ASK, PATH, answer, ask, text_of
from tests.server.scripted import SHAPE, scripted
from tests.server.serving import Site, check_error, site
from tests.server.test_reasoning import TEXT as THOUGHTS
from tests.server.test_reasoning import THINKS
from tests.server.test_tools import ARGUMENTS, CALL, TEXTS, WEATHER

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "get_weather", "parameters": WEATHER, "strict": None},
    {"type": "function", "name": "now", "parameters": None, "strict": False},
]


async def chat(server: Site, messages: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    body: dict[str, Any] = (await server.chat(messages=messages, **changes)).json()
    return body


async def test_it_has_the_shape_of_the_sdk() -> None:
    async with scripted("A store of answers.") as server:
        asked = {"instructions": "Be brief.", "metadata": {"a": "b"}, "service_tier": "auto", "max_output_tokens": 99}
        response = await answer(server, **asked)
        (item,) = response["output"]
        assert response["id"].startswith("resp_") and item.pop("id").startswith("msg_")
        part = {"type": "output_text", "text": "A store of answers.", "annotations": [], "logprobs": []}
        assert item == {"type": "message", "status": "completed", "role": "assistant", "content": [part]}
        expected: dict[str, Any] = {
            "object": "response",
            "status": "completed",
            "error": None,
            "incomplete_details": None,
            "model": "fake",
            "instructions": "Be brief.",
            "max_output_tokens": 99,
            "metadata": {"a": "b"},
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "service_tier": "default",
            "store": True,
            "temperature": 0,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1,
            "truncation": "disabled",
        }
        assert response.items() >= expected.items()
        assert response["completed_at"] >= response["created_at"]
        await server.settle()


async def test_it_is_the_chat_in_other_words() -> None:
    async with site() as server:
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a cache?"}]
        same = await chat(server, messages)
        response = await answer(server, instructions="Be brief.")
        assert text_of(response) == same["choices"][0]["message"]["content"]
        assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert response["output"][0]["status"] == "incomplete" and "completed_at" not in response
        usage, prompt = response["usage"], same["usage"]["prompt_tokens"]
        assert usage == {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": prompt, "cache_write_tokens": 0},
            "output_tokens": 8,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + 8,
        }


async def test_input_tokens_are_those_of_the_usage() -> None:
    async with scripted("ok") as server:
        for changes in (
            {},
            {"instructions": "Be brief."},
            {"input": [{"role": "user", "content": "Hi"}], "tools": TOOLS},
        ):
            whole = (await answer(server, **changes))["usage"]["input_tokens"]
            counted = await server.post(f"{PATH}/input_tokens", {**ASK, **changes})
            assert counted.json() == {"object": "response.input_tokens", "input_tokens": whole}
        first = await answer(server)
        goes_on = {"input": "And then?", "previous_response_id": first["id"]}
        whole = (await answer(server, **goes_on))["usage"]["input_tokens"]
        assert (await server.post(f"{PATH}/input_tokens", goes_on)).json()["input_tokens"] == whole
        long = await server.post(f"{PATH}/input_tokens", {"input": "x" * 5000})
        assert long.json()["input_tokens"] > 5000, "length is no matter"


async def test_calls_and_text_are_items_in_their_order() -> None:
    async with scripted(TEXTS["hermes"]) as server:
        response = await answer(server, tools=TOOLS, max_output_tokens=300)
        text, *calls = response["output"]
        assert (text["type"], text_of(response)) == ("message", "Hm.")
        told = [(item["type"], item["status"], item["name"], json.loads(item["arguments"])) for item in calls]
        assert told == [("function_call", "completed", "get_weather", CALL), ("function_call", "completed", "now", {})]
        assert all(item["id"].startswith("fc_") and item["call_id"].startswith("call_") for item in calls)
        assert response["tools"][1] == {**TOOLS[1], "description": None}


async def test_a_round_of_calls_by_hand_and_by_id_are_the_same_prompt() -> None:
    async with scripted(TEXTS["hermes"]) as server:
        first = await answer(server, tools=TOOLS, max_output_tokens=300)
        results = [
            {"type": "function_call_output", "call_id": item["call_id"], "output": "5 degrees"}
            for item in first["output"]
            if item["type"] == "function_call"
        ]
        options = {"tools": TOOLS, "tool_choice": "none", "max_output_tokens": 300}
        by_id = await answer(server, input=results, previous_response_id=first["id"], **options)
        asked = {"role": "user", "content": ASK["input"]}
        by_hand = await answer(server, input=[asked, *first["output"], *results], **options)
        assert by_id["usage"]["input_tokens"] == by_hand["usage"]["input_tokens"]
        details = by_hand["usage"]["input_tokens_details"]
        assert details == {"cached_tokens": by_hand["usage"]["input_tokens"], "cache_write_tokens": 0}
        calls = [
            {
                "id": item["call_id"],
                "type": "function",
                "function": {"name": item["name"], "arguments": item["arguments"]},
            }
            for item in first["output"][1:]
        ]
        messages: list[dict[str, Any]] = [
            asked,
            {"role": "assistant", "content": "Hm.", "tool_calls": calls},
            *({"role": "tool", "tool_call_id": each["call_id"], "content": each["output"]} for each in results),
        ]
        tools = [{"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}]
        tools += [{"type": "function", "function": {"name": "now", "strict": False}}]
        same = await chat(server, messages, tools=tools, tool_choice="none")
        assert same["usage"]["prompt_tokens"] == by_id["usage"]["input_tokens"]


@pytest.mark.parametrize("wanted", ["required", {"type": "function", "name": "get_weather"}])
async def test_a_call_can_be_asked_for(wanted: object) -> None:
    async with scripted("I would rather talk.") as server:
        response = await answer(server, tools=TOOLS, tool_choice=wanted, max_output_tokens=400)
        calls = {item["name"]: json.loads(item["arguments"]) for item in response["output"]}
        assert calls and response["status"] == "completed" and response["tool_choice"] == wanted
        jsonschema.validate(calls.get("get_weather", CALL), WEATHER)


async def test_allowed_tools_and_one_call_only() -> None:
    only = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "now"}]}
    async with scripted(TEXTS["hermes"]) as server:
        response = await answer(server, tools=TOOLS, tool_choice=only, max_output_tokens=300)
        assert [item["name"] for item in response["output"] if item["type"] == "function_call"] == ["now"]
        assert "get_weather" in text_of(response)
        response = await answer(server, tools=TOOLS, parallel_tool_calls=False, max_output_tokens=300)
        assert [item["name"] for item in response["output"][1:]] == ["get_weather"]


async def test_a_call_that_does_not_parse_is_text_and_one_that_is_cut_is_incomplete() -> None:
    broken = '<tool_call>{"name": "now", "arguments": {"a": oops}}</tool_call>'
    async with scripted(broken) as server:
        response = await answer(server, tools=TOOLS, max_output_tokens=300)
        assert (text_of(response), len(response["output"])) == (broken, 1)
    async with scripted(TEXTS["hermes"]) as server:
        cut = TEXTS["hermes"].encode().index(b'"days"')
        response = await answer(server, tools=TOOLS, max_output_tokens=cut)
        text, call = response["output"]
        assert (text["status"], call["status"], response["status"]) == ("completed", "incomplete", "incomplete")
        assert ARGUMENTS.startswith(call["arguments"])


async def test_reasoning_is_an_item_of_its_own() -> None:
    async with scripted(THOUGHTS, THINKS) as server:
        response = await answer(server, max_output_tokens=300, reasoning={"effort": "low", "summary": "auto"})
        thought, message = response["output"]
        assert thought.pop("id").startswith("rs_")
        content = [{"type": "reasoning_text", "text": "Hm, two."}]
        assert thought == {"type": "reasoning", "status": "completed", "summary": [], "content": content}
        assert message["content"][0]["text"] == "It is 2."
        assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
        assert response["reasoning"] == {"effort": "low", "summary": "auto"}


async def test_effort_reaches_the_template() -> None:
    template = "{{ reasoning_effort }}{{ messages[0].content }}"
    async with scripted("ok", template) as server:
        counts = [
            (await answer(server, input="Hi", reasoning={"effort": effort}))["usage"]["input_tokens"]
            for effort in ("low", "minimal")
        ]
        assert counts == [len("lowHi"), len("minimalHi")]


async def test_nothing_said_is_an_empty_message() -> None:
    async with scripted("") as server:
        response = await answer(server)
        assert (text_of(response), len(response["output"]), response["status"]) == ("", 1, "completed")


@pytest.mark.parametrize("wanted", [{"type": "json_object"}, {"type": "json_schema", "name": "a", "schema": WEATHER}])
async def test_formats_hold_the_text(wanted: dict[str, Any]) -> None:
    async with scripted("I would rather talk.") as server:
        response = await answer(server, text={"format": wanted}, max_output_tokens=400)
        jsonschema.validate(json.loads(text_of(response)), wanted.get("schema", {"type": "object"}))
        assert response["text"] == {"format": wanted}


async def test_log_probabilities_are_of_the_text_only() -> None:
    async with scripted(TEXTS["hermes"]) as server:
        response = await answer(
            server, tools=TOOLS, max_output_tokens=300, include=["message.output_text.logprobs"], top_logprobs=2
        )
        (part,) = response["output"][0]["content"]
        assert "".join(entry["token"] for entry in part["logprobs"]) == part["text"] == "Hm."
        assert [len(entry["top_logprobs"]) for entry in part["logprobs"]] == [2] * 3
        assert bytes(entry["bytes"][0] for entry in part["logprobs"]) == b"Hm."
    for text in ("Zürich", "Zü", "a  b "):
        async with scripted(f"<think>hm</think> {text}", THINKS) as server:
            for limit in (300, len(f"<think>hm</think> {text}".encode())):
                response = await answer(server, max_output_tokens=limit, top_logprobs=1)
                told = response["output"][1]["content"][0]["logprobs"]
                assert bytes(byte for entry in told for byte in entry["bytes"]).decode() == text


async def test_the_oldest_turns_are_dropped_where_that_is_asked_for() -> None:
    turns = [{"role": "user", "content": f"{number} " + "x" * 200} for number in range(12)]
    asked = {"instructions": "Be brief.", "max_output_tokens": 100}
    async with scripted("ok") as server:
        check_error(await ask(server, input=turns, **asked), 400, "context_length_exceeded", "input")
        cut = await answer(server, input=turns, **asked, truncation="auto")
        assert cut["usage"]["input_tokens_details"]["cached_tokens"] == 0
        again = await answer(server, input=turns[-9:], **asked)
        assert again["usage"]["input_tokens_details"]["cached_tokens"] == cut["usage"]["input_tokens"]
        check_error(await ask(server, input="x" * 3000, truncation="auto"), 400, "context_length_exceeded", "input")


@pytest.mark.parametrize("room", [250, 500, 700, 900, 1100, 1300, 1500, 1700, 1900])
async def test_as_few_turns_as_possible_are_dropped(room: int) -> None:
    turns = [{"role": "user", "content": f"{number} " + "x" * 200} for number in range(9)]
    async with scripted("ok") as server:
        sizes = [
            (await server.post(f"{PATH}/input_tokens", {"input": turns[start:]})).json()["input_tokens"]
            for start in range(len(turns))
        ]
        cut = await answer(server, input=turns, max_output_tokens=SHAPE.max_model_len - room, truncation="auto")
        assert cut["usage"]["input_tokens"] == next(size for size in sizes if size <= room)


async def test_a_huge_turn_is_not_read_at_each_attempt() -> None:
    turns = [{"role": "user", "content": "a" * (200_000 if number == 23 else 2)} for number in range(64)]
    read: list[int] = []

    def counted(tokenizer: Tokenizer, text: str, **options: bool) -> list[int]:
        read.append(len(text))
        return encode(tokenizer, text, **options)

    encode = Tokenizer.encode
    async with scripted("ok") as server:
        with patch.object(Tokenizer, "encode", counted):
            cut = await answer(server, input=turns, truncation="auto")
        assert cut["usage"]["input_tokens"] < 2000
        assert sum(read) < 3 * 201_000


async def test_breakpoints_and_explicit_caching() -> None:
    mark = {"mode": "explicit", "ttl": "30m"}
    parts = [{"type": "input_text", "text": "A long document.", "prompt_cache_breakpoint": mark}]
    parts += [{"type": "input_text", "text": "A question"}]
    async with site() as server:
        details = []
        for question in ("One?", "Two?"):
            content = [*parts, {"type": "input_text", "text": question}]
            options = {"prompt_cache_options": {"mode": "explicit"}, "prompt_cache_key": "k"}
            response = await answer(server, input=[{"role": "user", "content": content}], **options)
            details.append(response["usage"]["input_tokens_details"])
        length = details[0]["cache_write_tokens"]
        assert length > len("A long document.")
        assert details[1] == {"cached_tokens": length, "cache_write_tokens": 0}
        await server.settle()

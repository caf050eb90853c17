"""What answers are read for, together: choices, streams, log probabilities, stop tokens, pins."""

import json
from collections import defaultdict
from typing import Any

import jsonschema
import pytest

from tests.server.scripted import FAMILIES, scripted
from tests.server.serving import MESSAGES, check_error, events, site
from tests.tiny_tokenizer import CHAT_TEMPLATE, tiny_tokenizer

MARKERS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
TEMPLATE = "{# <think> </think> #}" + FAMILIES["hermes"]
TOOLS = [{"type": "function", "function": {"name": "now"}}]
CALL = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
TEXT = f"<think>Hm.</think>\nWell.\n{CALL}"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
MANY = {"tools": TOOLS, "max_tokens": 300, "logprobs": True, "top_logprobs": 1, "return_token_ids": True}


class Told:
    """What the chunks of one choice add up to."""

    def __init__(self) -> None:
        self.text: dict[str, str] = defaultdict(str)
        self.calls: list[dict[str, str]] = []
        self.entries: list[Any] = []
        self.token_ids: list[int] = []
        self.reason: str | None = None

    def take(self, choice: dict[str, Any]) -> None:
        assert self.reason is None, "nothing comes after the reason"
        for part in choice["delta"].get("tool_calls", []):
            self.calls += [{"name": part["function"]["name"], "arguments": ""}] if "id" in part else []
            self.calls[part["index"]]["arguments"] += part["function"]["arguments"]
        for name in ("content", "reasoning_content"):
            self.text[name] += choice["delta"].get(name, "")
        self.entries += (choice["logprobs"] or {"content": []})["content"]
        self.token_ids += choice["token_ids"]
        self.reason = choice["finish_reason"]


def told_by(text: str) -> dict[int, Told]:
    told: dict[int, Told] = defaultdict(Told)
    for event in events(text)[:-1]:
        for choice in event["choices"]:
            told[choice["index"]].take(choice)
    return told


@pytest.mark.parametrize("specials", [[], MARKERS], ids=["letters", "special tokens"])
async def test_two_choices_with_reasoning_calls_and_log_probabilities_whole_and_streamed(specials: list[str]) -> None:
    async with scripted(TEXT, TEMPLATE, specials=specials) as server:
        whole = (await server.chat(**MANY, n=2)).json()
        told = told_by((await server.chat(**MANY, n=2, stream=True)).text)
        await server.settle()
    assert [choice["index"] for choice in whole["choices"]] == sorted(told) == [0, 1]
    for choice, stream in zip(whole["choices"], (told[0], told[1]), strict=True):
        message = choice["message"]
        assert (message["content"], message["reasoning_content"]) == ("Well.", "Hm.")
        assert stream.text == {"content": "Well.", "reasoning_content": "Hm."}
        assert (
            [call["function"] for call in message["tool_calls"]] == stream.calls == [{"name": "now", "arguments": "{}"}]
        )
        assert stream.reason == choice["finish_reason"] == "tool_calls"
        assert stream.entries == choice["logprobs"]["content"]
        assert stream.token_ids == choice["token_ids"]
        assert len(stream.entries) == len(stream.token_ids) == whole["usage"]["completion_tokens"] // 2
    ids = {call["id"] for choice in whole["choices"] for call in choice["message"]["tool_calls"]}
    assert len(ids) == 2
    reasoning = 2 * (len("Hm.") + 2 if specials else len("<think>Hm.</think>"))
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == reasoning


async def test_log_probabilities_of_a_marker_come_with_what_follows_it() -> None:
    async with scripted("<think>ab</think>c", TEMPLATE, specials=MARKERS) as server:
        chunks = events((await server.chat(max_tokens=9, logprobs=True, stream=True)).text)[:-1]
        choices = [chunk["choices"][0] for chunk in chunks]
    told = [
        (choice["delta"], [entry["token"] for entry in (choice["logprobs"] or {"content": []})["content"]])
        for choice in choices
    ]
    assert told == [
        ({"role": "assistant", "content": ""}, []),
        ({"reasoning_content": "a"}, ["<think>", "a"]),
        ({"reasoning_content": "b"}, ["b"]),
        ({"content": "c"}, ["</think>", "c"]),
        ({}, ["<|im_end|>"]),
    ]


async def test_two_choices_under_one_schema_are_two_answers() -> None:
    async with site() as server:
        answer = (await server.chat(response_format=FORMAT, n=2, max_tokens=200, logprobs=True)).json()
        for choice in answer["choices"]:
            jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)
        lengths = [len(choice["logprobs"]["content"]) for choice in answer["choices"]]
        assert sum(lengths) == answer["usage"]["completion_tokens"]
        best = {"model": "fake", "prompt": "a", "response_format": FORMAT, "n": 1, "best_of": 2, "max_tokens": 200}
        chosen = (await server.post("/v1/completions", best)).json()["choices"]
        assert len(chosen) == 1
        jsonschema.validate(json.loads(chosen[0]["text"]), SCHEMA)
        await server.settle()


@pytest.mark.parametrize("include", [False, True])
async def test_a_stop_token_may_be_a_marker(include: bool) -> None:
    """The call it closes is complete without it."""
    tokenizer = tiny_tokenizer(specials=MARKERS)
    end = tokenizer.special_ids["</tool_call>"]
    stop = {"stop_token_ids": [end], "include_stop_str_in_output": include, "tools": TOOLS, "max_tokens": 300}
    async with scripted(f"{CALL} more", TEMPLATE, specials=MARKERS) as server:
        whole = (await server.chat(**stop, return_token_ids=True)).json()["choices"][0]
        told = told_by((await server.chat(**stop, return_token_ids=True, stream=True)).text)[0]
    assert [call["function"]["name"] for call in whole["message"]["tool_calls"]] == ["now"]
    assert whole["message"]["content"] is None and told.text["content"] == ""
    assert whole["token_ids"][-1] == told.token_ids[-1] == end
    assert whole["finish_reason"] == told.reason == "tool_calls"


async def test_a_marker_may_be_a_stop_string() -> None:
    """Stop strings are looked for in the text with its markup, special tokens or not."""
    for specials in ([], MARKERS):
        async with scripted(TEXT, TEMPLATE, specials=specials) as server:
            choice = (await server.chat(tools=TOOLS, stop="<tool_call>", max_tokens=300)).json()["choices"][0]
        assert choice["message"] == {
            "role": "assistant",
            "content": "Well.",
            "refusal": None,
            "reasoning_content": "Hm.",
        }
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "<tool_call>")


@pytest.mark.parametrize(("skip", "content"), [(True, "ab"), (False, "a<|im_start|>b")])
async def test_other_special_tokens_are_skipped_as_asked(skip: bool, content: str) -> None:
    async with scripted(f"<think>Hm.</think>a<|im_start|>b{CALL}", TEMPLATE, specials=MARKERS) as server:
        wanted = {"tools": TOOLS, "skip_special_tokens": skip, "max_tokens": 300}
        message = (await server.chat(**wanted)).json()["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == (content, "Hm.")
    assert len(message["tool_calls"]) == 1


async def test_a_pin_of_a_chat_with_tools_is_a_prefix_of_it() -> None:
    async with scripted("ok") as server:
        chat = {"messages": MESSAGES, "tools": TOOLS}
        pin = (await server.post("/cache/pin", chat)).json()
        bare = (await server.post("/cache/pin", {"messages": MESSAGES})).json()
        count = (await server.post("/tokenize", {**chat, "add_generation_prompt": False})).json()["count"]
        assert pin["tokens"] == count > bare["tokens"]
        usage = (await server.chat(tools=TOOLS, max_tokens=5)).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == count
        native = (await server.post("/generate", {**chat, "max_tokens": 5})).json()
        assert native["cache_hit_tokens"] == usage["prompt_tokens"]
        counted = await server.post("/v1/chat/completions/input_tokens", {"model": "fake", **chat})
        assert counted.json()["input_tokens"] == usage["prompt_tokens"]


@pytest.mark.parametrize("path", ["/cache/pin", "/tokenize", "/generate"])
async def test_tools_need_messages_and_a_template_that_takes_them(path: str) -> None:
    async with scripted("ok", CHAT_TEMPLATE) as server:
        refused = await server.post(path, {"prompt": "a", "tools": TOOLS})
        check_error(refused, 400, "invalid_parameter_combination", "tools")
        refused = await server.post(path, {"messages": MESSAGES, "tools": TOOLS})
        check_error(refused, 400, "template_error", "tools")


async def test_input_tokens_checks_tools_and_formats_as_the_chat_does() -> None:
    async with scripted("ok") as server:
        body = {"model": "fake", "messages": MESSAGES}
        path = "/v1/chat/completions/input_tokens"
        refused = await server.post(path, {**body, "tool_choice": "required"})
        check_error(refused, 400, "invalid_parameter_combination", "tool_choice")
        bad = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "text"}}}
        refused = await server.post(path, {**body, "response_format": bad})
        check_error(refused, 400, "invalid_json_schema", "response_format.json_schema.schema.type")


async def test_exporters_hear_of_reasoning_and_of_formats() -> None:
    async with scripted("<think>Hm.</think>1", TEMPLATE) as server:
        await server.chat(n=2, max_tokens=300)
        await server.chat(response_format={"type": "json_object"}, max_tokens=300)
        await server.exported()
        told = [stats.generation for stats in server.exporter.http]
    assert [(stats.output_type, stats.num_reasoning_tokens) for stats in told if stats] == [
        ("text", 2 * len("<think>Hm.</think>")),
        ("json", len("<think>Hm.</think>")),
    ]

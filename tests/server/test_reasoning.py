"""Reasoning told apart from the answer, counted, and steered by `reasoning_effort`."""

from typing import Any

import pytest

from openai_kv.server.chat_output import ends_inside
from tests.server.scripted import FAMILIES, TOOLS_TEMPLATE, scripted
from tests.server.serving import events
from tests.tiny_tokenizer import CHAT_TEMPLATE, tiny_tokenizer

THINKS = "{# <think> </think> #}" + CHAT_TEMPLATE
OPENED = "{# </think> #}" + CHAT_TEMPLATE.replace("assistant\n", "assistant\n<think>\n")
TEXT = "<think>\nHm, two.\n</think>\n\nIt is 2."
MESSAGE = {"role": "assistant", "content": "It is 2.", "refusal": None, "reasoning_content": "Hm, two."}
SPECIALS = ["<think>", "</think>"]


async def answer(text: str, template: str = THINKS, **options: Any) -> dict[str, Any]:
    """The response's choice, with the usage."""
    changes = options.pop("changes", {})
    async with scripted(text, template, **options) as server:
        body = (await server.chat(max_tokens=300, **changes)).json()
        await server.settle()
        return {**body["choices"][0], "usage": body["usage"]["completion_tokens_details"]}


async def test_reasoning_goes_to_its_own_field() -> None:
    choice = await answer(TEXT)
    assert choice["message"] == MESSAGE
    assert choice["finish_reason"] == "stop"
    assert choice["usage"]["reasoning_tokens"] == len("<think>\nHm, two.\n</think>")


async def test_a_prompt_may_have_opened_it() -> None:
    choice = await answer(TEXT.removeprefix("<think>\n"), OPENED)
    assert choice["message"] == MESSAGE
    assert choice["usage"]["reasoning_tokens"] == len("Hm, two.\n</think>")


async def test_markers_that_are_special_tokens_count_as_one_each() -> None:
    choice = await answer(TEXT, specials=SPECIALS)
    assert choice["message"] == MESSAGE
    assert choice["usage"]["reasoning_tokens"] == len("\nHm, two.\n") + 2


async def test_what_is_never_closed_is_all_reasoning() -> None:
    choice = await answer("<think>Hm, two and")
    assert choice["message"]["content"] == ""
    assert choice["message"]["reasoning_content"] == "Hm, two and"
    assert choice["usage"]["reasoning_tokens"] == len("<think>Hm, two and") + 1, "the end of sequence too"


async def test_without_reasoning_there_is_no_field() -> None:
    choice = await answer("It is 2.")
    assert choice["message"] == {"role": "assistant", "content": "It is 2.", "refusal": None}
    assert choice["usage"]["reasoning_tokens"] == 0


async def test_a_stream_tells_reasoning_before_content() -> None:
    async with scripted(TEXT, THINKS) as server:
        text = (await server.chat(max_tokens=300, stream=True, stream_options={"include_usage": True})).text
        *chunks, last, _ = events(text)
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        reasoning = [delta["reasoning_content"] for delta in deltas if "reasoning_content" in delta]
        content = [delta["content"] for delta in deltas[1:] if "content" in delta]
        assert ("".join(reasoning), "".join(content)) == ("Hm, two.", "It is 2.")
        assert all(reasoning) and all(content)
        assert last["usage"]["completion_tokens_details"]["reasoning_tokens"] == len(TEXT.partition("\n\n")[0])


@pytest.mark.parametrize(
    ("setting", "template", "is_told_apart"),
    [("auto", THINKS, True), ("auto", CHAT_TEMPLATE, False), ("think", CHAT_TEMPLATE, True), ("none", THINKS, False)],
)
async def test_the_setting_decides_and_auto_looks_at_the_template(
    setting: str, template: str, is_told_apart: bool
) -> None:
    choice = await answer(TEXT, template, chat__reasoning_parser=setting)
    assert ("reasoning_content" in choice["message"]) == is_told_apart
    if not is_told_apart:
        assert choice["message"]["content"] == TEXT


async def test_auto_looks_at_the_vocabulary_too() -> None:
    choice = await answer(TEXT, CHAT_TEMPLATE, specials=SPECIALS)
    assert choice["message"] == MESSAGE


@pytest.mark.parametrize("thoughts", ["<think>{hm}</think>\n", ""])
async def test_a_format_binds_what_comes_after(thoughts: str) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"const": [1, 2]}}}
    choice = await answer(thoughts + "[1, 2]", changes={"response_format": wanted})
    assert choice["message"]["content"] == "[1, 2]"
    assert choice["message"].get("reasoning_content", "") == ("{hm}" if thoughts else "")


async def test_calls_come_after_reasoning() -> None:
    tools = [{"type": "function", "function": {"name": "now"}}]
    text = '<think>Call <tool_call>?</think>\n<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    template = "{# <think> </think> #}" + FAMILIES["hermes"]
    for wanted in ("auto", "required"):
        choice = await answer(text, template, changes={"tools": tools, "tool_choice": wanted})
        assert choice["message"]["reasoning_content"] == "Call <tool_call>?"
        assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["now"]
        assert choice["finish_reason"] == "tool_calls"


def test_a_continued_message_may_be_inside() -> None:
    for text, is_inside in (("<think>Hm", True), ("<think>Hm</think> It", False), ("It", False)):
        body = {"messages": [{"role": "assistant", "content": text}], "continue_final_message": True}
        assert ends_inside(tiny_tokenizer(), body, []) == is_inside


@pytest.mark.parametrize(
    ("effort", "kwargs", "shown"),
    [
        ("high", {}, "high True"),
        ("none", {}, "none False"),
        ("low", {"enable_thinking": False}, "low False"),
        (None, {}, " "),
    ],
)
async def test_effort_reaches_the_template(effort: str | None, kwargs: dict[str, Any], shown: str) -> None:
    template = "{{ reasoning_effort }} {{ enable_thinking }}|" + TOOLS_TEMPLATE
    async with scripted("ok", template) as server:
        changes = {"reasoning_effort": effort, "chat_template_kwargs": kwargs}
        usage = (await server.chat(max_tokens=1, **changes)).json()["usage"]
        plain = (await server.post("/tokenize", {"messages": [{"role": "user", "content": "What is a cache?"}]})).json()
        assert usage["prompt_tokens"] == plain["count"] - len(" ") + len(shown)

"""Items as chat messages."""

from typing import Any

from openai_kv.server.fields import Mark, Notes
from openai_kv.server.responses.conversation import Conversation
from openai_kv.server.responses.item_fields import ITEMS


def messages(*items: dict[str, Any]) -> list[dict[str, Any]]:
    checked = [ITEMS(item, "input[0]", Notes()) for item in items]
    return [dict(message) for message in Conversation().with_items(checked).messages]


def call(name: str, arguments: str = "{}") -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"call_{name}", "name": name, "arguments": arguments}


def output(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def called(name: str, arguments: Any) -> dict[str, Any]:
    return {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": arguments}}


THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
RESULT = {"type": "function_call_output", "call_id": "call_f", "output": "5"}


def test_a_text_is_a_message_of_the_user() -> None:
    assert Conversation().with_items("Hi").messages == ({"role": "user", "content": "Hi"},)


def test_messages_with_or_without_type_parts_are_lines() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert messages(
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": parts},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    ) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "No."},
    ]


def test_a_turn_of_the_assistant_is_one_message() -> None:
    assert messages(
        THOUGHT, output("I ask."), call("f", '{"a": 1}'), call("g", "not json"), RESULT, output("It is 5.")
    ) == [
        {
            "role": "assistant",
            "content": "I ask.",
            "reasoning_content": "Hm.",
            "tool_calls": [called("f", {"a": 1}), called("g", "not json")],
        },
        {"role": "tool", "content": "5", "tool_call_id": "call_f"},
        {"role": "assistant", "content": "It is 5."},
    ]


def test_text_after_calls_belongs_to_them_and_text_after_text_does_not() -> None:
    (one,) = messages(output("a"), call("f"), output("b"))
    assert (one["content"], one["tool_calls"]) == ("ab", [called("f", {})])
    assert [message["content"] for message in messages(output("a"), output("b"))] == ["a", "b"]


def test_a_summary_stands_in_for_reasoning_and_none_for_nothing() -> None:
    summary = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]}
    assert messages(summary) == [{"role": "assistant", "content": "", "reasoning_content": "Hm."}]
    assert messages({"type": "reasoning", "summary": []}) == []


def test_going_on_changes_nothing_that_was_said() -> None:
    first = Conversation().with_items([output("a"), call("f")])
    second = first.with_items([call("g"), output("b")])
    assert [len(message.get("tool_calls", [])) for message in second.messages] == [1, 1]
    assert first.messages == second.messages[:1] and first.messages[0]["content"] == "a"


def test_breakpoints_are_found_in_the_messages() -> None:
    def marked(text: str) -> dict[str, Any]:
        return {"type": "input_text", "text": text, "prompt_cache_breakpoint": {"mode": "explicit", "ttl": 60}}

    items = [
        {
            "type": "message",
            "role": "user",
            "content": [marked("ab"), {"type": "input_text", "text": "c"}, marked("d")],
        },
        call("f"),
        {"type": "function_call_output", "call_id": "call_f", "output": [marked("xyz")]},
    ]
    conversation = Conversation().with_items(items, "input")
    marks = (
        Mark("input[0].content[0]", 0, 2, 60),
        Mark("input[0].content[2]", 0, 6, 60),
        Mark("input[2].output[0]", 2, 3, 60),
    )
    assert conversation.marks == marks
    below = conversation.with_instructions("Be brief.")
    assert below.messages[0] == {"role": "system", "content": "Be brief."}
    assert [mark.message for mark in below.marks] == [1, 1, 3]
    later = conversation.without_oldest(1)
    assert (len(later.messages), later.marks) == (2, (Mark("input[2].output[0]", 1, 3, 60),))


def test_turns_begin_with_the_user() -> None:
    items = [{"type": "message", "role": role, "content": "x"} for role in ("system", "user", "assistant", "user")]
    assert Conversation().with_items(items).turns == [1, 3]

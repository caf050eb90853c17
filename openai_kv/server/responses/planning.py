"""From what is asked for to a chat that can be generated; too long a conversation may be cut."""

import asyncio
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from openai_kv.errors import ContextLengthError
from openai_kv.server.call import Call
from openai_kv.server.chat import Plan, make_plan
from openai_kv.server.responses.asked import Asked
from openai_kv.server.responses.chat_terms import chat_body, in_own_words
from openai_kv.server.responses.conversation import Conversation


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """`body` is what a client of the chat route would have sent."""

    body: Mapping[str, Any]
    plan: Plan


async def plan_response(call: Call, asked: Asked) -> ChatPlan:
    """Raises RequestError in the words of `asked`'s body for what can't be done."""
    with in_own_words(call):
        try:
            return await plan_chat(call, asked, asked.conversation)
        except ContextLengthError:
            if asked.body.get("truncation") != "auto":
                raise
            return await plan_latest(call, asked)


async def plan_latest(call: Call, asked: Asked) -> ChatPlan:
    """With as many of the latest turns as fit; raises ContextLengthError if the last one doesn't.

    By halves of the text rather than of the turns: a turn of megabytes is read once or twice, not at each attempt.
    """
    starts = asked.conversation.turns[1:][::-1] or [0]
    lengths = await asyncio.to_thread(text_lengths, asked.conversation, starts)
    found = await plan_chat(call, asked, asked.conversation.without_oldest(starts[0]))
    fits, fails = 0, len(starts)
    while fails - fits > 1:
        half = (lengths[fits] + lengths[fails - 1]) / 2
        middle = max(fits + 1, bisect_right(lengths, half, fits + 1, fails) - 1)
        try:
            found = await plan_chat(call, asked, asked.conversation.without_oldest(starts[middle]))
            fits = middle
        except ContextLengthError:
            fails = middle
    return found


def text_lengths(conversation: Conversation, starts: Sequence[int]) -> list[int]:
    """Characters from each of `starts`, the latest first, to the end."""
    after = [0, *accumulate(message_length(message) for message in reversed(conversation.messages))]
    return [after[len(conversation.messages) - start] for start in starts]


def message_length(message: Mapping[str, Any]) -> int:
    return sum(len(str(value)) for value in message.values())


async def plan_chat(call: Call, asked: Asked, conversation: Conversation) -> ChatPlan:
    call.notes.warnings = [*asked.warnings]
    body = render_ready(call, asked, conversation)
    return ChatPlan(body, await make_plan(call, body))


def render_ready(call: Call, asked: Asked, conversation: Conversation) -> dict[str, Any]:
    """The chat of a conversation under its instructions, with the breakpoints noted."""
    if "instructions" in asked.body:
        conversation = conversation.with_instructions(asked.body["instructions"])
    call.notes.marks = list(conversation.marks)
    return chat_body(asked.body, conversation)

"""From what is asked for to a chat that can be generated; too long a conversation may be cut."""

from collections.abc import Mapping
from dataclasses import dataclass
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
    """With as many of the latest turns as fit; raises ContextLengthError if the last one doesn't."""
    starts = asked.conversation.turns[1:]
    found = await plan_chat(call, asked, asked.conversation.without_oldest(starts[-1] if starts else 0))
    low, high = 0, len(starts) - 1
    while low < high:
        middle = (low + high) // 2
        try:
            found = await plan_chat(call, asked, asked.conversation.without_oldest(starts[middle]))
            high = middle
        except ContextLengthError:
            low = middle + 1
    return found


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

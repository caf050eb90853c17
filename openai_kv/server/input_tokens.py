"""POST /v1/chat/completions/input_tokens: how long a chat would be as a prompt."""

import asyncio

from openai_kv.server.call import Call
from openai_kv.server.chat import wanted_tokens
from openai_kv.server.prompts import render_messages
from openai_kv.server.protocol import chat_body, check_stream_options


async def count_input_tokens(call: Call) -> None:
    """Checks what the chat route would, but for the length of the context."""
    body = await call.parse(chat_body)
    check_stream_options(body)
    wanted_tokens(body)
    prompt = await asyncio.to_thread(lambda: render_messages(call.context.get_tokenizer(), body))
    await call.answer({"object": "response.input_tokens", "input_tokens": len(prompt)})

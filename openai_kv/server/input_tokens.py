"""POST /v1/chat/completions/input_tokens: how long a chat would be as a prompt."""

import asyncio

from openai_kv.server.call import Call
from openai_kv.server.chat import prepare, wanted_logprobs, wanted_tokens
from openai_kv.server.prompts import check_template_options
from openai_kv.server.protocol import chat_body, check_stream


async def count_input_tokens(call: Call) -> None:
    """Checks what the chat route would, but for the length of the context."""
    body = await call.parse(chat_body)
    for check in (check_stream, check_template_options, wanted_tokens, wanted_logprobs):
        check(body)
    marked, _, _ = await asyncio.to_thread(prepare, call, body)
    await call.answer({"object": "response.input_tokens", "input_tokens": len(marked.token_ids)})

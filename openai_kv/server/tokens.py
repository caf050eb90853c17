"""POST /tokenize, POST /detokenize, GET /tokenizer_info."""

import asyncio
from collections.abc import Mapping
from typing import Any

from openai_kv.server.call import Call
from openai_kv.server.envelope import encode
from openai_kv.server.prompts import render_messages
from openai_kv.server.protocol import detokenize_body, exactly_one, tokenize_body
from openai_kv.server.violations import excluded, unsupported
from openai_kv.tokenizer import Tokenizer


async def tokenize(call: Call) -> None:
    body = await call.parse(tokenize_body)
    source = exactly_one(body, "prompt", "messages")
    check_template_options(body, source)
    max_model_len = call.context.engine.info.max_model_len
    content = await asyncio.to_thread(lambda: encode(tokens_of(call.context.get_tokenizer(), body, max_model_len)))
    await call.respond(content, headers=call.headers_of_answer())


def check_template_options(body: Mapping[str, Any], source: str) -> None:
    if source == "messages":
        if body.get("add_special_tokens"):
            raise unsupported("add_special_tokens", "The chat template adds them.")
        if body.get("add_generation_prompt") and body.get("continue_final_message"):
            message = "Parameters 'add_generation_prompt' and 'continue_final_message' exclude each other."
            raise excluded(message, "add_generation_prompt")
        return
    for name in ("tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message"):
        if name in body:
            raise excluded(f"Parameter '{name}' needs 'messages'.", name)


def tokens_of(tokenizer: Tokenizer, body: Mapping[str, Any], max_model_len: int) -> dict[str, Any]:
    if "messages" in body:
        tokens = render_messages(tokenizer, body)
    else:
        tokens = tokenizer.encode(body["prompt"], add_special_tokens=body.get("add_special_tokens", True))
    strs = tokenizer.token_strs(tokens) if body.get("return_token_strs") else None
    return {"count": len(tokens), "max_model_len": max_model_len, "tokens": tokens, "token_strs": strs}


async def detokenize(call: Call) -> None:
    body = await call.parse(detokenize_body)
    skip = body.get("skip_special_tokens", False)
    text = await asyncio.to_thread(
        lambda: call.context.get_tokenizer().decode(body["tokens"], skip_special_tokens=skip)
    )
    await call.answer({"prompt": text})


async def tokenizer_info(call: Call) -> None:
    call.context.require_ready()
    info = await asyncio.to_thread(lambda: call.context.get_tokenizer().info())
    await call.answer({**info, "max_model_len": call.context.engine.info.max_model_len})

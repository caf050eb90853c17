"""POST /tokenize, POST /detokenize, GET /tokenizer_info."""

import asyncio
from collections.abc import Mapping
from typing import Any

from openai_kv.server.call import Call
from openai_kv.server.envelope import encode
from openai_kv.server.generation import cache_namespace
from openai_kv.server.prompts import check_template_options, render_messages
from openai_kv.server.protocol import detokenize_body, exactly_one, tokenize_body


async def tokenize(call: Call) -> None:
    body = await call.parse(tokenize_body)
    exactly_one(body, "prompt", "messages")
    check_template_options(body)
    max_model_len = call.context.engine.info.max_model_len
    content = await asyncio.to_thread(lambda: encode(tokens_of(call, body, max_model_len)))
    await call.answer_bytes(content)


def tokens_of(call: Call, body: Mapping[str, Any], max_model_len: int) -> dict[str, Any]:
    tokenizer = call.context.get_tokenizer()
    if "messages" in body:
        tokens = render_messages(tokenizer, body, cache_namespace(call, body))
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

"""POST /generate: the native endpoint, which tells what the cache did and where the time went."""

import asyncio
from collections.abc import Mapping
from typing import Any

from openai_kv.outputs import RequestOutput
from openai_kv.server.call import Call
from openai_kv.server.chat import ending
from openai_kv.server.generation import Generation, engine_request, new_id
from openai_kv.server.messages import count_turns
from openai_kv.server.prompts import encode_prompt, render_messages
from openai_kv.server.protocol import check_stream_options, exactly_one, generate_body
from openai_kv.server.sampling import output_budget, sampling_params
from openai_kv.server.streaming import event
from openai_kv.server.structured import constrain
from openai_kv.server.usage import cache_headers, usage
from openai_kv.server.violations import excluded

DEFAULT_MAX_TOKENS = 128


async def generate(call: Call) -> None:
    body = await call.parse(generate_body)
    check_stream_options(body)
    body = await constrain(call, body)
    source = exactly_one(body, "prompt", "messages", "prompt_token_ids")
    for name in ("chat_template_kwargs", "tools"):
        if source != "messages" and name in body:
            raise excluded(f"Parameter '{name}' needs 'messages'.", name)
    prompt = await asyncio.to_thread(to_token_ids, call, body, source)
    wanted = body.get("max_tokens", DEFAULT_MAX_TOKENS)
    budget = output_budget(len(prompt), wanted, call.context.engine.info.max_model_len, source)
    reply_id = new_id("gen")
    request = engine_request(
        call,
        body,
        request_id=reply_id,
        group=reply_id,
        kind="generate",
        prompt=prompt,
        params=sampling_params(body, budget, call.context.sampling_defaults),
        turn=count_turns(body["messages"]) if source == "messages" else 1,
    )
    frame = {
        "id": reply_id,
        "object": "generation",
        "created": call.exchange.created,
        "model": body.get("model", call.context.model_names[0]),
        "prompt_token_ids": prompt,
    }
    with Generation(call, [request]) as generation:
        await (stream if body.get("stream") else collect)(generation, frame)


def to_token_ids(call: Call, body: Mapping[str, Any], source: str) -> list[int]:
    tokenizer = call.context.get_tokenizer()
    if source == "messages":
        return render_messages(tokenizer, body)
    return encode_prompt(tokenizer, body[source], body)


async def collect(generation: Generation, frame: Mapping[str, Any]) -> None:
    text, token_ids = "", list[int]()
    async for batch in generation.batches():
        for _, output in batch:
            text += output.text
            token_ids += output.token_ids
    last = generation.last[0]
    await generation.call.answer(whole(frame, text, token_ids, last), cache_headers([last]))


async def stream(generation: Generation, frame: Mapping[str, Any]) -> None:
    events = generation.call.open_stream()
    token_ids: list[int] = []
    async for batch in generation.batches():
        events.headers |= cache_headers(generation.last.values())
        token_ids += (token for _, output in batch for token in output.token_ids)
        await events.send(b"".join(event(piece(output)) for _, output in batch))
    await events.finish(event(whole(frame, "", token_ids, generation.last[0])))


def piece(output: RequestOutput) -> dict[str, Any]:
    return {"text": output.text, "token_ids": output.token_ids, "logprobs": None}


def whole(frame: Mapping[str, Any], text: str, token_ids: list[int], last: RequestOutput) -> dict[str, Any]:
    return {
        **frame,
        "text": text,
        "token_ids": token_ids,
        **ending(last),
        "logprobs": None,
        "cache_hit_tokens": last.cached_tokens,
        "cache_write_tokens": last.cache_write_tokens,
        "cache_hit_kind": last.hit_kind,
        "cache_hit_tiers": {"device": last.cached_tokens, "host": 0, "disk": 0},
        "usage": usage([last]),
        "timings": timings(last),
    }


def timings(last: RequestOutput) -> dict[str, float | None]:
    """Milliseconds; without an output token, prefill is all there was after the queue."""
    queue = last.queue_seconds or 0.0
    first = last.first_token_seconds
    computed = last.total_seconds if first is None else first
    decode = last.total_seconds - computed
    speed = (last.num_output_tokens - 1) / decode if last.num_output_tokens > 1 and decode > 0 else None
    return {
        "queue_ms": milliseconds(queue),
        "prefill_ms": milliseconds(computed - queue),
        "ttft_ms": None if first is None else milliseconds(first),
        "decode_ms": milliseconds(decode),
        "total_ms": milliseconds(last.total_seconds),
        "tokens_per_second": None if speed is None else round(speed, 3),
    }


def milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)

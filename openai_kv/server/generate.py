"""POST /generate: the native endpoint, which tells what the cache did and where the time went."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from openai_kv.outputs import RequestOutput
from openai_kv.server.breakpoints import MarkedPrompt, render_marked
from openai_kv.server.call import Call
from openai_kv.server.envelope import encode
from openai_kv.server.generation import Generation, cache_namespace, engine_request, new_id
from openai_kv.server.logprobs import LogprobFormat
from openai_kv.server.messages import count_turns
from openai_kv.server.parts import Part
from openai_kv.server.prompts import check_template_options, encode_prompt
from openai_kv.server.protocol import check_stream, exactly_one, generate_body
from openai_kv.server.replies import INLINE_ENTRIES, off_loop_if
from openai_kv.server.sampling import output_budget, sampling_params
from openai_kv.server.streaming import event
from openai_kv.server.structured import answer_grammar
from openai_kv.server.usage import cache_headers, usage

DEFAULT_MAX_TOKENS = 128


async def generate(call: Call) -> None:
    body = await call.parse(generate_body)
    check_stream(body)
    source = exactly_one(body, "prompt", "messages", "prompt_token_ids")
    check_template_options(body)
    marked, grammar = await asyncio.to_thread(lambda: (to_token_ids(call, body, source), answer_grammar(call, body)))
    prompt = marked.token_ids
    wanted = body.get("max_tokens", DEFAULT_MAX_TOKENS)
    budget = output_budget(len(prompt), wanted, call.context.engine.info.max_model_len, source)
    defaults, asked = call.context.sampling_defaults, (body.get("logprobs"), body.get("prompt_logprobs"))
    reply = GenerateReply(call, body, new_id("gen"), prompt)
    request = engine_request(
        call,
        body,
        request_id=reply.id,
        group=reply.id,
        kind="generate",
        prompt=prompt,
        params=replace(sampling_params(body, budget, defaults, *asked), grammar=grammar),
        turn=count_turns(body["messages"]) if source == "messages" else 1,
        places=marked.places,
    )
    with Generation(call, body, [request]) as generation:
        await (stream if body.get("stream") else collect)(generation, reply)


def to_token_ids(call: Call, body: Mapping[str, Any], source: str) -> MarkedPrompt:
    tokenizer = call.context.get_tokenizer()
    if source == "messages":
        return render_marked(tokenizer, body, call.notes.marks, cache_namespace(call, body))
    return MarkedPrompt(encode_prompt(tokenizer, body[source], body))


class GenerateReply:
    """The shape of the native answer and of its events."""

    def __init__(self, call: Call, body: Mapping[str, Any], reply_id: str, prompt: list[int]) -> None:
        self.body = body
        self.id = reply_id
        self.format = LogprobFormat(call.context.get_tokenizer())
        self._frame = {
            "id": reply_id,
            "object": "generation",
            "created": call.exchange.created,
            "model": body.get("model", call.context.model_names[0]),
            "prompt_token_ids": prompt,
        }

    def piece(self, part: Part) -> dict[str, Any]:
        return {"text": part.text, "token_ids": part.token_ids, "logprobs": self.logprobs(part)}

    def whole(self, part: Part, last: RequestOutput) -> dict[str, Any]:
        answer = {
            **self._frame,
            **self.piece(part),
            **part.ending,
            "cache_hit_tokens": last.cached_tokens,
            "cache_write_tokens": last.cache_write_tokens,
            "cache_hit_kind": last.hit_kind,
            "cache_hit_tiers": hit_tiers(last),
            "usage": usage([last]),
            "timings": timings(last),
        }
        if "prompt_logprobs" in self.body:
            answer["prompt_logprobs"] = self.format.prompt(part.prompt_logprobs, self.body["prompt_logprobs"])
        return answer

    def logprobs(self, part: Part) -> list[dict[str, Any]] | None:
        count = self.body.get("logprobs")
        return None if count is None else self.format.native(part.logprobs, count)


def hit_tiers(last: RequestOutput) -> dict[str, int]:
    promoted = last.promoted_tokens
    return {"device": last.cached_tokens - sum(promoted.values()), "host": 0, "disk": 0, **promoted}


async def collect(generation: Generation, reply: GenerateReply) -> None:
    part = Part()
    async for batch in generation.batches():
        for _, output in batch:
            part.add(output)
    last = generation.last[0]
    content = await off_loop_if(part.size > INLINE_ENTRIES, lambda: encode(reply.whole(part, last)))
    await generation.call.answer_bytes(content, cache_headers([last]))


async def stream(generation: Generation, reply: GenerateReply) -> None:
    """The last event tells all of it again, but for the text."""
    events, everything = generation.call.open_stream(), Part()
    async for batch in generation.batches():
        events.headers |= cache_headers(generation.last.values())
        part = Part()
        for _, output in batch:
            part.add(output)
            everything.add(output)
        await events.send(event(reply.piece(part)))
    everything.text, last = "", generation.last[0]
    data = await off_loop_if(everything.size > INLINE_ENTRIES, lambda: event(reply.whole(everything, last)))
    await events.finish(data)


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

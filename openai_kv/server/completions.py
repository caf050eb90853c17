"""POST /v1/completions: one prompt or several, text or token ids."""

import asyncio
from typing import Any

from openai_kv.engine.async_engine import EngineRequest
from openai_kv.outputs import RequestOutput
from openai_kv.server.call import Call
from openai_kv.server.chat import ending
from openai_kv.server.generation import Generation, engine_request, new_id
from openai_kv.server.prompts import encode_prompt
from openai_kv.server.protocol import check_stream_options, completion_body
from openai_kv.server.replies import Reply, collect, stream
from openai_kv.server.sampling import output_budget, sampling_params
from openai_kv.server.structured import constrain

DEFAULT_MAX_TOKENS = 16


async def create_completion(call: Call) -> None:
    body = await call.parse(completion_body)
    check_stream_options(body)
    body = await constrain(call, body)
    prompts = await asyncio.to_thread(encode_prompts, call, body)
    reply = CompletionReply(call, body, new_id("cmpl"))
    requests = [make_request(call, body, reply.id, index, prompt) for index, prompt in enumerate(prompts)]
    with Generation(call, requests) as generation:
        await (stream if body.get("stream") else collect)(generation, reply)


def encode_prompts(call: Call, body: dict[str, Any]) -> list[list[int]]:
    tokenizer = call.context.get_tokenizer()
    return [encode_prompt(tokenizer, prompt, body) for prompt in body.get("prompt", [None])]


def make_request(call: Call, body: dict[str, Any], group: str, index: int, prompt: list[int]) -> EngineRequest:
    wanted = body.get("max_tokens", DEFAULT_MAX_TOKENS)
    budget = output_budget(len(prompt), wanted, call.context.engine.info.max_model_len, "prompt")
    params = sampling_params(body, budget, call.context.sampling_defaults)
    return engine_request(
        call, body, request_id=f"{group}-{index}", group=group, kind="completion", prompt=prompt, params=params
    )


class CompletionReply(Reply):
    """Text completions and their chunks."""

    object = "text_completion"
    chunk_object = "text_completion"

    def choice(self, index: int, text: str, last: RequestOutput) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": None, **ending(last)}

    def chunk_choices(self, index: int, output: RequestOutput, _first: bool) -> list[dict[str, Any]]:
        """Text, then the reason in a chunk of its own."""
        running = {"finish_reason": None, "stop_reason": None}
        choices = [{"index": index, "text": output.text, "logprobs": None, **running}] if output.text else []
        return choices + ([self.choice(index, "", output)] if output.finish_reason else [])

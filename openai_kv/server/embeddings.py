"""POST /v1/embeddings: a vector for each text, pooled from the states of the served model. See docs/embeddings.md."""

import asyncio
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openai_kv.engine.async_engine import EngineRequest
from openai_kv.errors import InternalError
from openai_kv.outputs import RequestOutput
from openai_kv.request import Pooling, Retention, SamplingParams
from openai_kv.server.call import Call
from openai_kv.server.envelope import encode
from openai_kv.server.generation import Generation, engine_request, new_id
from openai_kv.server.prompts import adds_special_tokens
from openai_kv.server.protocol import embedding_body
from openai_kv.server.sampling import output_budget
from openai_kv.server.usage import cache_headers, usage


async def create_embeddings(call: Call) -> None:
    body = await call.parse(embedding_body)
    requests = await asyncio.to_thread(make_requests, call, body)
    with Generation(call, body, requests) as generation:
        async for _ in generation.batches():
            pass
        outputs = [generation.last[index] for index in range(len(requests))]
        content = await asyncio.to_thread(answer, body, outputs)
        await call.answer_bytes(content, cache_headers(outputs))


def make_requests(call: Call, body: Mapping[str, Any]) -> list[EngineRequest]:
    """One for each input, in their order."""
    group, prompts = new_id("embd"), encode_inputs(call, body)
    pooling = Pooling(body.get("pooling", call.context.settings.model.embedding_pooling))
    params = SamplingParams(max_tokens=0, pooling=pooling)
    requests = [
        engine_request(
            call, body, request_id=f"{group}-{index}", group=group, kind="embedding", prompt=prompt, params=params
        )
        for index, prompt in enumerate(prompts)
    ]
    return [bypassing(request) for request in requests] if pooling is Pooling.MEAN else requests


def bypassing(request: EngineRequest) -> EngineRequest:
    """A mean needs the states of all tokens, so it reads nothing from the cache; nor has it anything to leave there."""
    return replace(request, info=replace(request.info, retention=Retention(explicit=True)))


def encode_inputs(call: Call, body: Mapping[str, Any]) -> list[list[int]]:
    """Texts and token ids as ids. Raises ContextLengthError, and ParameterError for a text that gives no token."""
    tokenizer, special = call.context.get_tokenizer(), adds_special_tokens(body)
    inputs: list[str | list[int]] = body["input"]
    prompts = [
        tokenizer.encode(given, add_special_tokens=special) if isinstance(given, str) else given for given in inputs
    ]
    for index, prompt in enumerate(prompts):
        param = "input" if len(prompts) == 1 else f"input[{index}]"
        output_budget(len(prompt), 0, call.context.engine.info.max_model_len, param)
    return prompts


def answer(body: Mapping[str, Any], outputs: Sequence[RequestOutput]) -> bytes:
    """Vector by vector: the JSON encoder lets no other thread run before it is done with what it was given."""
    counts = usage(outputs)
    frame = {
        "object": "list",
        "model": body["model"],
        "usage": {name: counts[name] for name in ("prompt_tokens", "total_tokens")},
    }
    as_text = body.get("encoding_format") == "base64"
    data = b",".join(encode(entry(index, unit(output), as_text)) for index, output in enumerate(outputs))
    return encode(frame)[:-1] + b',"data":[' + data + b"]}"


def entry(index: int, vector: NDArray[np.float32], as_text: bool) -> dict[str, Any]:
    embedding = b64encode(vector.tobytes()).decode() if as_text else vector.tolist()
    return {"object": "embedding", "index": index, "embedding": embedding}


def unit(output: RequestOutput) -> NDArray[np.float32]:
    """The vector at length 1, little-endian float32. Raises InternalError if the model gave no numbers."""
    assert output.embedding is not None, "a request that pools ends with its vector"
    vector = np.array(output.embedding, dtype=np.float64)
    length = float(np.linalg.norm(vector))
    if not np.isfinite(length):
        raise InternalError("The model's states of this text are not finite.")
    return (vector / length if length else vector).astype("<f4")

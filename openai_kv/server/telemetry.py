"""What exporters are told of a generation; never what was asked, answered, or by whose key."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openai_kv.engine.async_engine import EngineRequest
from openai_kv.metrics import GenerationStats
from openai_kv.outputs import RequestOutput
from openai_kv.server.usage import cached_tokens


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds since the call arrived; None: there was no token."""

    first_token: float | None
    total: float


def generation_stats(
    body: Mapping[str, Any],
    model: str,
    requests: Sequence[EngineRequest],
    last: Mapping[int, RequestOutput],
    timing: Timing,
    told_reasons: Mapping[int, str],
) -> GenerationStats:
    """The requests of one call, as far as they got: `last` is the latest output of each, by index.

    `model` is the configured name or pattern of the one that was asked for; for `told_reasons` see Generation.
    """
    first, outputs = requests[0], last.values()
    params = first.params
    return GenerationStats(
        operation=operation(first.info.kind, body),
        request_model=model,
        response_id=first.group,
        stream=bool(body.get("stream")),
        num_choices=body.get("n", 1),
        output_type=output_type(body),
        max_tokens=params.max_tokens,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        frequency_penalty=params.frequency_penalty,
        presence_penalty=params.presence_penalty,
        stop=params.stop,
        seed=params.seed,
        session_id=first.info.session_id,
        finish_reasons=finish_reasons(last, told_reasons),
        hit_kind=last[0].hit_kind if 0 in last else "miss",
        num_prompt_tokens=sum(request.info.num_prompt_tokens for request in requests if request.choice == 0),
        num_output_tokens=sum(output.num_output_tokens for output in outputs),
        num_cached_tokens=cached_tokens(outputs),
        cache_write_tokens=sum(output.cache_write_tokens for output in outputs),
        num_reasoning_tokens=0,
        longest_output_tokens=max((output.num_output_tokens for output in outputs), default=0),
        num_preemptions=sum(output.num_preemptions for output in outputs),
        queue_seconds=longest_queue(outputs),
        first_token_seconds=timing.first_token,
        total_seconds=timing.total,
        error_code=None,
    )


def operation(kind: str, body: Mapping[str, Any]) -> str:
    """By the GenAI conventions; `kind` is a RequestInfo's."""
    if kind == "embedding":
        return "embeddings"
    return "chat" if kind == "chat" or "messages" in body else "text_completion"


def output_type(body: Mapping[str, Any]) -> str:
    """json where the answer has to be JSON."""
    return "text" if body.get("response_format", {}).get("type", "text") == "text" else "json"


def finish_reasons(last: Mapping[int, RequestOutput], told: Mapping[int, str]) -> tuple[str, ...]:
    """Of the choices that ended, in their order; `told` are those that the client reads otherwise than the engine."""
    ended = [index for index in sorted(last) if last[index].finish_reason is not None]
    return tuple(told.get(index, str(last[index].finish_reason)) for index in ended)


def longest_queue(outputs: Collection[RequestOutput]) -> float | None:
    return max((output.queue_seconds for output in outputs if output.queue_seconds is not None), default=None)

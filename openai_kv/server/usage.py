"""The usage objects and counters of a response, summed over its requests."""

from collections.abc import Collection, Mapping
from typing import Any

from openai_kv.outputs import RequestOutput

CACHE_HIT_HEADER = "x-openai-kv-cache-hit-tokens"


def usage(outputs: Collection[RequestOutput], reasoning_tokens: int = 0) -> dict[str, Any]:
    """OpenAI's CompletionUsage, from the latest output of each sequence; of a prompt's choices the first counts it."""
    prompt_tokens = sum(output.num_prompt_tokens for output in outputs if output.choice == 0)
    completion_tokens = sum(output.num_output_tokens for output in outputs)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {
            "cached_tokens": cached_tokens(outputs),
            "cache_write_tokens": sum(output.cache_write_tokens for output in outputs),
        },
        "completion_tokens_details": {
            "reasoning_tokens": reasoning_tokens,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def response_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """The same as OpenAI's ResponseUsage."""
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": usage["prompt_tokens_details"],
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": usage["completion_tokens_details"]["reasoning_tokens"]},
        "total_tokens": usage["total_tokens"],
    }


def cached_tokens(outputs: Collection[RequestOutput]) -> int:
    return sum(output.cached_tokens for output in outputs if output.choice == 0)


def cache_headers(outputs: Collection[RequestOutput]) -> dict[str, str]:
    return {CACHE_HIT_HEADER: str(cached_tokens(outputs))}

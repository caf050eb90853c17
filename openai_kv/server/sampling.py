"""From a checked body to SamplingParams: defaults, and how much output there is room for."""

from collections.abc import Mapping
from typing import Any

from openai_kv.errors import ContextLengthError, ParameterError
from openai_kv.request import SamplingParams
from openai_kv.server.fields import Integer, Notes

PLAIN = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "logit_bias",
    "ignore_eos",
    "min_tokens",
    "grammar",
    "visible_token_ids",
)


def sampling_params(body: Mapping[str, Any], max_tokens: int, defaults: Mapping[str, float]) -> SamplingParams:
    """Raises ParameterError if `min_tokens` is more than the output may have."""
    values = {**defaults, **{name: body[name] for name in PLAIN if name in body}}
    Integer(0, max_tokens)(body.get("min_tokens", 0), "min_tokens", Notes())
    stop = body.get("stop", [])
    return SamplingParams(max_tokens=max_tokens, stop=(stop,) if isinstance(stop, str) else tuple(stop), **values)


def output_budget(num_prompt_tokens: int, wanted: int | None, max_model_len: int, param: str) -> int:
    """Most output tokens: as wanted, else the rest of the context.

    Raises ContextLengthError naming `param`, and ParameterError for a prompt of nothing: no token can follow it.
    """
    if num_prompt_tokens == 0:
        message = f"Parameter '{param}' must be something that gives at least one token."
        raise ParameterError(message, param=param, code="invalid_value")
    completion = 1 if wanted is None else wanted
    total = num_prompt_tokens + completion
    if total > max_model_len:
        raise ContextLengthError(
            f"This model's maximum context length is {max_model_len} tokens, but the request needs {total}: "
            f"{num_prompt_tokens} in the prompt and {completion} for the output.",
            param=param,
        )
    return max_model_len - num_prompt_tokens if wanted is None else wanted

"""The request bodies of the contract as field tables, and the limits they go by.

Fields the contract knows and this server doesn't act on yet are Neutral: a value that asks for nothing passes, any
other is refused by name. Nothing is ignored in silence but what the contract accepts without effect: Accepted.
docs/compatibility.md has a row for each field.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openai_kv.config import ServerSettings
from openai_kv.outputs import ModelInfo
from openai_kv.request import Pooling
from openai_kv.server.fields import (
    Accepted,
    Array,
    Boolean,
    Check,
    Choice,
    Duration,
    Either,
    FreeObject,
    Integer,
    Neutral,
    Number,
    Object,
    String,
)
from openai_kv.server.format_fields import check_response_format
from openai_kv.server.messages import check_message
from openai_kv.server.token_fields import LogitBias, Prompts, TokenIds
from openai_kv.server.tool_fields import Tools, check_tool_choice
from openai_kv.server.violations import excluded

UNSUPPORTED = Neutral(())
MAX_INTEGER = 2**63 - 1  # sums of much longer ones can't be written into an error message
RENAMED = {
    "stop_sequences": "stop",
    "max_new_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "guided_json": "response_format",
    "guided_regex": "response_format",
    "guided_grammar": "response_format",
    "guided_choice": "response_format",
    "structured_outputs": "response_format",
    "grammar": "response_format",
    "cache_prompt": "prompt_cache_options",
    "id_slot": "session_id",
    "input_ids": "prompt_token_ids",
}
TEMPLATE_OWN = frozenset(
    {"messages", "tools", "chat_template", "add_generation_prompt", "continue_final_message", "tokenize"}
)
STREAM_OPTIONS = Object(
    {"include_usage": Boolean(), "continuous_usage_stats": Boolean(), "include_obfuscation": Accepted(Boolean())}
)
CACHE_OPTIONS = Object({"mode": Choice(("implicit", "explicit")), "ttl": Duration()})
SESSION_ID = String(128, empty=False)
CACHE_SALT = String(128, empty=False, forbidden="@/\\\0")


@dataclass(frozen=True, slots=True)
class Limits:
    """What the checks of one running server depend on."""

    server: ServerSettings
    vocab_size: int
    max_model_len: int
    hidden_size: int

    @classmethod
    def of(cls, server: ServerSettings, info: ModelInfo) -> "Limits":
        return cls(server, info.vocab_size, info.max_model_len, info.hidden_size)


def check_stop(limits: Limits) -> Check:
    text = String(limits.server.max_stop_length, empty=False)
    return Either(text, Array(text, limits.server.max_stop_strings))


def sampling_fields(limits: Limits) -> dict[str, Check]:
    return {
        "temperature": Number(0, 2),
        "top_p": Number(0, 1),
        "top_k": Integer(-1, limits.vocab_size),
        "min_p": Number(0, 1),
        "frequency_penalty": Number(-2, 2),
        "presence_penalty": Number(-2, 2),
        "repetition_penalty": Number(0.01, 10),
        "logit_bias": LogitBias(limits.server.max_logit_bias, limits.vocab_size),
        "seed": Integer(-MAX_INTEGER - 1, MAX_INTEGER),
        "stop": check_stop(limits),
        "ignore_eos": Boolean(),
        "min_tokens": Integer(0),
        "stop_token_ids": TokenIds(limits.vocab_size, limits.server.max_stop_token_ids, empty=True),
        "include_stop_str_in_output": Boolean(),
        "skip_special_tokens": Boolean(),
    }


def common_fields(limits: Limits) -> dict[str, Check]:
    """Of all three generation routes."""
    return {
        **sampling_fields(limits),
        "model": String(),
        "stream": Boolean(),
        "stream_options": STREAM_OPTIONS,
        "session_id": SESSION_ID,
        "prompt_cache_key": String(64, empty=False),
        "cache_salt": CACHE_SALT,
        "user": Accepted(String()),
        "safety_identifier": Accepted(String(128)),
        "metadata": Accepted(FreeObject(16, 64, String(512))),
        "prompt_cache_retention": Choice(("in_memory", "24h")),
        "prompt_cache_options": CACHE_OPTIONS,
        "response_format": check_response_format,
        "prompt_logprobs": Integer(0, limits.server.max_logprobs),
        "return_token_ids": Boolean(),
        "priority": Integer(-1000, 1000),
    }


def template_fields(limits: Limits) -> dict[str, Check]:
    return {
        "messages": Array(check_message, limits.server.max_messages, empty=False),
        "chat_template_kwargs": FreeObject(forbidden=TEMPLATE_OWN),
        "add_generation_prompt": Boolean(),
        "continue_final_message": Boolean(),
        "tools": Tools(limits.server.max_tools),
    }


def chat_body(limits: Limits) -> Object:
    fields: Mapping[str, Check] = {
        **common_fields(limits),
        **template_fields(limits),
        "max_completion_tokens": Integer(1, MAX_INTEGER),
        "max_tokens": Integer(1, MAX_INTEGER),
        "service_tier": Accepted(Choice(("auto", "default", "flex", "scale", "priority", "fast"))),
        "store": Accepted(Boolean()),
        "verbosity": Accepted(Choice(("low", "medium", "high"))),
        "prediction": Accepted(FreeObject()),
        "n": Integer(1, limits.server.max_n),
        "logprobs": Boolean(),
        "top_logprobs": Integer(0, limits.server.max_logprobs),
        "tool_choice": check_tool_choice,
        "parallel_tool_calls": Boolean(),
        "reasoning_effort": Choice(("none", "minimal", "low", "medium", "high", "xhigh", "max")),
        "modalities": Neutral((["text"],)),
        "functions": Neutral((), "Use 'tools'."),
        "function_call": Neutral((), "Use 'tool_choice'."),
        "chat_template": Neutral((), "The template is the model's own."),
        **dict.fromkeys(("audio", "moderation", "web_search_options", "documents"), UNSUPPORTED),
    }
    return Object(fields, ("model", "messages"), RENAMED)


def completion_body(limits: Limits) -> Object:
    fields: Mapping[str, Check] = {
        **common_fields(limits),
        "prompt": Prompts(limits.server.max_prompts, limits.vocab_size),
        "add_special_tokens": Boolean(),
        "max_tokens": Integer(0, MAX_INTEGER),
        "n": Integer(1, limits.server.max_n),
        "best_of": Integer(1, limits.server.max_n),
        "echo": Boolean(),
        "logprobs": Integer(0, limits.server.max_logprobs),
        "suffix": Neutral(("",)),
    }
    return Object(fields, ("model",), RENAMED)


def embedding_body(limits: Limits) -> Object:
    whole = f"Its vectors have {limits.hidden_size} dimensions, and it isn't known to be trained for shorter ones."
    fields: Mapping[str, Check] = {
        "model": String(),
        "input": Prompts(limits.server.max_embedding_inputs, limits.vocab_size, empty=False),
        "encoding_format": Choice(("float", "base64")),
        "dimensions": Neutral((limits.hidden_size,), whole),
        "pooling": Choice(tuple(Pooling)),
        "add_special_tokens": Boolean(),
        "session_id": SESSION_ID,
        "cache_salt": CACHE_SALT,
        "priority": Integer(-1000, 1000),
        "user": Accepted(String()),
        "normalize": Neutral((True,)),
        "use_activation": Neutral((True,)),
        "messages": Neutral((), "Use 'input'."),
        **dict.fromkeys(("truncate_prompt_tokens", "embed_dtype", "endianness"), UNSUPPORTED),
    }
    return Object(fields, ("model", "input"), {"prompt": "input", "input_ids": "input", "prompt_token_ids": "input"})


def generate_body(limits: Limits) -> Object:
    fields: Mapping[str, Check] = {
        **common_fields(limits),
        **template_fields(limits),
        "prompt": String(),
        "prompt_token_ids": TokenIds(limits.vocab_size),
        "add_special_tokens": Boolean(),
        "max_tokens": Integer(0, MAX_INTEGER),
        "logprobs": Integer(0, limits.server.max_logprobs),
    }
    return Object(fields, (), RENAMED)


def tokenize_body(limits: Limits) -> Object:
    fields: Mapping[str, Check] = {
        **template_fields(limits),
        "model": String(),
        "prompt": String(),
        "add_special_tokens": Boolean(),
        "return_token_strs": Boolean(),
    }
    return Object(fields, (), RENAMED)


def detokenize_body(limits: Limits) -> Object:
    tokens = TokenIds(limits.vocab_size, limits.max_model_len, empty=True)
    return Object(
        {"tokens": tokens, "model": String(), "skip_special_tokens": Boolean()},
        ("tokens",),
        {"input_ids": "tokens", "prompt_token_ids": "tokens"},
    )


def pin_body(limits: Limits) -> Object:
    fields: Mapping[str, Check] = {
        **template_fields(limits),
        "add_generation_prompt": Neutral((False,), "It is no part of what chats have in common."),
        "model": String(),
        "prompt": String(),
        "prompt_token_ids": TokenIds(limits.vocab_size),
        "ttl": Duration(),
        "label": String(64),
        "cache_salt": CACHE_SALT,
        "key_id": String(empty=False),
    }
    return Object(fields, (), RENAMED)


def exactly_one(body: Mapping[str, Any], *names: str) -> str:
    """The one of `names` that is given."""
    given = [name for name in names if name in body]
    if len(given) != 1:
        listed = ", ".join(f"'{name}'" for name in names)
        raise excluded(f"Exactly one of {listed} is needed.", given[1] if given else names[0])
    return given[0]


def check_stream(body: Mapping[str, Any]) -> None:
    if "stream_options" in body and not body.get("stream"):
        raise excluded("Parameter 'stream_options' needs 'stream' to be true.", "stream_options")
    if "prompt_logprobs" in body and body.get("stream"):
        raise excluded("Parameters 'prompt_logprobs' and 'stream' exclude each other.", "prompt_logprobs")

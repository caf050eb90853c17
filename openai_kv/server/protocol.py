"""The request bodies of the contract as field tables.

Fields the contract knows and this server doesn't act on yet are Neutral: a value that asks for nothing passes, any
other is refused by name. Nothing is ignored in silence but what the contract accepts without effect: Accepted.
docs/compatibility.md has a row for each field.
"""

from collections.abc import Mapping
from typing import Any

from openai_kv.request import Pooling
from openai_kv.server.fields import (
    Accepted,
    Boolean,
    Check,
    Choice,
    Duration,
    FreeObject,
    Integer,
    Neutral,
    Object,
    String,
)
from openai_kv.server.shared_fields import (
    CACHE_SALT,
    MAX_INTEGER,
    REASONING_EFFORT,
    RENAMED,
    SESSION_ID,
    UNSUPPORTED,
    Limits,
    common_fields,
    template_fields,
)
from openai_kv.server.token_fields import Prompts, TokenIds
from openai_kv.server.tool_fields import check_tool_choice
from openai_kv.server.violations import excluded


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
        "reasoning_effort": REASONING_EFFORT,
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

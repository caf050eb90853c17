"""What several request bodies have in common, and the limits that their checks go by."""

from dataclasses import dataclass

from openai_kv.config import ServerSettings
from openai_kv.outputs import ModelInfo
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
from openai_kv.server.token_fields import LogitBias, TokenIds
from openai_kv.server.tool_fields import Tools

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
REASONING_EFFORT = Choice(("none", "minimal", "low", "medium", "high", "xhigh", "max"))
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

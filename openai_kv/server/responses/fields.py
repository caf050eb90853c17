"""The body of /v1/responses as a field table, in the names of OpenAI's SDK."""

from openai_kv.server.fields import (
    Accepted,
    Array,
    Boolean,
    Check,
    Choice,
    Either,
    FreeObject,
    Integer,
    Neutral,
    Object,
    String,
)
from openai_kv.server.format_fields import JSON_SCHEMA
from openai_kv.server.responses.item_fields import ITEMS
from openai_kv.server.shared_fields import (
    CACHE_OPTIONS,
    MAX_INTEGER,
    REASONING_EFFORT,
    RENAMED,
    TEMPLATE_OWN,
    UNSUPPORTED,
    Limits,
    common_fields,
)
from openai_kv.server.tool_fields import FUNCTION as CHAT_FUNCTION
from openai_kv.server.tool_fields import TOOL_CHOICES
from openai_kv.server.variants import Variant

LOGPROBS = "message.output_text.logprobs"
INCLUDABLE = (
    LOGPROBS,
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
CHAT_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text",
    "reasoning_effort": "reasoning",
}
RESPONSE_NAMES = {**{name: CHAT_NAMES.get(ours, ours) for name, ours in RENAMED.items()}, **CHAT_NAMES}

FUNCTIONS_ONLY = "Only functions can be called."
FUNCTION = Object(
    {
        **CHAT_FUNCTION.fields,
        "async": Neutral((False,)),
        "defer_loading": Neutral((False,)),
        "allowed_callers": Neutral((["direct"],)),
        "output_schema": UNSUPPORTED,
    },
    ("name",),
)
NAMED = Object({"name": String()}, ("name",))
ALLOWED = Object(
    {
        "mode": Choice(("auto", "required")),
        "tools": Array(Variant({"function": NAMED}, FUNCTIONS_ONLY), empty=False),
    },
    ("mode", "tools"),
)
TOOL_CHOICE = Either(TOOL_CHOICES, Variant({"function": NAMED, "allowed_tools": ALLOWED}, FUNCTIONS_ONLY), dict)

FORMATS = Variant(
    {"text": Object({}), "json_object": Object({}), "json_schema": JSON_SCHEMA},
    "Formats are text, json_object and json_schema.",
)
NO_SUMMARY = Neutral(("auto",), "The reasoning itself is in the item's 'content'.")
THINKING = Object(
    {
        "effort": REASONING_EFFORT,
        "summary": NO_SUMMARY,
        "generate_summary": NO_SUMMARY,
        "context": Neutral(("auto",)),
        "mode": Neutral(("standard",)),
    }
)


def response_fields(limits: Limits) -> dict[str, Check]:
    not_here = ("response_format", "prompt_logprobs", "return_token_ids")
    shared = {name: check for name, check in common_fields(limits).items() if name not in not_here}
    refused = ("access_programs", "background_options", "image", "moderation", "prompt", "personality")
    return {
        **shared,
        "input": Either(String(), Array(ITEMS, limits.server.max_messages, empty=False)),
        "instructions": String(),
        "max_output_tokens": Integer(1, MAX_INTEGER),
        "max_tool_calls": Integer(1, MAX_INTEGER),
        "previous_response_id": String(),
        "store": Boolean(),
        "text": Object({"format": FORMATS, "verbosity": Accepted(Choice(("low", "medium", "high")))}),
        "reasoning": THINKING,
        "tools": Array(Variant({"function": FUNCTION}, FUNCTIONS_ONLY), limits.server.max_tools),
        "tool_choice": TOOL_CHOICE,
        "parallel_tool_calls": Boolean(),
        "include": Array(Choice(INCLUDABLE)),
        "top_logprobs": Integer(0, limits.server.max_logprobs),
        "truncation": Choice(("auto", "disabled")),
        "stream_options": Object({"include_obfuscation": Accepted(Boolean())}),
        "prompt_cache_options": Object(
            {**CACHE_OPTIONS.fields, "prewarm": Neutral((False,)), "comparison_response_id": UNSUPPORTED}
        ),
        "service_tier": Accepted(Choice(("auto", "default", "flex", "scale", "priority", "fast", "ultrafast"))),
        "chat_template_kwargs": FreeObject(forbidden=TEMPLATE_OWN),
        "background": Neutral((False,), "A response is made while its client waits."),
        "conversation": Neutral((), "Use 'previous_response_id'."),
        "context_management": Neutral(([],)),
        **dict.fromkeys(refused, UNSUPPORTED),
    }


def response_body(limits: Limits) -> Object:
    return Object(response_fields(limits), ("model", "input"), RESPONSE_NAMES)


def countable_body(limits: Limits) -> Object:
    """Of /v1/responses/input_tokens: the model may be left out."""
    return Object(response_fields(limits), ("input",), RESPONSE_NAMES)

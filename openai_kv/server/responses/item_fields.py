"""Items of an input as field tables, in the names of OpenAI's SDK."""

from collections.abc import Mapping

from openai_kv.server.fields import Array, Check, Choice, Either, Neutral, Object, String
from openai_kv.server.messages import BREAKPOINT
from openai_kv.server.shared_fields import UNSUPPORTED
from openai_kv.server.variants import Variant, anything

TEXT_ONLY = "Only text can be read."
INPUT_TEXT = Object({"text": String(), "prompt_cache_breakpoint": BREAKPOINT}, ("text",))
OUTPUT_TEXT = Object(
    {"text": String(), "annotations": Array(anything), "logprobs": Array(anything), "parsed": anything}, ("text",)
)
PARTS = Variant(
    {"input_text": INPUT_TEXT, "output_text": OUTPUT_TEXT, "refusal": Object({"refusal": String()}, ("refusal",))},
    TEXT_ONLY,
)
CONTENT = Either(String(), Array(PARTS, empty=False))
RESULT = Either(String(), Array(Variant({"input_text": INPUT_TEXT}, TEXT_ONLY), empty=False))
WRITTEN: Mapping[str, Check] = {
    "id": String(),
    "status": Choice(("in_progress", "completed", "incomplete")),
    "caller": Neutral(({"type": "direct"},)),
    "namespace": UNSUPPORTED,
}
MESSAGE = Object(
    {
        **WRITTEN,
        "role": Choice(("user", "assistant", "system", "developer")),
        "content": CONTENT,
        "phase": Choice(("commentary", "final_answer")),
    },
    ("role", "content"),
)
FUNCTION_CALL = Object(
    {
        **WRITTEN,
        "call_id": String(),
        "name": String(empty=False),
        "arguments": String(),
        "async": Neutral((False,)),
        "parsed_arguments": anything,
    },
    ("call_id", "name", "arguments"),
)
FUNCTION_OUTPUT = Object(
    {**WRITTEN, "call_id": String(), "output": RESULT, "name": String(empty=False)}, ("call_id", "output")
)
REASONING = Object(
    {
        **WRITTEN,
        "summary": Array(Variant({"summary_text": Object({"text": String()}, ("text",))}, TEXT_ONLY)),
        "content": Array(Variant({"reasoning_text": Object({"text": String()}, ("text",))}, TEXT_ONLY)),
        "encrypted_content": UNSUPPORTED,
    }
)
ITEMS = Variant(
    {
        "message": MESSAGE,
        "function_call": FUNCTION_CALL,
        "function_call_output": FUNCTION_OUTPUT,
        "reasoning": REASONING,
    },
    "Items are message, function_call, function_call_output and reasoning.",
    default="message",
)

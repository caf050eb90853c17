"""Prompts as token ids; everything here runs in worker threads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openai_kv.errors import TemplateError
from openai_kv.server.messages import check_continuation
from openai_kv.server.violations import excluded, unsupported
from openai_kv.tokenizer import Tokenizer

TEMPLATE_OPTIONS = ("tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message")


@dataclass(frozen=True, slots=True)
class Prompt:
    """`text` is the prompt as it was given, of which `starts[i]` characters come before token i."""

    token_ids: list[int]
    text: str = ""
    starts: Sequence[int] = ()


def check_template_options(body: Mapping[str, Any]) -> None:
    """What goes with messages, and what only with them."""
    if "messages" in body:
        if body.get("add_special_tokens"):
            raise unsupported("add_special_tokens", "The chat template adds them.")
        if body.get("add_generation_prompt") and body.get("continue_final_message"):
            message = "Parameters 'add_generation_prompt' and 'continue_final_message' exclude each other."
            raise excluded(message, "add_generation_prompt")
        return
    for name in TEMPLATE_OPTIONS:
        if name in body:
            raise excluded(f"Parameter '{name}' needs 'messages'.", name)


def render_messages(tokenizer: Tokenizer, body: Mapping[str, Any], namespace: str) -> list[int]:
    """The model's chat template over `body`'s messages; raises TemplateError."""
    return tokenizer.encode_chat(chat_text(tokenizer, body), namespace)


def chat_text(tokenizer: Tokenizer, body: Mapping[str, Any]) -> str:
    """The text of `render_messages`; raises TemplateError, also for tools that may be called but make no difference."""
    text = template_text(tokenizer, body)
    may_call = "tools" in body and body.get("tool_choice") != "none"
    if may_call and text == template_text(tokenizer, {**body, "tools": None}):
        message = "The model's chat template can't take tools; that of Qwen/Qwen3-0.6B, for one, can."
        raise TemplateError(message, param="tools")
    return text


def template_text(tokenizer: Tokenizer, body: Mapping[str, Any]) -> str:
    continues = body.get("continue_final_message", False)
    if continues:
        check_continuation(body["messages"])
    return tokenizer.chat_text(
        body["messages"],
        tools=body.get("tools"),
        add_generation_prompt=body.get("add_generation_prompt", not continues),
        continue_final_message=continues,
        template_kwargs=template_variables(body),
    )


def template_variables(body: Mapping[str, Any]) -> dict[str, Any]:
    """`reasoning_effort` under the names that templates know; those of `chat_template_kwargs` win."""
    effort = body.get("reasoning_effort")
    variables = {} if effort is None else {"enable_thinking": effort != "none", "reasoning_effort": effort}
    return {**variables, **body.get("chat_template_kwargs", {})}


def encode_prompt(tokenizer: Tokenizer, prompt: str | list[int] | None, body: Mapping[str, Any]) -> list[int]:
    """Text or ids; what gives no token is the tokenizer's default prompt."""
    if isinstance(prompt, list):
        return prompt
    ids = tokenizer.encode(prompt, add_special_tokens=adds_special_tokens(body)) if prompt else []
    return ids or tokenizer.default_prompt


def echo_prompt(tokenizer: Tokenizer, prompt: str | list[int] | None, body: Mapping[str, Any]) -> Prompt:
    """As encode_prompt, with the text that `echo` repeats."""
    ids = encode_prompt(tokenizer, prompt, body)
    if isinstance(prompt, list):
        return decoded_prompt(tokenizer, ids, skip_special_tokens=body.get("skip_special_tokens", True))
    starts = tokenizer.token_starts(prompt, add_special_tokens=adds_special_tokens(body)) if prompt else []
    return Prompt(ids, prompt or "", starts or [0] * len(ids))


def decoded_prompt(tokenizer: Tokenizer, ids: list[int], *, skip_special_tokens: bool) -> Prompt:
    decoder = tokenizer.stream_decoder(skip_special_tokens=skip_special_tokens)
    text, starts = "", list[int]()
    for token_id in ids:
        starts.append(len(text) + decoder.num_held)
        text += decoder.step(token_id)
    return Prompt(ids, text + decoder.flush(), starts)


def adds_special_tokens(body: Mapping[str, Any]) -> bool:
    return bool(body.get("add_special_tokens", True))

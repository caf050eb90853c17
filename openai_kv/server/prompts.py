"""Prompts as token ids; everything here runs in worker threads."""

from collections.abc import Mapping
from typing import Any

from openai_kv.server.messages import check_continuation
from openai_kv.tokenizer import Tokenizer


def render_messages(tokenizer: Tokenizer, body: Mapping[str, Any]) -> list[int]:
    """The model's chat template over `body`'s messages; raises TemplateError."""
    return tokenizer.encode(chat_text(tokenizer, body), add_special_tokens=False)


def chat_text(tokenizer: Tokenizer, body: Mapping[str, Any]) -> str:
    continues = body.get("continue_final_message", False)
    if continues:
        check_continuation(body["messages"])
    return tokenizer.chat_text(
        body["messages"],
        add_generation_prompt=body.get("add_generation_prompt", not continues),
        continue_final_message=continues,
        template_kwargs=body.get("chat_template_kwargs"),
    )


def encode_prompt(tokenizer: Tokenizer, prompt: str | list[int] | None, body: Mapping[str, Any]) -> list[int]:
    """Text or ids; what gives no token is the tokenizer's default prompt."""
    if isinstance(prompt, list):
        return prompt
    add_special_tokens = body.get("add_special_tokens", True)
    ids = tokenizer.encode(prompt, add_special_tokens=add_special_tokens) if prompt else []
    return ids or tokenizer.default_prompt

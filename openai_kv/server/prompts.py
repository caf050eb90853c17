"""Prompts as token ids; everything here runs in worker threads."""

from collections.abc import Mapping, Sequence
from typing import Any

from openai_kv.errors import TemplateError
from openai_kv.server.messages import check_continuation
from openai_kv.tokenizer import Tokenizer


def render_messages(tokenizer: Tokenizer, body: Mapping[str, Any]) -> list[int]:
    """The model's chat template over `body`'s messages; raises TemplateError."""
    continues = body.get("continue_final_message", False)
    if continues:
        check_continuation(body["messages"])

    def render(tools: Sequence[Mapping[str, Any]] | None) -> list[int]:
        return tokenizer.render_chat(
            body["messages"],
            tools=tools,
            add_generation_prompt=body.get("add_generation_prompt", not continues),
            continue_final_message=continues,
            template_kwargs=template_variables(body),
        )

    prompt = render(body.get("tools"))
    if "tools" in body and prompt == render(None):
        raise TemplateError("The model's chat template can't take tools.", param="tools")
    return prompt


def template_variables(body: Mapping[str, Any]) -> dict[str, Any]:
    """`reasoning_effort` under the names that templates know; those of `chat_template_kwargs` win."""
    effort = body.get("reasoning_effort")
    variables = {} if effort is None else {"enable_thinking": effort != "none", "reasoning_effort": effort}
    return {**variables, **body.get("chat_template_kwargs", {})}


def encode_prompt(tokenizer: Tokenizer, prompt: str | list[int] | None, body: Mapping[str, Any]) -> list[int]:
    """Text or ids; what gives no token is the tokenizer's default prompt."""
    if isinstance(prompt, list):
        return prompt
    add_special_tokens = body.get("add_special_tokens", True)
    ids = tokenizer.encode(prompt, add_special_tokens=add_special_tokens) if prompt else []
    return ids or tokenizer.default_prompt

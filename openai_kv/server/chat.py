"""POST /v1/chat/completions."""

import asyncio
from collections.abc import Mapping
from typing import Any

from openai_kv.server.breakpoints import render_marked
from openai_kv.server.call import Call
from openai_kv.server.generation import Generation, choices_of, engine_request, new_id
from openai_kv.server.messages import count_turns
from openai_kv.server.parts import Part
from openai_kv.server.prompts import Prompt, check_template_options
from openai_kv.server.protocol import chat_body, check_stream
from openai_kv.server.replies import Reply, collect, stream
from openai_kv.server.sampling import output_budget, sampling_params
from openai_kv.server.violations import excluded


async def create_chat_completion(call: Call) -> None:
    body = await call.parse(chat_body)
    check_stream(body)
    check_template_options(body)
    wanted, logprobs, n = wanted_tokens(body), wanted_logprobs(body), body.get("n", 1)
    marked = await asyncio.to_thread(lambda: render_marked(call.context.get_tokenizer(), body, call.notes.marks))
    prompt = marked.token_ids
    max_model_len = call.context.engine.info.max_model_len
    budget = output_budget(len(prompt), wanted, max_model_len, "messages")
    budget = budget if wanted else capped(budget, call.context.settings.server.default_max_tokens)
    reply = ChatReply(call, body, new_id("chatcmpl"), [Prompt(prompt)], n)
    request = engine_request(
        call,
        body,
        request_id=reply.id,
        group=reply.id,
        kind="chat",
        prompt=prompt,
        params=sampling_params(body, budget, call.context.sampling_defaults, logprobs, body.get("prompt_logprobs")),
        turn=count_turns(body["messages"]),
        places=marked.places,
    )
    with Generation(call, body, choices_of(request, n)) as generation:
        await (stream if body.get("stream") else collect)(generation, reply)


def wanted_tokens(body: Mapping[str, Any]) -> int | None:
    old, new = body.get("max_tokens"), body.get("max_completion_tokens")
    if old is not None and new is not None and old != new:
        raise excluded("Parameters 'max_tokens' and 'max_completion_tokens' differ; use the latter.", "max_tokens")
    return old if new is None else new


def wanted_logprobs(body: Mapping[str, Any]) -> int | None:
    """How many of the most likely tokens at each position; None: no log probabilities at all."""
    if body.get("logprobs"):
        return int(body.get("top_logprobs", 0))
    if body.get("top_logprobs"):
        raise excluded("Parameter 'top_logprobs' needs 'logprobs' to be true.", "top_logprobs")
    return None


def capped(budget: int, limit: int) -> int:
    """`limit` 0: none."""
    return min(budget, limit) if limit else budget


class ChatReply(Reply):
    """Chat completions and their chunks."""

    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def extras(self) -> dict[str, Any]:
        return {"service_tier": "default"} if "service_tier" in self.body else {}

    def of_prompt(self) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if self.return_token_ids:
            fields["prompt_token_ids"] = self.prompts[0].token_ids
        if "prompt_logprobs" in self.body:
            fields["prompt_logprobs"] = self.format.prompt(self.prompt_logprobs(0), self.body["prompt_logprobs"])
        return fields

    def choice(self, index: int, part: Part) -> dict[str, Any]:
        message = {"role": "assistant", "content": part.text, "refusal": None}
        return {"index": index, "message": message, **self.tokens(part), **ending(part)}

    def chunk_choices(self, index: int, part: Part, first: bool) -> list[dict[str, Any]]:
        """With the first token the role, then text, at the end the reason: each a chunk of its own."""
        choices = [self.chunk_choice(index, {"role": "assistant", "content": ""}, Part())] if first else []
        if part.text:
            choices.append(self.chunk_choice(index, {"content": part.text}, part))
            part.clear()
        if part.finish_reason:
            choices.append({**self.chunk_choice(index, {}, part), **ending(part)})
        return choices

    def chunk_choice(self, index: int, delta: Mapping[str, str], part: Part) -> dict[str, Any]:
        return {"index": index, "delta": delta, **self.tokens(part), "finish_reason": None, "stop_reason": None}

    def tokens(self, part: Part) -> dict[str, Any]:
        """What is told of the tokens of `part`."""
        token_ids = {"token_ids": part.token_ids} if self.return_token_ids else {}
        if not (self.body.get("logprobs") and part.logprobs):
            return {"logprobs": None, **token_ids}
        content = self.format.chat(part.logprobs, self.body.get("top_logprobs", 0))
        return {"logprobs": {"content": content, "refusal": None}, **token_ids}


def ending(part: Part) -> dict[str, Any]:
    return {"finish_reason": part.finish_reason, "stop_reason": part.stop_reason}

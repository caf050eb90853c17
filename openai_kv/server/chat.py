"""POST /v1/chat/completions."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from openai_kv.request import Grammar, SamplingParams
from openai_kv.server.breakpoints import MarkedPrompt, render_marked
from openai_kv.server.call import Call
from openai_kv.server.chat_output import ChatOutput, chat_grammar, plan_output
from openai_kv.server.chat_reply import ChatReply
from openai_kv.server.generation import Generation, cache_namespace, choices_of, engine_request, new_id
from openai_kv.server.messages import count_turns
from openai_kv.server.prompts import Prompt, check_template_options
from openai_kv.server.protocol import chat_body, check_stream
from openai_kv.server.replies import collect, stream
from openai_kv.server.sampling import output_budget, sampling_params
from openai_kv.server.violations import excluded


@dataclass(frozen=True, slots=True)
class Plan:
    """A chat that can be generated: its prompt, how its output is read, how it is sampled."""

    marked: MarkedPrompt
    output: ChatOutput
    params: SamplingParams

    @property
    def prompt(self) -> Prompt:
        return Prompt(self.marked.token_ids)


async def create_chat_completion(call: Call) -> None:
    body = await call.parse(chat_body)
    check_stream(body)
    check_template_options(body)
    plan = await make_plan(call, body)
    reply = ChatReply(call, body, new_id("chatcmpl"), [plan.prompt], body.get("n", 1), plan.output)
    await carry_out(call, body, plan, reply)


async def make_plan(call: Call, body: Mapping[str, Any]) -> Plan:
    """Raises RequestError for whatever of a checked body can't be done."""
    wanted, logprobs = wanted_tokens(body), wanted_logprobs(body)
    marked, output, grammar = await asyncio.to_thread(prepare, call, body)
    budget = output_budget(len(marked.token_ids), wanted, call.context.engine.info.max_model_len, "messages")
    budget = budget if wanted else capped(budget, call.context.settings.server.default_max_tokens)
    params = sampling_params(body, budget, call.context.sampling_defaults, logprobs, body.get("prompt_logprobs"))
    return Plan(marked, output, replace(params, grammar=grammar, visible_token_ids=output.visible_token_ids))


async def carry_out(call: Call, body: Mapping[str, Any], plan: Plan, reply: ChatReply) -> None:
    """Generate and answer."""
    request = engine_request(
        call,
        body,
        request_id=reply.id,
        group=reply.id,
        kind="chat",
        prompt=plan.marked.token_ids,
        params=plan.params,
        turn=count_turns(body["messages"]),
        places=plan.marked.places,
    )
    requests = choices_of(request, body.get("n", 1))
    with Generation(call, body, requests, lambda: reply.reasoning_tokens, reply.finish_reasons) as generation:
        await (stream if body.get("stream") else collect)(generation, reply)


def prepare(call: Call, body: Mapping[str, Any]) -> tuple[MarkedPrompt, ChatOutput, Grammar | None]:
    """The prompt, how the output is read, and what it is held to; for worker threads."""
    marked = render_marked(call.context.get_tokenizer(), body, call.notes.marks, cache_namespace(call, body))
    output = plan_output(call, body, marked.token_ids)
    return marked, output, chat_grammar(call, body, output)


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

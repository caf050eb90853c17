"""POST /v1/chat/completions."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from openai_kv.outputs import RequestOutput
from openai_kv.server.call import Call
from openai_kv.server.chat_output import ChatOutput, chat_grammar, plan_output
from openai_kv.server.chat_reader import ChoiceReader, Deltas, Message
from openai_kv.server.generation import Batch, Generation, engine_request, new_id
from openai_kv.server.messages import count_turns
from openai_kv.server.prompts import render_messages
from openai_kv.server.protocol import chat_body, check_stream_options
from openai_kv.server.reasoning_tokens import ReasoningTokens
from openai_kv.server.replies import Reply, collect, stream
from openai_kv.server.sampling import output_budget, sampling_params
from openai_kv.server.violations import excluded


async def create_chat_completion(call: Call) -> None:
    body = await call.parse(chat_body)
    check_stream_options(body)
    wanted = wanted_tokens(body)
    prompt, output = await asyncio.to_thread(prepare, call, body)
    max_model_len = call.context.engine.info.max_model_len
    budget = output_budget(len(prompt), wanted, max_model_len, "messages")
    budget = budget if wanted else capped(budget, call.context.settings.server.default_max_tokens)
    reply = ChatReply(call, body, new_id("chatcmpl"), output)
    request = engine_request(
        call,
        body,
        request_id=reply.id,
        group=reply.id,
        kind="chat",
        prompt=prompt,
        params=sampling_params(body, budget, call.context.sampling_defaults),
        turn=count_turns(body["messages"]),
    )
    with Generation(call, [request]) as generation:
        await (stream if body.get("stream") else collect)(generation, reply)


def prepare(call: Call, body: dict[str, Any]) -> tuple[list[int], ChatOutput]:
    """The prompt, and how the output is read; what the engine has to know of that is added to `body`."""
    tokenizer = call.context.get_tokenizer()
    prompt = render_messages(tokenizer, body)
    output = plan_output(call, body, prompt)
    body["grammar"] = chat_grammar(call, body, output)
    body["visible_token_ids"] = output.visible_token_ids(tokenizer)
    return prompt, output


def wanted_tokens(body: Mapping[str, Any]) -> int | None:
    old, new = body.get("max_tokens"), body.get("max_completion_tokens")
    if old is not None and new is not None and old != new:
        raise excluded("Parameters 'max_tokens' and 'max_completion_tokens' differ; use the latter.", "max_tokens")
    return old if new is None else new


def capped(budget: int, limit: int) -> int:
    """`limit` 0: none."""
    return min(budget, limit) if limit else budget


class ChatReply(Reply):
    """Chat completions and their chunks."""

    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, call: Call, body: Mapping[str, Any], reply_id: str, output: ChatOutput) -> None:
        super().__init__(call, body, reply_id)
        self._output = output
        self._deltas: dict[int, Deltas] = defaultdict(lambda: Deltas(output))
        self._reasoning = defaultdict[int, ReasoningTokens](lambda: reasoning_counter(call, output))

    def saw(self, batch: Batch) -> None:
        if self._output.thinks:
            for index, output in batch:
                self._reasoning[index].take(output.token_ids)

    @property
    def reasoning_tokens(self) -> int:
        return sum(counter.count for counter in self._reasoning.values())

    def extras(self) -> dict[str, Any]:
        return {"service_tier": "default"} if "service_tier" in self.body else {}

    def choice(self, index: int, text: str, last: RequestOutput) -> dict[str, Any]:
        message, reader = Message(self._output.parser), ChoiceReader(self._output)
        for event in reader.take(text, last.finish_reason):
            message.take(event)
        return {"index": index, "message": message.to_json(), "logprobs": None, **chat_ending(last, reader)}

    def chunk_choices(self, index: int, output: RequestOutput, first: bool) -> list[dict[str, Any]]:
        """With the first token the role, then text, at the end the reason: each a chunk of its own."""
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}] if first else []
        deltas += self._deltas[index].take(output.text, output.finish_reason)
        choices = [delta_choice(index, delta) for delta in deltas]
        if output.finish_reason:
            choices.append(
                {"index": index, "delta": {}, "logprobs": None, **chat_ending(output, self._deltas[index].reader)}
            )
        return choices


def reasoning_counter(call: Call, output: ChatOutput) -> ReasoningTokens:
    tokenizer = call.context.get_tokenizer()
    decoder = tokenizer.stream_decoder(visible=output.visible_token_ids(tokenizer))
    return ReasoningTokens(decoder, starts_inside=output.starts_inside)


def chat_ending(output: RequestOutput, reader: ChoiceReader) -> dict[str, Any]:
    reason = reader.finish_reason(output.finish_reason)
    return {"finish_reason": reason, "stop_reason": None if reason == "tool_calls" else output.stop_reason}


def delta_choice(index: int, delta: Mapping[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, "stop_reason": None}


def ending(output: RequestOutput) -> dict[str, Any]:
    return {"finish_reason": output.finish_reason, "stop_reason": output.stop_reason}

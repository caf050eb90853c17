"""POST /v1/completions: one prompt or several, text or token ids."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from openai_kv.engine.engine_request import EngineRequest
from openai_kv.request import Grammar, TokenLogprobs
from openai_kv.server.call import Call
from openai_kv.server.generation import Generation, choices_of, engine_request, new_id
from openai_kv.server.parts import Part
from openai_kv.server.prompts import Prompt, echo_prompt, encode_prompt
from openai_kv.server.protocol import check_stream, completion_body
from openai_kv.server.replies import Reply, collect, stream
from openai_kv.server.sampling import output_budget, sampling_params
from openai_kv.server.structured import answer_grammar
from openai_kv.server.violations import excluded

DEFAULT_MAX_TOKENS = 16


async def create_completion(call: Call) -> None:
    body = await call.parse(completion_body)
    check_stream(body)
    candidates = num_candidates(body)
    prompts, grammar = await asyncio.to_thread(lambda: (encode_prompts(call, body), answer_grammar(call, body)))
    reply = CompletionReply(call, body, new_id("cmpl"), prompts, candidates)
    firsts = [
        make_request(call, body, f"{reply.id}-{index}", reply.id, prompt.token_ids, grammar)
        for index, prompt in enumerate(prompts)
    ]
    requests = [request for first in firsts for request in choices_of(first, candidates)]
    with Generation(call, body, requests) as generation:
        await (stream if body.get("stream") else collect)(generation, reply)


def num_candidates(body: Mapping[str, Any]) -> int:
    """How many answers are made for each prompt, of which `n` are given."""
    n: int = body.get("n", 1)
    best_of: int = body.get("best_of", n)
    if best_of < n:
        raise excluded("Parameter 'best_of' must be at least 'n'.", "best_of")
    if best_of > n and body.get("stream"):
        raise excluded("Parameter 'best_of' can't choose among answers that are streamed.", "best_of")
    return best_of


def encode_prompts(call: Call, body: Mapping[str, Any]) -> list[Prompt]:
    tokenizer, prompts = call.context.get_tokenizer(), body.get("prompt", [None])
    if body.get("echo"):
        return [echo_prompt(tokenizer, prompt, body) for prompt in prompts]
    return [Prompt(encode_prompt(tokenizer, prompt, body)) for prompt in prompts]


def make_request(
    call: Call, body: Mapping[str, Any], request_id: str, group: str, prompt: list[int], grammar: Grammar | None
) -> EngineRequest:
    wanted = body.get("max_tokens", DEFAULT_MAX_TOKENS)
    budget = output_budget(len(prompt), wanted, call.context.engine.info.max_model_len, "prompt")
    logprobs = 0 if num_candidates(body) > body.get("n", 1) else None
    params = sampling_params(
        body, budget, call.context.sampling_defaults, body.get("logprobs", logprobs), wanted_of_prompt(body)
    )
    params = replace(params, grammar=grammar)
    return engine_request(
        call, body, request_id=request_id, group=group, kind="completion", prompt=prompt, params=params
    )


def wanted_of_prompt(body: Mapping[str, Any]) -> int | None:
    """How many of the most likely tokens at each position of the prompt; None: no log probabilities of it."""
    wanted = [body.get("prompt_logprobs"), body.get("logprobs") if body.get("echo") else None]
    return max((count for count in wanted if count is not None), default=None)


class CompletionReply(Reply):
    """Text completions and their chunks."""

    object = "text_completion"
    chunk_object = "text_completion"

    def needs_prompt_logprobs(self) -> bool:
        return bool(self.body.get("echo")) and "logprobs" in self.body

    def choice(self, index: int, part: Part) -> dict[str, Any]:
        choice = {"index": index, **self.tokens(index, part, first=True), **part.ending}
        if "prompt_logprobs" in self.body:
            entries, count = self.prompt_logprobs(index), self.body["prompt_logprobs"]
            choice["prompt_logprobs"] = self.format.prompt(entries, count)
        return choice

    def chunk_choices(self, index: int, part: Part, first: bool) -> list[dict[str, Any]]:
        """Text, then the reason in a chunk of its own."""
        running = {"finish_reason": None, "stop_reason": None}
        choices: list[dict[str, Any]] = []
        if part.text or (first and self.body.get("echo")):
            choices.append({"index": index, **self.tokens(index, part, first), **running})
            part.clear()
        if part.finish_reason:
            choices.append({"index": index, **self.tokens(index, part, first and not choices), **part.ending})
        return choices

    def tokens(self, index: int, part: Part, first: bool) -> dict[str, Any]:
        """Text and what is told of its tokens, with what is told of the prompt where it is the `first` of a choice."""
        prompt = self.prompt_of(index)
        echo = prompt.text if first and self.body.get("echo") else ""
        fields: dict[str, Any] = {"text": echo + part.text, "logprobs": self.logprobs_of(index, part, first)}
        if self.return_token_ids:
            fields["token_ids"] = part.token_ids
            fields |= {"prompt_token_ids": prompt.token_ids} if first else {}
        return fields

    def logprobs_of(self, index: int, part: Part, first: bool) -> dict[str, list[Any]] | None:
        if "logprobs" not in self.body:
            return None
        count, prompt, echoes = self.body["logprobs"], self.prompt_of(index), self.body.get("echo", False)
        output = self.format.completion(part.logprobs, count, len(prompt.text) if echoes else 0)
        if not (first and echoes):
            return output if first or part.logprobs else None
        echoed = self.echoed(prompt, self.prompt_logprobs(index), count)
        return {name: echoed[name] + output[name] for name in output}

    def echoed(self, prompt: Prompt, entries: Sequence[TokenLogprobs], count: int) -> dict[str, list[Any]]:
        """Of the prompt: nothing is known of how likely its first token is."""
        found = self.format.completion(entries, count)
        return {
            "tokens": [self.format.text(prompt.token_ids[0]), *found["tokens"]],
            "token_logprobs": [None, *found["token_logprobs"]],
            "top_logprobs": [None, *found["top_logprobs"]],
            "text_offset": list(prompt.starts),
        }

"""Chat completions and their chunks: what each choice's text means, and what is told of its tokens."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from openai_kv.server.call import Call
from openai_kv.server.chat_output import ChatOutput
from openai_kv.server.chat_reader import ChoiceReader, Deltas, Message
from openai_kv.server.generation import Batch
from openai_kv.server.parts import Part
from openai_kv.server.prompts import Prompt
from openai_kv.server.reasoning_tokens import ReasoningTokens
from openai_kv.server.replies import Reply

RUNNING = {"finish_reason": None, "stop_reason": None}


class ChatReply(Reply):
    """Each choice is read by itself, as `output` says."""

    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(
        self,
        call: Call,
        body: Mapping[str, Any],
        reply_id: str,
        prompts: Sequence[Prompt],
        candidates: int,
        output: ChatOutput,
    ) -> None:
        super().__init__(call, body, reply_id, prompts, candidates)
        self.finish_reasons: dict[int, str] = {}
        self._output = output
        self._deltas: dict[int, Deltas] = defaultdict(lambda: Deltas(output))
        self._reasoning: dict[int, ReasoningTokens] = defaultdict(lambda: reasoning_counter(call, output))

    def add(self, batch: Batch) -> None:
        super().add(batch)
        if self._output.thinks:
            for index, output in batch:
                self._reasoning[index].take(output.token_ids)

    @property
    def reasoning_tokens(self) -> int:
        return sum(counter.count for counter in self._reasoning.values())

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
        message, reader = Message(self._output.parser), ChoiceReader(self._output)
        for event in reader.take(part.text, part.finish_reason):
            message.take(event)
        return {"index": index, "message": message.to_json(), **self.tokens(part), **self.ending(index, reader, part)}

    def chunk_choices(self, index: int, part: Part, first: bool) -> list[dict[str, Any]]:
        """With the first token the role, then what the text tells, at the end the reason: each a chunk of its own.

        Log probabilities of a marker come with what follows it.
        """
        choices = [self.chunk_choice(index, {"role": "assistant", "content": ""}, Part())] if first else []
        deltas = self._deltas[index]
        pieces = part.take_tokens(deltas.num_read)
        for number, (text, entries) in enumerate(pieces, 1):
            part.logprobs += entries
            for delta in deltas.take(text, part.finish_reason if number == len(pieces) else None):
                choices.append(self.chunk_choice(index, delta, part))
                part.clear()
        if part.finish_reason:
            choices.append({**self.chunk_choice(index, {}, part), **self.ending(index, deltas.reader, part)})
        return choices

    def ending(self, index: int, reader: ChoiceReader, part: Part) -> dict[str, Any]:
        ending = reader.ending(part)
        self.finish_reasons[index] = ending["finish_reason"]
        return ending

    def chunk_choice(self, index: int, delta: Mapping[str, Any], part: Part) -> dict[str, Any]:
        return {"index": index, "delta": delta, **self.tokens(part), **RUNNING}

    def tokens(self, part: Part) -> dict[str, Any]:
        """What is told of the tokens of `part`."""
        token_ids = {"token_ids": part.token_ids} if self.return_token_ids else {}
        if not (self.body.get("logprobs") and part.logprobs):
            return {"logprobs": None, **token_ids}
        content = self.format.chat(part.logprobs, self.body.get("top_logprobs", 0))
        return {"logprobs": {"content": content, "refusal": None}, **token_ids}


def reasoning_counter(call: Call, output: ChatOutput) -> ReasoningTokens:
    decoder = call.context.get_tokenizer().stream_decoder(visible=output.visible_token_ids)
    return ReasoningTokens(decoder, starts_inside=output.starts_inside)

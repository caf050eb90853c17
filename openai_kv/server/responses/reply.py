"""A response around its output: whole, as events, and as it is kept."""

import time
from collections.abc import Collection, Sequence
from typing import Any

from openai_kv.errors import OverloadedError, RequestError
from openai_kv.outputs import RequestOutput
from openai_kv.request import FinishReason, TokenLogprobs
from openai_kv.server.call import Call
from openai_kv.server.chat_reader import ChoiceReader, call_id
from openai_kv.server.chat_reply import ChatReply
from openai_kv.server.envelope import encode
from openai_kv.server.generation import Batch
from openai_kv.server.responses.asked import Asked, owner_of
from openai_kv.server.responses.events import EventWriter
from openai_kv.server.responses.output import Output, settled
from openai_kv.server.responses.output_items import Payload, new_id
from openai_kv.server.responses.planning import ChatPlan
from openai_kv.server.responses.store import StoredResponse
from openai_kv.server.responses.token_reader import TokenReader
from openai_kv.server.streaming import Framing
from openai_kv.server.usage import response_usage


class ResponseReply(ChatReply):
    """The one choice of a chat, read into output items."""

    def __init__(self, call: Call, asked: Asked, plan: ChatPlan) -> None:
        output = plan.plan.output
        super().__init__(call, plan.body, new_id("resp"), [plan.plan.prompt], 1, output)
        self.framing = Framing(self.failed, b"")
        self._call = call
        self._asked = asked
        self._described = {
            **{"id": self.id, "object": "response", "created_at": call.exchange.created, "model": plan.body["model"]},
            **{"status": "in_progress", "background": False, "error": None, "incomplete_details": None},
            **asked.echo(plan.plan.params),
        }
        self._reader = TokenReader(ChoiceReader(output), self.logprobs_of)
        self._items = Output(lambda: call_id(output.parser) if output.parser else "")
        self._writer = EventWriter()

    def whole(self, last: Collection[RequestOutput]) -> dict[str, Any]:
        for told in settled(self._reader.take(self._parts[0])):
            list(self._items.take(told))
        list(self._items.finish(self._status))
        return self._ended(last)

    def chunks(self, batch: Batch, _last: Collection[RequestOutput]) -> bytes:
        self.add(batch)
        events = self._first_events()
        for told in self._reader.take(self._parts[0]):
            events += self._writer.write(self._items.take(told))
        return events

    def last_events(self, last: Collection[RequestOutput]) -> bytes:
        events = self._writer.write(self._items.finish(self._status))
        response = self._ended(last)
        self.keep(encode(response))
        return events + self._writer.write([{"type": f"response.{self._status}", "response": response}])

    def failed(self, error: RequestError) -> bytes:
        """The end of a stream that can't go on."""
        code = "rate_limit_exceeded" if isinstance(error, OverloadedError) else "server_error"
        told = {"code": code, "message": error.message, "type": error.type, "param": error.param}
        list(self._items.end("incomplete"))
        response = self._response(status="failed", error=told)
        return self._first_events() + self._writer.write([{"type": "response.failed", "response": response}])

    def keep(self, content: bytes) -> None:
        if not self._asked.body.get("store", True):
            return
        conversation = self._asked.conversation.with_items(self._items.to_json())
        stored = StoredResponse(owner_of(self._call), content, conversation, self._asked.size + len(content))
        self._call.context.responses.put(self.id, stored)

    def logprobs_of(self, entries: Sequence[TokenLogprobs]) -> list[Payload]:
        """Where a token has no bytes the SDK wants an empty list."""
        found = self.format.chat(entries, self.body.get("top_logprobs", 0))
        for token in found:
            for each in (token, *token["top_logprobs"]):
                each["bytes"] = each["bytes"] or []
        return found

    @property
    def _status(self) -> str:
        return "incomplete" if self._parts[0].finish_reason is FinishReason.LENGTH else "completed"

    def _first_events(self) -> bytes:
        if self._writer.number:
            return b""
        kinds = ("response.created", "response.in_progress")
        return self._writer.write({"type": kind, "response": self._response()} for kind in kinds)

    def _ended(self, last: Collection[RequestOutput]) -> dict[str, Any]:
        status, fields = self._status, {"usage": response_usage(self.usage(last))}
        if status == "completed":
            return self._response(status=status, completed_at=int(time.time()), **fields)
        return self._response(status=status, incomplete_details={"reason": "max_output_tokens"}, **fields)

    def _response(self, **fields: Any) -> dict[str, Any]:
        return {**self._described, "output": self._items.to_json(), "usage": None, **fields}

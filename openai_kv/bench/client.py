"""Asks one server, in OpenAI's words, and takes the times of what it streams."""

import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from openai_kv.bench.reply import Reply

Message = Mapping[str, str]


class BadReply(Exception):
    """An answer, but no usable one."""


@dataclass(slots=True)
class Record:
    """What has come of one stream so far; `arrivals` are the moments of those events that held text."""

    arrivals: list[float] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    usage: Mapping[str, Any] = field(default_factory=dict)

    def take(self, event: Mapping[str, Any]) -> None:
        """Raises BadReply for an error event."""
        if "error" in event:
            raise BadReply(str(event["error"].get("message", event["error"])))
        self.usage = event.get("usage") or self.usage
        delta = event["choices"][0].get("delta", {}) if event.get("choices") else {}
        text = (delta.get("reasoning_content") or "") + (delta.get("content") or "")
        if text:
            self.arrivals.append(time.perf_counter())
            self.pieces.append(text)

    def reply(self, start: float) -> Reply:
        """Raises BadReply if there was no text. A server that reports no usage gets its pieces counted."""
        if not self.arrivals:
            raise BadReply("the stream held no text")
        details = self.usage.get("prompt_tokens_details") or {}
        gaps = zip(self.arrivals[1:], self.arrivals, strict=False)
        return Reply(
            start=start,
            ttft=self.arrivals[0] - start,
            total=time.perf_counter() - start,
            gaps=tuple(later - earlier for later, earlier in gaps),
            prompt_tokens=self.usage.get("prompt_tokens", 0),
            completion_tokens=self.usage.get("completion_tokens", len(self.pieces)),
            cached_tokens=details.get("cached_tokens"),
            text="".join(self.pieces),
        )


@dataclass(frozen=True, slots=True)
class Client:
    """`http` has the base URL. `extra` goes into each request, as `ignore_eos` does for answers of one length."""

    http: httpx.AsyncClient
    model: str
    extra: Mapping[str, Any]

    async def ask(self, messages: Sequence[Message], max_tokens: int) -> Reply:
        """What goes wrong becomes the reply's error."""
        start = time.perf_counter()
        try:
            return await self._stream(messages, max_tokens, start)
        except (httpx.HTTPError, BadReply, json.JSONDecodeError) as error:
            return Reply(start, total=time.perf_counter() - start, error=str(error) or type(error).__name__)

    async def _stream(self, messages: Sequence[Message], max_tokens: int, start: float) -> Reply:
        record = Record()
        async with self.http.stream("POST", "chat/completions", json=self._body(messages, max_tokens)) as response:
            if not response.is_success:
                raise BadReply(explain(response.status_code, await response.aread()))
            async for event in events(response):
                record.take(event)
        return record.reply(start)

    def _body(self, messages: Sequence[Message], max_tokens: int) -> Mapping[str, Any]:
        return {
            "model": self.model,
            "messages": messages,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.extra,
        }


async def events(response: httpx.Response) -> AsyncIterator[Mapping[str, Any]]:
    """The JSON objects of a stream of `data:` lines, up to `[DONE]` or the end."""
    async for line in response.aiter_lines():
        data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
        if data == "[DONE]":
            return
        if data:
            yield json.loads(data)


def explain(status: int, body: bytes) -> str:
    """The envelope's message if there is one."""
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = body.decode(errors="replace")
    return f"HTTP {status}: {str(message)[:200]}"

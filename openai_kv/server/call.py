"""One call of an endpoint: what it may read, and the only ways to answer."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers, QueryParams
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from openai_kv.errors import NotFoundError, ParameterError, RequestError
from openai_kv.server.auth import Authenticator, Key
from openai_kv.server.body import in_thread_if_large, parse_object
from openai_kv.server.context import ServerContext
from openai_kv.server.envelope import encode, envelope, error_headers, to_request_error
from openai_kv.server.fields import Notes, Object
from openai_kv.server.middleware import Exchange
from openai_kv.server.shared_fields import SESSION_ID, Limits
from openai_kv.server.streaming import CHUNKS, EventStream, Framing

Schema = Callable[[Limits], Object]
NUMBER = re.compile(r"[0-9]*\.?[0-9]+(e[+-]?[0-9]+)?", re.ASCII | re.IGNORECASE)


@dataclass(slots=True)
class Call:
    """`payload` is the body parsed; `stream` is set by a handler that answers piece by piece; `aborted`: its
    requests had not ended.
    """

    context: ServerContext
    authenticator: Authenticator
    scope: Scope
    receive: Receive
    send: Send
    key: Key | None = None
    body: bytes = b""
    payload: dict[str, Any] | None = None
    stream: EventStream | None = None
    aborted: bool = False
    notes: Notes = field(default_factory=Notes)

    @property
    def exchange(self) -> Exchange:
        exchange: Exchange = self.scope["state"]["exchange"]
        return exchange

    @property
    def headers(self) -> Headers:
        return Headers(scope=self.scope)

    @property
    def query(self) -> QueryParams:
        return QueryParams(self.scope["query_string"])

    @property
    def path(self) -> str:
        return str(self.scope["path"])

    @property
    def time_limit(self) -> float:
        """Seconds this call may take in all. A bad X-Request-Timeout counts as none: `check_headers` refuses it."""
        limit = self.context.settings.server.request_timeout
        return min(limit, parse_seconds(self.headers.get("x-request-timeout", "")) or limit)

    @property
    def deadline(self) -> float:
        """In `time.monotonic`."""
        return self.exchange.arrival + self.time_limit

    async def parse(self, schema: Schema) -> dict[str, Any]:
        """The body as `schema` has it; with what was given, in the contract's order: JSON, model, state, parameters."""
        return await in_thread_if_large(
            self.body, lambda body: self.check(parse_object(body) if self.payload is None else self.payload, schema)
        )

    def check(self, payload: dict[str, Any], schema: Schema) -> dict[str, Any]:
        self.check_model(payload.get("model"))
        self.context.require_ready()
        self.check_headers()
        self.notes.strict = self.context.settings.server.strict_parameters
        self.notes.ttl_max = self.context.settings.cache.ttl_max
        limits = Limits.of(self.context.settings.server, self.context.engine.info)
        return schema(limits)(payload, "", self.notes)

    def check_model(self, model: object) -> None:
        if isinstance(model, str) and not self.context.serves(model):
            raise model_not_found(model, "model")

    def check_headers(self) -> None:
        """Raises ParameterError for one that the contract bounds."""
        timeout, session_id = self.headers.get("x-request-timeout"), self.headers.get("x-session-id")
        if timeout is not None and parse_seconds(timeout) is None:
            raise bad_header("X-Request-Timeout", "a number of seconds above 0")
        if session_id is not None and not 0 < len(session_id) <= (SESSION_ID.maximum or 0):
            raise bad_header("X-Session-ID", f"a text of 1 to {SESSION_ID.maximum} characters")

    def headers_of_answer(self) -> dict[str, str]:
        """Warnings, if there are any."""
        return {"x-openai-kv-warnings": header_list(self.notes.warnings)} if self.notes.warnings else {}

    async def answer(self, payload: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
        """200 with JSON."""
        await self.answer_bytes(encode(payload), headers)

    async def answer_bytes(self, content: bytes, headers: Mapping[str, str] | None = None) -> None:
        """The same for JSON that is encoded already."""
        await self.respond(content, headers={**self.headers_of_answer(), **(headers or {})})

    async def respond(
        self,
        content: bytes,
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        media_type: str = "application/json",
    ) -> None:
        response = Response(content, status, dict(headers or {}), media_type)
        await response(self.scope, self.receive, self.send)

    def open_stream(self, framing: Framing = CHUNKS) -> EventStream:
        """From here on the answer is events; nothing is sent yet."""
        timeout = self.context.settings.server.write_timeout
        self.stream = EventStream(self.send, timeout, self.exchange.arrival, framing)
        self.stream.headers |= self.headers_of_answer()
        return self.stream

    async def fail(self, error: Exception, headers: Mapping[str, str] | None = None) -> None:
        """The envelope: as an HTTP error, or as the last event of a stream that has begun."""
        refusal = to_request_error(error, self.exchange.request_id)
        if self.stream is not None and self.stream.started:
            await self.stream.fail(refusal)
        elif not self.exchange.has_begun:
            all_headers = {**error_headers(refusal), **(headers or {})}
            await self.respond(encode(envelope(refusal)), status=refusal.status, headers=all_headers)


def model_not_found(model: str, param: str | None) -> NotFoundError:
    message = f"The model '{model[:64]}' does not exist; GET /v1/models lists those that do."
    return NotFoundError(message, param=param, code="model_not_found")


def parse_seconds(text: str) -> float | None:
    """None for what is no number above 0."""
    seconds = float(text) if NUMBER.fullmatch(text) else 0.0
    return seconds if 0 < seconds < float("inf") else None


def bad_header(name: str, expected: str) -> RequestError:
    return ParameterError(f"Parameter '{name}' must be {expected}.", param=name, code="invalid_value")


def header_list(warnings: list[str]) -> str:
    """`code=param` items, comma-separated, in characters a header can hold."""
    clean = ("".join(c if (c.isascii() and c.isalnum()) or c in "_.[]-=" else "_" for c in item) for item in warnings)
    return ",".join(clean)[:1024]

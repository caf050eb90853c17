"""Around every exchange: request id, the headers each response has, and the record for exporters and the log."""

import logging
import re
import time
import uuid
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_kv.exporting import ExporterGroup
from openai_kv.metrics import GenerationStats, HttpStats

logger = logging.getLogger(__name__)
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII)
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
POLLED = frozenset({"/health", "/ready", "/metrics"})
CLIENT_LEFT = 499


@dataclass(slots=True)
class Exchange:
    """One request and its response. `arrival` is of `time.monotonic`, `arrival_time` Unix time; `route` a template.

    `server` is the local end of the connection, `upstream` the pattern of the one that answers, `upstream_server` where
    it is. `headers` are of any answer, unless it has its own; `has_begun`: they have left. Whoever gets to know
    `error_code` and `generation` sets them. `error_reason` is for the log only.
    """

    request_id: str
    method: str
    server: tuple[str, int] = ("", 0)
    traceparent: str | None = None
    tracestate: str | None = None
    arrival: float = field(default_factory=time.monotonic)
    arrival_time: float = field(default_factory=time.time)
    route: str = "unmatched"
    key_id: str = "-"
    upstream: str | None = None
    upstream_server: tuple[str, int] = ("", 0)
    status: int = CLIENT_LEFT
    has_begun: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    error_code: str | None = None
    error_reason: str | None = None
    generation: GenerationStats | None = None

    @property
    def created(self) -> int:
        return int(self.arrival_time)

    def stats(self) -> HttpStats:
        return HttpStats(
            method=self.method if self.method in METHODS else "OTHER",
            route=self.route,
            status=self.status,
            seconds=time.monotonic() - self.arrival,
            request_id=self.request_id,
            arrival_time=self.arrival_time,
            server_address=self.server[0],
            server_port=self.server[1],
            error_code=self.error_code,
            traceparent=self.traceparent,
            tracestate=self.tracestate,
            generation=self.generation,
            upstream=self.upstream,
            upstream_address=self.upstream_server[0],
            upstream_port=self.upstream_server[1],
        )


class ExchangeMiddleware:
    """Outermost. The Exchange is `scope["state"]["exchange"]` for the layers below."""

    def __init__(self, app: ASGIApp, exporters: ExporterGroup) -> None:
        self.app = app
        self.exporters = exporters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = make_exchange(scope)
        scope.setdefault("state", {})["exchange"] = exchange
        try:
            await self.app(scope, receive, self.completing(send, exchange))
        finally:
            self.report(exchange)

    def completing(self, send: Send, exchange: Exchange) -> Send:
        async def complete(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status, exchange.has_begun = message["status"], True
                add_headers(MutableHeaders(scope=message), exchange)
            await send(message)

        return complete

    def report(self, exchange: Exchange) -> None:
        stats = exchange.stats()
        reason = f" ({exchange.error_reason})" if exchange.error_reason else ""
        logger.log(
            logging.DEBUG if stats.route in POLLED else logging.INFO,
            "%s %s %s %d %.1f ms key=%s upstream=%s error=%s",
            exchange.request_id,
            stats.method,
            stats.route,
            stats.status,
            stats.seconds * 1000,
            exchange.key_id,
            exchange.upstream or "-",
            f"{exchange.error_code or '-'}{reason}",
        )
        self.exporters.on_http_request(stats)


def make_exchange(scope: Scope) -> Exchange:
    headers = Headers(scope=scope)
    host, port = scope.get("server") or ("", 0)
    return Exchange(
        request_id=request_id_of(headers),
        method=scope["method"],
        server=(host, port or 0),
        traceparent=headers.get("traceparent"),
        tracestate=headers.get("tracestate"),
    )


def request_id_of(headers: Headers) -> str:
    """The client's own id if it is a harmless one."""
    given = headers.get("x-request-id", "")
    return given if REQUEST_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"


def add_headers(headers: MutableHeaders, exchange: Exchange) -> None:
    headers["x-request-id"] = exchange.request_id
    headers["x-content-type-options"] = "nosniff"
    for name, value in exchange.headers.items():
        headers.setdefault(name, value)
    if exchange.method == "POST":
        elapsed = time.monotonic() - exchange.arrival
        headers.setdefault("openai-processing-ms", str(round(elapsed * 1000)))

"""Around every exchange: request id, the headers each response has, and the record for exporters and the log."""

import logging
import re
import time
import uuid
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_kv.exporting import ExporterGroup
from openai_kv.metrics import HttpStats

logger = logging.getLogger(__name__)
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII)
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
POLLED = frozenset({"/health", "/ready", "/metrics"})
CLIENT_LEFT = 499


@dataclass(slots=True)
class Exchange:
    """One request and its response. `arrival` is of `time.monotonic`, `created` Unix time; `route` is a template.

    `upstream` is the pattern of the one that answers. `headers` are of any answer, unless it has its own;
    `has_begun`: they have left.
    """

    request_id: str
    method: str
    arrival: float = field(default_factory=time.monotonic)
    created: int = field(default_factory=lambda: int(time.time()))
    route: str = "unmatched"
    key_id: str = "-"
    upstream: str = "-"
    status: int = CLIENT_LEFT
    has_begun: bool = False
    headers: dict[str, str] = field(default_factory=dict)

    def stats(self) -> HttpStats:
        method = self.method if self.method in METHODS else "OTHER"
        return HttpStats(method, self.route, self.status, time.monotonic() - self.arrival)


class ExchangeMiddleware:
    """Outermost. The Exchange is `scope["state"]["exchange"]` for the layers below."""

    def __init__(self, app: ASGIApp, exporters: ExporterGroup) -> None:
        self.app = app
        self.exporters = exporters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = Exchange(request_id_of(Headers(scope=scope)), scope["method"])
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
        logger.log(
            logging.DEBUG if stats.route in POLLED else logging.INFO,
            "%s %s %s %d %.1f ms key=%s upstream=%s",
            exchange.request_id,
            stats.method,
            stats.route,
            stats.status,
            stats.seconds * 1000,
            exchange.key_id,
            exchange.upstream,
        )
        self.exporters.on_http_request(stats)


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

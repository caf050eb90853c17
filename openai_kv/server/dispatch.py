"""From a request to its endpoint: the contract's order of checks, the watch over the client, errors to envelopes."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto

from starlette.types import Receive, Scope, Send

from openai_kv.errors import (
    InternalError,
    MethodNotAllowedError,
    NotFoundError,
    OverloadedError,
    RequestError,
    RequestTimeoutError,
    UnavailableError,
    UpstreamError,
)
from openai_kv.server.auth import Authenticator
from openai_kv.server.body import check_content_type, read_body
from openai_kv.server.call import Call
from openai_kv.server.context import ServerContext
from openai_kv.server.envelope import ClientLeft, SlowReader
from openai_kv.server.middleware import CLIENT_LEFT
from openai_kv.server.rate_limit import RateLimiter

Handler = Callable[[Call], Awaitable[None]]


class Access(Enum):
    OPEN = auto()
    KEY = auto()
    ADMIN = auto()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`generates`: counts against the rate limit."""

    handler: Handler
    access: Access = Access.KEY
    generates: bool = False


class Resource:
    """The ASGI app of one path. `endpoints` by method; none at all: the path does not exist."""

    def __init__(
        self,
        context: ServerContext,
        authenticator: Authenticator,
        limiter: RateLimiter | None,
        route: str,
        endpoints: Mapping[str, Endpoint],
    ) -> None:
        self.context = context
        self.authenticator = authenticator
        self.limiter = limiter
        self.route = route
        self.endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(self.context, self.authenticator, scope, receive, send)
        try:
            await self.handle(call)
        except Exception as error:
            self.report(call, error)
            await self.refuse(call, error)

    async def handle(self, call: Call) -> None:
        endpoint = self.admit(call)
        if call.exchange.method != "POST":
            await endpoint.handler(call)
            return
        with self.context.lifecycle.working():
            check_content_type(call.headers)
            call.body = await read_body(call.receive, self.context.settings.server)
            await watch_over(call, endpoint.handler)

    def admit(self, call: Call) -> Endpoint:
        """Key, path, method, admin, draining, rate: in this order. Raises the error of the first that fails."""
        exchange = call.exchange
        if all(endpoint.access is not Access.OPEN for endpoint in self.endpoints.values()):
            call.key = self.authenticator.authenticate(call.headers.get("authorization"))
            exchange.key_id = call.key.key_id if call.key else "-"
        if not self.endpoints:
            missing = f"{exchange.method[:16]} {call.path[:64]}"
            raise NotFoundError(f"There is no {missing} here; GET /openapi.json lists what there is.")
        exchange.route = self.route
        endpoint = self.endpoints.get("GET" if exchange.method == "HEAD" else exchange.method)
        if endpoint is None:
            raise MethodNotAllowedError(f"{exchange.method[:16]} is not allowed here; use {self.allowed}.")
        if endpoint.access is Access.ADMIN:
            self.authenticator.require_admin(call.key)
        self.check_draining(exchange.method)
        if endpoint.generates and self.limiter:
            self.check_rate(call, self.limiter)
        return endpoint

    @property
    def allowed(self) -> str:
        return ", ".join([*self.endpoints, "HEAD"] if "GET" in self.endpoints else self.endpoints)

    def check_draining(self, method: str) -> None:
        refusal = self.context.lifecycle.refusal() if method == "POST" else None
        if refusal is not None:
            raise refusal

    def check_rate(self, call: Call, limiter: RateLimiter) -> None:
        allowance = limiter.take(call.key.digest if call.key else b"")
        call.exchange.headers |= allowance.headers
        allowance.check()

    def report(self, call: Call, error: Exception) -> None:
        call.exchange.error_code, call.exchange.error_reason = error_code(error), error_reason(error)
        if call.exchange.generation is not None:
            call.exchange.generation = replace(call.exchange.generation, error_code=error_code(error))
        if isinstance(error, OverloadedError) and error.reason:
            self.context.exporters.on_rejected(error.reason)
        if call.aborted and (reason := abort_reason(error)):
            self.context.exporters.on_abort(reason)

    async def refuse(self, call: Call, error: Exception) -> None:
        """Nobody listens to what a client that left is told; uvicorn closes the connection of a slow reader."""
        try:
            if isinstance(error, ClientLeft | SlowReader):
                raise error
            await call.fail(error, {"allow": self.allowed} if isinstance(error, MethodNotAllowedError) else {})
        except (ClientLeft, SlowReader):
            call.exchange.status = CLIENT_LEFT


def error_code(error: Exception) -> str:
    """The envelope's code, or how the client was lost: nobody gets an envelope then."""
    if isinstance(error, ClientLeft | SlowReader):
        return str(abort_reason(error))
    return error.code if isinstance(error, RequestError) else InternalError.default_code


def error_reason(error: Exception) -> str | None:
    """For the log: which path there is none of, and, what a client is not told, what an upstream's failure came from.

    Control characters are escaped.
    """
    if not isinstance(error, UpstreamError | NotFoundError):
        return None
    cause = error.__cause__
    reason = str(error) if cause is None else f"{type(cause).__name__}: {cause}"
    return reason.encode("unicode_escape").decode()[:200]


def abort_reason(error: Exception) -> str | None:
    """None if the engine itself refused or gave up the request."""
    if isinstance(error, ClientLeft | SlowReader):
        return "disconnect" if isinstance(error, ClientLeft) else "slow_reader"
    return {"request_timeout": "deadline", "shutting_down": "shutdown"}.get(getattr(error, "code", ""))


async def watch_over(call: Call, handler: Handler) -> None:
    """Run the handler for as long as the client is there and reads; cancelling it makes it abort its requests."""
    work = asyncio.create_task(run_in_time(call, handler))
    watch = asyncio.create_task(watch_client(call))
    try:
        await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        return watch.result()
    finally:
        work.cancel()
        watch.cancel()
        await asyncio.gather(work, watch, return_exceptions=True)


async def run_in_time(call: Call, handler: Handler) -> None:
    lifecycle = call.context.lifecycle
    try:
        async with asyncio.timeout(call.deadline - time.monotonic()) as timeout:
            with lifecycle.bounding(timeout):
                await handler(call)
    except TimeoutError:
        if not timeout.expired():
            raise
        if lifecycle.is_over:
            raise UnavailableError("The server is shutting down.", code="shutting_down", retry_after=5) from None
        raise RequestTimeoutError(f"The request took longer than {call.time_limit:g} seconds.") from None


async def watch_client(call: Call) -> None:
    """Ends by ClientLeft when the client hangs up, by SlowReader when a keep-alive can't be sent."""
    ping = call.context.settings.server.sse_ping
    last = call.exchange.arrival
    while True:
        last = max(last, call.stream.last_sent if call.stream else last)
        try:
            async with asyncio.timeout(max(last + ping - time.monotonic(), 0) if ping else None):
                message = await call.receive()
        except TimeoutError:
            last = await keep_alive(call)
            continue
        if message["type"] == "http.disconnect":
            raise ClientLeft


async def keep_alive(call: Call) -> float:
    """Break a silence that lasted long enough; the time it was looked at."""
    now = time.monotonic()
    ping = call.context.settings.server.sse_ping
    if call.stream is not None and call.stream.last_sent + ping <= now:
        await call.stream.keep_alive()
    return now

"""Requests for models of an upstream: sent on and answered unchanged."""

from collections.abc import Generator
from contextlib import aclosing, contextmanager

import httpx

from openai_kv.errors import UpstreamError
from openai_kv.server.body import in_thread_if_large, parse_object
from openai_kv.server.call import Call
from openai_kv.server.dispatch import Handler
from openai_kv.server.relay import Relay
from openai_kv.server.renaming import with_model
from openai_kv.server.streaming import CHUNKS, Framing
from openai_kv.server.upstream_models import Header
from openai_kv.server.upstreams import Upstream

SENT = frozenset({b"accept", b"user-agent", b"openai-beta", b"traceparent", b"tracestate", b"x-session-id"})


def forwardable(local: Handler, framing: Framing = CHUNKS) -> Handler:
    """`local`, but for models of an upstream: of those requests only that the body is an object is checked.

    `framing` is for streams that break off.
    """

    async def handler(call: Call) -> None:
        call.payload = await in_thread_if_large(call.body, parse_object)
        upstream = call.context.upstream_for(call.payload.get("model"))
        await (local(call) if upstream is None else forward(call, upstream, framing))

    return handler


async def forward(call: Call, upstream: Upstream, framing: Framing) -> None:
    """Raises UpstreamError: an HTTP error, or the last event of a stream that has begun."""
    call.check_headers()
    call.exchange.upstream, call.exchange.upstream_server = upstream.pattern, upstream.server
    body, name = call.body, upstream.settings.model
    if name:
        body = await in_thread_if_large(body, lambda whole: with_model(whole, name))
    with failures():
        response = await upstream.send("POST", call.path.removeprefix("/v1"), headers_to_send(call), body)
        async with aclosing(response):
            relay = Relay(call, response, framing)
            call.stream = relay
            await relay.pass_on()


def headers_to_send(call: Call) -> list[Header]:
    """The client's key is not among them."""
    return [
        *((name, value) for name, value in call.scope["headers"] if name in SENT),
        (b"content-type", call.headers.get("content-type", "application/json").encode("latin-1")),
        (b"x-request-id", call.exchange.request_id.encode()),
        call.context.upstreams.next_hops(call.headers),
    ]


@contextmanager
def failures() -> Generator[None, None, None]:
    """Around everything that an upstream's silence or absence can break."""
    try:
        yield
    except httpx.ConnectTimeout as error:
        raise UpstreamError("The upstream of this model can't be reached.") from error
    except httpx.TimeoutException as error:
        raise UpstreamError("The upstream of this model was silent for too long.", code="upstream_timeout") from error
    except httpx.TransportError as error:
        raise UpstreamError("The upstream of this model can't be reached, or broke off.") from error

"""Cross-origin requests of browsers: Starlette's middleware, with errors in our envelope."""

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from openai_kv.errors import ParameterError
from openai_kv.server.envelope import encode, envelope

METHODS = ("GET", "HEAD", "POST", "DELETE")
EXPOSED = (
    "x-request-id",
    "openai-processing-ms",
    "x-openai-kv-cache-hit-tokens",
    "x-openai-kv-warnings",
    "Retry-After",
    "retry-after-ms",
    "x-should-retry",
    "Allow",
    "WWW-Authenticate",
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
    "x-upstream-request-id",
)


class Cors(CORSMiddleware):
    """Preflights are answered before any key is asked for. Cookies are never allowed: a key is a header."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        super().__init__(app, allow_origins=origins, allow_methods=METHODS, allow_headers=["*"], expose_headers=EXPOSED)

    def preflight_response(self, request_headers: Headers) -> Response:
        answer = super().preflight_response(request_headers)
        if answer.status_code < 400:
            return answer
        refusal = ParameterError("This origin, method or header is not allowed.", param="Origin", code="invalid_value")
        return Response(encode(envelope(refusal)), refusal.status, media_type="application/json")

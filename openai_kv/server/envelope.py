"""The error envelope: the one place where an exception becomes what a client sees."""

import json
import logging
from collections.abc import Mapping
from typing import Any

import orjson

from openai_kv.errors import InternalError, RequestError

logger = logging.getLogger(__name__)
MESSAGE_LIMIT = 1000
NO_RETRY = frozenset({"request_timeout", "upstream_loop"})


class ClientLeft(Exception):
    """The client closed the connection: there is nobody to answer."""


class SlowReader(Exception):
    """The client didn't read for `write_timeout` seconds."""


def to_request_error(error: Exception, request_id: str) -> RequestError:
    """A RequestError as it is; anything else is our fault and is logged. Of ours the client hears the request id."""
    if isinstance(error, InternalError):
        return InternalError(f"{error.message.rstrip('.')} ({request_id}).")
    if isinstance(error, RequestError):
        return error
    logger.error("request %s failed", request_id, exc_info=error)
    return InternalError(f"The server failed on this request ({request_id}).")


def envelope(error: RequestError) -> dict[str, Any]:
    message = error.message[:MESSAGE_LIMIT]
    return {"error": {"message": message, "type": error.type, "param": error.param, "code": error.code}}


def error_headers(error: RequestError) -> Mapping[str, str]:
    """Of a plain HTTP error, over those every response has."""
    headers: dict[str, str] = {}
    if error.status in (429, 503):
        headers["retry-after"] = str(min(max(error.retry_after or 1, 1), 60))
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.code in NO_RETRY:
        headers["x-should-retry"] = "false"
    if error.code in ("draining", "body_timeout"):
        headers["connection"] = "close"
    return headers


def encode(payload: Mapping[str, Any]) -> bytes:
    """Compact JSON in UTF-8, on one line."""
    try:
        return orjson.dumps(payload)
    except orjson.JSONEncodeError:  # it knows no integers above 64 bits, which a client may have us repeat
        return json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode()

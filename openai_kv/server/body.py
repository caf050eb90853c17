"""Request bodies: read under limits, parsed strictly, checked against a field table."""

import asyncio
import json
import math
import re
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from starlette.datastructures import Headers
from starlette.types import Receive

from openai_kv.config import ServerSettings
from openai_kv.errors import BodyTooLargeError, RequestError, RequestTimeoutError, UnsupportedMediaTypeError
from openai_kv.server.envelope import ClientLeft

T = TypeVar("T")
MAX_NESTING = 64
INLINE_BYTES = 16384
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def check_content_type(headers: Headers) -> None:
    content_type = headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise UnsupportedMediaTypeError("The Content-Type must be application/json.")
    if "content-encoding" in headers:
        raise UnsupportedMediaTypeError("A Content-Encoding is not supported.")


async def read_body(receive: Receive, settings: ServerSettings) -> bytes:
    """Raises BodyTooLargeError, RequestTimeoutError (`body_timeout`) or ClientLeft."""
    try:
        async with asyncio.timeout(settings.body_timeout):
            return await collect(receive, settings.max_body_bytes)
    except TimeoutError:
        message = f"The request body did not arrive within {settings.body_timeout:g} seconds."
        raise RequestTimeoutError(message, code="body_timeout") from None


async def collect(receive: Receive, limit: int) -> bytes:
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > limit:
            raise BodyTooLargeError(f"The request body may have at most {limit} bytes.")
    return bytes(body)


async def in_thread_if_large(body: bytes, work: Callable[[bytes], T]) -> T:
    """`work(body)`, off the event loop when it might take long."""
    return work(body) if len(body) <= INLINE_BYTES else await asyncio.to_thread(work, body)


def parse_object(body: bytes) -> dict[str, Any]:
    """A JSON object; raises RequestError `invalid_json` for everything else."""
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=refuse_constant, parse_float=finite)
        if SURROGATE.search(body):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise invalid_json(f"it is nested deeper than {MAX_NESTING}") from None
    except json.JSONDecodeError as error:
        raise invalid_json(f"{error.msg} at line {error.lineno}, column {error.colno}") from None
    except ValueError:
        raise invalid_json("it holds text that is not UTF-8, or a number that is not JSON or too large") from None
    if not isinstance(value, dict):
        raise invalid_json("it must be an object")
    check_nesting(value)
    return value


def refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def finite(digits: str) -> float:
    """Infinity could be echoed by no JSON."""
    number = float(digits)
    if math.isinf(number):
        raise ValueError(digits)
    return number


def check_nesting(value: dict[str, Any]) -> None:
    """Level by level, so that no input can exhaust the stack."""
    level: list[Any] = [value]
    for _ in range(MAX_NESTING):
        level = [child for parent in level for child in children(parent) if isinstance(child, dict | list)]
        if not level:
            return
    raise invalid_json(f"it is nested deeper than {MAX_NESTING}")


def children(parent: Any) -> Any:
    return parent.values() if isinstance(parent, dict) else parent


def invalid_json(reason: str) -> RequestError:
    return RequestError(f"The request body is not valid JSON: {reason}.", code="invalid_json")

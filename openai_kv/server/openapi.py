"""GET /openapi.json: the routes and their bodies as OpenAPI 3.1, made from the tables the server itself goes by."""

import re
from collections.abc import Mapping
from typing import Any

from openai_kv import __version__
from openai_kv.server.answers import ERROR
from openai_kv.server.call import Call
from openai_kv.server.dispatch import Access, Endpoint, Handler
from openai_kv.server.fields import Check
from openai_kv.server.operations import OPERATIONS, Operation
from openai_kv.server.schemas import schema_of
from openai_kv.server.shared_fields import SESSION_ID, Limits

Table = Mapping[str, Mapping[str, Endpoint]]
WITH_BODY = (400, 408, 413, 415, 503)
RETRY_AFTER = {"schema": {"type": "integer", "minimum": 1, "maximum": 60}, "description": "seconds"}
HEADERS = (
    {"name": "X-Request-Timeout", "in": "header", "schema": {"type": "number", "exclusiveMinimum": 0}},
    {"name": "X-Session-ID", "in": "header", "schema": schema_of(SESSION_ID)},
)
UNKNOWN = Operation(errors=(400, 404, 503))


def describing(table: Table) -> Handler:
    """`table` is read when somebody asks."""

    async def handler(call: Call) -> None:
        call.context.require_ready()
        limits = Limits.of(call.context.settings.server, call.context.engine.info)
        await call.answer(describe(table, limits, has_keys=bool(call.authenticator.keys)))

    return handler


def describe(table: Table, limits: Limits, *, has_keys: bool) -> dict[str, Any]:
    """The whole document; without any key no route asks for one."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "openai-kv", "version": __version__},
        "paths": {path.replace(":path}", "}"): path_item(path, methods, limits) for path, methods in table.items()},
        "security": [{"key": []}] if has_keys else [],
        "components": {
            "schemas": {"Error": ERROR},
            "responses": {
                "Error": error_response(),
                "TryLater": {**error_response(), "headers": {"Retry-After": RETRY_AFTER}},
            },
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def error_response() -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {"description": "the error envelope", "content": content}


def path_item(path: str, methods: Mapping[str, Endpoint], limits: Limits) -> dict[str, Any]:
    path = path.replace(":path}", "}")
    names = re.findall(r"{(\w+)}", path)
    parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    items = {method.lower(): operation(f"{method} {path}", endpoint, limits) for method, endpoint in methods.items()}
    return {**items, **({"parameters": parameters} if parameters else {})}


def operation(name: str, endpoint: Endpoint, limits: Limits) -> dict[str, Any]:
    known = OPERATIONS.get(name, UNKNOWN)
    described: dict[str, Any] = {
        "operationId": "_".join(re.findall(r"\w+", name)).lower(),
        "summary": known.summary,
        "responses": responses(known, statuses(name, known, endpoint)),
    }
    if endpoint.access is Access.OPEN:
        described["security"] = []
    if known.query:
        described["parameters"] = [query_parameter(name, check) for name, check in known.query.items()]
    if name.startswith("POST "):
        described["parameters"] = list(HEADERS)
        described["requestBody"] = request_body(known, limits)
    return described


def query_parameter(name: str, check: Check) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": schema_of(check), "allowEmptyValue": True}


def request_body(known: Operation, limits: Limits) -> dict[str, Any]:
    schema = schema_of(known.body(limits)) if known.body else {"type": "object"}
    return {"required": not known.optional_body, "content": {"application/json": {"schema": schema}}}


def statuses(name: str, known: Operation, endpoint: Endpoint) -> list[int]:
    """Every error it can give."""
    found = {500, *known.errors}
    if endpoint.access is not Access.OPEN:
        found.add(401)
    if endpoint.access is Access.ADMIN:
        found.add(403)
    if name.startswith("POST "):
        found.update(WITH_BODY)
    return sorted(found)


def responses(known: Operation, errors: list[int]) -> dict[str, Any]:
    content: dict[str, Any] = {known.media: {"schema": dict(known.answer)}}
    if known.streams:
        content["text/event-stream"] = {}
    failures = {
        str(status): {"$ref": f"#/components/responses/{'TryLater' if status in (429, 503) else 'Error'}"}
        for status in errors
    }
    return {"200": {"description": "the answer", "content": content}, **failures}

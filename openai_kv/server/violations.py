"""The contract's parameter errors: one function a kind of violation, all with the parameter's path."""

import json
from typing import Any

from openai_kv.errors import ParameterError

ECHO_LIMIT = 64


def clip(text: str) -> str:
    return text if len(text) <= ECHO_LIMIT else text[: ECHO_LIMIT - 3] + "..."


def join(path: str, name: str) -> str:
    return f"{path}.{clip(name)}" if path else clip(name)


def json_type(value: object) -> str:
    names = {bool: "a boolean", int: "an integer", float: "a number", str: "a string", list: "an array"}
    return "null" if value is None else names.get(type(value), "an object")


def wrong_type(path: str, expected: str, value: object) -> ParameterError:
    message = f"Parameter '{path}' must be {expected}, not {json_type(value)}."
    return ParameterError(message, param=path, code="invalid_type")


def wrong_value(path: str, expected: str, value: object) -> ParameterError:
    shown = clip(json.dumps(value, ensure_ascii=False))
    return ParameterError(f"Parameter '{path}' must be {expected}; got {shown}.", param=path, code="invalid_value")


def missing(path: str) -> ParameterError:
    return ParameterError(f"Parameter '{path}' is required.", param=path, code="missing_required_parameter")


def misplaced(path: str, place: str) -> ParameterError:
    message = f"Unknown parameter '{path}'. It belongs in '{place}'."
    return ParameterError(message, param=path, code="unknown_parameter")


def excluded(message: str, param: str) -> ParameterError:
    return ParameterError(message, param=param, code="invalid_parameter_combination")


def unsupported(path: str, hint: str = "") -> ParameterError:
    message = f"Parameter '{path}' is not supported by this server. {hint}".rstrip()
    return ParameterError(message, param=path, code="unsupported_parameter")


def check_range(value: float, path: str, kind: str, minimum: float | None, maximum: float | None) -> None:
    for bound, beyond, words, side in (
        (minimum, minimum is not None and value < minimum, "at least", "below_min"),
        (maximum, maximum is not None and value > maximum, "at most", "above_max"),
    ):
        if beyond:
            message = f"Parameter '{path}' must be {words} {bound}; got {clip(str(value))}."
            raise ParameterError(message, param=path, code=f"{kind}_{side}_value")


def check_length(count: int, path: str, kind: str, maximum: int | None) -> None:
    """`kind` is string, array or object."""
    if maximum is not None and count > maximum:
        unit = {"string": "characters", "array": "entries", "object": "keys"}[kind]
        code = "object_above_max_properties" if kind == "object" else f"{kind}_above_max_length"
        raise ParameterError(
            f"Parameter '{path}' may have at most {maximum} {unit}; got {count}.", param=path, code=code
        )


def check_filled(value: str | list[Any], path: str, kind: str) -> None:
    if not value:
        raise ParameterError(f"Parameter '{path}' must not be empty.", param=path, code=f"empty_{kind}")

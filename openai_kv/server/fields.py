"""Checks of JSON values: each takes a value and its path, returns it clean or raises the contract's ParameterError.

No coercion, but for one rule: a float without a fraction is an integer. `null` never reaches a check, it means absent.
"""

import difflib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from openai_kv.config_values import parse_duration
from openai_kv.errors import ParameterError
from openai_kv.server.violations import (
    check_filled,
    check_length,
    check_range,
    clip,
    join,
    missing,
    unsupported,
    wrong_type,
    wrong_value,
)


@dataclass(frozen=True, slots=True)
class Mark:
    """A cache breakpoint after `end` characters of the content of message number `message`; no `ttl`: the default."""

    path: str
    message: int
    end: int
    ttl: int | None


@dataclass(slots=True)
class Notes:
    """What a validation goes by and leaves behind: `warnings` are `code=param` for the response header."""

    strict: bool = True
    ttl_max: int = 24 * 3600
    warnings: list[str] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)


Check = Callable[[Any, str, Notes], Any]


@dataclass(frozen=True, slots=True)
class Boolean:
    def __call__(self, value: Any, path: str, _notes: Notes) -> bool:
        if not isinstance(value, bool):
            raise wrong_type(path, "a boolean", value)
        return value


@dataclass(frozen=True, slots=True)
class Integer:
    minimum: int | None = None
    maximum: int | None = None

    def __call__(self, value: Any, path: str, _notes: Notes) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int:
            raise wrong_type(path, "an integer", value)
        check_range(value, path, "integer", self.minimum, self.maximum)
        return value


@dataclass(frozen=True, slots=True)
class Number:
    minimum: float | None = None
    maximum: float | None = None

    def __call__(self, value: Any, path: str, _notes: Notes) -> float:
        if type(value) not in (int, float):
            raise wrong_type(path, "a number", value)
        check_range(value, path, "decimal", self.minimum, self.maximum)
        if not math.isfinite(value):
            raise wrong_value(path, "a finite number", str(value))
        return float(value)


@dataclass(frozen=True, slots=True)
class String:
    maximum: int | None = None
    empty: bool = True
    forbidden: str = ""

    def __call__(self, value: Any, path: str, _notes: Notes) -> str:
        if not isinstance(value, str):
            raise wrong_type(path, "a string", value)
        check_length(len(value), path, "string", self.maximum)
        if not self.empty:
            check_filled(value, path, "string")
        if any(character in value for character in self.forbidden):
            raise wrong_value(path, f"free of {json.dumps(self.forbidden)}", value)
        return value


@dataclass(frozen=True, slots=True)
class Choice:
    values: tuple[str, ...]

    def __call__(self, value: Any, path: str, _notes: Notes) -> str:
        if not isinstance(value, str):
            raise wrong_type(path, "a string", value)
        if value not in self.values:
            raise wrong_value(path, "one of " + ", ".join(self.values), value)
        return value


@dataclass(frozen=True, slots=True)
class Duration:
    """A text like 30m, returned in seconds; at most the longest that the server allows."""

    def __call__(self, value: Any, path: str, notes: Notes) -> int:
        if not isinstance(value, str):
            raise wrong_type(path, "a string", value)
        try:
            seconds = int(str(parse_duration(value)))
        except ValueError:
            raise wrong_value(path, "a duration like 90s, 30m or 12h", value) from None
        if seconds > notes.ttl_max:
            raise wrong_value(path, f"a duration of at most {notes.ttl_max}s", value)
        return seconds


@dataclass(frozen=True, slots=True)
class Array:
    item: Check
    maximum: int | None = None
    empty: bool = True

    def __call__(self, value: Any, path: str, notes: Notes) -> list[Any]:
        if not isinstance(value, list):
            raise wrong_type(path, "an array", value)
        check_length(len(value), path, "array", self.maximum)
        if not self.empty:
            check_filled(value, path, "array")
        return [self.entry(item, f"{path}[{index}]", notes) for index, item in enumerate(value)]

    def entry(self, item: Any, path: str, notes: Notes) -> Any:
        if item is None:
            raise wrong_type(path, "a value", item)
        return self.item(item, path, notes)


@dataclass(frozen=True, slots=True)
class FreeObject:
    """An object whose keys are the client's; `forbidden` names can't be set."""

    maximum: int | None = None
    max_key: int | None = None
    item: Check | None = None
    forbidden: frozenset[str] = frozenset()

    def __call__(self, value: Any, path: str, notes: Notes) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise wrong_type(path, "an object", value)
        check_length(len(value), path, "object", self.maximum)
        for name in value:
            self.check_entry(name, value[name], join(path, name), notes)
        return value

    def check_entry(self, name: str, item: Any, path: str, notes: Notes) -> None:
        if name in self.forbidden:
            raise wrong_value(path, "left to the server", item)
        check_length(len(name), path, "string", self.max_key)
        if self.item is not None:
            self.item(item, path, notes)


@dataclass(frozen=True, slots=True)
class Neutral:
    """A known field that isn't built: only values that ask for nothing pass."""

    values: tuple[Any, ...]
    hint: str = ""

    def __call__(self, value: Any, path: str, _notes: Notes) -> Any:
        value, is_bool = without_nulls(value), isinstance(value, bool)
        if not any(value == neutral and isinstance(neutral, bool) == is_bool for neutral in self.values):
            raise unsupported(path, self.hint)
        return value


@dataclass(frozen=True, slots=True)
class Accepted:
    """A field that may be there, and has no effect."""

    check: Check

    def __call__(self, value: Any, path: str, notes: Notes) -> Any:
        return self.check(value, path, notes)


def without_nulls(value: Any) -> Any:
    """An option of an object that is null is left out."""
    return {name: item for name, item in value.items() if item is not None} if isinstance(value, dict) else value


@dataclass(frozen=True, slots=True)
class Either:
    """Text, or what `other` checks: an array, or an object."""

    text: Check
    other: Check
    kind: type[list[Any]] | type[dict[str, Any]] = list

    def __call__(self, value: Any, path: str, notes: Notes) -> Any:
        if not isinstance(value, str | self.kind):
            raise wrong_type(path, f"a string or an {'array' if self.kind is list else 'object'}", value)
        return self.text(value, path, notes) if isinstance(value, str) else self.other(value, path, notes)


@dataclass(frozen=True, slots=True)
class Object:
    """An object of the contract. `renamed`: other servers' names for ours; a Neutral without values isn't suggested."""

    fields: Mapping[str, Check]
    required: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, value: Any, path: str, notes: Notes) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise wrong_type(path, "an object", value)
        clean = {name: self.entry(name, item, join(path, name), notes) for name, item in value.items()}
        for name in self.required:
            if clean.get(name) is None:
                raise missing(join(path, name))
        return {name: item for name, item in clean.items() if item is not None}

    def entry(self, name: str, item: Any, path: str, notes: Notes) -> Any:
        check = self.fields.get(name)
        if check is None:
            return self.refuse_unknown(name, path, notes)
        return None if item is None else check(item, path, notes)

    def refuse_unknown(self, name: str, path: str, notes: Notes) -> None:
        if not notes.strict:
            notes.warnings.append(f"unknown_parameter={path}")
            return
        match = self.suggestion(name)
        hint = f" Did you mean '{match}'?" if match else ""
        raise ParameterError(f"Unknown parameter '{path}'.{hint}", param=path, code="unknown_parameter")

    def suggestion(self, name: str) -> str | None:
        offered = [name for name, check in self.fields.items() if not isinstance(check, Neutral) or check.values]
        renamed = self.renamed.get(name)
        if renamed in self.fields:
            return renamed
        return next(iter(difflib.get_close_matches(clip(name), offered, n=1, cutoff=0.75)), None)

"""Checks of values that come in several forms."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openai_kv.server.fields import Notes, Object
from openai_kv.server.violations import missing, unsupported, wrong_type


@dataclass(frozen=True, slots=True)
class Variant:
    """An object whose `type` says which of `kinds` checks the rest of it; `default`: what no `type` means.

    Another type is known to other servers, or to nobody: `hint` says what there is.
    """

    kinds: Mapping[str, Object]
    hint: str
    default: str | None = None

    def __call__(self, value: Any, path: str, notes: Notes) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise wrong_type(path, "an object", value)
        kind = self.default if value.get("type") is None else value["type"]
        if kind is None:
            raise missing(f"{path}.type")
        if not isinstance(kind, str):
            raise wrong_type(f"{path}.type", "a string", kind)
        if kind not in self.kinds:
            raise unsupported(f"{path}.type", self.hint)
        rest = {name: item for name, item in value.items() if name != "type"}
        return {"type": kind, **self.kinds[kind](rest, path, notes)}


def anything(value: Any, _path: str, _notes: Notes) -> Any:
    """For what clients send back of an answer and nobody reads."""
    return value

"""Checks of `tools` and `tool_choice`, and what they come to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from openai_kv.server.fields import Array, Boolean, Check, Choice, FreeObject, Notes, Object, String
from openai_kv.server.format_fields import Name
from openai_kv.server.violations import excluded, join, missing, unsupported, wrong_type, wrong_value

FUNCTION = Object({"name": Name(), "description": String(), "parameters": FreeObject(), "strict": Boolean()}, ("name",))


def function_kind(value: Any, path: str, notes: Notes) -> str:
    if value == "custom":
        raise unsupported(path, "Only functions can be called.")
    return Choice(("function",))(value, path, notes)


TOOL = Object({"type": function_kind, "function": FUNCTION}, ("type", "function"))
NAMED = Object({"type": function_kind, "function": Object({"name": String()}, ("name",))}, ("type", "function"))
ALLOWED = Object(
    {
        "type": String(),
        "allowed_tools": Object(
            {"mode": Choice(("auto", "required")), "tools": Array(NAMED, empty=False)}, ("mode", "tools")
        ),
    },
    ("type", "allowed_tools"),
)

TOOL_CHOICES = Choice(("none", "auto", "required"))


@dataclass(frozen=True, slots=True)
class Tools:
    """At most `maximum` functions of different names."""

    maximum: int

    def __call__(self, value: Any, path: str, notes: Notes) -> list[Any]:
        tools = Array(TOOL, self.maximum, empty=False)(value, path, notes)
        check_distinct([tool["function"]["name"] for tool in tools], path, "function.name")
        return tools


def check_distinct(names: Sequence[str], path: str, field: str) -> None:
    """`names` are those of the tools at `path`, each in its `field`."""
    for index, name in enumerate(names):
        if name in names[:index]:
            raise wrong_value(f"{path}[{index}].{field}", "unlike the names before it", name)


def check_tool_choice(value: Any, path: str, notes: Notes) -> Any:
    if isinstance(value, str):
        return TOOL_CHOICES(value, path, notes)
    if not isinstance(value, dict):
        raise wrong_type(path, "a string or an object", value)
    if value.get("type") is None:
        raise missing(join(path, "type"))
    check: Check = ALLOWED if value["type"] == "allowed_tools" else NAMED
    return check(value, path, notes)


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`names` may be called; with `required` or `named` one has to be."""

    mode: Literal["none", "auto", "required", "named"]
    names: tuple[str, ...] = ()

    @property
    def must_call(self) -> bool:
        return self.mode in ("required", "named")


def tool_choice(body: Mapping[str, Any]) -> ToolChoice:
    """Raises ParameterError for a name that isn't among `tools`, and for a choice without any."""
    names = tuple(tool["function"]["name"] for tool in body.get("tools", []))
    wanted = body.get("tool_choice", "auto" if names else "none")
    if not names and wanted not in ("none", "auto"):
        raise excluded("Parameter 'tool_choice' needs 'tools'.", "tool_choice")
    if not names or wanted == "none":
        return ToolChoice("none")
    if isinstance(wanted, str):
        return ToolChoice("required" if wanted == "required" else "auto", names)
    if "function" in wanted:
        return ToolChoice("named", known([wanted], names, "tool_choice"))
    allowed = wanted["allowed_tools"]
    return ToolChoice(allowed["mode"], known(allowed["tools"], names, "tool_choice.allowed_tools.tools"))


def known(choices: Sequence[Mapping[str, Any]], names: Sequence[str], path: str) -> tuple[str, ...]:
    for index, choice in enumerate(choices):
        name = choice["function"]["name"]
        if name not in names:
            at = path if path == "tool_choice" else f"{path}[{index}]"
            raise wrong_value(f"{at}.function.name", "the name of one of 'tools'", name)
    return tuple(choice["function"]["name"] for choice in choices)

"""docs/plugins.md shows the hooks exactly as they are."""

import inspect
import re
from pathlib import Path
from typing import get_type_hints

import pytest

from openai_kv import EvictionPolicy, MetricsExporter, PriorityPolicy

TEXT = (Path(__file__).parent.parent / "docs" / "plugins.md").read_text(encoding="utf-8")


def documented(name: str) -> set[str]:
    match = re.search(rf"^class {name}\b.*?:\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert match is not None
    return {line.strip().removeprefix("def ") for line in match[1].splitlines() if line.strip().startswith("def ")}


def actual(cls: type) -> set[str]:
    functions = {name: member for name, member in vars(cls).items() if inspect.isfunction(member)}
    return {signature(name, function) for name, function in functions.items() if not name.startswith("_")}


def signature(name: str, function: object) -> str:
    assert inspect.isfunction(function)
    hints = get_type_hints(function)
    parts = [f"{key}: {plain(hint)}" for key, hint in hints.items() if key != "return"]
    return f"{name}({', '.join(['self', *parts])}) -> {plain(hints['return'])}"


def plain(hint: object) -> str:
    text = (
        "None"
        if hint is type(None)
        else hint.__name__
        if isinstance(hint, type) and not hasattr(hint, "__args__")
        else str(hint)
    )
    return re.sub(r"(\w+\.)+", "", text).replace("Set[", "AbstractSet[")


@pytest.mark.parametrize("cls", [EvictionPolicy, MetricsExporter])
def test_the_contract_is_documented(cls: type) -> None:
    assert documented(cls.__name__) == actual(cls)


def test_the_short_way_is_documented() -> None:
    assert documented("PriorityPolicy") <= actual(PriorityPolicy)
    assert documented("PriorityPolicy")

"""docs/plugins.md shows the hooks exactly as they are."""

import inspect
import re
from pathlib import Path
from typing import get_type_hints

import pytest

import openai_kv
from openai_kv import (
    POLICY_CONTRACT_VERSION,
    BlockInfo,
    CacheInfo,
    EvictionPolicy,
    MetricsExporter,
    Output,
    PriorityPolicy,
    ToolParser,
)
from openai_kv.plugins import load_plugins
from openai_kv.request import RequestInfo

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


@pytest.mark.parametrize("cls", [EvictionPolicy, MetricsExporter, ToolParser])
def test_the_contract_is_documented(cls: type) -> None:
    assert documented(cls.__name__) == actual(cls)


def test_the_short_way_is_documented() -> None:
    assert documented("PriorityPolicy") <= actual(PriorityPolicy)
    assert documented("PriorityPolicy")


def table(first: str) -> list[str]:
    """The first cells of the table whose header begins with `first`."""
    match = re.search(rf"^\| {first} \|.*\n\|[-|]+\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    assert match is not None
    return [name for row in match[1].splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])]


def test_every_hook_of_a_policy_is_explained() -> None:
    assert sorted(table("hook \\| when")) == sorted(signature.partition("(")[0] for signature in actual(EvictionPolicy))


def section(start: str, end: str) -> str:
    return TEXT[TEXT.index(start) : TEXT.index(end)]


def test_every_field_is_explained() -> None:
    fields = {name for name, member in vars(BlockInfo).items() if isinstance(member, property)}
    assert set(table("field")) == fields
    for record in (RequestInfo, CacheInfo):
        line = section(f"`{record.__name__}` has", "Take the time from")
        assert set(record.__slots__) <= set(re.findall(r"`(\w+)`", line))


def test_every_built_in_policy_is_listed() -> None:
    built_in = [plugin.name for plugin in load_plugins().plugins if plugin.hook == "register_eviction_policies"]
    assert sorted(table("built in")) == sorted(built_in)


def test_the_frozen_contract() -> None:
    """Changing what stands here is a new version; adding is not."""
    assert POLICY_CONTRACT_VERSION == 1
    assert "`POLICY_CONTRACT_VERSION` is 1" in TEXT
    assert actual(EvictionPolicy) >= {
        "start(self, cache: CacheInfo) -> None",
        "on_insert(self, block: BlockInfo) -> None",
        "on_access(self, block: BlockInfo) -> None",
        "on_miss(self, info: RequestInfo, depth: int) -> None",
        "on_evictable(self, block: BlockInfo) -> None",
        "on_unevictable(self, block: BlockInfo) -> None",
        "on_evict(self, block: BlockInfo) -> None",
        "admit(self, block: BlockInfo) -> bool",
        "on_request_finished(self, info: RequestInfo) -> None",
        "record_attention(self, block: BlockInfo, score: float) -> None",
        "select_victim(self, candidates: AbstractSet[BlockInfo]) -> BlockInfo",
    }


def test_the_contract_of_tool_parsers_is_documented() -> None:
    attributes = [name for name in ToolParser.__annotations__ if name != "name"]
    assert all(f"    {name}: ClassVar" in TEXT for name in attributes)
    explained = set(table("attribute")) | {"id_length"}
    assert explained >= set(attributes)
    told = documented("Output")
    assert told <= actual(Output)
    assert {signature.partition("(")[0] for signature in told} == set(table("method")) | {"end_markup"}
    helpers = ("until", "read_object", "read_call", "visible", "json_of", "Lark", "CallSyntax", "Tool")
    assert all(name in openai_kv.__all__ and name in TEXT for name in helpers)


def test_every_built_in_tool_parser_is_listed() -> None:
    built_in = [plugin.name for plugin in load_plugins().plugins if plugin.hook == "register_tool_parsers"]
    assert table("built in parser") == built_in

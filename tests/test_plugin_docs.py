"""docs/plugins.md shows the hooks exactly as they are."""

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import openai_kv
from openai_kv import (
    METRICS_CONTRACT_VERSION,
    POLICY_CONTRACT_VERSION,
    BlockInfo,
    CacheInfo,
    CacheStats,
    EvictionPolicy,
    EvictionStats,
    GenerationStats,
    HttpStats,
    LookupStats,
    MetricsExporter,
    Output,
    PriorityPolicy,
    RequestStats,
    ServerInfo,
    StepStats,
    TierStats,
    ToolParser,
    TransferStats,
)
from openai_kv.plugins import load_plugins
from openai_kv.request import RequestInfo

RECORDS = {
    ServerInfo: "model_name max_model_len block_size num_blocks cache_dtype backend policy versions",
    StepStats: """step step_seconds running waiting deferred scheduled_tokens computed_prompt_tokens generated_tokens
        preemptions attention_read_bytes inter_token_seconds time_to_first_token_seconds cache
        drafts draft_tokens accepted_draft_tokens""",
    CacheStats: """total free cached referenced block_size referenced_slots_used tree_nodes exact_entries namespaces
        hits hit_tokens miss_count prompt_tokens evictions_by_policy duplicate_blocks""",
    LookupStats: "info hit_kind num_hit_tokens reuse_gap_seconds resumed",
    EvictionStats: "policy block_id num_tokens hit_count lifetime_seconds idle_seconds seconds",
    TierStats: "name plugin blocks num_bytes max_bytes demoted_blocks promoted_blocks problems available",
    TransferStats: "tier direction num_blocks num_bytes seconds",
    RequestStats: """info finish_reason hit_kind num_prompt_tokens num_output_tokens num_cached_tokens
        cache_write_tokens max_tokens num_preemptions queue_seconds first_token_seconds total_seconds""",
    HttpStats: """method route status seconds request_id arrival_time server_address server_port error_code
        traceparent tracestate generation upstream""",
    GenerationStats: """operation request_model response_id stream num_choices output_type max_tokens temperature
        top_p top_k frequency_penalty presence_penalty stop seed session_id finish_reasons hit_kind num_prompt_tokens
        num_output_tokens num_cached_tokens cache_write_tokens num_reasoning_tokens longest_output_tokens
        num_preemptions queue_seconds first_token_seconds total_seconds error_code""",
}
ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")


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


def test_every_hook_of_an_exporter_is_explained() -> None:
    hooks = [signature.partition("(")[0] for signature in actual(MetricsExporter)]
    assert sorted(table("exporter's hook \\| when")) == sorted(hooks)


@pytest.mark.parametrize("record", RECORDS)
def test_every_field_of_a_record_is_explained(record: Any) -> None:
    assert sorted(table(f"`{record.__name__}` \\|")) == sorted(field.name for field in fields(record))
    assert record.__dataclass_params__.frozen


def test_every_built_in_exporter_is_listed() -> None:
    built_in = [plugin.name for plugin in load_plugins().plugins if plugin.hook == "register_metrics_exporters"]
    assert sorted(table("exporter \\|")) == sorted(built_in)


def test_the_example_is_the_file() -> None:
    code = (ROOT / "plugins" / "jsonl.py").read_text(encoding="utf-8")
    assert section("class JsonLines", "```\n\n`openai-kv serve --plugins-dir plugins --metrics") in code


def test_the_frozen_contract_of_exporters() -> None:
    """Changing what stands here is a new version; adding is not."""
    assert METRICS_CONTRACT_VERSION == 1
    assert "`METRICS_CONTRACT_VERSION` is 1" in TEXT
    for record, names in RECORDS.items():
        assert {field.name for field in fields(record)} >= set(names.split())
    assert actual(MetricsExporter) >= {
        "start(self, info: ServerInfo) -> None",
        "on_step(self, stats: StepStats) -> None",
        "on_lookup(self, stats: LookupStats) -> None",
        "on_eviction(self, stats: EvictionStats) -> None",
        "on_request_finished(self, stats: RequestStats) -> None",
        "on_http_request(self, stats: HttpStats) -> None",
        "on_rejected(self, reason: str) -> None",
        "on_abort(self, reason: str) -> None",
        "on_plugin_error(self, plugin: str, hook: str) -> None",
        "on_dropped(self, plugin: str, total: int) -> None",
        "flush(self) -> None",
        "scrape(self) -> bytes | None",
        "close(self) -> None",
    }


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

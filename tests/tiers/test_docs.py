"""docs/tiers.md shows the contract exactly as it is."""

import re
from dataclasses import fields
from pathlib import Path

from openai_kv import TIER_CONTRACT_VERSION, CacheTier, TierInfo, TierUsage
from openai_kv.plugins import load_plugins
from tests.test_plugin_docs import actual

TEXT = (Path(__file__).parents[2] / "docs" / "tiers.md").read_text(encoding="utf-8")


def test_the_contract_is_documented() -> None:
    code = TEXT[TEXT.index("class CacheTier") :]
    lines = code[: code.index("```")].splitlines()
    assert {line.strip().removeprefix("def ") for line in lines if " def " in line} == actual(CacheTier)
    assert f"`TIER_CONTRACT_VERSION` is {TIER_CONTRACT_VERSION}" in TEXT


def test_every_hook_and_field_is_explained() -> None:
    rows = TEXT[TEXT.index("| tier's hook") :]
    assert re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE) == [
        name for name, member in vars(CacheTier).items() if callable(member) and not name.startswith("_")
    ]
    for record in (TierInfo, TierUsage):
        assert all(f"`{field.name}`" in rows for field in fields(record))


def test_every_built_in_tier_is_listed() -> None:
    built_in = {plugin.name for plugin in load_plugins().plugins if plugin.hook == "register_cache_tiers"}
    assert set(re.findall(r"^\| `(\w+)` \| `", TEXT, re.MULTILINE)) == built_in

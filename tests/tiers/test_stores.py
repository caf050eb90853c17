"""What bounded tiers drop, and what is refused. That tiers keep the contract is in testing/test_tier_conformance.py."""

import socket
from pathlib import Path

import pytest

from openai_kv.errors import PluginError
from openai_kv.plugins import load_plugins
from openai_kv.tiers.disk import DiskTier
from openai_kv.tiers.host import HostTier
from openai_kv.tiers.tier import CacheTier, TierInfo
from openai_kv.tiers.valkey import ValkeyTier

INFO = TierInfo("ab" * 32, 4000, 86400.0)
PLUGINS = Path(__file__).parents[2] / "plugins"
KEYS = [bytes([number]) * 32 for number in range(8)]


def record(number: int) -> bytes:
    return bytes([number]) * 4096


def put(tier: CacheTier, *numbers: int) -> None:
    for number in numbers:
        tier.put({KEYS[number]: record(number)})


def found(tier: CacheTier) -> list[int]:
    return [number for number, known in enumerate(tier.contains(KEYS)) if known]


@pytest.fixture(params=["host", "disk"])
def bounded(request: pytest.FixtureRequest, tmp_path: Path) -> CacheTier:
    """Holds five records."""
    made = HostTier(5 * 4096) if request.param == "host" else DiskTier(str(tmp_path), 5 * 4096)
    made.start(INFO)
    return made


def test_the_least_recently_used_goes(bounded: CacheTier) -> None:
    put(bounded, 0, 1, 2, 3, 4)
    bounded.get([KEYS[0]])
    put(bounded, 1, 5, 6)
    assert found(bounded) == [0, 1, 4, 5, 6]
    usage = bounded.usage()
    assert (usage.records, usage.num_bytes, usage.max_bytes) == (5, 5 * 4096, 5 * 4096)


def test_putting_again_changes_nothing(bounded: CacheTier) -> None:
    put(bounded, 0, 0)
    assert bounded.get([KEYS[0]]) == [record(0)]
    assert bounded.usage().records == 1


def test_of_a_chain_the_deepest_goes_first(bounded: CacheTier) -> None:
    put(bounded, 0, 1, 2, 3, 4)
    bounded.get(KEYS[:5])
    put(bounded, 5)
    assert found(bounded) == [0, 1, 2, 3, 5]


def test_what_nobody_used_for_a_day_is_gone(bounded: CacheTier) -> None:
    now = 1000.0
    bounded._clock = lambda: now  # type: ignore[attr-defined]
    put(bounded, 0, 1)
    now += 86000
    bounded.get([KEYS[0]])
    now += 1000
    assert found(bounded) == [0]
    now += 86400
    assert bounded.get([KEYS[0]]) == [None]
    assert bounded.usage().num_bytes == 0


def test_a_server_that_is_gone_raises() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        tier = ValkeyTier(f"redis://127.0.0.1:{nobody.getsockname()[1]}")
        tier.start(INFO)
        with pytest.raises(Exception, match="refused"):
            tier.contains(KEYS)
        tier.close()


@pytest.mark.parametrize(("attribute", "value"), [("location", "ssd"), ("demotion", "write_through")])
def test_a_plugin_that_says_what_there_is_not_is_named(tmp_path: Path, attribute: str, value: str) -> None:
    code = (PLUGINS / "sqlite.py").read_text(encoding="utf-8").replace('location = "disk"', f'{attribute} = "{value}"')
    (tmp_path / "odd.py").write_text(code, encoding="utf-8")
    with pytest.raises(PluginError, match=f"SQLiteTier: '{value}' is none of"):
        load_plugins(str(tmp_path)).create_tiers(["sqlite"], {})

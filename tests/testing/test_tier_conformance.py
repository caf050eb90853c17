"""Our tiers and the example of one pass; the suite finds what it promises to find."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest

from openai_kv.plugins import load_plugins
from openai_kv.testing import TierConformance, TierFailure, check_tier
from openai_kv.tiers.disk import DiskTier
from openai_kv.tiers.host import HostTier
from openai_kv.tiers.tier import CacheTier, TierInfo
from openai_kv.tiers.valkey import ValkeyTier
from tests.tiers.servers import run_server

PLUGINS = Path(__file__).parents[2] / "plugins"


class TestHost(TierConformance):
    def make_tier(self) -> CacheTier:
        return HostTier(2**20)


class TestDisk(TierConformance):
    @pytest.fixture(autouse=True)
    def choose(self, tmp_path: Path) -> None:
        self.path = str(tmp_path)

    def make_tier(self) -> CacheTier:
        return DiskTier(self.path, 2**20)


class TestSQLite(TestDisk):
    def make_tier(self) -> CacheTier:
        (made,) = load_plugins(str(PLUGINS)).create_tiers(["sqlite"], {"sqlite": {"path": f"{self.path}/blocks"}})
        return made


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with run_server(tmp_path_factory.mktemp("valkey")) as url:
        yield url


class TestValkey(TierConformance):
    @pytest.fixture(autouse=True)
    def choose(self, server: str) -> None:
        self.url = server

    def make_tier(self) -> CacheTier:
        return ValkeyTier(self.url)


class Unordered(HostTier):
    def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        return super().get(sorted(keys))


class Stubborn(HostTier):
    def remove(self, keys: Sequence[bytes]) -> None: ...


class Unbounded(HostTier):
    def put(self, records: Mapping[bytes, bytes]) -> None:
        most, self._max_bytes = self._max_bytes, 2**30
        super().put(records)
        self._max_bytes = most


class Everlasting(HostTier):
    def start(self, info: TierInfo) -> None: ...


class Reckless(DiskTier):
    def clear(self) -> None:
        for name in [*self._files]:
            self._drop(name)


@pytest.mark.parametrize(
    ("tier", "problem"),
    [
        (Unordered, "get has other records"),
        (Stubborn, "remove forgets those keys and no others"),
        (Unbounded, "says that 1048576 are the most"),
        (Everlasting, "what nobody used for seconds_unused"),
    ],
)
def test_what_breaks_the_contract_is_named(tier: type[HostTier], problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openai_kv.testing.tier_conformance.LATEST", 1.5)
    with pytest.raises(TierFailure, match=f"host: .*{problem}"):
        check_tier(partial(tier, 2**20))


def test_who_clears_what_is_anothers_is_named(tmp_path: Path) -> None:
    with pytest.raises(TierFailure, match="clear forgets records of another identity"):
        check_tier(partial(Reckless, str(tmp_path)))

"""The cache tiers that come with the server."""

from collections.abc import Callable

from openai_kv.hookspecs import hookimpl
from openai_kv.tiers.disk import DiskTier
from openai_kv.tiers.host import HostTier
from openai_kv.tiers.tier import CacheTier
from openai_kv.tiers.valkey import ValkeyTier


@hookimpl
def register_cache_tiers(register: Callable[[type[CacheTier]], None]) -> None:
    for tier in (HostTier, DiskTier, ValkeyTier):
        register(tier)

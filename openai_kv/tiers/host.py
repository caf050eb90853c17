"""Tier `host`: records in this process's memory."""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from openai_kv.config_values import Size
from openai_kv.errors import ConfigError
from openai_kv.tiers.tier import CacheTier, TierInfo, TierUsage


@dataclass(slots=True)
class _Record:
    data: bytes
    used: float


class HostTier(CacheTier):
    """At most `max_bytes` of records; the least recently used goes. Worth it where the pool is on an accelerator."""

    name = "host"
    location = "host"
    demotion = "write-back"

    def __init__(self, max_bytes: Size = 4 * 2**30) -> None:
        if max_bytes <= 0:
            raise ConfigError("plugins.host.max_bytes should be more than nothing")
        self._max_bytes = max_bytes
        self._records: OrderedDict[bytes, _Record] = OrderedDict()
        self._num_bytes = 0
        self._seconds_unused = float("inf")
        self._clock: Callable[[], float] = time.monotonic

    def start(self, info: TierInfo) -> None:
        self._seconds_unused = info.seconds_unused

    def contains(self, keys: Sequence[bytes]) -> Sequence[bool]:
        self._expire()
        return [key in self._records for key in keys]

    def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        self._expire()
        for key in reversed(keys):  # so that of a chain the deepest goes first
            self._use(key)
        return [record.data if (record := self._records.get(key)) else None for key in keys]

    def put(self, records: Mapping[bytes, bytes]) -> None:
        for key, data in records.items():
            self.remove([key])
            self._records[key] = _Record(data, self._clock())
            self._num_bytes += len(data)
        while self._num_bytes > self._max_bytes:
            self.remove([next(iter(self._records))])

    def remove(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            record = self._records.pop(key, None)
            self._num_bytes -= len(record.data) if record else 0

    def clear(self) -> None:
        self._records.clear()
        self._num_bytes = 0

    def usage(self) -> TierUsage:
        return TierUsage(len(self._records), self._num_bytes, self._max_bytes)

    def _use(self, key: bytes) -> None:
        if key in self._records:
            self._records[key].used = self._clock()
            self._records.move_to_end(key)

    def _expire(self) -> None:
        limit = self._clock() - self._seconds_unused
        while self._records and next(iter(self._records.values())).used < limit:
            self.remove([next(iter(self._records))])

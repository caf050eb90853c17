"""Tier `valkey`: records on a server that speaks the Redis protocol, shared by all who use it with the same model."""

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from openai_kv.errors import ConfigError, TierFullError
from openai_kv.tiers.tier import CacheTier, TierInfo

PAGE = 512  # keys a scan or a deletion takes at a time


class ValkeyTier(CacheTier):
    """`url`: redis://, rediss:// (TLS) or unix://, with user, password and database as redis-py reads them.

    How much the server keeps is its own affair: give it `maxmemory` and the policy allkeys-lru. `timeout` seconds for
    each exchange; the connection is made at first use and made again when it broke.
    """

    name = "valkey"
    location = "remote"

    def __init__(self, url: str = "redis://localhost:6379/0", timeout: float = 2.0) -> None:
        """Raises ConfigError for a URL that is none, and where redis-py is not installed."""
        self._redis = import_redis()
        once_more = self._redis.retry.Retry(self._redis.backoff.NoBackoff(), 1)  # on a connection that broke meanwhile
        try:
            self._client: Any = self._redis.Redis.from_url(
                url, socket_timeout=timeout, socket_connect_timeout=timeout, retry=once_more
            )
        except ValueError as error:
            raise ConfigError(f"plugins.valkey.url: {error}") from None
        self._prefix = b""
        self._seconds = 0

    def start(self, info: TierInfo) -> None:
        self._prefix = f"openai-kv:{info.identity[:16]}:".encode()
        self._seconds = max(1, int(info.seconds_unused))

    def contains(self, keys: Sequence[bytes]) -> Sequence[bool]:
        with self._client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.exists(self._prefix + key)
            return [bool(count) for count in pipe.execute()]

    def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        with self._client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.getex(self._prefix + key, ex=self._seconds)
            found: list[bytes | None] = pipe.execute()
            return found

    def put(self, records: Mapping[bytes, bytes]) -> None:
        """Raises TierFullError where the server has no memory left and may not evict."""
        new = [key for key, known in zip(records, self.contains([*records]), strict=True) if not known]
        try:
            with self._client.pipeline(transaction=False) as pipe:
                for key in records:
                    if key in new:
                        pipe.set(self._prefix + key, records[key], ex=self._seconds)
                    else:
                        pipe.expire(self._prefix + key, self._seconds)
                pipe.execute()
        except self._redis.exceptions.OutOfMemoryError as error:
            raise TierFullError(str(error)) from None

    def remove(self, keys: Sequence[bytes]) -> None:
        if keys:
            self._client.unlink(*(self._prefix + key for key in keys))

    def clear(self) -> None:
        page: list[bytes] = []
        for key in self._client.scan_iter(match=self._prefix + b"*", count=PAGE):
            page.append(key)
            if len(page) == PAGE:
                self._client.unlink(*page)
                page.clear()
        if page:
            self._client.unlink(*page)

    def close(self) -> None:
        self._client.close()


def import_redis() -> ModuleType:
    """Raises ConfigError where the extra is not installed."""
    try:
        import redis  # noqa: PLC0415
    except ModuleNotFoundError:
        raise ConfigError("the tier valkey needs redis-py: pip install 'openai-kv[valkey]'") from None
    return redis

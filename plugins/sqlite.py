"""A cache tier in an SQLite file: `openai-kv serve --plugins-dir plugins --tiers sqlite`."""

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence

from openai_kv import CacheTier, TierInfo, TierUsage, hookimpl


class SQLiteTier(CacheTier):
    """At most `max_records` in the file `path`, of all models; the least recently used go."""

    name = "sqlite"
    location = "disk"

    def __init__(self, path: str = "blocks.sqlite", max_records: int = 10_000) -> None:
        self._path, self._max_records, self._seconds_unused, self._identity = path, max_records, 0.0, ""

    def start(self, info: TierInfo) -> None:
        self._seconds_unused, self._identity = info.seconds_unused, info.identity
        self._db = sqlite3.connect(self._path, isolation_level=None)  # here, as only this thread will use it
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS records (key BLOB PRIMARY KEY, record BLOB, used REAL, identity TEXT)"
        )
        self._db.execute("CREATE INDEX IF NOT EXISTS by_use ON records (used)")

    def contains(self, keys: Sequence[bytes]) -> Sequence[bool]:
        self._db.execute("DELETE FROM records WHERE used < ?", (time.time() - self._seconds_unused,))
        return [self._db.execute("SELECT 1 FROM records WHERE key = ?", (key,)).fetchone() is not None for key in keys]

    def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        found = self.contains(keys)
        for key in reversed(keys):  # so that of a chain the deepest goes first
            self._db.execute("UPDATE records SET used = ? WHERE key = ?", (time.time(), key))
        return [self._read(key) if known else None for key, known in zip(keys, found, strict=True)]

    def _read(self, key: bytes) -> bytes:
        record: bytes = self._db.execute("SELECT record FROM records WHERE key = ?", (key,)).fetchone()[0]
        return record

    def put(self, records: Mapping[bytes, bytes]) -> None:
        rows = [(key, record, time.time(), self._identity) for key, record in records.items()]
        self._db.executemany("INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?)", rows)
        surplus = max(0, self._count() - self._max_records)
        self._db.execute("DELETE FROM records WHERE key IN (SELECT key FROM records ORDER BY used LIMIT ?)", (surplus,))

    def remove(self, keys: Sequence[bytes]) -> None:
        self._db.executemany("DELETE FROM records WHERE key = ?", [(key,) for key in keys])

    def clear(self) -> None:
        self._db.execute("DELETE FROM records WHERE identity = ?", (self._identity,))

    def usage(self) -> TierUsage:
        return TierUsage(records=self._count())

    def _count(self) -> int:
        count: int = self._db.execute("SELECT count(*) FROM records").fetchone()[0]
        return count

    def close(self) -> None:
        self._db.close()


@hookimpl
def register_cache_tiers(register: Callable[[type[CacheTier]], None]) -> None:
    register(SQLiteTier)

"""Tier `disk`: one file a record, so that neither a crash nor a damaged sector costs more than the records it hit."""

import errno
import logging
import os
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from openai_kv.config_values import Size
from openai_kv.errors import ConfigError, TierFullError
from openai_kv.tiers.tier import CacheTier, TierInfo, TierUsage

logger = logging.getLogger(__name__)
PART = ".part"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
OURS = re.compile("[0-9a-f]{2}|[0-9a-f]{16}")  # folders: of keys that begin alike, in one for each identity
FEW_UNREADABLE = 3  # records in a row: more of them are no longer the records' fault


@dataclass(slots=True)
class _File:
    size: int
    used: float


class DiskTier(CacheTier):
    """At most `max_bytes` in the folder `path`; the least recently used goes, also among what earlier runs left there.

    A record is written to a file of another name and then renamed, without waiting for the disk: after a crash of the
    process it is whole or not there, after one of the machine its checksum tells. One process a folder, but models may
    follow each other in it: they share `max_bytes`. A file that can't be read is a damaged record.
    """

    name = "disk"
    location = "disk"

    def __init__(self, path: str, max_bytes: Size = 10 * 2**30) -> None:
        """Raises ConfigError for a folder that can't be written."""
        self._folder = Path(path).expanduser()
        self._max_bytes = max_bytes
        self._files: OrderedDict[str, _File] = OrderedDict()
        self._num_bytes = self._num_unreadable = 0
        self._identity = ""
        self._seconds_unused = float("inf")
        self._clock: Callable[[], float] = time.time
        if max_bytes <= 0:
            raise ConfigError("plugins.disk.max_bytes should be more than nothing")
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"plugins.disk.path = {path!r}: {error.strerror}") from None
        if not os.access(self._folder, os.W_OK | os.X_OK):
            raise ConfigError(f"plugins.disk.path = {path!r}: can't be written")

    def start(self, info: TierInfo) -> None:
        """Take over what an earlier run left, oldest first; O(files)."""
        self._identity, self._seconds_unused = info.identity[:16], info.seconds_unused
        self._files.clear()
        found = sorted(self._scan(self._folder), key=lambda entry: entry[1].used)
        self._files.update(found)
        self._num_bytes = sum(file.size for file in self._files.values())
        self._make_room(0)
        logger.info("disk tier: %d records, %d bytes in %s", len(self._files), self._num_bytes, self._folder)

    def _scan(self, folder: Path) -> Iterator[tuple[str, _File]]:
        """Of all identities; only in folders named as ours: others, like `lost+found`, need not be readable."""
        for entry in os.scandir(folder):
            path = Path(entry.path)
            if OURS.fullmatch(entry.name) and entry.is_dir():
                yield from self._scan(path)
            elif folder == self._folder or not entry.is_file():
                continue
            elif entry.name.endswith(PART):
                path.unlink(missing_ok=True)  # of a write that never ended
            elif len(entry.name) == 64:
                status = entry.stat()
                yield str(path.relative_to(self._folder)), _File(_on_disk(status.st_size), status.st_mtime)

    def contains(self, keys: Sequence[bytes]) -> Sequence[bool]:
        self._expire()
        return [self._name(key) in self._files for key in keys]

    def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        self._expire()
        found = [self._read(self._name(key)) for key in keys]
        for key in reversed(keys):  # so that of a chain the deepest goes first
            self._use(self._name(key))
        return found

    def _read(self, name: str) -> bytes | None:
        if name not in self._files:
            return None
        try:
            data = self._path(name).read_bytes()
        except FileNotFoundError:  # somebody tidied up
            self._forget(name)
            return None
        except OSError:
            self._num_unreadable += 1
            if self._num_unreadable > FEW_UNREADABLE:
                raise
            return b""  # no record, as whoever reads it will find, count and tell
        self._num_unreadable = 0
        return data

    def put(self, records: Mapping[bytes, bytes]) -> None:
        """Raises TierFullError when the disk has no room for them; then some of the oldest are gone."""
        for key, data in records.items():
            name = self._name(key)
            if name in self._files:
                self._use(name)
                continue
            self._make_room(_on_disk(len(data)))
            self._write(name, data)

    def _write(self, name: str, data: bytes) -> None:
        path = self._path(name)
        part = path.with_name(path.name + PART)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # the whole folder may be gone
            part.write_bytes(data)
            part.replace(path)
        except OSError as error:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            if error.errno in NO_ROOM:
                self._drop_oldest()
                raise TierFullError(f"{self._folder}: {error.strerror}") from None
            raise
        self._files[name] = _File(_on_disk(len(data)), self._clock())
        self._num_bytes += _on_disk(len(data))

    def remove(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._drop(self._name(key))

    def clear(self) -> None:
        for name in [name for name in self._files if name.startswith(f"{self._identity}/")]:
            self._drop(name)

    def usage(self) -> TierUsage:
        return TierUsage(len(self._files), self._num_bytes, self._max_bytes)

    def _name(self, key: bytes) -> str:
        name = key.hex()
        return f"{self._identity}/{name[:2]}/{name}"

    def _path(self, name: str) -> Path:
        return self._folder / name

    def _use(self, name: str) -> None:
        if name in self._files:
            now = self._files[name].used = self._clock()
            self._files.move_to_end(name)
            with suppress(OSError):  # then the next run knows an older time
                os.utime(self._path(name), (now, now))

    def _make_room(self, size: int) -> None:
        """Raises TierFullError for a record that is larger than the tier."""
        if size > self._max_bytes:
            raise TierFullError(f"a record of {size} bytes in a tier of {self._max_bytes}")
        while self._num_bytes + size > self._max_bytes:
            self._drop_oldest()

    def _expire(self) -> None:
        limit = self._clock() - self._seconds_unused
        while self._files and next(iter(self._files.values())).used < limit:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        if self._files:
            self._drop(next(iter(self._files)))

    def _drop(self, name: str) -> None:
        if name in self._files:
            self._path(name).unlink(missing_ok=True)
            self._forget(name)  # only now: what can't be removed still takes its bytes

    def _forget(self, name: str) -> None:
        self._num_bytes -= self._files.pop(name).size


def _on_disk(size: int) -> int:
    """What a file of `size` bytes takes, in blocks of 4 KiB."""
    return -(-size // 4096) * 4096

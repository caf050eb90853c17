"""Tier `disk`: one file a record, so that neither a crash nor a damaged sector costs more than the records it hit."""

import errno
import logging
import os
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


@dataclass(slots=True)
class _File:
    size: int
    used: float


class DiskTier(CacheTier):
    """At most `max_bytes` in the folder `path`; the least recently used goes, also among what earlier runs left there.

    A record is written to a file of another name and then renamed, without waiting for the disk: after a crash of the
    process it is whole or not there, after one of the machine its checksum tells. One process a folder.
    """

    name = "disk"
    location = "disk"

    def __init__(self, path: str = "~/.cache/openai-kv/blocks", max_bytes: Size = 10 * 2**30) -> None:
        """Raises ConfigError for a folder that can't be written."""
        self._folder = Path(path).expanduser()
        self._max_bytes = max_bytes
        self._files: OrderedDict[str, _File] = OrderedDict()
        self._num_bytes = 0
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
        self._seconds_unused = info.seconds_unused
        self._files.clear()
        found = sorted(self._scan(), key=lambda entry: entry[1].used)
        self._files.update(found)
        self._num_bytes = sum(file.size for file in self._files.values())
        self._make_room(0)
        logger.info("disk tier: %d records, %d bytes in %s", len(self._files), self._num_bytes, self._folder)

    def _scan(self) -> Iterator[tuple[str, _File]]:
        """Only in folders that are named as ours: others, like `lost+found`, need not be readable."""
        ours = (folder for folder in os.scandir(self._folder) if len(folder.name) == 2 and folder.is_dir())
        for entry in (entry for folder in ours for entry in os.scandir(folder)):
            if entry.name.endswith(PART):
                Path(entry.path).unlink(missing_ok=True)  # of a write that never ended
            elif len(entry.name) == 64:
                status = entry.stat()
                yield entry.name, _File(_on_disk(status.st_size), status.st_mtime)

    def contains(self, keys: Sequence[bytes]) -> Sequence[bool]:
        self._expire()
        return [key.hex() in self._files for key in keys]

    def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        self._expire()
        found = [self._read(key.hex()) for key in keys]
        for key in reversed(keys):  # so that of a chain the deepest goes first
            self._use(key.hex())
        return found

    def _read(self, name: str) -> bytes | None:
        if name not in self._files:
            return None
        try:
            return self._path(name).read_bytes()
        except FileNotFoundError:  # somebody tidied up
            self._forget(name)
            return None

    def put(self, records: Mapping[bytes, bytes]) -> None:
        """Raises TierFullError when the disk has no room for them; then some of the oldest are gone."""
        for key, data in records.items():
            name = key.hex()
            if name in self._files:
                self._use(name)
                continue
            self._make_room(_on_disk(len(data)))
            self._write(name, data)

    def _write(self, name: str, data: bytes) -> None:
        path = self._path(name)
        part = path.with_name(name + PART)
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
            self._drop(key.hex())

    def clear(self) -> None:
        for name in [*self._files]:
            self._drop(name)

    def usage(self) -> TierUsage:
        return TierUsage(len(self._files), self._num_bytes, self._max_bytes)

    def _path(self, name: str) -> Path:
        return self._folder / name[:2] / name

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
            self._forget(name)
            self._path(name).unlink(missing_ok=True)

    def _forget(self, name: str) -> None:
        self._num_bytes -= self._files.pop(name).size


def _on_disk(size: int) -> int:
    """What a file of `size` bytes takes, in blocks of 4 KiB."""
    return -(-size // 4096) * 4096

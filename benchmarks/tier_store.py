"""A file a record or LMDB? Writes, reads and reopens both: python -m benchmarks.tier_store [--records 1000]

Prints MB/s of batches of 8 records, which is what the engine asks for, and milliseconds to open what is there. The
files are read back from memory for the most part: it is the stores that are compared, not disks.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import lmdb

from openai_kv.tiers.disk import DiskTier
from openai_kv.tiers.tier import TierInfo

BATCH = 8
INFO = TierInfo("ab" * 32, 0, 86400.0)
SIZES = {"SmolLM2-135M, 16 tokens in bfloat16": 368_640, "a small block": 16_384}


class Store(Protocol):
    def put(self, records: Mapping[bytes, bytes]) -> None: ...

    def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]: ...

    def close(self) -> None: ...


class Lmdb:
    """No waiting for the disk either; LMDB then survives a crash of the process just as well."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._env = lmdb.open(str(folder), map_size=max_bytes, sync=False, metasync=False, readahead=False)

    def put(self, records: Mapping[bytes, bytes]) -> None:
        with self._env.begin(write=True) as transaction:
            for key, data in records.items():
                transaction.put(key, data)

    def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        with self._env.begin() as transaction:
            return [transaction.get(key) for key in keys]

    def close(self) -> None:
        self._env.close()


def open_files(folder: Path, max_bytes: int) -> Store:
    tier = DiskTier(str(folder), max_bytes)
    tier.start(INFO)
    return tier


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def put_all(store: Store, batches: Sequence[Sequence[bytes]], data: bytes) -> None:
    for batch in batches:
        store.put(dict.fromkeys(batch, data))


def measure(name: str, make: Callable[[Path, int], Store], size: int, count: int) -> None:
    rng = random.Random(0)
    keys = [rng.randbytes(32) for _ in range(count)]
    data, limit = rng.randbytes(size), 3 * count * (size + 4096)
    batches = [keys[begin : begin + BATCH] for begin in range(0, count, BATCH)]
    with tempfile.TemporaryDirectory(dir=".") as folder:
        path = Path(folder) / "store"
        store = make(path, limit)
        written = seconds(lambda: put_all(store, batches, data))
        rng.shuffle(batches)
        read = seconds(lambda: [store.get(batch) for batch in batches])
        assert store.get(keys[:1]) == [data]
        store.close()
        opened = seconds(lambda: make(path, limit))
    total = count * size / 1e6
    print(f"| {name} | {size:,} | {total / written:.0f} | {total / read:.0f} | {opened * 1e3:.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print("| store | bytes a record | put MB/s | get MB/s | open ms |\n|---|---|---|---|---|")
    for size in SIZES.values():
        for _ in range(args.rounds):
            measure("files", open_files, size, args.records)
            measure("LMDB", Lmdb, size, args.records)


if __name__ == "__main__":
    main()

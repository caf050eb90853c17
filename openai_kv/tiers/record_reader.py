"""RecordReader: what a tier answered becomes blocks again, or nothing where a record is missing or damaged."""

from collections.abc import Mapping, Sequence

from openai_kv.errors import CorruptRecordError
from openai_kv.tiers.codec import decode
from openai_kv.tiers.fetch import Fetch, Loaded, Payload, RecordKey
from openai_kv.tiers.tier_thread import TierThread


class RecordReader:
    """Payloads have one of the `sizes`, those for the window group one of `window_sizes`."""

    def __init__(self, threads: Sequence[TierThread], sizes: Sequence[int], window_sizes: Sequence[int]) -> None:
        self._threads = threads
        self._sizes = {False: sizes, True: window_sizes}

    def read(self, number: int, fetch: Fetch, index: int, found: Mapping[bytes, bytes | None]) -> Loaded | None:
        """Block `index`, from what tier number `number` found; None: not all of it is there."""
        parts: dict[bool, Payload] = {}
        for record in fetch.records(index):
            payload = self._decode(number, record, fetch.tokens(index), found[record.key])
            if payload is None:
                return None
            parts[record.windowed] = payload
        return Loaded(index, number, parts.get(False), parts.get(True))

    def _decode(self, number: int, record: RecordKey, tokens: Sequence[int], data: bytes | None) -> Payload | None:
        if data is None:
            return None
        try:
            return decode(data, record.key, tokens, *self._sizes[record.windowed])
        except CorruptRecordError as error:
            self._threads[number].count("corrupt", 1, error)
            self._threads[number].tier.remove([record.key])
            return None

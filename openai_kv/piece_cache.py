"""Token ids of pieces of text that were tokenized before: the next turn of a conversation tokenizes what is new."""

import sys
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import chain, groupby
from threading import Lock

from openai_kv.text_cuts import Encode, TextCuts

ENTRY_BYTES = 500  # of the objects around a text and its ids


class PieceCache:
    """The latest used pieces, at most `max_bytes` of all namespaces together. Any thread."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[tuple[str, str], array[int]] = OrderedDict()
        self._lock = Lock()
        self.num_bytes = 0

    def get(self, namespace: str, pieces: Iterable[str]) -> list[Sequence[int] | None]:
        with self._lock:
            return [self._get((namespace, piece)) for piece in pieces]

    def keep(self, namespace: str, pieces: Iterable[tuple[str, Sequence[int]]]) -> None:
        with self._lock:
            for piece, ids in pieces:
                self._keep((namespace, piece), array("I", ids))

    def _get(self, key: tuple[str, str]) -> Sequence[int] | None:
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)

    def _keep(self, key: tuple[str, str], ids: "array[int]") -> None:
        if key in self._kept or size_of(key, ids) > self._max_bytes:
            return
        self._kept[key] = ids
        self.num_bytes += size_of(key, ids)
        while self.num_bytes > self._max_bytes:
            self.num_bytes -= size_of(*self._kept.popitem(last=False))


def size_of(key: tuple[str, str], ids: "array[int]") -> int:
    return ENTRY_BYTES + sys.getsizeof(key[1]) + ids.itemsize * len(ids)


class PieceEncoder:
    """Token ids of whole texts, by way of the cache; what a namespace sent speeds up nothing of another one's."""

    def __init__(self, encode: Encode, cuts: TextCuts, cache: PieceCache) -> None:
        self._encode = encode
        self._cuts = cuts
        self._cache = cache

    def encode(self, namespace: str, text: str) -> list[int]:
        pieces = self._cuts.split(text)
        known = self._cache.get(namespace, pieces)
        token_ids: list[int] = []
        for is_new, run in groupby(zip(pieces, known, strict=True), key=lambda pair: pair[1] is None):
            if is_new:
                token_ids += self._learn(namespace, [piece for piece, _ in run])
            else:
                token_ids += chain.from_iterable(ids or () for _, ids in run)
        return token_ids

    def piece_at(self, text: str, end: int) -> slice:
        """The piece that has this place in it, or begins there."""
        bounds = self._cuts.bounds(text)
        index = bisect_right(bounds, end, hi=len(bounds) - 1)
        return slice(bounds[index - 1], bounds[index])

    def _learn(self, namespace: str, pieces: Sequence[str]) -> list[int]:
        """Neighbours in one call, however many they are."""
        ids = self._encode("".join(pieces))
        parts = self._cuts.split_ids(ids)
        if len(parts) == len(pieces):
            self._cache.keep(namespace, zip(pieces, parts, strict=True))
        return ids

"""Storing: what a step has read out of the pool goes to the tiers that are to have it."""

from collections.abc import Callable, Sequence
from functools import partial

from openai_kv.outputs import BlockSave
from openai_kv.tiers.codec import encode
from openai_kv.tiers.tier import CacheTier
from openai_kv.tiers.tier_thread import Job, TierThread
from openai_kv.tiers.transfers import Transfers

BATCH = 8  # blocks of one job


class Storing:
    """A tier that is too slow gets no more than its thread's queue holds; what it does not get is counted."""

    def __init__(self, threads: Sequence[TierThread], transfers: Transfers, clock: Callable[[], float]) -> None:
        self._threads = threads
        self._transfers = transfers
        self._clock = clock

    def store(self, saves: Sequence[BlockSave], payloads: Sequence[bytes]) -> None:
        """`payloads` as the saves ordered them."""
        for number, thread in enumerate(self._threads):
            chosen = [(save, data) for save, data in zip(saves, payloads, strict=True) if number in save.tiers]
            for begin in range(0, len(chosen), BATCH):
                batch = chosen[begin : begin + BATCH]
                size = sum(len(data) for _, data in batch)
                lose = partial(thread.count, "dropped", len(batch), "the tier is too slow, or left alone")
                if not thread.write(Job(partial(self._store, number, batch), lose, size)):
                    lose()

    def _store(self, number: int, batch: Sequence[tuple[BlockSave, bytes]], tier: CacheTier) -> None:
        begin = self._clock()
        records = {save.key: encode(save.key, save.token_ids, payload) for save, payload in batch}
        tier.put(records)
        self._transfers.report(number, "demote", [payload for _, payload in batch], self._clock() - begin)

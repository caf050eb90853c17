"""Blocks as bytes, out of the pools for tiers and back into them; a window group has a pool of its own."""

from collections.abc import Sequence

from openai_kv.model_runner.kv_pool import KVPool
from openai_kv.outputs import BlockLoad, BlockSave


def read(saves: Sequence[BlockSave], full: KVPool, window: KVPool | None) -> list[bytes]:
    """What they order, in their order."""
    found: list[bytes] = [b""] * len(saves)
    for pool, windowed in ((full, False), (window, True)):
        places = [place for place, save in enumerate(saves) if save.windowed == windowed]
        if pool is not None:
            blocks = pool.read_blocks([saves[place].block_id for place in places])
            for place, payload in zip(places, blocks, strict=True):
                found[place] = payload
    return found


def write(loads: Sequence[BlockLoad], full: KVPool, window: KVPool | None) -> None:
    for pool, windowed in ((full, False), (window, True)):
        chosen = [load for load in loads if load.windowed == windowed]
        if pool is not None:
            pool.write_blocks([load.block_id for load in chosen], [load.payload for load in chosen])

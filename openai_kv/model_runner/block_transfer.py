"""Blocks as bytes, out of the pools for tiers and back into them; a window group has a pool of its own."""

from collections.abc import Sequence

from openai_kv.model_runner.tier_blocks import TierBlocks
from openai_kv.outputs import BlockLoad, BlockSave


def read(saves: Sequence[BlockSave], full: TierBlocks, window: TierBlocks | None) -> list[bytes]:
    """What they order, in their order."""
    found: list[bytes] = [b""] * len(saves)
    for blocks, windowed in ((full, False), (window, True)):
        places = [place for place, save in enumerate(saves) if save.windowed == windowed]
        if blocks is not None:
            payloads = blocks.read([saves[place] for place in places])
            for place, payload in zip(places, payloads, strict=True):
                found[place] = payload
    return found


def write(loads: Sequence[BlockLoad], full: TierBlocks, window: TierBlocks | None) -> None:
    for blocks, windowed in ((full, False), (window, True)):
        if blocks is not None:
            blocks.write([load for load in loads if load.windowed == windowed])

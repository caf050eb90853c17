"""TierBlocks: reads blocks out of the pool for the tiers, and writes what comes back from there."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from openai_kv.model_runner.kv_pool import KVPool
from openai_kv.outputs import BlockLoad, BlockSave, ScheduledRequest


class TierBlocks:
    """K and V as they lie in `pool`."""

    def __init__(self, pool: KVPool) -> None:
        self.pool = pool

    def read(self, saves: Sequence[BlockSave]) -> list[bytes]:
        """The payload of each."""
        return self.pool.read_blocks([save.block_id for save in saves])

    def write(self, loads: Sequence[BlockLoad]) -> None:
        """Payloads that were read from a pool of the same shape and format."""
        self.pool.write_blocks([load.block_id for load in loads], [load.payload for load in loads])

    def unseen(self, block_ids: Iterable[int]) -> None:
        """These blocks are written now otherwise than by layers that run."""

    @contextmanager
    def watching(self, requests: Iterable[ScheduledRequest]) -> Iterator[None]:  # noqa: ARG002
        """While the layers run over the rows of `requests`."""
        yield

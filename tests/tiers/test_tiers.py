"""What Tiers tell of what was moved."""

import pytest

from openai_kv.metrics import TransferStats
from openai_kv.outputs import BlockSave
from openai_kv.tiers.fetch import Fetch
from openai_kv.tiers.host import HostTier
from openai_kv.tiers.tiers import Tiers
from tests.tiers.inline import INFO, InlineThread

KEYS, TOKENS = [bytes([number]) * 32 for number in range(3)], [(number, 7) for number in range(3)]
PAYLOADS = [b"a" * 100, b"b" * 60, b"c" * 60]  # one as K and V


class Heard:
    def __init__(self) -> None:
        self.transfers: list[TransferStats] = []

    def on_transfer(self, stats: TransferStats) -> None:
        self.transfers.append(stats)


def test_bytes_are_those_of_either_kind_and_a_block_takes_its_restoring_too() -> None:
    heard = Heard()
    tiers = Tiers(
        [InlineThread(HostTier(2**20), INFO)],
        block_bytes=100,
        hidden_bytes=60,
        restore_seconds=5.0,
        observer=heard,
        clock=lambda: 0.0,
    )
    saves = [BlockSave(0, key, tokens, (0,)) for key, tokens in zip(KEYS, TOKENS, strict=True)]
    tiers.store(saves, PAYLOADS)
    fetch = Fetch(0, KEYS, TOKENS, 0.0)
    tiers.look_up(fetch)
    fetch.read_inbox()
    fetch.settle(0.0)
    tiers.load(fetch, 10)
    fetch.read_inbox()
    assert [bytes(loaded.full or b"") for loaded in fetch.take()] == PAYLOADS[::-1]
    told = [(stats.direction, stats.num_blocks, stats.num_bytes) for stats in heard.transfers]
    assert told == [("demote", 3, 220), ("promote", 1, 60), ("promote", 2, 160)]
    assert tiers.speeds[0].seconds(10, most=10) == pytest.approx(50.0)


def test_a_payload_of_a_third_length_is_corrupt() -> None:
    tiers = Tiers([InlineThread(HostTier(2**20), INFO)], block_bytes=100, hidden_bytes=60)
    tiers.store([BlockSave(0, KEYS[0], TOKENS[0], (0,))], [b"x" * 80])
    fetch = Fetch(0, KEYS[:1], TOKENS[:1], 0.0)
    tiers.look_up(fetch)
    fetch.read_inbox()
    fetch.settle(0.0)
    tiers.load(fetch, 10)
    fetch.read_inbox()
    assert fetch.take() == []
    assert tiers.threads[0].problems["corrupt"] == 1

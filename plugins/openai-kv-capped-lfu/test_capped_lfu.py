"""`pytest` in this folder runs what every eviction policy has to stand, and then this policy's own test."""

from openai_kv_capped_lfu import CappedLFU

from openai_kv import EvictionPolicy
from openai_kv.testing import PolicyConformance


class TestCappedLFU(PolicyConformance):
    def make_policy(self) -> EvictionPolicy:
        return CappedLFU(max_hits=2)


def test_the_default_counts_to_eight() -> None:
    assert CappedLFU().max_hits == 8

from collections.abc import Iterable

import pytest

from openai_kv.cache.block import Block, chain_key
from openai_kv.cache.contest import Contest
from openai_kv.cache.policy import BlockInfo, CacheInfo, PriorityPolicy


class Oldest(PriorityPolicy):
    """Keeps what was used at last."""

    name = "oldest"

    def priority(self, block: BlockInfo) -> float:
        return block.last_accessed


class Newest(PriorityPolicy):
    """The best there is for a loop."""

    name = "newest"

    def priority(self, block: BlockInfo) -> float:
        return -block.last_accessed


class Uses:
    """One-block contents, each used again and again in one tick of its own."""

    def __init__(self, contest: Contest) -> None:
        self.contest = contest
        self.tick = 0

    def see(self, contents: Iterable[int]) -> None:
        for content in contents:
            self.tick += 1
            block = made(content)
            block.last_accessed = self.tick
            self.contest.see(block.info)
            self.contest.forget(block.info)


def made(content: int, parent: Block | None = None, tokens: int = 1) -> Block:
    block = Block(content)
    block.key = chain_key(parent.key if parent else 0, (content,))
    block.token_ids = (content,) * tokens
    block.depth, block.parent = (parent.depth + 1, parent.info) if parent else (0, None)
    return block


def contest(num_blocks: int, sample: int, block_size: int = 1) -> Contest:
    return Contest([Oldest(), Newest()], CacheInfo(num_blocks, block_size, float), sample)


@pytest.mark.parametrize(("num_blocks", "sample"), [(40, 1000), (4000, 100)])
def test_the_first_leads_until_another_has_proved_better_and_again(num_blocks: int, sample: int) -> None:
    uses = Uses(contest(num_blocks, sample))
    assert uses.contest.leader == 0
    loop = range(num_blocks * 3 // 2)
    uses.see([*loop, *loop, *loop])
    assert uses.contest.leader == 1
    for start in range(0, 60 * num_blocks, num_blocks // 2):  # all is used twice soon, and never again
        uses.see([*range(10**6 + start, 10**6 + start + num_blocks // 2)] * 2)
    assert uses.contest.leader == 0


def test_a_sample_is_as_many_as_asked_for_and_the_same_each_time() -> None:
    first, second = Uses(contest(100_000, 200)), Uses(contest(100_000, 200))
    for uses in (first, second):
        uses.see(range(100_000))
    kept = [set(uses.contest._shadows[0].blocks) for uses in (first, second)]
    assert kept[0] == kept[1]
    assert len(kept[0]) == pytest.approx(200, rel=0.2)


def test_what_all_have_or_none_has_tells_nothing() -> None:
    uses = Uses(contest(40, 1000))
    uses.see([*range(20)] * 50)
    assert uses.contest.scores == [0.0, 0.0]


def test_sampled_blocks_of_a_chain_hang_on_each_other() -> None:
    shown = contest(100_000, 25_000)
    chain: list[Block] = []
    for depth in range(40):
        chain.append(made(depth, chain[-1] if chain else None))
        shown.see(chain[-1].info)
    blocks = sorted(shown._shadows[0].blocks.values(), key=lambda block: block.depth)
    assert 2 < len(blocks) < 30
    assert [block.parent for block in blocks] == [None, *blocks[:-1]]
    for block in chain:
        shown.forget(block.info)
    assert not shown._anchors


def test_a_partial_block_is_left_out_until_it_is_whole() -> None:
    shown = contest(10, 10, block_size=2)
    block = made(1, tokens=1)
    shown.see(block.info)
    assert not shown._shadows[0].blocks
    block.token_ids = (1, 1)
    shown.see(block.info)
    assert len(shown._shadows[0].blocks) == 1

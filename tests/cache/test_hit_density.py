"""What a model is told of requests that end inside a block, as they do on a server."""

from collections.abc import Sequence

from openai_kv.cache.hit_density import HitDensityPolicy
from openai_kv.cache.manager import KVCacheManager
from openai_kv.cache.reuse import NUM_BINS, Traits
from openai_kv.request import RequestInfo


class Lessons:
    """A model that only listens."""

    def __init__(self) -> None:
        self.watched: list[Traits] = []
        self.num_used = 0

    def came(self, traits: Traits, age_bin: int) -> None:
        if age_bin == 0:
            self.watched.append(traits)

    def used(self, traits: Traits, age_bin: int) -> None:
        self.num_used += 1

    def hazards(self, traits: Traits) -> list[float]:
        return [0.02] * NUM_BINS


class Policy(HitDensityPolicy):
    name = "listens"


class Server:
    """A cache of 64 blocks of four tokens."""

    def __init__(self) -> None:
        self.lessons = Lessons()
        self.cache = KVCacheManager(num_blocks=64, block_size=4, policy=Policy(self.lessons, 0), num_hidden_slots=0)

    def start(self, name: str, prompt: Sequence[int]) -> RequestInfo:
        info = RequestInfo(name, len(prompt))
        assert self.cache.admit(info, self.cache.lookup(prompt, info), len(prompt)) is not None
        return info

    def end(self, info: RequestInfo, prompt: Sequence[int]) -> set[tuple[int, int, int]]:
        """Turn, new blocks and length of what is watched from now on."""
        before = len(self.lessons.watched)
        self.cache.cache_blocks(info.request_id, prompt, with_tail=True)
        self.cache.free(info.request_id)
        self.cache.finish(info)
        self.cache.check_integrity()
        return {(traits.turn, traits.new, traits.length) for traits in self.lessons.watched[before:]}

    def run(self, name: str, prompt: Sequence[int]) -> set[tuple[int, int, int]]:
        return self.end(self.start(name, prompt), prompt)


def blocks(count: int) -> int:
    """As traits have it."""
    return count.bit_length()


def test_a_turn_that_goes_on_inside_a_block_is_one_request() -> None:
    server = Server()
    assert server.run("first", range(30)) == {(1, blocks(8), blocks(8))}
    assert server.run("second", range(70)) == {(2, blocks(18 - 7), blocks(18))}
    assert server.run("third", range(90)) == {(3, blocks(23 - 17), blocks(23))}


def test_a_repeat_that_brings_nothing_new_ends_too() -> None:
    server = Server()
    server.run("first", range(30))
    for number in range(2, 4):
        assert server.run(str(number), range(30)) == {(number, 0, blocks(8))}
    assert server.lessons.num_used > 4


def test_one_that_ends_meanwhile_takes_nothing_from_one_that_has_brought_its_blocks() -> None:
    server = Server()
    server.run("first", range(30))
    going_on = server.start("going on", range(70))
    server.cache.cache_blocks("going on", range(50), with_tail=False)
    server.run("other", [*range(100, 130)])
    assert server.end(going_on, range(70)) == {(2, blocks(18 - 7), blocks(18))}

"""What every cache tier has to stand, each as a function of how to make one on the same storage."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b

from openai_kv.tiers.tier import CacheTier, TierInfo, TierUsage
from openai_kv.tiers.tier import check_tier as check_class

MakeTier = Callable[[], CacheTier]
KEYS = tuple(blake2b(bytes([number]), digest_size=32).digest() for number in range(6))
SIZES = (1, 4096, 100_000)
DAY = 86400.0
SOON, LATEST, PAUSE = 1.0, 10.0, 0.05  # seconds
SMALL = 2**26  # bytes of a tier that is filled to see whether it keeps its bound


class TierFailure(AssertionError):
    """The tier breaks the contract; the message says where."""


def check_tier(make: MakeTier) -> None:
    """All checks of this module on what `make`, mostly a class, makes; raises TierFailure for the first it fails."""
    for check in (check_records, check_forgetting, check_restart, check_bound, check_expiry):
        check(make)


def record(number: int, size: int = 4096) -> bytes:
    return bytes((number + index) % 256 for index in range(256)) * (size // 256) + bytes([number]) * (size % 256)


def require(tier: CacheTier, condition: object, problem: str) -> None:
    if not condition:
        raise TierFailure(f"{tier.name}: {problem}")


def use(make: MakeTier, identity: str, hooks: Callable[[CacheTier], None], seconds_unused: float = DAY) -> None:
    """A tier's life: made here, all else in a thread of its own."""
    tier = make()

    def live() -> None:
        tier.start(TierInfo(blake2b(identity.encode(), digest_size=32).hexdigest(), 4096, seconds_unused))
        try:
            hooks(tier)
        finally:
            tier.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(live).result()


def check_records(make: MakeTier) -> None:
    """They come back as they were, in the order that was asked for, of any size; what is not there is None."""
    check_class(type(make()))
    use(make, "records", _check_records)


def _check_records(tier: CacheTier) -> None:
    tier.clear()
    records = {key: record(number, size) for number, (key, size) in enumerate(zip(KEYS, SIZES, strict=False))}
    tier.put(records)
    tier.put({})
    tier.put({KEYS[0]: records[KEYS[0]]})
    require(tier, [*tier.contains(KEYS)] == [True] * 3 + [False] * 3, "contains does not say what was put, key by key")
    wanted = [KEYS[5], KEYS[1], KEYS[0], KEYS[3], KEYS[2]]
    found = tier.get(wanted)
    require(
        tier, [*found] == [records.get(key) for key in wanted], "get has other records than were put, or in disorder"
    )
    require(tier, all(isinstance(each, bytes) for each in found if each is not None), "records are bytes")
    require(tier, not [*tier.contains([]), *tier.get([])], "no keys have no answers")
    require(tier, isinstance(tier.usage(), TierUsage), "usage is a TierUsage")
    tier.clear()


def check_forgetting(make: MakeTier) -> None:
    """What is removed or cleared is gone, what is not there can be removed, and then it is used again."""
    use(make, "forgetting", _check_forgetting)


def _check_forgetting(tier: CacheTier) -> None:
    tier.clear()
    tier.put({key: record(number) for number, key in enumerate(KEYS[:3])})
    tier.remove([KEYS[1], KEYS[5]])
    tier.remove([])
    require(tier, _found(tier) == [0, 2], "remove forgets those keys and no others, known or not")
    tier.put({KEYS[1]: record(7)})
    require(tier, [*tier.get(KEYS[1:2])] == [record(7)], "a key that was removed takes another record")
    tier.clear()
    require(tier, _found(tier) == [], "clear forgets everything")
    tier.put({KEYS[3]: record(3)})
    require(tier, _found(tier) == [3], "it goes on after clear")
    tier.clear()


def check_restart(make: MakeTier) -> None:
    """A tier that keeps its records beyond `close` keeps them whole, whatever those with another identity clear."""
    kept: list[Sequence[bytes | None]] = []

    def begin(tier: CacheTier) -> None:
        tier.clear()
        tier.put({KEYS[0]: record(0)})

    def disturb(tier: CacheTier) -> None:
        tier.put({KEYS[1]: record(1)})
        tier.clear()

    use(make, "mine", begin)
    use(make, "mine", lambda tier: kept.append([*tier.get(KEYS[:1])]))
    use(make, "another's", disturb)
    use(make, "mine", lambda tier: kept.append([*tier.get(KEYS[:1])]))
    use(make, "mine", lambda tier: tier.clear())
    require(make(), all(found in ([record(0)], [None]) for found in kept), "a restart changes a record")
    require(make(), kept[0] == kept[1], "clear forgets records of another identity")


def check_bound(make: MakeTier) -> None:
    """A small tier that tells its bound keeps it, and keeps what came last; larger ones are not filled."""
    use(make, "bound", _check_bound)


def _check_bound(tier: CacheTier) -> None:
    most = tier.usage().max_bytes
    if most is None or most > SMALL:
        return
    tier.clear()
    count = 2 * most // 4096 + 2
    keys = [blake2b(number.to_bytes(8), digest_size=32).digest() for number in range(count)]
    for number, key in enumerate(keys):
        tier.put({key: record(number % 256)})
        held = tier.usage().num_bytes or 0
        require(tier, held <= most, f"it holds {held} bytes and says that {most} are the most")
    require(tier, [*tier.contains(keys[:1] + keys[-1:])] == [False, True], "the least recently used makes room")
    tier.clear()


def check_expiry(make: MakeTier) -> None:
    """A record that nobody used for `seconds_unused` is not found any more; asking for it is no use."""
    use(make, "expiry", _check_expiry, SOON)


def _check_expiry(tier: CacheTier) -> None:
    tier.put({KEYS[0]: record(0)})
    end = time.monotonic() + LATEST
    while _found(tier) and time.monotonic() < end:
        time.sleep(PAUSE)  # nobody tells when a record expires
    require(tier, not _found(tier), "it finds what nobody used for seconds_unused")
    require(tier, [*tier.get(KEYS[:1])] == [None], "get has what contains denies")


def _found(tier: CacheTier) -> list[int]:
    return [number for number, known in enumerate(tier.contains(KEYS)) if known]


class TierConformance:
    """The same as a pytest class: `class TestMine(TierConformance)` with `make_tier`."""

    def make_tier(self) -> CacheTier:
        """A new object, within one test on the same storage."""
        raise NotImplementedError

    def test_records_come_back(self) -> None:
        check_records(self.make_tier)

    def test_forgets_what_it_is_to_forget(self) -> None:
        check_forgetting(self.make_tier)

    def test_keeps_what_is_its_own_over_a_restart(self) -> None:
        check_restart(self.make_tier)

    def test_keeps_its_bound(self) -> None:
        check_bound(self.make_tier)

    def test_expires_what_nobody_uses(self) -> None:
        check_expiry(self.make_tier)

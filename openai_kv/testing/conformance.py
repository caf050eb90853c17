"""What every eviction policy has to stand, each as a function of how to make one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from openai_kv.cache.policy import EvictionPolicy
from openai_kv.testing.flat import DecisionCost, FlatCache, footprint, measure
from openai_kv.testing.lives import Lives
from openai_kv.testing.watch import PolicyFailure, WatchedPolicy

MakePolicy = Callable[[], EvictionPolicy]
LIVES_STEPS = 1500
SIZES = (1_000, 10_000)
MAX_EXAMINED = 64  # room for policies that draw a sample
WARM_UP, CHURN, MAX_GROWTH = 2_000, 12_000, 4_096


@dataclass(frozen=True, slots=True)
class PolicyReport:
    """`evictions` in the random lives; `objects` that the policy keeps for a pool of 32 blocks."""

    name: str
    evictions: int
    objects: int
    costs: tuple[DecisionCost, ...]

    def __str__(self) -> str:
        costs = ", ".join(f"{cost.seconds * 1e6:.1f} us at {cost.num_blocks}" for cost in self.costs)
        return f"{self.name}: {self.evictions} evictions, {self.objects} objects kept; a decision takes {costs} blocks"


def check_policy(make: MakePolicy, *, seed: int = 0, sizes: Sequence[int] = SIZES) -> PolicyReport:
    """All checks of this module on what `make`, mostly a class, makes; raises PolicyFailure for the first it fails."""
    evictions = check_lives(make, seed=seed)
    check_determinism(make, seed=seed)
    objects = check_memory(make)
    return PolicyReport(make().name, evictions, objects, check_cost(make, seed=seed, sizes=sizes))


def check_lives(make: MakePolicy, *, seed: int = 0, steps: int = LIVES_STEPS) -> int:
    """No hook raises, each victim is a candidate, nothing in use is lost, every unused block can go.

    Returns how many blocks were evicted.
    """
    return len(live(make, seed, steps).evicted)


def live(make: MakePolicy, seed: int, steps: int) -> WatchedPolicy:
    policy = WatchedPolicy(make())
    Lives(policy, seed).run(steps)
    return policy


def check_determinism(make: MakePolicy, *, seed: int = 0, steps: int = LIVES_STEPS // 2) -> None:
    """The same requests make the same evictions: sets of blocks have no fixed order, and chance needs a seed."""
    first, second = live(make, seed, steps), live(make, seed, steps)  # both alive, so that no address is the same
    if first.policy is second.policy:
        raise PolicyFailure(f"{first.name}: the same object was given twice")
    pairs = zip_longest(first.evicted, second.evicted)
    at = next((at for at, (one, other) in enumerate(pairs, 1) if one != other), None)
    if at is not None:
        raise PolicyFailure(f"{first.name}: eviction number {at} differs between two equal runs")


def check_memory(make: MakePolicy) -> int:
    """What a policy keeps must not grow with the contents that passed. Returns how many objects it keeps."""
    policy = WatchedPolicy(make())
    cache = FlatCache(policy, 32)
    cache.churn(WARM_UP)
    before = footprint(policy.policy)
    cache.churn(CHURN)
    after = footprint(policy.policy)
    if after > before + MAX_GROWTH:
        raise PolicyFailure(
            f"{policy.name}: keeps {after - before} objects more after {CHURN} blocks that came and went"
        )
    return after


def check_cost(make: MakePolicy, *, seed: int = 0, sizes: Sequence[int] = SIZES) -> tuple[DecisionCost, ...]:
    """A decision must not go through the candidates. Times are reported, not judged."""
    costs = tuple(measure(WatchedPolicy(make()), size, size // 2, seed) for size in sizes)
    for cost in costs:
        if cost.examined > MAX_EXAMINED:
            raise PolicyFailure(
                f"{make().name}: looks at {cost.examined:.0f} candidates a decision in a pool of {cost.num_blocks}; "
                "keep an order from on_evictable and on_unevictable instead"
            )
    return costs


class PolicyConformance:
    """The same as a pytest class: `class TestMine(PolicyConformance)` with `make_policy`."""

    def make_policy(self) -> EvictionPolicy:
        """A new policy, the same each time."""
        raise NotImplementedError

    def test_survives_random_lives(self) -> None:
        check_lives(self.make_policy)

    def test_is_deterministic(self) -> None:
        check_determinism(self.make_policy)

    def test_memory_is_bounded(self) -> None:
        check_memory(self.make_policy)

    def test_decisions_do_not_scan(self) -> None:
        check_cost(self.make_policy)

"""One pin, and how much pins may keep."""

from dataclasses import dataclass

from openai_kv.cache.block import Block


@dataclass(frozen=True, slots=True)
class PinLimits:
    """Shares of the blocks that soft and hard pins may keep, and how many hard pins there may be."""

    soft_pin_fraction: float = 0.5
    max_pinned_fraction: float = 0.25
    max_pins: int = 256


@dataclass(slots=True, eq=False)
class Pin:
    """Keeps the first `num_tokens` tokens of a chain, which end in `block`; times are of the cache's clock.

    A hard pin has a `pin_id`, and `num_cached_tokens`, those that were cached when it was ordered. `hits`: look-ups
    taken that matched all of it.
    """

    block: Block
    num_tokens: int
    ttl: float
    created: float
    expires_at: float
    pin_id: str = ""
    label: str | None = None
    num_cached_tokens: int = 0
    hits: int = 0

    @property
    def is_hard(self) -> bool:
        return bool(self.pin_id)

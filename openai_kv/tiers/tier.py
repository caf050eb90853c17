"""The contract of cache tiers: a class that keeps records under keys, as long as it likes to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

TIER_CONTRACT_VERSION = 1  # docs/tiers.md says what may change under the same number
Location = Literal["host", "disk", "remote"]
DemotionPolicy = Literal["write-back", "write-through", "after-hits"]


@dataclass(frozen=True, slots=True)
class TierInfo:
    """What a tier is told at start.

    `identity`: hex digits that name model, types and block size; other identities' keys are other keys. A record is
    about `record_bytes` long. One that nobody used for `seconds_unused` must not be found any more.
    """

    identity: str
    record_bytes: int
    seconds_unused: float


@dataclass(frozen=True, slots=True)
class TierUsage:
    """Records and bytes a tier holds, and the most bytes it may hold; None: it can't tell."""

    records: int | None = None
    num_bytes: int | None = None
    max_bytes: int | None = None


class CacheTier:
    """Base of tiers; constructor arguments are the plugin's options. All else runs in a thread of the tier's own.

    Keys are 32 bytes. Records are checked by whoever reads them, so a tier may lose or damage any; it may raise
    whatever it likes. One that raises or hangs is left alone for a while, and nobody waits longer for it than it pays.
    `location` is the name that clients see; `demotion`: when blocks come here, unless the settings say.
    """

    name: ClassVar[str]
    location: ClassVar[Location] = "remote"
    demotion: ClassVar[DemotionPolicy] = "write-through"

    def start(self, info: TierInfo) -> None:
        """Once, before all else; called again at the next use if it raised."""

    def contains(self, keys: Sequence[bytes]) -> Sequence[bool]:
        """For each key whether `get` would find it now."""
        raise NotImplementedError

    def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """For each key its record, which counts as used; of a chain the last key is the deepest."""
        raise NotImplementedError

    def put(self, records: Mapping[bytes, bytes]) -> None:
        """Keep these, making room by dropping the least recently used; what is there already counts as used."""
        raise NotImplementedError

    def remove(self, keys: Sequence[bytes]) -> None:
        """Forget these, if they are there: they were found damaged."""
        raise NotImplementedError

    def clear(self) -> None:
        """Forget everything of this identity."""
        raise NotImplementedError

    def usage(self) -> TierUsage:
        """Now; cheap."""
        return TierUsage()

    def close(self) -> None:
        """The last call."""


def check_tier(cls: type[CacheTier]) -> None:
    """Raises TypeError for a `location` or `demotion` that there is not: no block would ever go there."""
    for value, known in ((cls.location, get_args(Location)), (cls.demotion, get_args(DemotionPolicy))):
        if value not in known:
            raise TypeError(f"{cls.__name__}: {value!r} is none of {', '.join(known)}")

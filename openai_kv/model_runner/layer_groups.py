"""LayerGroups: which layers keep every token and which the last ones only; each group has a pool and block tables."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerGroups:
    """`windowed`: per layer, whether it is in the window group, whose rows see `window` tokens (0: no such group)."""

    windowed: tuple[bool, ...]
    window: int = 0

    @classmethod
    def of(cls, windows: Sequence[int | None], longest: int | None = None, layout: str = "auto") -> "LayerGroups":
        """By each layer's window, None where it sees everything; layout `full` puts all into one group.

        Different windows share the group, which then keeps the largest. A window that a sequence of `longest` tokens
        does not fill would free nothing.
        """
        windowed = tuple(
            layout != "full" and window is not None and (longest is None or window < longest) for window in windows
        )
        return cls(
            windowed, max((window or 0 for window, own in zip(windows, windowed, strict=True) if own), default=0)
        )

    @property
    def num_windowed(self) -> int:
        return sum(self.windowed)

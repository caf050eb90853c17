"""LayerGroups: which layers keep every token and which the last ones only; each group has a pool and block tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LayerGroups:
    """`windowed`: per layer, whether it is in the window group, whose rows see `window` tokens (0: no such group).

    `indices`: per layer, which one of its group it is.
    """

    windowed: tuple[bool, ...]
    indices: tuple[int, ...]
    window: int

    @classmethod
    def of(cls, windows: Sequence[int | None], longest: int | None = None, layout: str = "auto") -> "LayerGroups":
        """By each layer's window, None where it sees everything; layout `full` puts all into one group.

        Different windows share the group, which then keeps the largest. A window that a sequence of `longest` tokens
        does not fill would free nothing.
        """
        windowed = tuple(
            layout != "full" and window is not None and (longest is None or window < longest) for window in windows
        )
        indices = tuple(windowed[:layer].count(own) for layer, own in enumerate(windowed))
        return cls(windowed, indices, max(filter(None, compress(windows, windowed)), default=0))

    @property
    def num_windowed(self) -> int:
        return sum(self.windowed)

    @property
    def names(self) -> tuple[str, ...]:
        """Each layer's group; empty where there is one only."""
        return tuple("window" if own else "full" for own in self.windowed) if self.window else ()

    def full(self, layers: Sequence[T]) -> list[T]:
        """Of something for each layer, what is of those that keep everything."""
        return list(compress(layers, (not own for own in self.windowed)))

    def in_window(self, layers: Sequence[T]) -> list[T]:
        """What is of those in the window group."""
        return list(compress(layers, self.windowed))

"""Counts the comparisons that candidate queues make."""

from dataclasses import dataclass

import pytest

from openai_kv.cache.candidate_queue import CandidateQueue, Priority
from openai_kv.cache.policy import BlockInfo


@dataclass
class Comparisons:
    number: int = 0


class Key:
    """A heap of tuples asks for equality first, once a comparison."""

    __slots__ = ("_counted", "_value")

    def __init__(self, value: object, counted: Comparisons) -> None:
        self._value, self._counted = value, counted

    def __eq__(self, other: object) -> bool:
        self._counted.number += 1
        return isinstance(other, Key) and self._value == other._value

    def __lt__(self, other: "Key") -> bool:
        return bool(self._value < other._value)  # type: ignore[operator]

    __hash__ = None  # type: ignore[assignment]


def count_comparisons(monkeypatch: pytest.MonkeyPatch) -> Comparisons:
    """Of all candidate queues from now on."""
    counted, add = Comparisons(), CandidateQueue.add

    def add_counted(self: CandidateQueue, block: BlockInfo, key: Priority) -> None:
        add(self, block, Key(key, counted))  # type: ignore[arg-type]

    monkeypatch.setattr(CandidateQueue, "add", add_counted)
    return counted

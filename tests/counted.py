"""Counts what decisions cost: comparisons that candidate queues make, and lines of the package that run."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import openai_kv
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


@dataclass
class Steps:
    number: int = 0


@contextmanager
def count_steps() -> Iterator[Steps]:
    """Lines that run meanwhile, in the package and in the comparisons above; a loop counts each of its rounds."""
    steps, before = Steps(), sys.gettrace()
    places = (str(Path(openai_kv.__file__).parent), __file__)

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        return run if frame.f_code.co_filename.startswith(places) else None

    def run(frame: FrameType, event: str, argument: Any) -> Any:
        steps.number += event == "line"
        return run

    sys.settrace(enter)
    try:
        yield steps
    finally:
        sys.settrace(before)

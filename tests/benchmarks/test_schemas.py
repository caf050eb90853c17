from collections.abc import Mapping
from typing import Any

from benchmarks.schemas import chosen

SCHEMAS: list[Mapping[str, Any]] = [{"const": number} for number in range(125)]


def test_a_schema_keeps_its_seed_whether_all_are_asked_for_or_some() -> None:
    every = chosen(SCHEMAS, 50, None)
    assert list(every) == list(range(50))
    assert [every[0], every[49]] == [SCHEMAS[0], SCHEMAS[122]]
    assert chosen(SCHEMAS, 50, [28, 3]) == {28: every[28], 3: every[3]}
    assert list(chosen(SCHEMAS, 0, None).values()) == SCHEMAS

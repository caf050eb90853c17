from dataclasses import replace

import pytest
import torch

from openai_kv.model_runner.wanted_rows import wanted_rows
from openai_kv.outputs import ScheduledRequest
from openai_kv.request import Pooling, SamplingParams

CPU = torch.device("cpu")


def rows(request_id: str, count: int, **changes: object) -> ScheduledRequest:
    plain = ScheduledRequest(request_id, [1] * count, 0, [0], False, SamplingParams(max_tokens=1), 0, [1] * count, ())
    return replace(plain, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"samples": True}, [4]),
        ({"samples": True, "num_drafts": 2}, [2, 3, 4]),
        ({"store_slot": 0}, [4]),
        ({"pooling": Pooling.LAST}, [4]),
        ({"pooling": Pooling.MEAN}, [0, 1, 2, 3, 4]),
        ({"prompt_logprobs": 0}, [0, 1, 2, 3, 4]),
    ],
)
def test_who_looks_at_what(changes: dict[str, object], expected: list[int]) -> None:
    found = wanted_rows([rows("a", 5, **changes), rows("b", 3)], CPU)
    assert found is not None
    assert found.dtype == torch.int64
    assert found.tolist() == expected


def test_of_later_requests_too() -> None:
    found = wanted_rows([rows("a", 5), rows("b", 3, samples=True), rows("c", 1, samples=True)], CPU)
    assert found is not None
    assert found.tolist() == [7, 8]


def test_a_step_that_decodes_wants_all() -> None:
    assert wanted_rows([rows("a", 1, samples=True), rows("b", 2, samples=True, num_drafts=1)], CPU) is None

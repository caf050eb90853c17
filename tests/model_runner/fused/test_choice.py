import pytest
import torch

from openai_kv.model_runner.fused import choice, operators


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({16: 1.0, 64: 1.0, 256: 1.0}, 0),
        ({16: 1.0, 64: 1.0, 256: 0.5}, 256),
        ({16: 1.0, 64: 0.8, 256: 0.5}, 64),
        ({16: 0.5, 64: 0.5, 256: 0.5}, 16),
        ({16: 0.5, 64: 1.0, 256: 0.5}, 256),
        ({16: 0.5, 64: 0.5, 256: 1.0}, 0),
    ],
)
def test_brgemm_is_taken_from_where_it_stays_faster(
    monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float], expected: int
) -> None:
    clock = [0.0]

    def multiply(x: torch.Tensor, _packed: object, _bias: object, _columns: int, limit: int) -> torch.Tensor:
        clock[0] += seconds[len(x)] if limit else 1.0
        return torch.zeros(1)

    monkeypatch.setattr(operators, "packed_linear", multiply)
    monkeypatch.setattr(operators, "has_brgemm", lambda: True)
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    assert choice.brgemm_rows() == expected


def test_what_brgemm_gets_wrong_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def multiply(x: torch.Tensor, _packed: object, _bias: object, _columns: int, limit: int) -> torch.Tensor:
        clock[0] += 1 - limit
        return torch.full((1,), 3.0 * limit)

    monkeypatch.setattr(operators, "packed_linear", multiply)
    monkeypatch.setattr(operators, "has_brgemm", lambda: True)
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    assert choice.brgemm_rows() == 0


def test_without_brgemm_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "has_brgemm", lambda: False)
    assert choice.brgemm_rows() == 0

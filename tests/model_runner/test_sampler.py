"""From logits to a token: every parameter, their order, and draws that depend on nothing but their name."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from openai_kv.model_runner.draw import draw
from openai_kv.model_runner.sampler import Sampler, SamplingRow
from openai_kv.model_runner.truncation import FIRST_TRY, Truncation, truncate
from openai_kv.request import SamplingParams

VOCAB_SIZE = 600  # more than two groups of the draw
SAMPLER = Sampler(frozenset({1, 2}))


def row(
    seed: int = 0, index: int = 0, prompt: tuple[int, ...] = (), output: tuple[int, ...] = (), **params: Any
) -> SamplingRow:
    return SamplingRow(SamplingParams(max_tokens=100, **params), seed, index, prompt, output)


def greedy(logits: list[float], **fields: Any) -> int:
    return SAMPLER.sample(torch.tensor([logits]), [row(temperature=0.0, **fields)])[0]


def random_logits(rows: int, seed: int = 0, vocab_size: int = VOCAB_SIZE) -> Tensor:
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 3


def support(logits: list[float], draws: int = 400, **params: Any) -> set[int]:
    """The tokens that are ever drawn."""
    rows = [row(index=index, **params) for index in range(draws)]
    return set(SAMPLER.sample(torch.tensor([logits]).repeat(draws, 1), rows))


def test_greedy_takes_the_lowest_of_equals() -> None:
    assert greedy([0.0, 3.0, 7.0, 7.0, 7.0]) == 2
    assert greedy([7.0, 7.0]) == 0


def test_below_1e_5_is_greedy() -> None:
    logits = random_logits(1).repeat(200, 1)
    rows = [row(index=index, temperature=9e-6) for index in range(200)]
    assert set(SAMPLER.sample(logits.clone(), rows)) == {int(logits[0].argmax())}


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits() -> None:
    assert greedy([3.0, 2.0, 1.0], prompt=(0,), repetition_penalty=2.0) == 1
    assert greedy([3.0, 2.0, 1.9], prompt=(0,), output=(1,), repetition_penalty=2.0) == 2
    assert greedy([-1.0, -1.5, -5.0], output=(0,), repetition_penalty=2.0) == 1
    assert greedy([3.0, 2.0], prompt=(0, 0, 0), repetition_penalty=1.4) == 0, "how often does not matter"
    assert greedy([3.0, 4.0], prompt=(1,), repetition_penalty=0.5) == 1


def test_frequency_penalty_counts_the_output_only() -> None:
    assert greedy([5.0, 4.0], output=(0, 0), frequency_penalty=0.4) == 0
    assert greedy([5.0, 4.0], output=(0, 0, 0), frequency_penalty=0.4) == 1
    assert greedy([5.0, 4.0], prompt=(0, 0, 0, 0), frequency_penalty=2.0) == 0


def test_presence_penalty_is_paid_once() -> None:
    assert greedy([5.0, 4.0], output=(0, 0, 0, 0), presence_penalty=0.9) == 0
    assert greedy([5.0, 4.0], output=(0,), presence_penalty=1.1) == 1
    assert greedy([5.0, 4.0], output=(1,), presence_penalty=-1.1) == 1


def test_the_repetition_penalty_comes_before_the_others() -> None:
    """(4 / 2) - 1 = 1 loses against 1.2; the other way round (4 - 1) / 2 = 1.5 would win."""
    assert greedy([4.0, 1.2], output=(0,), repetition_penalty=2.0, presence_penalty=1.0) == 1


def test_logit_bias_is_added_after_the_penalties() -> None:
    assert greedy([1.0, 0.0, 0.0], logit_bias={2: 1.5}) == 2
    assert greedy([1.0, 0.0, 0.0], logit_bias={0: -100.0, 1: 0.1}) == 1
    assert greedy([2.0, 1.5], output=(0,), repetition_penalty=2.0, logit_bias={0: 1.0}) == 0


def test_min_tokens_masks_the_ends_until_then() -> None:
    assert greedy([0.0, 5.0, 4.0, 3.0], min_tokens=2, index=0) == 3
    assert greedy([0.0, 5.0, 4.0, 3.0], min_tokens=2, index=1) == 3
    assert greedy([0.0, 5.0, 4.0, 3.0], min_tokens=2, index=2) == 1
    assert greedy([0.0, 5.0, 4.0, 3.0], min_tokens=2, logit_bias={1: 100.0}) == 3, "a bias does not undo a mask"
    assert greedy([0.0, 5.0, 4.0, 3.0], min_tokens=2, index=1, stop_token_ids=(3,)) == 0
    assert greedy([0.0, 5.0, 4.0, 3.0], min_tokens=2, index=2, stop_token_ids=(1,)) == 1


def test_top_k() -> None:
    assert support([1.0, 1.1, 0.9, 1.2], top_k=2) == {1, 3}
    assert support([1.0, 1.1, 0.9, 1.2], top_k=1) == {3}
    assert support([1.0, 1.1, 0.9, 1.2], top_k=0) == support([1.0, 1.1, 0.9, 1.2], top_k=-1) == {0, 1, 2, 3}
    assert support([1.0, 1.0, 1.0, 0.0], top_k=2) == {0, 1}, "of equals the lowest"


def test_top_p_is_the_smallest_set_with_that_mass() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log().tolist()
    assert support(logits, top_p=0.69) == {0, 1}
    assert support(logits, top_p=0.71) == {0, 1, 2}
    assert support(logits, top_p=0.0) == {0}
    assert support(logits, top_p=1.0) == {0, 1, 2, 3}
    assert support([1.0, 1.0, 1.0, 1.0], top_p=0.5) == {0, 1}, "of equals the lowest"


def test_top_p_works_on_what_top_k_left() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log().tolist()
    assert support(logits, top_k=2, top_p=0.56) == {0}, "0.4 / 0.7 is enough"


def test_min_p_is_relative_to_the_best() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log().tolist()
    assert support(logits, min_p=0.74) == {0, 1}
    assert support(logits, min_p=0.76) == {0}
    assert support(logits, min_p=1.0) == {0}


def test_temperature_comes_before_truncation() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log().tolist()
    assert support(logits, top_p=0.71, temperature=0.25) == {0}
    assert support(logits, min_p=0.5, temperature=2.0) == {0, 1, 2, 3}


def test_truncation_of_flat_rows_looks_beyond_the_first_try() -> None:
    """Nearly uniform over far more tokens than are sorted at first."""
    vocab_size = 16 * FIRST_TRY
    logits = random_logits(3, vocab_size=vocab_size) * 0.01
    params = [SamplingParams(max_tokens=1, top_p=0.5), SamplingParams(max_tokens=1, top_k=2000)]
    params.append(SamplingParams(max_tokens=1, top_k=3))
    kept = truncate(logits, Truncation.of(params, logits)).isfinite()
    probabilities = logits.softmax(-1)
    assert kept.sum(-1).tolist()[1:] == [2000, 3]
    assert float(probabilities[0][kept[0]].sum()) == pytest.approx(0.5, abs=1e-3)
    assert float(logits[1][kept[1]].min()) > float(logits[1][~kept[1]].max())


def test_draws_follow_the_distribution() -> None:
    """Chi-square over 20,000 draws, 99.9 % quantile for 19 degrees of freedom; the seeds are fixed."""
    probabilities = torch.zeros(VOCAB_SIZE)
    probabilities[::30] = torch.arange(1.0, 21.0)
    probabilities /= probabilities.sum()
    draws = 20_000
    counts = Counter(draw(probabilities.repeat(draws, 1), [(7, index) for index in range(draws)]).tolist())
    assert set(counts) <= set(range(0, VOCAB_SIZE, 30)), "what has no probability is never drawn"
    expected = {token: draws * float(probabilities[token]) for token in range(0, VOCAB_SIZE, 30)}
    assert sum((counts[token] - mean) ** 2 / mean for token, mean in expected.items()) < 43.8


def test_temperature_changes_the_odds() -> None:
    logits = torch.tensor([[0.0, 1.0]]).repeat(4000, 1)
    rows = [row(seed=3, index=index, temperature=0.5) for index in range(4000)]
    share = sum(SAMPLER.sample(logits, rows)) / 4000
    assert share == pytest.approx(1 / (1 + torch.e**-2), abs=0.02)


def test_a_draw_is_named_by_seed_and_index() -> None:
    logits = random_logits(1) / 3
    tokens = {
        (seed, index): SAMPLER.sample(logits.clone(), [row(seed, index)])[0] for seed in range(8) for index in range(8)
    }
    assert len(set(tokens.values())) > 8
    assert all(SAMPLER.sample(logits.clone(), [row(*name)]) == [token] for name, token in tokens.items())
    assert {SAMPLER.sample(logits.clone(), [row(seed)])[0] for seed in (-1, -(2**63), 2**63 - 1)} <= set(range(600))


def test_a_row_does_not_depend_on_the_others() -> None:
    logits = random_logits(6)
    rows = [
        row(1, 5, top_p=0.9),
        row(1, 5),
        row(temperature=0.0),
        row(2, 0, top_k=7, output=(3, 4), presence_penalty=1.0),
        row(3, 9, min_p=0.05, prompt=(8,), repetition_penalty=1.3),
        row(4, 1, logit_bias={5: 4.0}, temperature=0.7),
    ]
    together = SAMPLER.sample(logits.clone(), rows)
    alone = [SAMPLER.sample(logits[index : index + 1].clone(), [entry])[0] for index, entry in enumerate(rows)]
    backwards = SAMPLER.sample(logits.flip(0), rows[::-1])[::-1]
    assert together == alone == backwards


def test_each_choice_has_its_own_draws() -> None:
    logits = random_logits(1) / 3
    names = [(choice, index) for choice in range(8) for index in range(8)]
    tokens = [SAMPLER.sample(logits.clone(), [replace(row(5, index), choice=choice)])[0] for choice, index in names]
    assert len(set(tokens)) > 16
    assert tokens[:8] == [SAMPLER.sample(logits.clone(), [row(5, index)])[0] for index in range(8)]


def test_all_float_types_are_sampled_in_float32() -> None:
    logits = random_logits(1).bfloat16()
    entry = row(5, top_p=0.8)
    assert SAMPLER.sample(logits, [entry]) == SAMPLER.sample(logits.float(), [entry])
    assert logits.dtype == torch.bfloat16


def test_penalties_hold_for_drawn_rows_too() -> None:
    entry = row(logit_bias=dict.fromkeys(range(3), -100.0))
    rows = [replace(entry, index=index) for index in range(200)]
    assert set(SAMPLER.sample(torch.zeros(200, 5), rows)) == {3, 4}

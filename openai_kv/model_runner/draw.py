"""Draws a token from each row's distribution with noise that depends on nothing but the draw's name."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openai_kv.model_runner.transfer import to_device

GROUP = 256
_MASK = 2**64 - 1


def draw(probabilities: Tensor, names: Sequence[tuple[int, int]]) -> Tensor:
    """probabilities [n, vocab_size] float32, names: n pairs (seed, number of the draw); returns [n] int64.

    An exponential race: the winner of argmax p / E with E ~ Exp(1) is distributed as p (the Gumbel-max trick of
    Maddison et al. 2014 in another form). Unlike an inverted cumulative sum, it changes its mind only where two
    candidates are as close as the rounding of their logits. First among groups of consecutive ids by their mass, then
    within the winning group, so a draw needs about 450 random numbers for 50,000 tokens.
    """
    rows, vocab_size = probabilities.shape
    num_groups = -(-vocab_size // GROUP)
    padded = torch.nn.functional.pad(probabilities, (0, num_groups * GROUP - vocab_size))
    grouped = padded.view(rows, num_groups, GROUP)
    noise = np.stack([_exponentials(seed, number, num_groups + GROUP) for seed, number in names])
    race = to_device(noise, torch.float32, probabilities.device)
    group = (grouped.sum(-1) / race[:, :num_groups]).argmax(-1)
    inside = grouped[torch.arange(rows, device=group.device), group]
    return group * GROUP + (inside / race[:, num_groups:]).argmax(-1)


def _exponentials(seed: int, number: int, count: int) -> NDArray[np.float32]:
    """Philox (Salmon et al. 2011) is keyed by both numbers, so no draw is ever a continuation of another."""
    generator = np.random.Generator(np.random.Philox(key=np.array([seed & _MASK, number], dtype=np.uint64)))
    tiny = np.finfo(np.float32).tiny  # 0 / 0 would let a token win that can't be drawn
    return np.maximum(generator.standard_exponential(count, dtype=np.float32), tiny)

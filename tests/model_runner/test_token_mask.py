from dataclasses import dataclass

import torch

from openai_kv.model_runner.sampler import Sampler, SamplingRow
from openai_kv.model_runner.token_mask import mask_logits
from openai_kv.request import SamplingParams

VOCAB = 45


@dataclass
class Only:
    """Allows nothing but `token_ids`; its mask may be wider than the logits."""

    token_ids: tuple[int, ...]
    num_bytes: int = 6
    finished: bool = False
    failed: bool = False

    def mask(self) -> bytes:
        return sum(1 << token_id for token_id in self.token_ids).to_bytes(self.num_bytes, "little")

    def advance(self, token_id: int) -> None:
        raise AssertionError


def test_what_is_ruled_out_is_minus_infinity_and_the_rest_as_it_was() -> None:
    logits = torch.randn(3, VOCAB)
    masked = logits.clone()
    mask_logits(masked, [Only((0, 8, 44)), None, Only((7,))])
    assert (masked[0] > -torch.inf).nonzero().flatten().tolist() == [0, 8, 44]
    assert torch.equal(masked[0, [0, 8, 44]], logits[0, [0, 8, 44]])
    assert torch.equal(masked[1], logits[1])
    assert (masked[2] > -torch.inf).nonzero().flatten().tolist() == [7]


def test_without_constraints_nothing_happens() -> None:
    logits = torch.randn(2, VOCAB)
    before = logits.clone()
    mask_logits(logits, [None, None])
    assert torch.equal(logits, before)


def test_all_rows_constrained_and_wider_masks() -> None:
    logits = torch.randn(2, VOCAB)
    mask_logits(logits, [Only((44, 60), num_bytes=9), Only((3,), num_bytes=9)])
    assert (logits[0] > -torch.inf).nonzero().flatten().tolist() == [44]


def test_bias_and_penalties_bring_nothing_back() -> None:
    params = SamplingParams(max_tokens=9, logit_bias={5: 100.0}, repetition_penalty=2.0, frequency_penalty=-2.0)
    row = SamplingRow(params, seed=1, index=2, prompt_token_ids=[5], output_token_ids=[5, 5], constraint=Only((9, 11)))
    sampler = Sampler(frozenset({0}))
    assert {sampler.sample(torch.randn(1, VOCAB), [row])[0] for _ in range(20)} <= {9, 11}

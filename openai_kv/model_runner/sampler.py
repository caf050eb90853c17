"""From logits to tokens, for all rows of a step at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from openai_kv.model_runner.draw import draw
from openai_kv.model_runner.token_mask import mask_logits
from openai_kv.model_runner.transfer import to_device
from openai_kv.model_runner.truncation import Truncation, truncate
from openai_kv.request import SamplingParams, TokenConstraint

GREEDY_TEMPERATURE = 1e-5


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """What the next token of one request depends on besides its logits.

    The draw is named by `seed`, `choice` and `index`, the number of output tokens before it.
    """

    params: SamplingParams
    seed: int
    index: int
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    choice: int = 0
    constraint: TokenConstraint | None = None

    @property
    def draw_name(self) -> tuple[int, int]:
        return self.seed, self.choice << 32 | self.index

    @property
    def is_greedy(self) -> bool:
        return self.params.temperature < GREEDY_TEMPERATURE


@dataclass(frozen=True, slots=True)
class Sampler:
    """Penalties, logit bias and masks, then temperature, truncation and the draw, in float32.

    No row's token depends on another row, so a request gets the same tokens alone and in a batch.
    """

    eos_token_ids: frozenset[int]

    def sample(self, logits: Tensor, rows: Sequence[SamplingRow]) -> list[int]:
        """A token id per row of logits [n, vocab_size], n >= 1, of any float dtype; float32 ones are overwritten."""
        logits = logits.float()
        for index, row in enumerate(rows):
            if _wants_more(row.params):
                self._adjust(logits[index], row)
        mask_logits(logits, [row.constraint for row in rows])
        for index, row in enumerate(rows):
            if row.index < row.params.min_tokens:
                self._mask_ends(logits[index], row)
        return _choose(logits, rows)

    def _adjust(self, logits: Tensor, row: SamplingRow) -> None:
        """In place."""
        params = row.params
        if params.repetition_penalty != 1.0:
            _penalize_repetition(logits, row)
        if params.frequency_penalty or params.presence_penalty:
            _penalize_output(logits, row)
        if params.logit_bias:
            logits[_ids(logits, list(params.logit_bias))] += _floats(logits, list(params.logit_bias.values()))

    def _mask_ends(self, logits: Tensor, row: SamplingRow) -> None:
        """What would end the output, unless a grammar leaves nothing else."""
        ends = _ids(logits, sorted(self.eos_token_ids.union(row.params.stop_token_ids)))
        before = logits[ends]
        logits[ends] = float("-inf")
        if row.constraint is not None:
            logits[ends] = torch.where(logits.isneginf().all(), before, float("-inf"))


def _wants_more(params: SamplingParams) -> bool:
    """Than the model's own logits: few requests do."""
    penalized = params.repetition_penalty != 1.0 or params.frequency_penalty or params.presence_penalty
    return bool(penalized or params.logit_bias)


def _choose(logits: Tensor, rows: Sequence[SamplingRow]) -> list[int]:
    """Greedy and drawn rows apart; a step of one kind, the usual one, needs no copy of its logits."""
    drawn = [index for index, row in enumerate(rows) if not row.is_greedy]
    if len(drawn) == len(rows):
        tokens = _draw_rows(logits, rows)
    else:
        tokens = _likeliest(logits)
        if drawn:
            index = _ids(logits, drawn)
            tokens[index] = _draw_rows(logits[index], [rows[row] for row in drawn])
    return [int(token) for token in tokens.tolist()]


def _likeliest(logits: Tensor) -> Tensor:
    """[n], of equals the lowest id; on the CPU by numpy, as torch's argmax takes 20 times as long there."""
    return torch.from_numpy(logits.numpy().argmax(-1)) if logits.device.type == "cpu" else logits.argmax(-1)


def _ids(logits: Tensor, numbers: Sequence[int]) -> Tensor:
    return to_device(numbers, torch.int64, logits.device)


def _floats(logits: Tensor, numbers: Sequence[float]) -> Tensor:
    return to_device(numbers, logits.dtype, logits.device)


def _penalize_repetition(logits: Tensor, row: SamplingRow) -> None:
    """Keskar et al. 2019 (CTRL), over prompt and output."""
    seen = _ids(logits, list({*row.prompt_token_ids, *row.output_token_ids}))
    scores, penalty = logits[seen], row.params.repetition_penalty
    logits[seen] = torch.where(scores > 0, scores / penalty, scores * penalty)


def _penalize_output(logits: Tensor, row: SamplingRow) -> None:
    """OpenAI's frequency and presence penalties, over the output."""
    seen, counts = np.unique(np.asarray(row.output_token_ids, dtype=np.int64), return_counts=True)
    penalty = row.params.frequency_penalty * counts + row.params.presence_penalty
    logits[_ids(logits, seen.tolist())] -= _floats(logits, penalty.tolist())


def _draw_rows(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    logits /= _floats(logits, [row.params.temperature for row in rows])[:, None]
    cut = [index for index, row in enumerate(rows) if Truncation.wanted(row.params)]
    if cut:
        index = _ids(logits, cut)
        logits[index] = truncate(logits[index], Truncation.of([rows[row].params for row in cut], logits))
    return draw(logits.softmax(-1), [row.draw_name for row in rows])

"""Whether K and V come back from hidden states as the model writes them: tried out at load, in a small pool."""

from collections.abc import Sequence
from itertools import accumulate

import torch

from openai_kv.model_runner.attention.backend import AttentionBackend
from openai_kv.model_runner.attention.interface import PagedStep
from openai_kv.model_runner.fused.agreement import relative_difference
from openai_kv.model_runner.hidden_blocks import HiddenBlocks
from openai_kv.model_runner.input_batch import InputBatch
from openai_kv.model_runner.kv_formats import KVFormat
from openai_kv.model_runner.kv_pool import KVPool, LayerShape
from openai_kv.model_runner.loader import CausalLM
from openai_kv.model_runner.restoring import CantRestoreError, Restorer
from openai_kv.model_runner.staged_inputs import StagedInputs
from openai_kv.outputs import BlockLoad, BlockSave, ScheduledRequest
from openai_kv.request import SamplingParams

BLOCK_SIZE, NUM_BLOCKS = 4, 7
CHUNKS = (13, 1, 14)  # they end within blocks: a row that depends on others in its step would show
TOLERANCE = 1e-5  # relative, in float32, where another order of a sum makes about 1e-6; in 16 bits their precision


@torch.inference_mode()
def check_restored(
    model: CausalLM,
    backend: AttentionBackend,
    restorer: Restorer,
    shapes: Sequence[LayerShape],
    kv_format: KVFormat,
    *,
    exact: bool,
) -> None:
    """Raises CantRestoreError; `exact`: for a single bit."""
    device, layers = model.model.device, len(restorer.layers)
    pool = KVPool.allocate(shapes, num_blocks=2 * NUM_BLOCKS, block_size=BLOCK_SIZE, kv_format=kv_format, device=device)
    staged = StagedInputs(2 * NUM_BLOCKS, layers, restorer.width, BLOCK_SIZE, restorer.dtype, device)
    hidden, hooks = HiddenBlocks(restorer, staged, pool), restorer.offer(staged.take)
    try:
        _run(model, backend, hidden)
    finally:
        for hook in hooks:
            hook.remove()
    _compare(hidden, max(TOLERANCE, torch.finfo(model.model.dtype).eps), exact=exact)


def _run(model: CausalLM, backend: AttentionBackend, hidden: HiddenBlocks) -> None:
    for start, length in zip(accumulate(CHUNKS, initial=0), CHUNKS, strict=False):
        tokens = [number * 37 % int(model.text_config.vocab_size) for number in range(start, start + length)]
        params = SamplingParams(max_tokens=1)
        request = ScheduledRequest("trial", tokens, start, range(NUM_BLOCKS), False, params, 0, (), ())
        batch = InputBatch.build([request], BLOCK_SIZE, model.model.device)
        with hidden.watching([request]):
            model.hidden_states(batch.token_ids, batch.positions, PagedStep(backend, hidden.pool, batch.metadata))


def _compare(hidden: HiddenBlocks, limit: float, *, exact: bool) -> None:
    payloads = hidden.read([BlockSave(block, b"", (), ()) for block in range(NUM_BLOCKS)])
    if any(len(payload) != hidden.block_bytes for payload in payloads):
        raise CantRestoreError("not every layer takes its input where it can be seen")
    hidden.write(
        [BlockLoad(NUM_BLOCKS + index, payload, position=index * BLOCK_SIZE) for index, payload in enumerate(payloads)]
    )
    for tensor in hidden.pool.tensors:
        written, restored = tensor.split(NUM_BLOCKS)
        difference = relative_difference(restored, written)
        if not difference <= limit or (exact and not torch.equal(restored, written)):
            raise CantRestoreError(f"what is restored differs by {difference:.1e}")

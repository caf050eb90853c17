"""What tiers keep of a block: K and V, or hidden states where these are smaller and K and V come back from them."""

import logging
from collections.abc import Sequence

import torch

from openai_kv.model_runner.attention.backend import AttentionBackend
from openai_kv.model_runner.hidden_trial import check_restored
from openai_kv.model_runner.kv_formats import KVFormat
from openai_kv.model_runner.kv_pool import LayerShape, block_bytes
from openai_kv.model_runner.loader import CausalLM, one_line
from openai_kv.model_runner.open_blocks import OpenSlots
from openai_kv.model_runner.restoring import Restorer
from openai_kv.model_runner.settings import RunnerSettings
from openai_kv.model_runner.staged_inputs import StagedInputs

logger = logging.getLogger(__name__)


def choose_restorer(
    model: CausalLM,
    backend: AttentionBackend,
    settings: RunnerSettings,
    shapes: Sequence[LayerShape],
    kv_format: KVFormat,
) -> Restorer | None:
    """None where tiers keep K and V: for these are smaller, or codes, or can't be restored; a line in the log says."""
    if settings.tier_content == "kv" or kv_format.coded:
        return None
    try:
        restorer = Restorer.of(model)
        plain, hidden = block_bytes(shapes, kv_format, 1), restorer.token_bytes
        if hidden >= plain:
            logger.info("tiers keep K and V, %d bytes a token; as hidden states it would be %d", plain, hidden)
            return None
        check_restored(model, backend, restorer, shapes, kv_format, exact=settings.batch_invariant)
    except Exception as error:  # whatever a family's code raises that is called in a way it doesn't expect
        logger.warning("tiers keep K and V, which hidden states don't give: %s", one_line(error))
        return None
    logger.info("tiers keep hidden states, %d bytes a token; as K and V it would be %d", hidden, plain)
    return restorer


def staged_inputs(restorer: Restorer, settings: RunnerSettings, device: torch.device) -> StagedInputs:
    """Enough for any step; from now on it is offered what the layers are called with."""
    size, dtype = settings.block_size, restorer.dtype
    count = OpenSlots.for_steps(settings.max_num_seqs, settings.max_num_batched_tokens, size, dtype).count
    staged = StagedInputs(count, len(restorer.layers), restorer.width, size, dtype, device)
    restorer.offer(staged.take)
    return staged

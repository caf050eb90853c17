"""RunnerSettings: what of the configuration concerns the model runner."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """What of the configuration concerns the model runner.

    `num_blocks` None: as many as `kv_cache_memory` holds, in bytes or as a share of the free memory; that None: 1 GiB
    on the CPU, 0.9 elsewhere. `kv_cache_dtype`: of K and V in the pool, auto for that of the weights.
    `max_num_batched_tokens` rows and `max_num_seqs` requests are the largest step, whose memory is kept free.
    `max_model_len` None: the model's. `max_pinned_fraction` of the blocks may be taken for
    good, so no request may need them. `cache_dir`: for built operators. `optimize`: exchange modules for faster ones
    where there are any. `batch_invariant`: a row's result depends on nothing else in its step. `quantization` of the
    weights: none, int8 or int4. `cuda_graphs`: on CUDA decode steps are recorded once and replayed.
    `window_layout` auto: layers with a sliding window have blocks of their own, `window_share` of them for each block
    of the others; full, for whoever hands out one block table: all layers keep all tokens.
    `tier_content`: what tiers are to keep of a block, kv or auto: hidden states where these are smaller.
    """

    dtype: str = "auto"
    device: str = "auto"
    attention_backend: str = "auto"
    trust_remote_code: bool = False
    block_size: int = 16
    num_blocks: int | None = None
    kv_cache_memory: int | float | None = None
    kv_cache_dtype: str = "auto"
    max_num_batched_tokens: int = 512
    max_num_seqs: int = 64
    num_hidden_slots: int = 256
    needs_attention: bool = False
    max_model_len: int | None = None
    max_pinned_fraction: float = 0.0
    cache_dir: Path | None = None
    optimize: bool = True
    batch_invariant: bool = False
    quantization: str = "none"
    window_layout: str = "full"
    window_share: float = 0.25
    cuda_graphs: bool = True
    tier_content: str = "kv"

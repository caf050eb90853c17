"""What the rest of the server needs to know of a loaded model."""

from openai_kv import __version__
from openai_kv.model_runner.attention.backend import AttentionBackend
from openai_kv.model_runner.dtypes import name_of
from openai_kv.model_runner.fingerprint import fingerprint, identity
from openai_kv.model_runner.hidden_blocks import HiddenBlocks
from openai_kv.model_runner.kv_pool import KVPool
from openai_kv.model_runner.loader import CausalLM
from openai_kv.model_runner.pools import PoolPlan
from openai_kv.model_runner.probe import ModelShapes
from openai_kv.model_runner.sizing import max_model_len_of
from openai_kv.outputs import ModelInfo


def model_info(
    model: CausalLM,
    shapes: ModelShapes,
    backend: AttentionBackend,
    name: str,
    pool: KVPool,
    plan: PoolPlan,
    hidden: HiddenBlocks | None,
) -> ModelInfo:
    dtype, kv_dtype = name_of(model.model.dtype), pool.kv_format.name
    content = () if hidden is None else ("hidden states",)
    return ModelInfo(
        name=name,
        architecture=model.name,
        num_layers=len(shapes.layers),
        vocab_size=shapes.vocab_size,
        hidden_size=shapes.hidden_size,
        max_model_len=max_model_len_of(model.max_model_len, plan.settings, pool),
        eos_token_ids=model.eos_token_ids,
        dtype=dtype,
        kv_cache_dtype=kv_dtype,
        attention_backend=backend.name,
        block_bytes=plan.shares.full_bytes,
        fingerprint=fingerprint(model.model, (dtype, kv_dtype, backend.name, __version__)),
        identity=identity(
            model.model,
            (dtype, kv_dtype, plan.settings.quantization, str(pool.block_size), *content, *plan.groups.names),
        ),
        window=plan.groups.window,
        num_window_layers=plan.groups.num_windowed,
        window_block_bytes=plan.shares.window_bytes,
        hidden_block_bytes=0 if hidden is None else hidden.block_bytes,
        restore_seconds=0.0 if hidden is None else hidden.seconds_a_block(),
    )

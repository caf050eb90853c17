"""Steps of paged attention to try a backend on, and the textbook answer to each."""

from dataclasses import dataclass, replace
from itertools import accumulate, permutations

import torch
from torch import Tensor

from openai_kv.model_runner.attention.backend import AttentionOptions, LayerCache
from openai_kv.model_runner.attention.metadata import AttentionMetadata
from openai_kv.model_runner.attention.sdpa import write
from openai_kv.model_runner.codes import decode
from openai_kv.model_runner.dtypes import name_of
from openai_kv.model_runner.kv_formats import FORMATS
from openai_kv.model_runner.kv_pool import KVPool, LayerShape
from openai_kv.model_runner.open_blocks import OpenSlots, add_keys, layer_keys


@dataclass(frozen=True, slots=True)
class Case:
    """A layer's shape and, per request, how many rows it has and how much context; `shared` blocks lead each table."""

    heads: int = 9
    kv_heads: int = 3
    dim: int = 64
    block_size: int = 16
    queries: tuple[int, ...] = (1, 1, 21)
    contexts: tuple[int, ...] = (1, 37, 50)
    shared: int = 0
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Inputs of AttentionBackend.forward. The pool holds nan wherever no request of the step has written."""

    query: Tensor
    key: Tensor
    value: Tensor
    layer: LayerCache
    metadata: AttentionMetadata
    options: AttentionOptions


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    output: Tensor
    mass: Tensor


def make_step(case: Case, dtype: torch.dtype, seed: int = 0, kv_format: str = "") -> Step:
    """`kv_format`: of the pool, that of the rows if there is none."""
    generator = torch.Generator().manual_seed(seed)
    tables, num_blocks = _tables(case, generator)
    rows = sum(case.queries)
    key, value = (_random((rows, case.kv_heads, case.dim), generator).to(dtype) for _ in range(2))
    pool = _pool(case, num_blocks, dtype, kv_format or name_of(dtype))
    for table, query, context in zip(tables, case.queries, case.contexts, strict=True):
        if context > query:
            shape = (context - query, case.kv_heads, case.dim)
            past_key, past_value = (_random(shape, generator).to(dtype) for _ in range(2))
            before = replace(case, queries=(context - query,), contexts=(context - query,))
            _write(pool, past_key, past_value, pool.prepare(metadata_of(before, [table])))
    sinks = _random((case.heads,), generator) if case.sinks else None
    options = AttentionOptions(case.dim**-0.5, case.window, case.softcap, sinks)
    queries = _random((case.heads, rows, case.dim), generator).to(dtype).transpose(0, 1)
    return Step(queries, key, value, pool.layers[0], pool.prepare(metadata_of(case, tables)), options)


def _pool(case: Case, num_blocks: int, dtype: torch.dtype, kv_format: str) -> KVPool:
    shape, slots = LayerShape(case.kv_heads, case.dim, case.dim), OpenSlots(num_blocks, dtype)
    pool = KVPool.allocate(
        [shape],
        num_blocks=num_blocks,
        block_size=case.block_size,
        kv_format=FORMATS[kv_format],
        open_slots=slots,
    )
    open_keys = pool.layers[0].open_keys
    for tensor in (*pool.tensors, *([] if open_keys is None else [open_keys])):
        tensor.fill_(float("nan") if tensor.is_floating_point() else 99)
    return pool


def _write(pool: KVPool, key: Tensor, value: Tensor, metadata: AttentionMetadata) -> None:
    layer = pool.layers[0]
    if metadata.open is not None:
        add_keys(layer, key, metadata.open)
    else:
        write(layer.key, layer.key_scales, key, metadata.slot_mapping)
    write(layer.value, layer.value_scales, value, metadata.slot_mapping)


def mixed_types() -> list[tuple[torch.dtype, str]]:
    """Of the rows and of the pool, where they differ."""
    return [(rows, name_of(pool)) for rows, pool in permutations((torch.float32, torch.bfloat16, torch.float16), 2)]


def coded_types() -> list[tuple[torch.dtype, str]]:
    """The same, for pools of codes."""
    singles = [(torch.float32, name) for name in ("int8", "int8-int4")]
    return [*singles, (torch.bfloat16, "int8"), (torch.float16, "int8-int4"), *opened_types()]


def opened_types() -> list[tuple[torch.dtype, str]]:
    """And those whose keys are rounded by the block."""
    return [(torch.float32, "int4-int8"), (torch.float32, "int4"), (torch.bfloat16, "int4")]


def _keys(step: Step, request: int, blocks: Tensor) -> Tensor:
    """[len(blocks), heads, block_size, dim] as the request's rows see them."""
    layer, opened = step.layer, step.metadata.open
    if opened is None:
        return _numbers(layer.key, layer.key_scales, blocks)
    assert layer.open_keys is not None
    return torch.cat((layer_keys(layer, blocks[:-1]), layer.open_keys[opened.own_slots[[request]].long()].float()))


def _numbers(blocks: Tensor, scales: Tensor | None, chosen: Tensor) -> Tensor:
    return blocks[chosen] if scales is None else decode(blocks[chosen], scales[chosen])


def _random(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator) * 1.5


def _tables(case: Case, generator: torch.Generator) -> tuple[list[list[int]], int]:
    """Block tables shuffled over a pool with blocks to spare, and the pool's size."""
    needed = [-(-context // case.block_size) for context in case.contexts]
    num_blocks = sum(needed) + 3
    free = torch.randperm(num_blocks, generator=generator).tolist()
    lead = [free.pop() for _ in range(case.shared)]
    return [[*lead, *(free.pop() for _ in range(count - case.shared))] for count in needed], num_blocks


def _slots(table: list[int], positions: range, block_size: int) -> Tensor:
    slots = [table[position // block_size] * block_size + position % block_size for position in positions]
    return torch.tensor(slots, dtype=torch.int64)


def metadata_of(case: Case, tables: list[list[int]]) -> AttentionMetadata:
    longest = max(len(table) for table in tables)
    slots = [
        _slots(table, range(context - query, context), case.block_size)
        for table, query, context in zip(tables, case.queries, case.contexts, strict=True)
    ]
    return AttentionMetadata(
        slot_mapping=torch.cat(slots),
        block_tables=torch.tensor([table + [0] * (longest - len(table)) for table in tables], dtype=torch.int32),
        query_starts=torch.tensor(list(accumulate(case.queries, initial=0)), dtype=torch.int32),
        context_lens=torch.tensor(case.contexts, dtype=torch.int32),
        query_lens=case.queries,
        contexts=case.contexts,
    )


def answer(step: Step) -> Answer:
    """What `step` gives, in float64, once the step's K and V are in the pool."""
    output = torch.zeros(step.query.shape, dtype=torch.float64)
    mass = torch.zeros(step.layer.key.shape[0], dtype=torch.float64)
    group = step.query.shape[1] // step.key.shape[1]
    starts = step.metadata.query_starts.tolist()
    layer = step.layer
    for number, context in enumerate(step.metadata.contexts):
        rows = slice(starts[number], starts[number + 1])
        blocks = step.metadata.block_tables[number, : -(-context // step.layer.block_size)].long()
        keys, values = (
            numbers.transpose(0, 1).flatten(1, 2)[:, :context].double().repeat_interleave(group, 0)
            for numbers in (_keys(step, number, blocks), _numbers(layer.value, layer.value_scales, blocks))
        )
        weights = _weights(step.query[rows].double().transpose(0, 1), keys, step.options)
        output[rows] = (weights @ values).transpose(0, 1)
        per_token = weights.sum((0, 1)) / weights.shape[1]
        mass.index_add_(0, blocks.repeat_interleave(step.layer.block_size)[:context], per_token)
    return Answer(output, mass)


def _weights(query: Tensor, keys: Tensor, options: AttentionOptions) -> Tensor:
    """[heads, rows, context]"""
    scores = query @ keys.transpose(1, 2) * options.scale
    if options.softcap is not None:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    rows, context = scores.shape[1:]
    distance = torch.arange(context - rows, context)[:, None] - torch.arange(context)
    hidden = (distance < 0) | (distance >= (options.sliding_window or context))
    scores = scores.masked_fill(hidden, float("-inf"))
    if options.sinks is None:
        return scores.softmax(-1)
    sinks = options.sinks.double()[:, None, None].expand(-1, rows, 1)
    return torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]


def supported_widths() -> list[int]:
    """Of vectors, in floats, that this machine has."""
    return {"AVX512": [16, 8, 4], "AVX2": [8, 4]}.get(torch.backends.cpu.get_cpu_capability(), [4])

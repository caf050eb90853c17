"""The arithmetic: from the sizes of a model to what fits into how much memory."""

from bisect import bisect_left
from dataclasses import dataclass
from math import ceil

from openai_kv.model_runner.dtypes import DTYPES
from openai_kv.model_runner.kv_formats import FORMATS
from openai_kv.model_runner.kv_pool import block_bytes
from openai_kv.model_runner.open_blocks import OpenSlots
from openai_kv.model_runner.outline import ModelOutline
from openai_kv.model_runner.pool_sizes import PoolShares, PoolSizes


@dataclass(frozen=True, slots=True)
class Wish:
    """`concurrency` conversations of `context` tokens. `memory`: bytes for weights and blocks, None: what it takes.

    `window_share`, `step_tokens`, `max_pinned_fraction`: how large a window group is, see PoolShares. `num_seqs`, and
    `step_tokens` too: how many slots there are for open blocks, see OpenSlots.
    """

    context: int
    concurrency: int
    block_size: int
    memory: int | None = None
    window_share: float = 0.25
    step_tokens: int = 512
    max_pinned_fraction: float = 0.0
    num_seqs: int = 64

    @property
    def blocks_per_conversation(self) -> int:
        return -(-self.context // self.block_size)


@dataclass(frozen=True, slots=True)
class FormatPlan:
    """One KV format: what the wish needs, and what the memory that the weights leave holds.

    `token_bytes` in all layers, with a token's part of scales that belong to a block as a whole; blocks are those of
    layers that keep everything, `window` blocks those of the others.
    """

    kv_cache_dtype: str
    token_bytes: float
    block_bytes: int
    needed_blocks: int
    needed_bytes: int
    num_blocks: int
    num_tokens: int
    conversations: int
    window_block_bytes: int = 0
    needed_window_blocks: int = 0
    num_window_blocks: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    outline: ModelOutline
    wish: Wish
    formats: tuple[FormatPlan, ...]


def make_plan(outline: ModelOutline, wish: Wish, kv_cache_dtype: str = "auto") -> Plan:
    """Of one KV format, auto: of all there are, that of the weights first.

    Without a limit the memory is just what each format needs.
    """
    names = dict.fromkeys((outline.dtype, *FORMATS)) if kv_cache_dtype == "auto" else (kv_cache_dtype,)
    return Plan(outline, wish, tuple(_format_plan(name, outline, wish) for name in names))


def _format_plan(name: str, outline: ModelOutline, wish: Wish) -> FormatPlan:
    shares = _shares(name, outline, wish)
    needed = _needed(shares, wish)
    held = needed if wish.memory is None else shares.fitting(max(0, wish.memory - outline.weight_bytes))
    return FormatPlan(
        kv_cache_dtype=name,
        token_bytes=outline.block_bytes(name, wish.block_size) / wish.block_size,
        block_bytes=shares.full_bytes,
        needed_blocks=needed.num_blocks,
        needed_bytes=shares.nbytes(needed),
        num_blocks=held.num_blocks,
        num_tokens=held.num_blocks * wish.block_size,
        conversations=_conversations(shares, held, wish),
        window_block_bytes=shares.window_bytes,
        needed_window_blocks=needed.num_window_blocks,
        num_window_blocks=held.num_window_blocks,
    )


def _shares(name: str, outline: ModelOutline, wish: Wish) -> PoolShares:
    return PoolShares(
        wish.block_size,
        block_bytes(outline.full_layers, FORMATS[name], wish.block_size),
        block_bytes(outline.window_layers, FORMATS[name], wish.block_size),
        outline.window,
        wish.window_share,
        min(wish.step_tokens, wish.context),
        wish.max_pinned_fraction,
        _open_bytes(outline, wish) if FORMATS[name].opens else 0,
    )


def _open_bytes(outline: ModelOutline, wish: Wish) -> int:
    slots = OpenSlots.for_steps(wish.num_seqs, wish.step_tokens, wish.block_size, DTYPES[outline.dtype])
    return slots.nbytes(wish.block_size * sum(shape.num_kv_heads * shape.key_dim for shape in outline.layers))


def _needed(shares: PoolShares, wish: Wish) -> PoolSizes:
    """The smallest pools that hold all: as `serve` would share them out."""
    most = 1 + ceil(wish.concurrency * wish.blocks_per_conversation / wish.window_share)
    least = bisect_left(
        range(most), wish.concurrency, key=lambda count: _conversations(shares, shares.sizes(count), wish)
    )
    return shares.sizes(least)


def _conversations(shares: PoolShares, sizes: PoolSizes, wish: Wish) -> int:
    """How many can go on at once: each with all its blocks, the last window of it, and the rows of one step."""
    whole = sizes.num_blocks // wish.blocks_per_conversation
    if not shares.window:
        return whole
    parts = shares.num_parts(wish.context, 1)
    rows = shares.num_parts(wish.context) - parts  # of one conversation that is still being computed
    return min(whole, max(0, sizes.num_window_blocks - 1 - rows) // parts)

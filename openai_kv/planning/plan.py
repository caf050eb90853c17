"""The arithmetic: from the sizes of a model to what fits into how much memory."""

from dataclasses import dataclass

from openai_kv.model_runner.kv_formats import FORMATS
from openai_kv.model_runner.outline import ModelOutline


@dataclass(frozen=True, slots=True)
class Wish:
    """`concurrency` conversations of `context` tokens. `memory`: bytes for weights and blocks, None: what it takes."""

    context: int
    concurrency: int
    block_size: int
    memory: int | None = None

    @property
    def blocks_per_conversation(self) -> int:
        return -(-self.context // self.block_size)


@dataclass(frozen=True, slots=True)
class FormatPlan:
    """One KV format: what the wish needs, and what the memory that the weights leave holds.

    `token_bytes`: of a block, by token; scales may belong to a block as a whole.
    """

    kv_cache_dtype: str
    token_bytes: float
    block_bytes: int
    needed_blocks: int
    needed_bytes: int
    num_blocks: int
    num_tokens: int
    conversations: int


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
    needed = wish.concurrency * wish.blocks_per_conversation
    block_bytes = outline.block_bytes(name, wish.block_size)
    held = needed if wish.memory is None else max(0, wish.memory - outline.weight_bytes) // block_bytes
    return FormatPlan(
        kv_cache_dtype=name,
        token_bytes=block_bytes / wish.block_size,
        block_bytes=block_bytes,
        needed_blocks=needed,
        needed_bytes=needed * block_bytes,
        num_blocks=held,
        num_tokens=held * wish.block_size,
        conversations=held // wish.blocks_per_conversation,
    )

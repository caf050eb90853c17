"""What the layers hand each other in one engine step; the scheduler and the model runner meet only here."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

from openai_kv.request import FinishReason, Pooling, SamplingParams, TokenConstraint, TokenLogprobs


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy-on-write: the first `num_tokens` slots of block `source` go to block `target`, in every layer.

    In those of a window group it is from `window_source` to `window_target`, blocks of that group's pool.

    A step's copies all happen before its forward pass, as if all sources were read before any target is written:
    a source may be evicted and handed out again within the same step.
    """

    source: int
    target: int
    num_tokens: int
    window_source: int = 0
    window_target: int = 0


@dataclass(frozen=True, slots=True)
class BlockSave:
    """Read block `block_id` out of the pool as it is when the step begins, for the tiers of these numbers.

    `windowed`: of the window group's pool, by its numbers there.
    """

    block_id: int
    key: bytes
    token_ids: tuple[int, ...]
    tiers: tuple[int, ...]
    windowed: bool = False


@dataclass(frozen=True, slots=True)
class BlockLoad:
    """Write `payload`, as it was once read out, to block `block_id`: after the step's copies, before its rows.

    `windowed`: to the window group's pool. `position`: of the block's first token.
    """

    block_id: int
    payload: bytes | memoryview
    windowed: bool = False
    position: int = 0


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """One request's rows of a step.

    `token_ids` run at positions `num_computed_tokens ..`; their K and V go to the blocks of `block_ids` (the whole
    block table). `samples`: the last row is sampled. The last `num_drafts` tokens are guesses at what the rows before
    them say: then each of those rows is sampled too. With `hidden_slot` (an exact hit) there are no rows, the stored
    hidden state is sampled. `store_slot`: keep the last row's hidden state there. Slots are read before any is written.
    `seed`, `choice` and the number of output tokens name the draw. `prompt_token_ids`, `output_token_ids` are for
    penalties. `prompt_logprobs`: report this many at every row that a token of the prompt follows; None: no report.
    `constraint` rules tokens out. `pooling`: how this step's rows, or the stored hidden state, contribute to a vector.
    `window_block_ids`: the block table of a window group, if there is one, as far as this step goes.
    """

    request_id: str
    token_ids: Sequence[int]
    num_computed_tokens: int
    block_ids: Sequence[int]
    samples: bool
    params: SamplingParams
    seed: int
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    hidden_slot: int | None = None
    store_slot: int | None = None
    choice: int = 0
    prompt_logprobs: int | None = None
    constraint: TokenConstraint | None = None
    pooling: Pooling | None = None
    window_block_ids: Sequence[int] = ()
    num_drafts: int = 0

    @property
    def drafts(self) -> Sequence[int]:
        return self.token_ids[len(self.token_ids) - self.num_drafts :]

    @property
    def num_known_tokens(self) -> int:
        """Tokens of the request up to the last of these rows, without the drafts."""
        return self.num_computed_tokens + len(self.token_ids) - self.num_drafts


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """One step's work, in this order: saves, copies, loads, rows. `time`: when it was decided, by the engine's."""

    step: int
    requests: tuple[ScheduledRequest, ...]
    copies: tuple[BlockCopy, ...] = ()
    time: float = 0.0
    saves: tuple[BlockSave, ...] = ()
    loads: tuple[BlockLoad, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(len(request.token_ids) for request in self.requests)

    @property
    def mean_context(self) -> float:
        """Tokens before a row, on average."""
        rows = [(len(request.token_ids), request.num_computed_tokens) for request in self.requests]
        return sum(count * (start + count / 2) for count, start in rows) / max(1, self.num_tokens)


@dataclass(frozen=True, slots=True)
class ModelRunnerOutput:
    """Sampled tokens by request id; attention mass by block id (empty unless the policy needs it); bytes of K/V read.

    A request's tokens are its drafts as far as they were right, and one more. `logprobs` of the sampled tokens and
    `prompt_logprobs` of the prompt tokens after this step's rows, both by request id and only for requests that ask.
    `pooled`: what the step contributes to their vectors, [hidden_size] float32; the contributions to a vector add up.
    `saved`: what the step's saves read, in their order.
    """

    sampled_token_ids: Mapping[str, Sequence[int]]
    attention_mass: Mapping[int, float] = field(default_factory=dict)
    attention_read_bytes: int = 0
    logprobs: Mapping[str, Sequence[TokenLogprobs]] = field(default_factory=dict)
    prompt_logprobs: Mapping[str, Sequence[TokenLogprobs]] = field(default_factory=dict)
    pooled: "Mapping[str, array[float]]" = field(default_factory=dict)
    saved: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the rest of the server needs to know of the loaded model.

    `block_bytes`: bytes of K and V of one block over all layers but those of a window group: `num_window_layers`, which
    see `window` tokens, and whose blocks take `window_block_bytes`. `identity`: hex digits over all that K and V depend
    on but tokens, weights included. `hidden_block_bytes`: of a block in tiers that keep hidden states, 0: they keep K
    and V; `restore_seconds`: what a block takes to be restored from those.
    """

    name: str
    architecture: str
    num_layers: int
    vocab_size: int
    hidden_size: int
    max_model_len: int
    eos_token_ids: frozenset[int]
    dtype: str
    kv_cache_dtype: str
    attention_backend: str
    block_bytes: int
    fingerprint: str
    identity: str = ""
    window: int = 0
    num_window_layers: int = 0
    window_block_bytes: int = 0
    hidden_block_bytes: int = 0
    restore_seconds: float = 0.0

    @property
    def stored_block_bytes(self) -> int:
        """Of a block in the tiers."""
        return self.hidden_block_bytes or self.block_bytes


class ModelRunner(Protocol):
    """Runs one step's work on the model; FakeModelRunner in the tests is the other one."""

    info: ModelInfo

    def execute_model(self, scheduled: SchedulerOutput) -> ModelRunnerOutput: ...


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What one step (or several, when the reader is slow) added to one request.

    `text` is safe to show: never part of a stop string or of a UTF-8 sequence. `logprobs` are of the tokens whose text
    this is, with the last output of all that are left; `prompt_logprobs` come once, complete but for the first token.
    The counts are running totals; `cache_write_tokens` is final once `finish_reason` is set. Times are seconds since
    arrival, None before they happen. `embedding`: the whole vector, with the only output of a request that pools.
    `promoted_tokens` of the cached ones came from tiers, by location.
    """

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    num_output_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    hit_kind: str
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    queue_seconds: float | None = None
    first_token_seconds: float | None = None
    total_seconds: float = 0.0
    num_preemptions: int = 0
    choice: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    embedding: "array[float] | None" = None
    promoted_tokens: Mapping[str, int] = field(default_factory=dict)

    def after(self, older: Self | None) -> Self:
        """Both as one."""
        if older is None:
            return self
        return replace(
            self,
            text=older.text + self.text,
            token_ids=older.token_ids + self.token_ids,
            logprobs=older.logprobs + self.logprobs,
            prompt_logprobs=older.prompt_logprobs + self.prompt_logprobs,
        )

"""A model runner without a model: its "K and V" are the token ids, so a wrong block table changes the text."""

import ast
import zlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from openai_kv.outputs import BlockSave, ModelInfo, ModelRunnerOutput, ScheduledRequest, SchedulerOutput
from openai_kv.request import Pooling, TokenConstraint, TokenLogprobs

VOCAB_SIZE = 1000
EMPTY = -1
HIDDEN_SIZE = 8
WIDTH = 320  # more than the tiny tokenizer has tokens


def next_token(context: Sequence[int], vocab_size: int = VOCAB_SIZE) -> int:
    """The fake model: a token that depends on the whole context."""
    return zlib.crc32(repr(tuple(context)).encode()) % vocab_size


def stutter(context: Sequence[int], vocab_size: int = VOCAB_SIZE) -> int:
    """A fake model that repeats itself, but for every fourth token or so, and then uses few others."""
    noise = next_token(context)
    return noise % 7 if noise % 4 == 0 or len(context) < 5 else context[-5]


Model = Callable[[Sequence[int], int], int]


def expected_output(
    prompt: Sequence[int], num_tokens: int, vocab_size: int = VOCAB_SIZE, model: Model = next_token
) -> list[int]:
    """What the fake model generates from `prompt` when nothing is cached, batched or preempted."""
    context = list(prompt)
    for _ in range(num_tokens):
        context.append(model(context, vocab_size))
    return context[len(prompt) :]


def fake_logprobs(context: Sequence[int], token_id: int, count: int, vocab_size: int = VOCAB_SIZE) -> TokenLogprobs:
    """The fake model likes `next_token` best, then each id after it a little less."""
    best = next_token(context, vocab_size)
    top = tuple(((best + index) % vocab_size, -0.5 * (index + 1)) for index in range(count))
    rank = (token_id - best) % vocab_size + 1
    return TokenLogprobs(token_id, -0.5 * rank, rank, top)


def fake_states(prompt: Sequence[int], vocab_size: int = VOCAB_SIZE) -> list[list[float]]:
    """The fake model's final hidden state at each position of `prompt`."""
    return [_state(next_token(prompt[: end + 1], vocab_size)) for end in range(len(prompt))]


def _state(token: int) -> list[float]:
    return [(token + 1) * (index + 1) % 17 / 8 - 1 for index in range(HIDDEN_SIZE)]


def allowed(token: int, constraint: TokenConstraint | None) -> int:
    """The first token from `token` on that may come next."""
    if constraint is None:
        return token
    mask = int.from_bytes(constraint.mask(), "little")
    return next(index % WIDTH for index in range(token, token + WIDTH) if mask >> (index % WIDTH) & 1)


def fake_info(**changes: object) -> ModelInfo:
    values: dict[str, object] = {
        "name": "fake", "architecture": "FakeForCausalLM", "num_layers": 1, "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN_SIZE, "max_model_len": 512, "eos_token_ids": frozenset({VOCAB_SIZE}), "dtype": "float32",
        "kv_cache_dtype": "float32", "attention_backend": "fake", "block_bytes": 1024, "fingerprint": "fp_0123456789",
    }  # fmt: skip
    return ModelInfo(**(values | changes))  # type: ignore[arg-type]


@dataclass
class FakeModelRunner:
    """Counts what it runs: `rows` is a list, one entry a step, of the positions that went through "layers".

    `model` says the token after a context. `drafted` has the drafts of each step, by request. With `num_window_blocks`
    it has a second pool, and each row checks what it sees there of `info.window` tokens.
    """

    num_blocks: int
    block_size: int
    info: ModelInfo = field(default_factory=fake_info)
    rows: list[dict[str, range]] = field(default_factory=list)
    fail_at: Iterable[int] = ()
    num_window_blocks: int = 0
    model: Model = next_token
    drafted: list[dict[str, tuple[int, ...]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._window_pool = [[EMPTY] * self.block_size for _ in range(self.num_window_blocks)]
        self._pool = [[EMPTY] * self.block_size for _ in range(self.num_blocks)]
        self._hidden: dict[int, int] = {}

    @property
    def num_rows(self) -> int:
        return sum(len(positions) for step in self.rows for positions in step.values())

    def content(self, block_id: int) -> list[int]:
        return self._pool[block_id]

    def execute_model(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        if scheduled.step in self.fail_at:
            raise RuntimeError(f"step {scheduled.step} fails on purpose")
        saved = [self._saved(save) for save in scheduled.saves]
        _copy(self._pool, [(copy.source, copy.target, copy.num_tokens) for copy in scheduled.copies])
        if self._window_pool:
            parts = [(copy.window_source, copy.window_target, copy.num_tokens) for copy in scheduled.copies]
            _copy(self._window_pool, parts)
        for load in scheduled.loads:
            pool = self._window_pool if load.windowed else self._pool
            pool[load.block_id] = ast.literal_eval(bytes(load.payload).decode().strip())
        stored = {r.request_id: self._hidden[r.hidden_slot] for r in scheduled.requests if r.hidden_slot is not None}
        self.rows.append({r.request_id: self._write(r) for r in scheduled.requests if r.token_ids})
        self.drafted.append({r.request_id: tuple(r.drafts) for r in scheduled.requests if r.num_drafts})
        sampled = {r.request_id: [stored.get(r.request_id, EMPTY)] for r in scheduled.requests if r.samples}
        for request in scheduled.requests:
            if request.token_ids:
                tokens = self._say(request)
                sampled |= {request.request_id: tokens} if request.samples else {}
                self._hidden |= {} if request.store_slot is None else {request.store_slot: tokens[-1]}
        drawn = {
            r.request_id: [self._draw(r, t) for t in sampled[r.request_id]] for r in scheduled.requests if r.samples
        }
        logprobs = {r.request_id: self._logprobs(r, drawn) for r in scheduled.requests if self._reports(r)}
        prompts = {r.request_id: self._of_prompt(r) for r in scheduled.requests if r.prompt_logprobs is not None}
        pooled = {r.request_id: self._pool_states(r, stored) for r in scheduled.requests if r.pooling is not None}
        seen = sum(r.num_computed_tokens + len(r.token_ids) for r in scheduled.requests if r.token_ids)
        read = seen * self.info.block_bytes // self.block_size
        return ModelRunnerOutput(
            drawn, attention_read_bytes=read, logprobs=logprobs, prompt_logprobs=prompts, pooled=pooled, saved=saved
        )

    def _saved(self, save: BlockSave) -> bytes:
        assert save.block_id or not save.windowed, "the null block is nobody's part"
        if save.windowed:
            return repr(self._window_pool[save.block_id]).encode().ljust(self.info.window_block_bytes)
        return repr(self._pool[save.block_id]).encode().ljust(self.info.block_bytes)

    def _pool_states(self, request: ScheduledRequest, stored: Mapping[str, int]) -> "array[float]":
        if not request.token_ids:
            return array("f", _state(stored[request.request_id]))
        rows = fake_states(self._read(request), self.info.vocab_size)[request.num_computed_tokens :]
        if request.pooling is Pooling.LAST:
            return array("f", rows[-1])
        return array("f", [sum(column) / len(request.prompt_token_ids) for column in zip(*rows, strict=True)])

    def _say(self, request: ScheduledRequest) -> list[int]:
        """Drafts as far as they are right, and one more token."""
        context = self._read(request)
        ends = range(request.num_known_tokens, len(context) + 1)
        tokens = [self.model(context[:end], self.info.vocab_size) for end in ends]
        right = next((i for i, draft in enumerate(request.drafts) if draft != tokens[i]), request.num_drafts)
        return tokens[: right + 1]

    def _draw(self, request: ScheduledRequest, likeliest: int) -> int:
        return allowed(likeliest, request.constraint)

    def _reports(self, request: ScheduledRequest) -> bool:
        return request.samples and request.params.logprobs is not None

    def _logprobs(self, request: ScheduledRequest, sampled: Mapping[str, Sequence[int]]) -> list[TokenLogprobs]:
        known, tokens = [*request.prompt_token_ids, *request.output_token_ids], sampled[request.request_id]
        contexts = ([*known, *tokens[:index]] for index in range(len(tokens)))
        count, size = request.params.logprobs or 0, self.info.vocab_size
        return [fake_logprobs(context, token, count, size) for context, token in zip(contexts, tokens, strict=True)]

    def _of_prompt(self, request: ScheduledRequest) -> list[TokenLogprobs]:
        start, prompt = request.num_computed_tokens, list(request.prompt_token_ids)
        positions = range(start + 1, min(start + len(request.token_ids) + 1, len(prompt)))
        count, vocab_size = request.prompt_logprobs or 0, self.info.vocab_size
        return [fake_logprobs(prompt[:end], prompt[end], count, vocab_size) for end in positions]

    def _write(self, request: ScheduledRequest) -> range:
        start = request.num_computed_tokens
        for position, token_id in enumerate(request.token_ids, start):
            block = request.block_ids[position // self.block_size]
            self._pool[block][position % self.block_size] = token_id
            if self._window_pool:
                part = request.window_block_ids[position // self.block_size]
                assert part, "the null block is never written"
                self._window_pool[part][position % self.block_size] = token_id
        return range(start, start + len(request.token_ids))

    def _slots(self, request: ScheduledRequest) -> list[int]:
        """What lies in the pool; where blocks have no bytes, as every layer has a window, what ought to lie there."""
        if self.info.block_bytes:
            return [token for block in request.block_ids for token in self._pool[block]]
        before = [*request.prompt_token_ids, *request.output_token_ids][: request.num_computed_tokens]
        return [*before, *request.token_ids]

    def _read(self, request: ScheduledRequest) -> list[int]:
        end = request.num_computed_tokens + len(request.token_ids)
        slots = self._slots(request)
        assert EMPTY not in slots[:end], "attention over a slot that nobody wrote"
        if self._window_pool:
            seen = slice(max(0, request.num_computed_tokens - self.info.window + 1), end)
            windowed = [token for part in request.window_block_ids for token in self._window_pool[part]]
            assert windowed[seen] == slots[seen], "the window group holds something else"
        return slots[:end]


def _copy(pool: list[list[int]], copies: Sequence[tuple[int, int, int]]) -> None:
    sources = [list(pool[source][:count]) for source, _, count in copies]
    for (_, target, count), tokens in zip(copies, sources, strict=True):
        pool[target][:count] = tokens

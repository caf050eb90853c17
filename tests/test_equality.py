"""Same answer, cached or not: greedy text in float32 equals `model.generate`, whatever cache, batch and pool do."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from openai_kv.model_runner.attention.select import select_backend
from openai_kv.model_runner.loader import CausalLM, load_model
from openai_kv.model_runner.model_runner import ModelRunner
from openai_kv.model_runner.settings import RunnerSettings
from openai_kv.request import Breakpoint, PinOrder, Request, Retention
from openai_kv.tokenizer import Tokenizer
from tests.harness import Run, Shape, build_engine, make_request
from tests.tiny_models import save_tiny_model
from tests.tiny_tokenizer import tiny_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")
NEW_TOKENS = 64
NEAR_TIE = 1e-4
FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma3", "gpt2")
AHEAD = " with steps planned ahead"
BACKENDS = ("sdpa", "cpu")
CPU = torch.device("cpu")
DEFAULT_MODEL = "smollm2"


@dataclass(frozen=True)
class Subject:
    """One model, once as ours and once as the plain reference."""

    name: str
    paged: CausalLM
    reference: PreTrainedModel
    tokenizer: Tokenizer
    vocab_size: int
    speculation: str = "off"
    overlapped: bool = False
    near_ties: list[str] = field(default_factory=list)
    references: dict[tuple[int, ...], list[int]] = field(default_factory=dict)

    def run(self, shape: Shape, backend: str, **more: Any) -> Run:
        settings = RunnerSettings(
            block_size=shape.block_size,
            num_blocks=shape.num_blocks,
            num_hidden_slots=shape.num_hidden_slots,
            max_model_len=shape.max_model_len,
            max_num_batched_tokens=shape.max_num_batched_tokens,
            **more,
        )
        runner = ModelRunner(self.paged, select_backend(backend, CPU), self.name, settings)
        assert runner.info.attention_backend == backend, "the backend that this test is about"
        options: dict[str, Any] = {"speculation": self.speculation, "overlapped": self.overlapped}
        windows = runner.num_window_blocks
        return Run(build_engine(runner, shape, tokenizer=self.tokenizer, num_window_blocks=windows, **options))

    def prompt(self, seed: int, length: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        ids: list[int] = torch.randint(3, self.vocab_size, (length,), generator=generator).tolist()
        return ids

    def check(self, run: Run, *requests: Request) -> None:
        """Every token equals the reference's, up to a near-tie, which is counted."""
        for request in requests:
            self._check(list(request.prompt_token_ids), run.tokens(request), request.params.max_tokens)

    def _check(self, prompt: list[int], tokens: list[int], max_tokens: int) -> None:
        assert len(tokens) == max_tokens
        if tuple(prompt) not in self.references:
            self.references[tuple(prompt)] = self._generate(prompt, max_tokens)
        expected = self.references[tuple(prompt)]
        differing = next((i for i, pair in enumerate(zip(tokens, expected, strict=True)) if pair[0] != pair[1]), None)
        if differing is not None:
            best = self._logits([*prompt, *expected[:differing]]).topk(2)
            gap = float(best.values[0] - best.values[1])
            assert gap < NEAR_TIE, f"{self.name}: token {differing} differs where the reference is sure by {gap}"
            self.near_ties.append(f"{self.name} token {differing}")

    def _generate(self, prompt: list[int], max_tokens: int) -> list[int]:
        ids = torch.tensor([prompt])
        options: dict[str, Any] = {"max_new_tokens": max_tokens, "min_new_tokens": max_tokens, "do_sample": False}
        output = self.reference.generate(  # type: ignore[operator]
            ids, attention_mask=torch.ones_like(ids), eos_token_id=None, **options
        )
        tokens: list[int] = output[0, len(prompt) :].tolist()
        return tokens

    @torch.inference_mode()
    def _logits(self, context: list[int]) -> Tensor:
        logits: Tensor = self.reference(torch.tensor([context])).logits[0, -1]
        return logits


def make_subject(name: str, folder: Path, tokenizer: Tokenizer) -> Subject:
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    paged = load_model(folder, dtype="float32")
    return Subject(name, paged, reference, tokenizer, reference.config.get_text_config().vocab_size)


SUBJECTS = (*FAMILIES, f"llama{AHEAD}", f"gemma3{AHEAD}")


@pytest.fixture(scope="module", params=[*SUBJECTS, pytest.param(DEFAULT_MODEL, marks=pytest.mark.model)])
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    name = request.param
    if name == DEFAULT_MODEL:
        folder = request.getfixturevalue("default_model")
        made = make_subject(name, folder, Tokenizer.load(folder))
    else:
        family = name.removesuffix(AHEAD)
        made = make_subject(family, save_tiny_model(family, tmp_path_factory.mktemp(family)), tiny_tokenizer())
    yield replace(made, overlapped=AHEAD in name)
    assert len(made.near_ties) <= 3, made.near_ties


ROOMY = Shape(num_blocks=128, block_size=16, max_num_seqs=8, max_num_batched_tokens=512, max_model_len=256)
on_each_backend = pytest.mark.parametrize("backend", BACKENDS)


def greedy(prompt: list[int], max_tokens: int = NEW_TOKENS) -> Request:
    return make_request(prompt, max_tokens, temperature=0.0, ignore_eos=True)


@on_each_backend
def test_cold_warm_and_exact(subject: Subject, backend: str) -> None:
    run = subject.run(ROOMY, backend)
    prompt = subject.prompt(1, 45)
    rows = count_rows(subject)
    cold, exact = greedy(prompt), greedy(prompt)
    warm = greedy([*prompt[:37], *subject.prompt(2, 9)])
    run.generate(cold)
    assert sum(rows) == 45 + NEW_TOKENS - 1
    run.generate(warm)
    assert run.last(warm).cached_tokens >= 37
    rows.clear()
    run.generate(exact)
    assert rows == [1] * (NEW_TOKENS - 1), "an exact repeat runs no layer for its first token"
    assert run.last(exact).hit_kind == "exact"
    subject.check(run, cold, warm, exact)


@on_each_backend
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunked(subject: Subject, backend: str, chunk: int) -> None:
    run = subject.run(replace(ROOMY, max_num_batched_tokens=chunk, max_num_seqs=1, block_size=7), backend)
    rows = count_rows(subject)
    request = greedy(subject.prompt(3, 66))
    run.generate(request)
    prefill = list(itertools.takewhile(lambda total: total < 66, itertools.accumulate(rows)))
    assert len(prefill) + 1 == -(-66 // chunk)
    subject.check(run, request)


@on_each_backend
def test_eight_at_once(subject: Subject, backend: str) -> None:
    run = subject.run(ROOMY, backend)
    shared = subject.prompt(4, 20)
    requests = [greedy([*shared, *subject.prompt(50 + n, 3 + 5 * n)]) for n in range(8)]
    rows = count_rows(subject)
    run.generate(*requests)
    assert max(rows) > 8, "prefill and decode rows shared a step"
    assert rows.count(8) > NEW_TOKENS // 2, "all eight decoded together"
    subject.check(run, *requests)


@on_each_backend
def test_evicted_and_preempted(subject: Subject, backend: str) -> None:
    """The pool holds little more than one request of full length."""
    run = subject.run(replace(ROOMY, num_blocks=18, block_size=7, max_model_len=120), backend)
    requests = [greedy(subject.prompt(70 + n, 30 + n)) for n in range(5)]
    again = greedy(list(requests[0].prompt_token_ids))
    run.generate(*requests)
    run.generate(again)
    stats = run.engine.stats()
    assert stats.preemptions > 0
    assert stats.cache.eviction_count > 0
    subject.check(run, *requests, again)


def test_explicit_and_pinned(subject: Subject) -> None:
    """What is stored ends inside a block; a flood evicts all else, and what hits the pin copies its last block."""
    run = subject.run(replace(ROOMY, num_blocks=24, block_size=7, max_model_len=126), "sdpa")
    prompt = subject.prompt(11, 45)
    explicit, pinned = greedy(prompt, 12), greedy(prompt[:30], 0)
    explicit.info = replace(explicit.info, retention=Retention(True, (Breakpoint(24, 60.0),)))
    pinned.info = replace(pinned.info, retention=Retention(pin=PinOrder("pin", 60.0)))
    for request in (explicit, pinned, *(greedy(subject.prompt(80 + n, 100), 1) for n in range(2))):
        run.generate(request)
    assert (run.last(explicit).cache_write_tokens, run.last(pinned).cached_tokens) == (24, 24)
    again, aside = greedy(prompt, 12), greedy([*prompt[:28], *subject.prompt(12, 5)], 12)
    run.generate(again, aside)
    assert (run.last(again).cached_tokens, run.last(aside).cached_tokens) == (30, 28)
    subject.check(run, explicit, again, aside)


def count_rows(subject: Subject) -> list[int]:
    """Rows of every forward pass through the first layer, by a hook on the model itself."""
    rows: list[int] = []
    layer = first_layer(subject.paged.model)
    hooks: dict[Any, Callable[..., Any]] = layer._forward_pre_hooks
    hooks.clear()

    def hook(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        states = args[0] if args else kwargs["hidden_states"]
        rows.append(states.shape[1])

    layer.register_forward_pre_hook(hook, with_kwargs=True)
    return rows


def first_layer(model: PreTrainedModel) -> torch.nn.Module:
    """The first decoder layer of any family: the first entry of its only ModuleList of layers."""
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    layer: torch.nn.Module = lists[0][0]
    return layer

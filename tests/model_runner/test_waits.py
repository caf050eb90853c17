"""In a step the host waits for the device once: for the tokens."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from openai_kv.model_runner.attention.backend import AttentionOptions, LayerCache
from openai_kv.model_runner.attention.interface import PagedStep
from openai_kv.model_runner.attention.metadata import AttentionMetadata
from openai_kv.model_runner.graphs import DecodeGraphs, GraphLimits
from openai_kv.model_runner.hidden_slots import HiddenSlots
from openai_kv.model_runner.input_batch import InputBatch
from openai_kv.model_runner.kv_pool import KVPool
from openai_kv.model_runner.model_runner import ModelRunner
from openai_kv.model_runner.probe import measure
from openai_kv.outputs import BlockCopy, ScheduledRequest, SchedulerOutput
from openai_kv.request import SamplingParams
from tests.model_runner.attention_cases import Case, make_step
from tests.model_runner.driver import GREEDY, Driver
from tests.model_runner.test_graphs import Recorder
from tests.model_runner.waits import WaitError, Waits
from tests.tiny_models import VOCAB_SIZE

META = torch.device("meta")
pytestmark = pytest.mark.usefixtures("one_thread")


class NoAttention:
    """A backend that reads and writes nothing."""

    name = "none"
    replayable = True

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        layer: LayerCache,
        metadata: AttentionMetadata,
        options: AttentionOptions,
        mass: Tensor | None,
    ) -> Tensor:
        return query.new_zeros(*query.shape[:2], value.shape[-1])


class AnyToken:
    """A grammar that allows everything."""

    finished = failed = False

    def mask(self) -> bytes:
        return b"\xff" * (-(-VOCAB_SIZE // 8))

    def advance(self, token_id: int) -> None: ...


@pytest.fixture
def runner() -> ModelRunner:
    """On the meta device, which computes nothing and has nothing to read."""
    runner = Driver("llama").runner
    shapes = measure(runner.model)
    nn.Module.to(runner.model.model, META)
    runner.device, runner.backend = META, NoAttention()
    runner.kv_pool = KVPool.allocate(shapes.layers, num_blocks=64, block_size=16, dtype=torch.float32, device=META)
    runner.hidden_slots = HiddenSlots(8, shapes.hidden_size, torch.float32, META)
    return runner


DRAWN = SamplingParams(max_tokens=9, temperature=0.8)
PARAMS = [
    GREEDY,
    DRAWN,
    replace(DRAWN, top_p=0.9, top_k=20, min_p=0.01),
    replace(GREEDY, repetition_penalty=1.2, frequency_penalty=0.5, presence_penalty=0.5),
    replace(GREEDY, logit_bias={3: 1.5, 5: -2.0}, min_tokens=4),
]


def decoding(number: int, params: SamplingParams, **fields: Any) -> ScheduledRequest:
    return ScheduledRequest(
        str(number), (7,), 20, (2 * number, 2 * number + 1), True, params, 0, (4, 5), (6, 7), **fields
    )


def everything() -> tuple[ScheduledRequest, ...]:
    """A prompt, an exact hit, and a decoded row with each option there is."""
    decoded = [decoding(number, params, store_slot=number) for number, params in enumerate(PARAMS)]
    constrained = decoding(8, replace(GREEDY, min_tokens=9), constraint=AnyToken())
    prompt = ScheduledRequest("prompt", range(40), 0, (20, 21, 22), True, DRAWN, 0, range(40), ())
    hit = ScheduledRequest("hit", (), 40, (), True, GREEDY, 0, range(40), (), hidden_slot=7)
    return (*decoded, constrained, prompt, hit)


def test_a_step_reads_back_its_tokens_only(runner: ModelRunner) -> None:
    with Waits() as waits:
        output = runner.execute_model(SchedulerOutput(1, everything(), (BlockCopy(1, 30, 5),)))
    assert waits.read_backs == 1
    assert len(output.sampled_token_ids) == len(everything())


def test_replaying_reads_nothing(runner: ModelRunner) -> None:
    def layers(batch: InputBatch) -> Tensor:
        return runner.model.hidden_states(
            batch.token_ids, batch.positions, PagedStep(runner.backend, runner.kv_pool, batch.metadata)
        )

    requests = [decoding(number, GREEDY) for number in range(5)]
    with torch.inference_mode(), Waits() as waits:
        graphs = DecodeGraphs(layers, GraphLimits(8, 100, 16, 63), META, Recorder())
        states = graphs.forward(InputBatch.build(requests, 16, META))
    assert waits.read_backs == 0
    assert len(states) == 5


def test_triton_attention_doesnt_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from openai_kv.model_runner.attention import triton_kernels
    from openai_kv.model_runner.attention.triton import TritonBackend

    launched: list[str] = []
    for name in ("write", "attend", "merge", "weigh"):
        monkeypatch.setattr(triton_kernels, name, _Kernel(name, launched))
    step = make_step(Case(contexts=(1, 37, 2000)), torch.bfloat16)
    query, key, value = (tensor.to(META) for tensor in (step.query, step.key, step.value))
    layer = LayerCache(step.layer.key.to(META), step.layer.value.to(META))
    metadata = _on_meta(step.metadata)
    with Waits() as waits:
        for mass in (None, torch.zeros(len(layer.key), device=META)):
            TritonBackend(1000).forward(query, key, value, layer, metadata, step.options, mass)
    assert waits.read_backs == 0
    assert launched == ["write", "attend", "merge", "write", "attend", "weigh"]


class _Kernel:
    def __init__(self, name: str, launched: list[str]) -> None:
        self._launch = partial(self._launched, name, launched)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self._launch

    @staticmethod
    def _launched(name: str, launched: list[str], *args: Any, **kwargs: Any) -> None:
        launched.append(name)


def _on_meta(metadata: AttentionMetadata) -> AttentionMetadata:
    return replace(
        metadata,
        slot_mapping=metadata.slot_mapping.to(META),
        block_tables=metadata.block_tables.to(META),
        query_starts=metadata.query_starts.to(META),
        context_lens=metadata.context_lens.to(META),
    )


@pytest.mark.parametrize(
    "waiting",
    [
        lambda tensor: tensor[[0, 1]],
        lambda tensor: tensor[tensor > 0],
        lambda tensor: bool(tensor.any()),
        lambda tensor: tensor.max().item(),
        lambda tensor: tensor.nonzero(),
        lambda tensor: torch.tensor([1.0], device=META),
        lambda tensor: tensor.new_tensor([1.0]),
        lambda tensor: torch.zeros(3).to(META),
    ],
)
def test_what_would_wait_is_found(waiting: Callable[[Tensor], object]) -> None:
    with Waits(), pytest.raises(WaitError):
        waiting(torch.zeros(4, device=META))

"""What a step takes, counted tensor by tensor, against what torch's allocator saw."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from openai_kv.model_runner.activations import ActivationMeter, DryStep, counted_bytes, step_bytes
from openai_kv.model_runner.attention.select import select_backend
from openai_kv.model_runner.fused.optimize import optimize
from openai_kv.model_runner.kv_formats import FORMATS
from openai_kv.model_runner.probe import measure
from tests.model_runner.driver import paged
from tests.tiny_models import FAMILIES, VOCAB_SIZE, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")
ROWS = 300


def dry_step(family: str, backend: str = "sdpa", *, fused: bool = False) -> DryStep:
    model, chosen = paged(tiny_model(family)), select_backend(backend, torch.device("cpu"))
    model = optimize(model) if fused else model
    return DryStep(model, chosen, measure(model).layers, FORMATS["float32"], model.max_model_len)


def test_tensors_count_while_they_live() -> None:
    given = torch.zeros(1000)
    with ActivationMeter() as meter:
        first = given.view(10, 100)[2:] + 1
        second = first.view(-1)[10:]
        del first
        third = second * 2
        del second, third
        torch.zeros(10)
    assert meter.peak == 800 * 4 + 790 * 4


@pytest.mark.parametrize(("family", "backend"), [("llama", "sdpa"), *((family, "cpu") for family in FAMILIES)])
def test_what_is_carried_on_is_what_a_whole_step_holds(family: str, backend: str) -> None:
    dry = dry_step(family, backend)
    with torch.inference_mode():
        whole = sum(counted_bytes(dry, ROWS))
    assert step_bytes(dry, ROWS, ROWS) == pytest.approx(whole, rel=0.1)


@pytest.mark.parametrize(("backend", "fused"), [("sdpa", False), ("cpu", False), ("cpu", True)])
def test_it_is_what_the_allocator_gives_out(backend: str, fused: bool, tmp_path: Path) -> None:
    dry = dry_step("llama", backend, fused=fused)
    with torch.inference_mode():
        batch, pool = dry.prepare(ROWS)
        counted, _ = counted_bytes(dry, ROWS)
        dry.layers(batch, pool)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            dry.layers(batch, pool)
    assert counted == pytest.approx(_peak(profiled, tmp_path / "trace.json"), rel=0.25)


def _peak(profiled: Any, path: Path) -> int:
    profiled.export_chrome_trace(str(path))
    changes = [event for event in json.loads(path.read_text())["traceEvents"] if event["name"] == "[memory]"]
    held = peak = 0
    for event in sorted(changes, key=lambda event: event["ts"]):
        held += event["args"]["Bytes"]
        peak = max(peak, held)
    return peak


def test_rows_and_samples_cost_of_their_own() -> None:
    dry = dry_step("llama")
    least = step_bytes(dry, 64, 64)
    assert step_bytes(dry, 512, 64) > 2 * least
    more = step_bytes(dry, 512, 512) - step_bytes(dry, 512, 64)
    assert more >= (512 - 64) * VOCAB_SIZE * 4
    assert step_bytes(dry, 512, 10_000) == step_bytes(dry, 512, 512), "no more samples than rows"


def test_a_step_longer_than_the_models_context_is_several_prompts() -> None:
    dry = dry_step("gpt2")
    longest = dry.longest
    assert longest is not None
    batch, pool = dry.prepare(2 * longest + 7)
    assert (batch.metadata.query_lens, set(batch.metadata.contexts)) == ((longest, longest, 7), {longest})
    with torch.inference_mode():
        assert dry.layers(batch, pool).shape[0] == 2 * longest + 7


def test_a_step_at_the_end_of_a_long_prompt_needs_no_long_pool() -> None:
    dry = dry_step("llama")
    batch, pool = dry.prepare(20, 500)
    assert (batch.metadata.query_lens, batch.metadata.contexts, pool.num_blocks) == ((20,), (500,), 2)
    with torch.inference_mode():
        assert dry.layers(batch, pool).isfinite().all()

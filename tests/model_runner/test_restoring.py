"""K and V of every family come back from its layers' inputs; where they don't, that is found out."""

from typing import Any

import pytest
import torch

from openai_kv.model_runner.attention.select import select_backend
from openai_kv.model_runner.fused.optimize import optimize
from openai_kv.model_runner.hidden_trial import check_restored
from openai_kv.model_runner.kv_formats import kv_format
from openai_kv.model_runner.loader import CausalLM
from openai_kv.model_runner.probe import measure
from openai_kv.model_runner.restoring import CantRestoreError, Restorer
from tests.model_runner.driver import paged
from tests.tiny_models import FAMILIES, build, multi_head_config, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")


def try_out(model: CausalLM, backend: str = "sdpa", *, exact: bool = False) -> Restorer:
    restorer, chosen = Restorer.of(model), kv_format("auto", model.model.dtype)
    shapes = measure(model).layers
    check_restored(model, select_backend(backend, torch.device("cpu")), restorer, shapes, chosen, exact=exact)
    return restorer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_restored(family: str, dtype: torch.dtype) -> None:
    """As it is, and with its modules exchanged: there, where rows don't depend on each other, bit by bit."""
    model = paged(tiny_model(family, dtype))
    assert try_out(model).token_bytes == 2 * 64 * dtype.itemsize
    select_backend("cpu", torch.device("cpu"))  # loads the operators
    assert try_out(optimize(model), "cpu", exact=family not in ("gpt2", "gpt_oss")).width == 64


def test_what_is_seen_is_the_input_of_the_whole_layer() -> None:
    """So it does not matter what becomes of its parts."""
    model: Any = tiny_model("qwen3")
    assert [call.module for call in Restorer.of(paged(model)).layers] == [*model.model.layers]


def test_a_row_that_depends_on_another_is_found() -> None:
    model: Any = tiny_model("llama")
    projection = model.model.layers[1].self_attn.v_proj
    inner = projection.forward
    projection.forward = lambda states: inner(states + states.roll(1, dims=1))
    with pytest.raises(CantRestoreError, match="differs by"):
        try_out(paged(model))


def test_a_layer_that_takes_something_else_is_refused() -> None:
    model: Any = tiny_model("llama")
    layer = model.model.layers[1]
    forward = layer.self_attn.forward
    layer.self_attn.forward = lambda hidden_states, steer, **kwargs: forward(hidden_states + steer, **kwargs)
    layer.forward = lambda states, steer, **kwargs: states + layer.self_attn(states, steer, **kwargs)[0]
    layer.register_forward_pre_hook(lambda _, args: (*args, torch.ones(1, 1, 64)))
    with pytest.raises(CantRestoreError, match="takes more than its input"):
        Restorer.of(paged(model))


def test_a_layer_that_steps_do_not_call_is_found() -> None:
    """Such as one that runs at once, parts and all, where nobody watches."""
    model: Any = build(multi_head_config("llama"))
    runner = paged(model)
    restorer, layer = Restorer.of(runner), model.model.layers[1]
    model.model.layers[1] = torch.nn.Identity()
    model.model.layers[1].forward = layer.forward
    with pytest.raises(CantRestoreError, match="not every layer"):
        check_restored(
            runner,
            select_backend("sdpa", torch.device("cpu")),
            restorer,
            measure(runner).layers,
            kv_format("auto", torch.float32),
            exact=False,
        )

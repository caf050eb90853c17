"""K and V of every family come back from what attention took as input; what does not is refused."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from openai_kv.model_runner.attention.select import select_backend
from openai_kv.model_runner.fused.optimize import optimize
from openai_kv.model_runner.restoring import CantRestoreError, Restorer
from tests.model_runner.driver import paged
from tests.tiny_models import FAMILIES, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_restored_bit_by_bit(family: str, dtype: torch.dtype) -> None:
    """As it is, and with its modules exchanged; bits as few rows of few columns are added up in one order."""
    model = paged(tiny_model(family, dtype))
    assert Restorer.of(model, exact=True).token_bytes == 2 * 64 * dtype.itemsize
    select_backend("cpu", torch.device("cpu"))  # loads the operators
    assert Restorer.of(optimize(model), exact=True).width == 64


class Shifted(nn.Module):
    """A projection that looks at the row before, as some families do."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, states: Tensor) -> Tensor:
        shifted: Tensor = self.inner(states + states.roll(1, dims=1))
        return shifted


def test_a_row_that_depends_on_another_is_refused() -> None:
    model: Any = tiny_model("llama")
    attention = model.model.layers[1].self_attn
    attention.v_proj = Shifted(attention.v_proj)
    with pytest.raises(CantRestoreError, match="differs by"):
        Restorer.of(paged(model))


def test_a_layer_that_takes_something_else_is_refused() -> None:
    model: Any = tiny_model("llama")
    attention = model.model.layers[1].self_attn
    forward, steer = attention.forward, torch.ones(1, 1, 64)
    attention.forward = lambda states, steer, **kwargs: forward(states + steer, **kwargs)
    layer = model.model.layers[1]
    normed = layer.input_layernorm
    layer.forward = lambda states, **kwargs: states + attention(normed(states), steer, **kwargs)[0]
    with pytest.raises(CantRestoreError, match="takes more than its input"):
        Restorer.of(paged(model))

"""What varlen_attn is asked for, with a function in its place that does what its documentation says."""

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

pytest.importorskip("triton")

from openai_kv.model_runner.attention.sdpa import SdpaBackend
from openai_kv.model_runner.attention.varlen import VarlenBackend, load_varlen_backend
from tests.model_runner.attention_cases import Case, Step, answer, make_step

pytestmark = pytest.mark.usefixtures("one_thread")


class Rest(SdpaBackend):
    """Counts what comes through."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, *args: Any) -> Tensor:
        self.calls += 1
        return super().forward(*args)


def documented(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, key_starts: None, max_q: int, max_k: int, **options: Any
) -> Tensor:
    """torch.nn.attention.varlen.varlen_attn over pages [pages, page_size, heads, dim], a sequence at a time."""
    assert options["enable_gqa"]
    assert key_starts is None
    left, right = options["window_size"]
    assert right == 0
    parts = []
    for number, used in enumerate(options["seqused_k"].tolist()):
        rows = query[starts[number] : starts[number + 1]]
        assert len(rows) <= max_q
        assert used <= max_k
        pages = options["block_table"][number].long()
        keys, values = (pool[pages].flatten(0, 1)[:used].transpose(0, 1) for pool in (key, value))
        distance = torch.arange(used - len(rows), used)[:, None] - torch.arange(used)
        visible = (distance >= 0) & ((distance <= left) if left >= 0 else True)
        attended = torch.nn.functional.scaled_dot_product_attention(
            rows.transpose(0, 1)[None], keys[None], values[None], visible, scale=options["scale"], enable_gqa=True
        )
        parts.append(attended[0].transpose(0, 1))
    return torch.cat(parts)


def run(step: Step, rest: Rest, mass: Tensor | None = None) -> Tensor:
    backend = VarlenBackend(documented, rest)
    return backend.forward(step.query, step.key, step.value, step.layer, step.metadata, step.options, mass)


@pytest.mark.parametrize("case", [Case(), Case(window=13), Case(window=1, block_size=7)], ids=str)
def test_plain_layers_are_attended_to_over_the_block_tables(case: Case) -> None:
    step, rest = make_step(case, torch.bfloat16), Rest()
    output = run(step, rest)
    assert rest.calls == 0
    torch.testing.assert_close(output.double(), answer(step).output, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    "step",
    [
        make_step(Case(), torch.float32),
        make_step(Case(), torch.bfloat16, pool_dtype=torch.float16),
        make_step(Case(dim=23), torch.bfloat16),
        make_step(Case(softcap=5.0), torch.bfloat16),
        make_step(Case(sinks=True), torch.bfloat16),
    ],
    ids=["float32", "another type", "odd head_dim", "soft-cap", "sinks"],
)
def test_the_rest_is_done_by_the_other_backend(step: Step) -> None:
    rest = Rest()
    output = run(step, rest)
    assert rest.calls == 1
    torch.testing.assert_close(output.double(), answer(step).output, rtol=2e-2, atol=2e-2)


def test_attention_mass_is_too() -> None:
    step, rest = make_step(Case(), torch.bfloat16), Rest()
    run(step, rest, torch.zeros(step.layer.key.shape[0]))
    assert rest.calls == 1


def test_where_no_flash_attention_is_installed_it_says_so() -> None:
    with pytest.raises(RuntimeError, match=r"FA3: .*FA4: "):
        load_varlen_backend(Rest())


def test_the_fake_is_asked_what_the_real_one_takes() -> None:
    names = list(inspect.signature(varlen_attn).parameters)
    assert names[:7] == ["query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k"]
    assert {"scale", "window_size", "enable_gqa", "seqused_k", "block_table"} < set(names)

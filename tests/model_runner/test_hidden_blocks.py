"""Blocks out of a runner's pool as hidden states, and back into it as K and V."""

import logging
from typing import Any

import pytest
import torch
from torch import Tensor

from openai_kv.model_runner.attention.select import select_backend
from openai_kv.model_runner.fused.optimize import optimize
from openai_kv.model_runner.hidden_blocks import TOGETHER, HiddenBlocks
from openai_kv.model_runner.model_runner import ModelRunner
from openai_kv.model_runner.settings import RunnerSettings
from openai_kv.outputs import BlockLoad, BlockSave
from tests.model_runner.driver import Driver, paged, random_prompt
from tests.model_runner.test_graphs import Recorder
from tests.tiny_models import build, multi_head_config, tiny_config, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")
SIZE = 4
PROMPT = random_prompt(1, 50)


def driver(dtype: torch.dtype = torch.float32, *, fused: bool = False, **settings: Any) -> Driver:
    model = build(multi_head_config("qwen3"), dtype)
    if fused:
        select_backend("cpu", torch.device("cpu"))  # loads the operators
        optimize(paged(model))
    made = Driver(model, SIZE, 64, max_num_batched_tokens=64, max_num_seqs=4, tier_content="auto", **settings)
    assert isinstance(made.runner.tier_blocks, HiddenBlocks)
    return made


def moved(made: Driver) -> tuple[Tensor, Tensor]:
    """K and V of a prompt's full blocks as computed in chunks, and as they come back from what was saved of them."""
    computed, fresh = made.stream("a", PROMPT, 0), made.stream("b", PROMPT, 0)
    for rows in (13, 1, 16, 20):
        made.step((computed, rows))
    full = computed.block_ids[: len(PROMPT) // SIZE]
    saved = made.execute(saves=tuple(BlockSave(block, b"", (), (0,)) for block in full)).saved
    assert {len(payload) for payload in saved} == {made.runner.info.hidden_block_bytes}
    pairs = zip(fresh.block_ids, saved, range(0, len(PROMPT), SIZE), strict=False)
    made.execute(loads=tuple(BlockLoad(block, data, position=start) for block, data, start in pairs))
    return content(made, full), content(made, fresh.block_ids[: len(full)])


def content(made: Driver, blocks: list[int]) -> Tensor:
    return torch.stack([tensor[blocks] for tensor in made.runner.kv_pool.tensors]).float()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_restored_k_and_v_are_within_the_rounding_of_one_matmul(dtype: torch.dtype, fused: bool) -> None:
    computed, restored = moved(driver(dtype, fused=fused))
    assert computed.abs().max() > 1
    if fused:
        assert torch.equal(computed, restored), "a row of a packed matmul doesn't depend on the others"
    error = (computed - restored).abs()  # torch's own matmul adds in an order that depends on CPU and row count
    assert float(error.norm() / computed.norm()) <= torch.finfo(dtype).eps
    assert float(error.max() / computed.abs().max()) <= 4 * torch.finfo(dtype).eps


def test_a_pool_of_another_type_is_restored_as_it_was_written() -> None:
    made = driver(torch.bfloat16, fused=True, kv_cache_dtype="float32")
    assert made.runner.info.hidden_block_bytes * 4 == made.runner.info.block_bytes
    assert torch.equal(*moved(made))


def test_memory_is_that_of_any_step_and_does_not_grow() -> None:
    made = driver()
    staged = made.runner.tier_blocks._staged  # type: ignore[attr-defined]
    slots = 2 * 4 + 64 // SIZE
    assert staged.nbytes == (slots + 1) * made.runner.info.hidden_block_bytes
    for number in range(6):
        made.step((made.stream(f"a{number}", PROMPT[:30], 0), None))
        assert len(staged._staged) <= slots
    assert len(staged._staged) == slots


def test_what_is_saved_later_goes_as_k_and_v() -> None:
    made = driver()
    stream = made.stream("a", PROMPT[:8], 0)
    made.step((stream, None))
    save = (BlockSave(stream.block_ids[0], b"", (), (0,)),)
    first, second = (made.execute(saves=save).saved[0] for _ in range(2))
    assert (len(first), len(second)) == (made.runner.info.hidden_block_bytes, made.runner.info.block_bytes)


def test_a_block_that_was_loaded_is_not_taken_for_what_it_was() -> None:
    made = driver()
    stream = made.stream("a", PROMPT[:8], 0)
    made.step((stream, None))
    first, second = stream.block_ids
    saves = tuple(BlockSave(block, b"", (), (0,)) for block in (first, second))
    (payload,) = made.execute(saves=saves[:1]).saved
    made.execute(loads=(BlockLoad(second, payload),))
    (saved,) = made.execute(saves=saves[1:]).saved
    assert len(saved) == made.runner.info.block_bytes
    torch.testing.assert_close(content(made, [first]), content(made, [second]))


def test_both_kinds_and_many_blocks_in_one_step() -> None:
    made = driver()
    computed, fresh = made.stream("a", PROMPT, 0), made.stream("b", PROMPT, 0)
    made.step((computed, None))
    full = computed.block_ids[: len(PROMPT) // SIZE]
    assert len(full) > TOGETHER
    made.runner.tier_blocks.unseen(full[1::5])
    saved = made.runner.tier_blocks.read([BlockSave(block, b"", (), ()) for block in full])
    assert len({len(payload) for payload in saved}) == 2
    pairs = zip(fresh.block_ids, saved, range(0, len(PROMPT), SIZE), strict=False)
    made.execute(loads=tuple(BlockLoad(block, data, position=start) for block, data, start in pairs))
    torch.testing.assert_close(content(made, full), content(made, fresh.block_ids[: len(full)]))


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        (tiny_config("llama"), {}),  # two heads of four: as many bytes
        (multi_head_config("llama"), {"kv_cache_dtype": "int8"}),
        (multi_head_config("llama"), {"kv_cache_dtype": "bfloat16"}),  # hidden states are those of float32
        (multi_head_config("gemma3"), {"window_layout": "auto"}),
        (multi_head_config("llama"), {"tier_content": "kv"}),
    ],
    ids=["grouped heads", "codes", "16 bits", "window groups", "kv"],
)
def test_k_and_v_where_hidden_states_are_no_better(config: Any, settings: dict[str, Any]) -> None:
    made = Driver(build(config), SIZE, 64, window_share=1.0, **{"tier_content": "auto", **settings})
    assert not isinstance(made.runner.tier_blocks, HiddenBlocks)
    assert (made.runner.info.hidden_block_bytes, made.runner.info.restore_seconds) == (0, 0.0)


def test_what_cannot_be_restored_stays_k_and_v_with_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    model: Any = build(multi_head_config("llama"))
    projection = model.model.layers[1].self_attn.v_proj
    inner = projection.forward
    projection.forward = lambda states: inner(states + states.roll(1, dims=1))
    with caplog.at_level(logging.INFO, "openai_kv"):
        made = Driver(model, SIZE, 64, tier_content="auto")
    assert made.runner.info.hidden_block_bytes == 0
    assert [r.message for r in caplog.records if "tiers keep" in r.message and "differs by" in r.message]


def test_the_identity_names_the_content() -> None:
    model = tiny_model("gpt2")
    runners = [Driver(model, SIZE, 64, tier_content=content).runner for content in ("kv", "auto")]
    assert runners[1].info.hidden_block_bytes * 2 == runners[1].info.block_bytes
    assert runners[0].info.identity != runners[1].info.identity
    assert runners[1].info.restore_seconds > 0


def test_where_the_same_bits_are_promised_they_are_restored() -> None:
    computed, restored = moved(driver(torch.bfloat16, fused=True, backend="cpu", batch_invariant=True))
    assert torch.equal(computed, restored)


def test_what_recorded_steps_wrote_goes_as_k_and_v() -> None:
    made, recorder = driver(backend="cpu"), Recorder()
    sizes = RunnerSettings(num_blocks=64, block_size=SIZE, max_num_seqs=4, max_model_len=200, tier_content="auto")
    made.runner = ModelRunner(made.runner.model, made.runner.backend, "tiny", sizes, recorder)
    stream, other = made.stream("a", PROMPT[:9], 10), made.stream("b", PROMPT[9:10], 10)
    made.step((stream, None))
    other.block_ids = stream.block_ids[1:2]  # it is given a block that is still there as it was before
    for _ in range(SIZE):
        made.step((stream, None), (other, None))
    assert recorder.replays == [2] * SIZE
    saves = tuple(BlockSave(block, b"", (), (0,)) for block in stream.block_ids[:3])
    sizes_of = [len(payload) for payload in made.execute(saves=saves).saved]
    hidden, plain = made.runner.info.hidden_block_bytes, made.runner.info.block_bytes
    assert sizes_of == [hidden, plain, plain]

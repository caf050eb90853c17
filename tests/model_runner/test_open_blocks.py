"""Keys that are rounded by the block: when, how often, and how far that takes them."""

from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from openai_kv.errors import ConfigError
from openai_kv.model_runner.codes import decode, decode_channels, encode, encode_channels
from openai_kv.model_runner.kv_formats import FORMATS
from openai_kv.model_runner.kv_pool import KVPool, LayerShape
from openai_kv.model_runner.open_blocks import OpenSlots, add_keys
from openai_kv.model_runner.settings import RunnerSettings
from openai_kv.outputs import BlockCopy
from tests.model_runner.attention_cases import Case, metadata_of
from tests.model_runner.driver import Driver, paged_runner, random_prompt
from tests.tiny_models import tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")
SIZE, HEADS, DIM = 8, 2, 4
SHAPE = LayerShape(HEADS, DIM, DIM)


def make_pool(num_slots: int) -> KVPool:
    slots = OpenSlots(num_slots, torch.float32)
    return KVPool.allocate([SHAPE], num_blocks=9, block_size=SIZE, kv_format=FORMATS["int4-int8"], open_slots=slots)


def write(pool: KVPool, block: int, start: int, keys: Tensor) -> None:
    """keys [n, heads, dim] go to the block's tokens from `start` on."""
    case = Case(block_size=SIZE, queries=(len(keys),), contexts=(start + len(keys),))
    step = pool.prepare(metadata_of(case, [[block]])).open
    assert step is not None
    add_keys(pool.layers[0], keys, step)


def read(pool: KVPool, block: int) -> Tensor:
    """[tokens, heads, dim]"""
    assert pool.open is not None
    return pool.open.keys(pool.layers[0], block)[0].transpose(0, 1)


def keys_of(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, HEADS, DIM, generator=torch.Generator().manual_seed(seed))


def half_steps(keys: Tensor) -> Tensor:
    """Of the grid that the keys are rounded to, [heads, dim]; a little more, for what bfloat16 does to its ends."""
    return (keys.amax(0) - keys.amin(0)) / 15 * 0.56 + keys.amin(0).abs() * 2**-8


def test_what_is_written_is_exact_until_the_block_is_full() -> None:
    pool, keys = make_pool(3), keys_of(SIZE)
    write(pool, 5, 0, keys[:3])
    write(pool, 5, 3, keys[3:7])
    assert torch.equal(read(pool, 5)[:7], keys[:7])
    write(pool, 5, 7, keys[7:])
    error = (read(pool, 5) - keys).abs()
    assert (error <= half_steps(keys)).all() and error.max() > 0


def test_a_full_block_is_rounded_once() -> None:
    pool, keys = make_pool(3), keys_of(SIZE)
    write(pool, 5, 0, keys)
    codes, scales = encode_channels(keys.transpose(0, 1))
    assert torch.equal(pool.layers[0].key[5], codes)
    assert torch.equal(read(pool, 5).transpose(0, 1), decode_channels(codes, scales))


def test_a_block_whose_slot_others_need_is_rounded_twice() -> None:
    """The second time on a grid that reaches as far as the first and what came after: two half steps at most."""
    pool, keys = make_pool(2), keys_of(SIZE)
    write(pool, 5, 0, keys[:4])
    write(pool, 6, 0, keys_of(3, seed=1))
    write(pool, 7, 0, keys_of(3, seed=2))
    once = read(pool, 5)[:4]
    assert ((once - keys[:4]).abs() <= half_steps(keys[:4])).all() and not torch.equal(once, keys[:4])
    write(pool, 5, 4, keys[4:])
    whole = torch.cat((once, keys[4:]))
    error = (read(pool, 5) - keys).abs()
    assert (error[:4] <= half_steps(keys[:4]) + half_steps(whole)).all()
    assert (error[4:] <= half_steps(whole)).all()


def test_a_block_written_from_its_start_forgets_what_it_held() -> None:
    pool, keys = make_pool(2), keys_of(SIZE, seed=3)
    write(pool, 5, 0, 1e6 * keys_of(5))
    write(pool, 5, 0, keys)
    assert ((read(pool, 5) - keys).abs() <= half_steps(keys)).all()


def test_copies_are_of_what_sources_held_before() -> None:
    pool, full, part = make_pool(4), keys_of(SIZE), keys_of(5, seed=1)
    write(pool, 1, 0, full)
    write(pool, 2, 0, part)
    before = read(pool, 1).clone()
    pool.copy([BlockCopy(1, 2, 6), BlockCopy(2, 3, 5)])
    assert torch.equal(read(pool, 2), before)
    assert torch.equal(read(pool, 3)[:5], part)


def test_an_open_block_travels_rounded() -> None:
    pool, keys = make_pool(2), keys_of(6)
    write(pool, 5, 0, keys)
    payloads = pool.read_blocks([5])
    other = make_pool(2)
    write(other, 4, 0, keys_of(2, seed=1))
    other.write_blocks([4], payloads)
    assert torch.equal(read(other, 4), read(pool, 5))
    assert ((read(other, 4)[:6] - keys).abs() <= half_steps(keys)).all()


def test_a_constant_in_a_channel_costs_nothing() -> None:
    """By row it would swallow the rest."""
    keys = torch.randn(HEADS, SIZE, 16, generator=torch.Generator().manual_seed(0))
    bias = torch.zeros(16)
    bias[1], bias[9] = 300.0, -90.0
    plain, shifted = ((decode_channels(*encode_channels(given)) - given).abs() for given in (keys, keys + bias))
    assert shifted.max() < plain.max() + 300 * 2**-8
    by_row = (decode(*encode(keys + bias, torch.uint8)) - keys - bias).abs()
    assert by_row[..., 2:9].max() > 10 * shifted[..., 2:9].max()


def biased_qwen2(size: float) -> PreTrainedModel:
    """Qwen2 and Qwen2.5 have channels of keys with a bias far above all else, where the rotation is slow."""
    model: Any = tiny_model("qwen2")
    with torch.no_grad():
        for layer in model.model.layers:
            bias = layer.self_attn.k_proj.bias.view(2, 16)
            bias[:, [6, 7, 14, 15]] = size * torch.tensor([1.0, -1.0, 1.0, -1.0])
    return cast(PreTrainedModel, model)


@pytest.mark.parametrize("backend", ["sdpa", "cpu"])
@pytest.mark.parametrize("name", ["int4-int8", "int4"])
def test_a_large_key_bias_does_not_break_four_bits(name: str, backend: str) -> None:
    """The last state stays as near as it does without the bias: measured bounds."""
    for size in (0.0, 100.0):
        plain, coded = (
            last_state(Driver(biased_qwen2(size), block_size=64, backend=backend, kv_cache_dtype=kind))
            for kind in ("auto", name)
        )
        assert float((plain - coded).abs().max() / plain.abs().max()) < 0.3


def last_state(driver: Driver) -> Tensor:
    stream = driver.stream("a", random_prompt(0, 150), room=10)
    driver.step((stream, 100))
    driver.execute(replace(stream.take(), store_slot=0))
    return driver.runner.hidden_slots.read([0])[0]


def test_tails_are_rounded_when_slots_run_out() -> None:
    """And go on from there: 20 conversations through slots for a few, each answer near the one it had with room."""
    answers = []
    for seqs in (1, 40):
        driver = Driver(
            "llama", num_blocks=200, kv_cache_dtype="int4-int8", max_num_seqs=seqs, max_num_batched_tokens=40
        )
        streams = [driver.stream(str(number), random_prompt(number, 21)) for number in range(20)]
        for stream in streams:
            driver.step((stream, None))
        states = []
        for stream in streams:
            stream.output[-1:] = [7]
            driver.execute(replace(stream.take(), store_slot=0))
            states.append(driver.runner.hidden_slots.read([0])[0])
        answers.append(torch.stack(states))
    assert 0 < float((answers[0] - answers[1]).abs().max() / answers[1].abs().max()) < 0.3


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(ConfigError, match="int4 does not go with an eviction policy that needs attention mass"):
        Driver("llama", kv_cache_dtype="int4", needs_attention=True)


def test_small_blocks_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    Driver("llama", kv_cache_dtype="int4", block_size=64)
    assert "bits" not in caplog.text
    Driver("llama", kv_cache_dtype="int4", block_size=16)
    assert "a key takes 6.0 bits in blocks of 16 tokens, 4.5 in blocks of 64" in caplog.text


def test_slots_count_as_memory() -> None:
    """Ten blocks fit beside the slots, not one more."""
    sizes: dict[str, Any] = {
        "block_size": 16,
        "kv_cache_dtype": "int4",
        "max_num_seqs": 2,
        "max_num_batched_tokens": 32,
    }
    fixed = Driver("llama", **sizes).runner.kv_pool
    beside = fixed.nbytes - fixed.num_blocks * fixed.block_bytes
    assert beside == (2 * 2 + 32 // 16) * 16 * 2 * 2 * 16 * 4
    settings = RunnerSettings(kv_cache_memory=beside + 11 * fixed.block_bytes - 1, **sizes)
    assert paged_runner(tiny_model("llama"), settings).kv_pool.num_blocks == 10

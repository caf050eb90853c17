"""The pool: sizes, copies, and what plain transformers code gets out of it."""

from typing import Any

import pytest
import torch

from openai_kv.model_runner.kv_pool import KVPool, LayerShape, token_bytes
from openai_kv.outputs import BlockCopy
from tests.model_runner.driver import Driver, random_prompt
from tests.tiny_models import FAMILIES, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

SHAPES = (LayerShape(2, 8, 8), LayerShape(1, 4, 6))  # layers may differ


def pool(dtype: torch.dtype = torch.float32) -> KVPool:
    pool = KVPool.allocate(SHAPES, num_blocks=6, block_size=3, dtype=dtype)
    for layer in pool.layers:
        layer.key.normal_(generator=torch.Generator().manual_seed(0))
        layer.value.normal_(generator=torch.Generator().manual_seed(1))
    return pool


def test_sizes() -> None:
    assert [tuple(layer.key.shape) for layer in pool().layers] == [(6, 2, 3, 8), (6, 1, 3, 4)]
    assert [tuple(layer.value.shape) for layer in pool().layers] == [(6, 2, 3, 8), (6, 1, 3, 6)]
    assert token_bytes(SHAPES, torch.bfloat16) == 2 * (2 * 16 + 10)
    assert pool().block_bytes == 3 * token_bytes(SHAPES, torch.float32)
    assert pool().nbytes == 6 * pool().block_bytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_can_be_read_out_and_put_elsewhere(dtype: torch.dtype) -> None:
    before, after = pool(dtype), pool(dtype)
    saved = after.read_blocks([4, 0])
    assert [len(payload) for payload in saved] == [after.block_bytes] * 2
    after.write_blocks([1, 2], [saved[0], memoryview(saved[1])])
    for old, new in zip(before.layers, after.layers, strict=True):
        for was, now in ((old.key, new.key), (old.value, new.value)):
            assert torch.equal(now, was[[0, 4, 0, 3, 4, 5]])


def test_no_blocks_are_none() -> None:
    pool().write_blocks([], [])
    assert pool().read_blocks([]) == []


def test_copies_read_every_source_before_a_target_is_written() -> None:
    before, after = pool(), pool()
    after.copy([BlockCopy(0, 1, 3), BlockCopy(1, 2, 2), BlockCopy(2, 0, 1)])
    for old, new in zip(before.layers, after.layers, strict=True):
        for was, now in ((old.key, new.key), (old.value, new.value)):
            assert torch.equal(now[1], was[0])
            assert torch.equal(now[2, :, :2], was[1, :, :2])
            assert torch.equal(now[0, :, :1], was[2, :, :1])
            assert torch.equal(now[3:], was[3:])


def test_no_copies_change_nothing() -> None:
    after = pool()
    after.copy([])
    assert torch.equal(after.layers[0].key, pool().layers[0].key)


@pytest.mark.parametrize("family", FAMILIES)
def test_dynamic_cache_holds_what_the_model_itself_computes(family: str) -> None:
    prompt = random_prompt(3, 20)  # inside the window: beyond it the model's own cache drops tokens
    driver = Driver(family, block_size=7)
    stream = driver.stream("a", prompt)
    driver.step((stream, 9))
    driver.step((stream, None))
    ours = driver.runner.kv_pool.to_dynamic_cache(stream.block_ids, len(prompt))
    with torch.inference_mode():
        its: Any = tiny_model(family)(torch.tensor([prompt]), use_cache=True).cache
    layers: Any = ours.layers
    assert len(layers) == len(its.layers)
    for mine, layer in zip(layers, its.layers, strict=True):
        torch.testing.assert_close(mine.keys, layer.keys, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(mine.values, layer.values, atol=1e-5, rtol=1e-5)


def test_plain_transformers_code_goes_on_from_a_dynamic_cache() -> None:
    driver = Driver("llama")
    stream = driver.stream("a", random_prompt(4, 25))
    driver.generate(stream, num_tokens=3)
    tokens = stream.prompt + stream.output
    cache = driver.runner.kv_pool.to_dynamic_cache(stream.block_ids, 26)
    with torch.inference_mode():
        logits = tiny_model("llama")(torch.tensor([tokens[26:]]), cache=cache).logits
    assert int(logits[0, 0].argmax()) == stream.output[2]

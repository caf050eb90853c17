"""What a step does besides the forward pass: copies, hidden slots, exact hits, accounting."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import psutil
import pytest
import torch

from openai_kv.errors import ConfigError
from openai_kv.model_runner.dtypes import name_of
from openai_kv.model_runner.fingerprint import identity
from openai_kv.model_runner.settings import RunnerSettings
from openai_kv.outputs import BlockCopy, ScheduledRequest
from tests.model_runner.driver import GREEDY, Driver, Stream, paged_runner, random_prompt
from tests.tiny_models import FAMILIES, build, tiny_config, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")


@contextmanager
def layer_calls(driver: Driver) -> Iterator[list[int]]:
    """Rows of each call of the model's first layer."""
    calls: list[int] = []
    layer = driver.runner.model.decoder.get_submodule("layers.0")
    handle = layer.register_forward_hook(lambda module, arguments, output: calls.append(arguments[0].shape[1]))
    yield calls
    handle.remove()


def hit(request_id: str, stream: Stream, slot: int) -> ScheduledRequest:
    return ScheduledRequest(
        request_id, (), len(stream.prompt), stream.block_ids, True, GREEDY, 0, stream.prompt, (), hidden_slot=slot
    )


def test_an_exact_hit_runs_no_layer_and_says_the_same() -> None:
    driver = Driver("gemma2")
    stream = driver.stream("a", random_prompt(0, 21))
    with layer_calls(driver) as calls:
        first = driver.execute(replace(stream.take(), store_slot=3))
        again = driver.execute(hit("b", stream, 3))
    assert calls == [21]
    assert again.sampled_token_ids["b"] == first.sampled_token_ids["a"]
    assert again.attention_read_bytes == 0


def test_slots_are_read_before_they_are_written() -> None:
    driver = Driver("llama")
    one, two = (driver.stream(name, random_prompt(seed, 12)) for seed, name in enumerate("ab"))
    first = driver.execute(replace(one.take(), store_slot=0)).sampled_token_ids["a"]
    both = driver.execute(replace(two.take(), store_slot=0), hit("c", one, 0)).sampled_token_ids
    assert both["c"] == first
    assert driver.execute(hit("d", two, 0)).sampled_token_ids["d"] == both["b"]
    assert both["b"] != first


def test_the_state_of_the_last_row_is_stored() -> None:
    driver = Driver("llama")
    stream = driver.stream("a", random_prompt(0, 12))
    driver.execute(stream.take(5))
    driver.execute(replace(stream.take(), store_slot=1))
    with torch.inference_mode():
        output = tiny_model("llama").model(torch.tensor([stream.prompt])).last_hidden_state[0, -1]
    torch.testing.assert_close(driver.runner.hidden_slots.read([1])[0], output, atol=1e-5, rtol=1e-5)


def test_only_requests_at_their_end_sample() -> None:
    driver = Driver("llama")
    one, two = (driver.stream(name, random_prompt(seed, 12)) for seed, name in enumerate("ab"))
    assert driver.step((one, 5)).sampled_token_ids == {}
    assert set(driver.step((one, 6), (two, None)).sampled_token_ids) == {"b"}


def test_a_copied_prefix_counts_like_a_computed_one() -> None:
    prompt = random_prompt(0, 24)
    driver = Driver("llama", block_size=16)
    original = driver.stream("a", prompt)
    driver.step((original, None))
    twin = driver.stream("b", [*prompt[:22], 9, 8])
    twin.block_ids[0], twin.computed = original.block_ids[0], 22
    copies = (BlockCopy(original.block_ids[1], twin.block_ids[1], 6),)
    copied = driver.execute(twin.take(), copies=copies).sampled_token_ids["b"]
    cold = driver.stream("c", twin.prompt)
    driver.step((cold, None))
    assert copied == cold.output


def test_attention_read_bytes_are_of_all_contexts() -> None:
    driver = Driver("llama", block_size=16)
    per_token = driver.runner.info.block_bytes // 16
    assert per_token == 2 * 2 * 2 * 16 * 4  # layers, K and V, heads, head_dim, bytes
    one, two = (driver.stream(name, random_prompt(seed, 12)) for seed, name in enumerate("ab"))
    assert driver.step((one, None)).attention_read_bytes == 12 * per_token
    assert driver.step((one, None), (two, 7)).attention_read_bytes == (13 + 7) * per_token


def test_a_window_bounds_what_its_layer_reads() -> None:
    driver = Driver("gemma3", block_size=16)  # one layer with a window of 24, one that sees everything
    per_token = driver.runner.info.block_bytes // 16 // 2
    stream = driver.stream("a", random_prompt(0, 60))
    assert driver.step((stream, 20)).attention_read_bytes == (20 + 20) * per_token
    assert driver.step((stream, 10)).attention_read_bytes == (30 + 30) * per_token
    assert driver.step((stream, None)).attention_read_bytes == (60 + (30 + 23)) * per_token
    assert driver.step((stream, None)).attention_read_bytes == (61 + 24) * per_token


def test_an_empty_step_is_fine() -> None:
    assert Driver("llama").execute().sampled_token_ids == {}


def test_info() -> None:
    info = Driver("gemma3").runner.info
    assert (info.name, info.architecture, info.attention_backend) == ("tiny", "Gemma3ForCausalLM", "sdpa")
    assert (info.num_layers, info.vocab_size, info.hidden_size, info.max_model_len) == (2, 211, 64, 512)
    assert (info.dtype, info.kv_cache_dtype, info.eos_token_ids) == ("float32", "float32", frozenset({1}))


def test_max_model_len_can_only_be_lowered() -> None:
    assert Driver("llama", max_model_len=100).runner.info.max_model_len == 100
    assert Driver("llama", max_model_len=10_000).runner.info.max_model_len == 512


def test_max_model_len_fits_the_pool(caplog: pytest.LogCaptureFixture) -> None:
    assert Driver("llama", num_blocks=5).runner.info.max_model_len == 5 * 16
    assert "max_model_len is 80, not 512" in caplog.text
    assert Driver("llama", num_blocks=5, max_pinned_fraction=0.25).runner.info.max_model_len == 3 * 16
    assert Driver("llama", num_blocks=1, max_pinned_fraction=0.25).runner.info.max_model_len == 16


@pytest.mark.parametrize("sizes", [{"num_blocks": 2**40}, {"kv_cache_memory": 2**50}])
def test_a_pool_that_does_not_fit_is_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"a KV pool of .* GiB does not fit"):
        paged_runner(tiny_model("llama"), RunnerSettings(**sizes))  # type: ignore[arg-type]


def test_the_pool_is_sized_by_memory() -> None:
    settings = RunnerSettings(block_size=8, kv_cache_memory=10 * 8 * 512 + 1)
    assert paged_runner(tiny_model("llama"), settings).kv_pool.num_blocks == 10
    free = psutil.virtual_memory().available
    share = replace(settings, kv_cache_memory=1e-4)
    assert paged_runner(tiny_model("llama"), share).kv_pool.nbytes < 2e-4 * free
    with pytest.raises(ConfigError, match="not even one block"):
        paged_runner(tiny_model("llama"), replace(settings, kv_cache_memory=100))


def test_the_fingerprint_is_of_weights_and_dtype() -> None:
    settings = RunnerSettings(num_blocks=4)
    first = paged_runner(tiny_model("llama"), settings).info.fingerprint
    other = build(tiny_config("llama"))
    with torch.no_grad():
        next(other.parameters())[0, 0] += 1
    assert len(first) == 13 and first.startswith("fp_")
    assert paged_runner(tiny_model("llama"), settings).info.fingerprint == first
    assert paged_runner(other, settings).info.fingerprint != first
    assert paged_runner(tiny_model("llama", torch.bfloat16), settings).info.fingerprint != first


@pytest.mark.parametrize("backend", ["sdpa", "cpu"])
@pytest.mark.parametrize(
    ("weights", "pool", "tolerance"),
    [(torch.float32, torch.bfloat16, 0.05), (torch.float32, torch.float16, 0.01), (torch.bfloat16, torch.float32, 0)],
)
def test_a_pool_of_another_type(weights: torch.dtype, pool: torch.dtype, tolerance: float, backend: str) -> None:
    """Logits stay near those over a pool of the weights' type; equal where the pool holds more than they give."""
    prompt = random_prompt(0, 40)
    plain, other = (
        Driver(tiny_model("llama", weights), backend=backend, kv_cache_dtype=name) for name in ("auto", name_of(pool))
    )
    info = other.runner.info
    assert (info.dtype, info.kv_cache_dtype) == (name_of(weights), name_of(pool))
    assert info.block_bytes * weights.itemsize == plain.runner.info.block_bytes * pool.itemsize
    assert info.fingerprint != plain.runner.info.fingerprint
    assert other.runner.kv_pool.kv_format.name == name_of(pool)
    states = [_last_state(driver, prompt) for driver in (plain, other)]
    difference = float((states[0] - states[1]).abs().max())
    assert difference <= tolerance * float(states[0].abs().max())
    assert (difference == 0) == (tolerance == 0)


def _last_state(driver: Driver, prompt: list[int]) -> torch.Tensor:
    """After a prefill of two parts and a decode."""
    stream = driver.stream("a", prompt)
    driver.step((stream, 25))
    driver.step((stream, None))
    stream.output[-1:] = [7]
    driver.execute(replace(stream.take(), store_slot=0))
    return driver.runner.hidden_slots.read([0])[0].float()


@pytest.mark.parametrize("backend", ["sdpa", "cpu"])
@pytest.mark.parametrize("name", ["bfloat16", "int8", "int8-int4", "int4-int8", "int4"])
def test_a_rounded_prefix_says_the_same_however_it_came(name: str, backend: str) -> None:
    """What a cold prompt sees of itself is what a later one finds in the pool."""
    driver = Driver("llama", backend=backend, kv_cache_dtype=name)
    prompt = random_prompt(0, 40)
    whole, parts = driver.stream("a", prompt), driver.stream("b", prompt)
    driver.execute(replace(whole.take(), store_slot=0))
    driver.step((parts, 30))
    driver.execute(replace(parts.take(), store_slot=1))
    torch.testing.assert_close(*driver.runner.hidden_slots.read([0, 1]), atol=1e-5, rtol=1e-5)


def test_a_format_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="'int3' is none of auto, float32, bfloat16, float16, int8, int8-int4, "):
        Driver("llama", kv_cache_dtype="int3")


@pytest.mark.parametrize("backend", ["sdpa", "cpu"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("name", "tolerance"), [("int8", 0.05), ("int8-int4", 0.3), ("int4-int8", 0.3), ("int4", 0.5)])
def test_states_over_codes_stay_near_those_over_floats(name: str, tolerance: float, family: str, backend: str) -> None:
    """Measured bounds, as a share of the largest number of the last state."""
    prompt = random_prompt(0, 40)
    drivers = (Driver(family, backend=backend, kv_cache_dtype=kind) for kind in ("auto", name))
    plain, coded = (_last_state(driver, prompt) for driver in drivers)
    difference = float((plain - coded).abs().max() / plain.abs().max())
    assert 0 < difference < tolerance


@pytest.mark.parametrize("name", ["int8", "int8-int4", "int4-int8", "int4"])
def test_a_partial_block_is_copied_with_its_scales(name: str) -> None:
    prompt = random_prompt(0, 24)
    driver = Driver("llama", block_size=16, kv_cache_dtype=name)
    original, cold = driver.stream("a", prompt), driver.stream("c", [*prompt[:22], 9, 8])
    driver.step((original, None))
    twin = driver.stream("b", cold.prompt)
    twin.block_ids[0], twin.computed = original.block_ids[0], 22
    copies = (BlockCopy(original.block_ids[1], twin.block_ids[1], 6),)
    driver.execute(replace(twin.take(), store_slot=0), copies=copies)
    driver.execute(replace(cold.take(), store_slot=1))
    torch.testing.assert_close(*driver.runner.hidden_slots.read([0, 1]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_follows_the_models_own_forward(dtype: torch.dtype) -> None:
    """At every step the drawn token is, in the eager model of the same type, as good as the best one."""
    driver = Driver(tiny_model("llama", dtype))
    assert driver.runner.info.dtype == str(dtype).removeprefix("torch.")
    stream = driver.stream("a", random_prompt(0, 20))
    driver.generate(stream, num_tokens=16)
    with torch.inference_mode():
        logits = tiny_model("llama", dtype)(torch.tensor([stream.prompt + stream.output])).logits[0, 19:-1].float()
    chosen = logits.gather(1, torch.tensor(stream.output)[:, None])[:, 0]
    assert float((logits.max(-1).values - chosen).max()) < 0.1
    assert float(logits.std()) > 0.5


def test_the_identity_is_of_all_that_k_and_v_depend_on() -> None:
    settings = RunnerSettings(num_blocks=4)
    plain = paged_runner(tiny_model("llama"), settings).info.identity
    assert paged_runner(tiny_model("llama"), settings).info.identity == plain
    other = build(tiny_config("llama"))
    with torch.no_grad():
        [*other.parameters()][5].flatten()[777] += 1e-3
    turned = tiny_config("llama")
    turned.rope_parameters = {"rope_type": "default", "rope_theta": 20000.0}
    found = [
        paged_runner(other, settings),
        paged_runner(build(turned), settings),
        paged_runner(tiny_model("llama", torch.bfloat16), settings),
        paged_runner(tiny_model("llama"), replace(settings, kv_cache_dtype="bfloat16")),
        paged_runner(tiny_model("llama"), replace(settings, block_size=8)),
    ]
    assert len({plain, *(runner.info.identity for runner in found)}) == 6


def test_the_identity_names_each_layers_group_once() -> None:
    """What a tier keeps is found by later versions only as long as nobody puts these parts another way."""
    runner = paged_runner(tiny_model("gemma3"), RunnerSettings(num_blocks=8, window_layout="auto"))
    assert set(runner.groups.names) == {"full", "window"}
    parts = ("float32", "float32", "none", "16", *runner.groups.names)
    assert runner.info.identity == identity(runner.model.model, parts)

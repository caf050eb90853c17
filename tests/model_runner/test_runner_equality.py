"""The runner says what `model.generate` says, in float32, for every family, however the prompts are cut and batched."""

import pytest

from tests.model_runner.driver import Driver, masked_eos, random_prompt, reference
from tests.tiny_models import FAMILIES, WINDOW, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

NEW_TOKENS = 64
LENGTHS = (30, 41, 5)


@pytest.mark.parametrize("block_size", [16, 7])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_text_equals_generate(family: str, block_size: int) -> None:
    prompts = [random_prompt(seed, length) for seed, length in enumerate(LENGTHS)]
    model = tiny_model(family)
    expected = [reference(model, prompt, NEW_TOKENS) for prompt in prompts]
    driver = Driver(family, block_size)
    chunked, whole, short = (
        driver.stream(str(index), prompt, params=masked_eos(NEW_TOKENS)) for index, prompt in enumerate(prompts)
    )
    driver.step((chunked, 13))
    driver.step((chunked, 1), (whole, None))
    driver.step((chunked, 16), (whole, None), (short, None))
    assert [len(stream.output) for stream in (chunked, whole, short)] == [1, 2, 1]
    driver.generate(chunked, whole, short, num_tokens=NEW_TOKENS)
    streams = zip(expected, (chunked, whole, short), strict=True)
    assert sum(reference.near_ties(stream.output) for reference, stream in streams) <= 1
    assert max(LENGTHS) + NEW_TOKENS > 3 * WINDOW


@pytest.mark.parametrize("family", FAMILIES)
def test_a_request_alone_and_in_a_batch(family: str) -> None:
    driver = Driver(family, num_blocks=128)
    alone = driver.stream("alone", random_prompt(7, 33))
    driver.generate(alone, num_tokens=24)
    together = [driver.stream(f"{index}", random_prompt(7 + index, 33 + index)) for index in range(5)]
    driver.generate(*together, num_tokens=24)
    assert together[0].output == alone.output
    assert len({tuple(stream.output) for stream in together}) > 1

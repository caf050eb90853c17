"""The attention mass of a step equals what the model's own eager attention gives as `output_attentions`."""

from collections import defaultdict
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from tests.model_runner.driver import Driver, Stream, random_prompt
from tests.tiny_models import FAMILIES, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

BLOCK_SIZE = 4


def attentions(family: str, tokens: list[int]) -> Tensor:
    """[len(tokens) rows, len(tokens) keys], summed over layers and heads."""
    with torch.inference_mode():
        output = tiny_model(family)(torch.tensor([tokens]), use_cache=False, output_attentions=True)
    return torch.stack(output.attentions).sum((0, 1, 2))


def expected_mass(weights: Tensor, rows: range, block_ids: list[int]) -> dict[int, float]:
    per_key = weights[rows.start : rows.stop].mean(0)
    pieces = per_key[: rows.stop].split(BLOCK_SIZE)
    return {block: float(piece.sum()) for block, piece in zip(block_ids, pieces, strict=False)}


def added(*parts: Mapping[int, float]) -> dict[int, float]:
    total: defaultdict[int, float] = defaultdict(float)
    for part in parts:
        for block, mass in part.items():
            total[block] += mass
    return dict(total)


@pytest.mark.parametrize("backend", ["sdpa", "cpu"])
@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_chunk_and_decode_rows(family: str, backend: str) -> None:
    driver = Driver(family, BLOCK_SIZE, needs_attention=True, backend=backend)
    assert driver.runner.info.attention_backend == backend
    first, second = (driver.stream(name, random_prompt(seed, 37)) for seed, name in enumerate("ab"))
    driver.step((first, None))
    tokens = first.prompt + first.output
    own, other = attentions(family, tokens), attentions(family, second.prompt)

    prefill = driver.step((second, 20)).attention_mass
    assert prefill == pytest.approx(expected_mass(other, range(20), second.block_ids), abs=1e-5)

    mixed = driver.step((second, 17), (first, 1)).attention_mass
    decode = expected_mass(own, range(37, 38), first.block_ids)
    assert mixed == pytest.approx(added(expected_mass(other, range(20, 37), second.block_ids), decode), abs=1e-5)
    assert len(decode) == 10


def test_requests_that_share_blocks_add_up() -> None:
    driver = Driver("llama", BLOCK_SIZE, needs_attention=True)
    first = driver.stream("a", random_prompt(0, 16))
    driver.step((first, None))
    twin = Stream("b", first.prompt, [*first.block_ids[:4], *driver.stream("", []).block_ids], computed=16)
    first.output, twin.output = [5], [5]
    mass = driver.step((first, None), (twin, None)).attention_mass
    weights = attentions("llama", [*first.prompt, 5])
    rows = range(16, 17)
    expected = added(expected_mass(weights, rows, first.block_ids), expected_mass(weights, rows, twin.block_ids))
    assert mass == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("family", ["mistral", "gemma3"])
def test_that_of_window_parts_counts_for_their_blocks(family: str) -> None:
    """The window has left the first two blocks behind, and the second request shares what the first one sees."""
    masses = []
    for layout in ("full", "auto"):
        driver = Driver(family, BLOCK_SIZE, needs_attention=True, window_layout=layout, window_share=1.0)
        first = driver.stream("a", random_prompt(0, 36))
        driver.step((first, None))
        spare = driver.stream("", [])
        twin = Stream("b", first.prompt, [*first.block_ids[:9], *spare.block_ids], computed=36)
        if layout == "auto":
            first.window_block_ids[:2] = [0, 0]
            twin.window_block_ids = [*first.window_block_ids[:9], *spare.window_block_ids]
        first.output, twin.output = [5], [5]
        masses.append(driver.step((first, None), (twin, None)).attention_mass)
    assert masses[0] == pytest.approx(masses[1], abs=1e-5)
    assert sum(masses[1].values()) == pytest.approx(2 * 2 * 4, rel=1e-4), "two rows, two layers, four heads"


def test_there_is_none_unless_asked_for() -> None:
    driver = Driver("llama")
    assert driver.step((driver.stream("a", random_prompt(0, 9)), None)).attention_mass == {}

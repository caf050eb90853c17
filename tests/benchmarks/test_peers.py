"""peers.py between two servers of ours with a model that computes nothing."""

import argparse

import pytest

from benchmarks.peers import Pair, measure, ratios
from openai_kv.bench.reply import Reply
from openai_kv.bench.result import Result
from tests.harness import Shape
from tests.server.serving import live_site

SHAPE = Shape(num_blocks=16384, block_size=4, max_num_seqs=32, max_num_batched_tokens=4096, max_model_len=16384)


def result(label: str, number: int, ttft: float, tokens: int) -> Result:
    return Result(label, number, (Reply(0.0, ttft=ttft, total=1.0, completion_tokens=tokens, prompt_tokens=3),))


def test_a_ratio_is_the_median_of_the_rounds() -> None:
    pairs = [Pair(result("x", n, a, 10), result("x", n, 0.1, 5)) for n, a in enumerate((0.05, 0.3, 0.1))]
    found = {ratio.figure: ratio for ratio in ratios(pairs)}
    assert set(found) == {"output_tokens_per_s", "ttft_p50_ms"}  # one token has no gap
    assert found["ttft_p50_ms"].ratios == pytest.approx((0.5, 3, 1))
    assert (found["ttft_p50_ms"].a, found["output_tokens_per_s"].ratios) == (100, (2, 2, 2))
    assert found["ttft_p50_ms"].line().split()[-3:] == ["0.50", "1.00", "3.00"]


async def test_both_get_the_same_new_prompts_in_each_round(capsys: pytest.CaptureFixture[str]) -> None:
    async with live_site(SHAPE) as (_, a), live_site(SHAPE) as (_, b):
        args = argparse.Namespace(
            a=f"{a}/v1", b=f"{b}/v1", workloads=["single", "prefix"], rounds=2, seed="0", timeout=20.0
        )
        pairs = await measure(args)
    labels = ["single", "prefix cold", "prefix warm", "prefix repeat", "prefix x16"]
    assert [pair.a.label for pair in pairs] == labels * 2
    assert [error for pair in pairs for error in (*pair.a.errors, *pair.b.errors)] == []
    assert all(pair.a.prompt_tokens == pair.b.prompt_tokens > 0 for pair in pairs)
    cold = [pair.a for pair in pairs if pair.a.label == "prefix cold"]
    assert all((result.cached_tokens or 0) < 100 < result.prompt_tokens for result in cold)  # another one in each round
    assert capsys.readouterr().out.count("done") == 4

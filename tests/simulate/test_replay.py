"""Replays through the server's own classes count the hits that the definitions of the policies give."""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from openai_kv.simulate.readers import read_trace
from openai_kv.simulate.result import Case, Mode
from openai_kv.simulate.run_case import PolicySource, run_case
from tests.simulate.references import Chains, lru, opt

BLOCK = 512
REAL_TRACE = Path(__file__).parent.parent / "data" / "conversation_first300.jsonl"


def random_chains(seed: int, count: int = 150) -> Chains:
    """Requests over a random tree of prefixes, with popular branches; equal ids mean equal prefixes."""
    rng = random.Random(seed)
    chains: list[tuple[int, ...]] = [(0,)]
    number = 1
    for _ in range(count):
        start = rng.choice(chains[-30:])
        kept = start[: rng.randrange(len(start) + 1)]
        new = tuple(range(number, number + rng.randrange(4)))
        number += len(new)
        chains.append((*kept, *new) or (0,))
    return chains


def write_trace(folder: Path, chains: Chains) -> Path:
    path = folder / "trace.jsonl"
    lines = [
        {"timestamp": 1000 * index, "input_length": BLOCK * len(chain), "output_length": 1, "hash_ids": chain}
        for index, chain in enumerate(chains)
    ]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


def hits(path: Path, policy: str, capacity: int | None, mode: Mode = "radix") -> int:
    result = run_case(Case(str(path), policy, capacity, mode), PolicySource())
    assert result.policy_errors == 0
    return result.tally.hit_blocks


@pytest.mark.parametrize("capacity", [1, 3, 7, 20, 60])
@pytest.mark.parametrize("seed", range(4))
def test_lru_and_opt_are_what_their_definitions_say(seed: int, capacity: int, tmp_path: Path) -> None:
    chains = random_chains(seed)
    path = write_trace(tmp_path, chains)
    assert hits(path, "lru", capacity) == lru(chains, capacity)
    assert hits(path, "opt", capacity) == opt(chains, capacity)
    assert hits(path, "lru", capacity) <= hits(path, "opt", capacity)


@pytest.mark.parametrize("capacity", [3, 20])
def test_the_flat_replay_is_fifo_without_the_leaf_first_rule(capacity: int, tmp_path: Path) -> None:
    chains = random_chains(9)
    path = write_trace(tmp_path, chains)
    assert hits(path, "fifo", capacity, "flat-tail") == lru(chains, capacity, touch_moves=False)
    assert hits(path, "lru", capacity, "flat-tail") == lru(chains, capacity)


@pytest.mark.parametrize(("capacity", "by_lru", "by_opt"), [(100, 299, 418), (3000, 360, 676), (4000, 445, 676)])
def test_real_chats(capacity: int, by_lru: int, by_opt: int) -> None:
    chains = [request.hash_ids for request in read_trace(REAL_TRACE).requests]
    assert (len(chains), sum(map(len, chains))) == (300, 8490)
    assert hits(REAL_TRACE, "lru", capacity) == lru(chains, capacity) == by_lru
    assert hits(REAL_TRACE, "opt", capacity) == opt(chains, capacity) == by_opt


def test_the_halves_add_up() -> None:
    whole, first = (
        run_case(Case(str(REAL_TRACE), "lru", 1000, half=half), PolicySource()) for half in ("all", "first")
    )
    second = run_case(Case(str(REAL_TRACE), "lru", 1000, half="second"), PolicySource())
    assert whole.second_half == second.second_half == second.tally
    assert whole.tally.hit_blocks == first.tally.hit_blocks + second.tally.hit_blocks
    assert (first.tally.requests, second.tally.requests) == (150, 150)


def test_infinite_is_the_ceiling(tmp_path: Path) -> None:
    chains = random_chains(3)
    path = write_trace(tmp_path, chains)
    assert hits(path, "infinite", None) == lru(chains, 10_000) >= hits(path, "lru", 40)


def test_a_live_replay_holds_blocks_while_a_request_runs(tmp_path: Path) -> None:
    """Of two requests at the same moment the pool holds one: the other waits for its end."""
    path = tmp_path / "trace.jsonl"
    lines = [
        {
            "timestamp": 0,
            "input_length": 3 * BLOCK,
            "output_length": 10,
            "hash_ids": [10 * number + i for i in range(3)],
        }
        for number in range(2)
    ]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    tally = run_case(Case(str(path), "lru", 5, "live"), PolicySource()).tally
    assert (tally.requests, tally.waited_requests) == (2, 1)
    assert tally.wait_seconds > 0


GOLDEN = os.environ.get("OPENAI_KV_GOLDEN", "")  # a folder with simulate.json and the two Mooncake traces
EXACT = {"lru", "opt", "fifo"}  # the others have no second implementation to trust
HEAD_FIRST = {("last_half_tokens", "fifo")}


def golden_cases() -> list[Any]:
    if not GOLDEN:
        return []
    suites = json.loads((Path(GOLDEN) / "simulate.json").read_text(encoding="utf-8"))["suites"]
    return [
        pytest.param(name, case, id=f"{name}-{case['trace']}-{case['policy']}-{case['capacity_blocks']}")
        for name, suite in suites.items()
        for case in suite["cases"]
        if case["policy"] in EXACT or case["capacity_blocks"] is None
    ]


@pytest.mark.skipif(not GOLDEN, reason="OPENAI_KV_GOLDEN names no folder")
@pytest.mark.parametrize(("suite", "case"), golden_cases())
def test_the_known_results_of_the_mooncake_traces(suite: str, case: dict[str, Any]) -> None:
    policy, capacity = case["policy"], case["capacity_blocks"]
    flat: Mode = "flat-head" if (suite, policy) in HEAD_FIRST else "flat-tail"
    result = run_case(
        Case(
            trace=str(Path(GOLDEN) / f"{case['trace']}_trace.jsonl"),
            policy="infinite" if capacity is None else policy,
            capacity_blocks=capacity,
            mode=flat if policy == "fifo" and capacity is not None else "radix",
            half="second" if suite == "last_half_tokens" else "all",
        ),
        PolicySource(),
    )
    by_tokens = suite == "last_half_tokens"
    tally = result.tally
    assert (tally.hit_tokens if by_tokens else tally.hit_blocks) == case["hits"]
    assert (tally.tokens if by_tokens else tally.blocks) == case["total"]

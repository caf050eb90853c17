"""Replays through the server's own classes count the hits that the definitions of the policies give."""

import json
import os
import random
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from openai_kv.simulate.result import Case, Mode
from openai_kv.simulate.run_case import PolicySource, run_case

Chains = list[tuple[int, ...]]
BLOCK = 512


def random_chains(seed: int, count: int = 150) -> Chains:
    """Requests over a random tree of prefixes, with popular branches; equal ids mean equal prefixes."""
    rng = random.Random(seed)
    chains: Chains = [(0,)]
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


def prefix_hits(chain: Sequence[int], stored: Any) -> int:
    return next((depth for depth, block in enumerate(chain) if block not in stored), len(chain))


def lru(chains: Chains, capacity: int, *, touch_moves: bool = True) -> int:
    """Touched from the deepest to the root; with `touch_moves` False: FIFO."""
    stored: OrderedDict[int, None] = OrderedDict()
    total = 0
    for chain in chains:
        total += prefix_hits(chain, stored)
        for block in reversed(chain):
            if block in stored:
                if touch_moves:
                    stored.move_to_end(block)
                continue
            if len(stored) == capacity:
                stored.popitem(last=False)
            stored[block] = None
    return total


def opt(chains: Chains, capacity: int) -> int:
    """Belady with bypass: the farthest next use goes, among equals the deepest; insertion stops where it can't pay."""

    def next_use(block: int, after: int) -> float:
        return next((i for i in range(after + 1, len(chains)) if block in chains[i]), float("inf"))

    stored: dict[int, tuple[float, int]] = {}
    total = 0
    for index, chain in enumerate(chains):
        total += prefix_hits(chain, stored)
        for depth, block in enumerate(chain):
            use = next_use(block, index)
            if block not in stored:
                victim = max(stored, key=lambda other: stored[other], default=None)
                if use == float("inf"):
                    break
                if len(stored) == capacity:
                    if victim is None or stored[victim][0] <= use:
                        break
                    del stored[victim]
            stored[block] = (use, depth)
    return total


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

"""Eviction policies on the live server: the same chats under each, and what the simulator says of them.

    python benchmarks/eviction.py --trace conversation_trace.jsonl
    python benchmarks/eviction.py --trace conversation_trace.jsonl --policy lru --policy arc --rounds 3 --json out.json

Starts `openai-kv serve` once for each policy and round, with a pool of a fifth of the working set. Conversations come
and go on as those of the trace do; their think times decide the order of the requests and nobody sleeps through them.
So hits and computed tokens are those of that order, and the time to the first token is that of a server which always
has `--concurrency` requests. With 1 the counts repeat exactly; with more, who is evicted depends a little on timing.
The recording of each round's first server is replayed under every policy at the same capacity.
Everything after -- goes to the server.
"""

import argparse
import asyncio
import json
import signal
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from benchmarks.conversations import Habits, observe
from benchmarks.drive import Drive, drive
from benchmarks.live_report import Outcome, agreement, make_markdown, make_table, record, tau_of
from benchmarks.page import write_tables
from benchmarks.policy_table import built_in_policies, replayable
from benchmarks.serving import Server, serve
from benchmarks.workload import Mix, Turn, longest_chat, schedule, working_set
from openai_kv.simulate.readers import read_trace
from openai_kv.simulate.result import Case, Mode, Result
from openai_kv.simulate.run_case import PolicySource, run_case


@dataclass(frozen=True, slots=True)
class Plan:
    """What is the same for all policies."""

    policies: tuple[str, ...]
    rounds: tuple[tuple[Turn, ...], ...]
    num_blocks: int
    block_size: int
    answer_tokens: int
    concurrency: int
    mode: Mode
    port: int
    server: tuple[str, ...]


def make_plan(options: argparse.Namespace) -> Plan:
    """Raises ConfigError or ValueError: the trace is no use, or the pool too small for one of the chats."""
    mix = replace(Mix(), conversations=options.conversations, scans=options.scans, minutes=options.minutes)
    habits: Habits = observe(read_trace(options.trace).requests)
    rounds = tuple(tuple(schedule(mix, habits, options.seed + number)) for number in range(options.rounds))
    pool = int(working_set(rounds[0], mix.answer_tokens) * options.pool_share)
    longest = max(longest_chat(turns, mix.answer_tokens) for turns in rounds)
    if pool < longest:
        raise ValueError(f"a pool of {pool} tokens, and a chat of {longest}: more conversations, or a larger share")
    return Plan(
        policies=tuple(options.policy or (policy.name for policy in built_in_policies())),
        rounds=rounds,
        num_blocks=pool // options.block_size,
        block_size=options.block_size,
        answer_tokens=mix.answer_tokens,
        concurrency=options.concurrency,
        mode="live" if options.live else "radix",
        port=options.port,
        server=tuple(options.server),
    )


def measure(plan: Plan, folder: Path) -> list[Outcome]:
    """Round by round, policy by policy: what drifts on the machine meets all of them."""
    drives: dict[str, list[Drive]] = {policy: [] for policy in plan.policies}
    replays: dict[str, list[Result]] = {policy: [] for policy in plan.policies}
    for number, turns in enumerate(plan.rounds):
        recordings = [folder / f"{number}-{policy}.jsonl" for policy in plan.policies]
        for policy, recording in zip(plan.policies, recordings, strict=True):
            drives[policy].append(run(plan, policy, turns, recording))
        for result in replay(plan, recordings[0]):
            replays[result.case.policy].append(result)
    return [Outcome(policy, plan.block_size, tuple(drives[policy]), tuple(replays[policy])) for policy in plan.policies]


def run(plan: Plan, policy: str, turns: Sequence[Turn], recording: Path) -> Drive:
    sizes = ("--num-blocks", str(plan.num_blocks), "--block-size", str(plan.block_size))
    how = ("--eviction-policy", policy, "--record-trace", str(recording), "--queue-timeout", "600")
    with serve(*sizes, *how, *plan.server, port=plan.port) as server:
        sent = drive(
            server.url,
            turns,
            model=model_name(server),
            answer_tokens=plan.answer_tokens,
            concurrency=plan.concurrency,
        )
        return asyncio.run(sent)


def model_name(server: Server) -> str:
    name: str = httpx.get(f"{server.url}/v1/models").raise_for_status().json()["data"][0]["id"]
    return name


def replay(plan: Plan, recording: Path) -> Iterator[Result]:
    """Under each policy that a trace can tell something about."""
    attention = {policy.name for policy in built_in_policies()} - set(replayable())
    for policy in plan.policies:
        if policy not in attention:
            yield run_case(Case(str(recording), policy, plan.num_blocks, plan.mode), PolicySource())


def facts(plan: Plan) -> dict[str, Any]:
    return {
        "requests_a_round": len(plan.rounds[0]),
        "rounds": len(plan.rounds),
        "working_set_tokens": working_set(plan.rounds[0], plan.answer_tokens),
        "pool_tokens": plan.num_blocks * plan.block_size,
        "concurrency": plan.concurrency,
        "replay": plan.mode,
    }


def report(plan: Plan, outcomes: Sequence[Outcome], options: argparse.Namespace) -> None:
    told = {**facts(plan), "kendall_tau": round(tau_of(outcomes), 3)}
    Console().print(make_table(outcomes))
    for line in (*agreement(outcomes), str(told)):
        print(line)
    if options.json:
        document = {"format": 1, **told, "results": [record(outcome) for outcome in outcomes]}
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if options.page:
        write_tables(options.page, {"live": make_markdown(outcomes, told)})


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True, help="whose think times and numbers of turns to draw from")
    parser.add_argument("--policy", action="append", help="repeatable; default: all built-in ones")
    parser.add_argument("--rounds", type=int, default=1, help="the seed goes up by 1 with each [1]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--conversations", type=int, default=Mix().conversations, help="[%(default)s]")
    parser.add_argument("--scans", type=int, default=Mix().scans, help="one-shot long documents [%(default)s]")
    parser.add_argument("--minutes", type=float, default=Mix().minutes, help="of trace time, to begin in [%(default)s]")
    parser.add_argument("--pool-share", type=float, default=0.2, help="of the working set [%(default)s]")
    parser.add_argument("--block-size", type=int, default=16, help="[%(default)s]")
    parser.add_argument("--concurrency", type=int, default=4, help="requests at once [%(default)s]")
    parser.add_argument("--live", action="store_true", help="replay as `simulate --live` does")
    parser.add_argument("--port", type=int, default=0, help="of the server; 0: a free one [0]")
    parser.add_argument("--json", type=Path, help="write the results")
    parser.add_argument("--page", type=Path, help="write the table into this Markdown page, at <!-- live -->")
    parser.add_argument("server", nargs="*", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that a server never outlives us
    plan = make_plan(options)
    with tempfile.TemporaryDirectory() as folder:
        outcomes = measure(plan, Path(folder))
    report(plan, outcomes, options)


if __name__ == "__main__":
    main()

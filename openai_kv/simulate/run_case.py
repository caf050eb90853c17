"""Run one case: read the trace, make the policy, replay it, measure."""

import time
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openai_kv.cache.policy import BlockInfo, EvictionPolicy
from openai_kv.default_plugins.lru import LRUPolicy
from openai_kv.errors import ConfigError
from openai_kv.metrics import EvictionStats
from openai_kv.plugins import load_plugins
from openai_kv.simulate.flat import FlatReplay
from openai_kv.simulate.live import LiveReplay
from openai_kv.simulate.opt import Lookahead, OptPolicy
from openai_kv.simulate.readers import read_trace
from openai_kv.simulate.replay import Counter, OptReplay, RadixReplay, Replay
from openai_kv.simulate.result import INFINITE, OPT, Case, Result
from openai_kv.simulate.trace import Trace


@dataclass(frozen=True, slots=True)
class PolicySource:
    """Where policies come from: the plugins there are, and their options by name."""

    plugins_dir: str = ""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def create(self, spec: str) -> EvictionPolicy:
        """`NAME`, or `NAME:option=value:option=value`. Raises PluginError or ConfigError."""
        name, *given = spec.split(":")
        options = dict(self.options)
        if given:
            options[name] = {**options.get(name, {}), **dict(parse_option(spec, text) for text in given)}
        return load_plugins(self.plugins_dir).create_policy(name, options)


def parse_option(spec: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--policy {spec}: {text!r} is not option=value")
    return name, value


class TimedPolicy(EvictionPolicy):
    """`policy`, and how long it takes to choose."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self.seconds = 0.0
        self._choose = policy.select_victim
        for attribute in {"name", *vars(EvictionPolicy)} - {"select_victim"}:
            if not attribute.startswith("_"):
                setattr(self, attribute, getattr(policy, attribute))

    def select_victim(self, candidates: AbstractSet[BlockInfo]) -> BlockInfo:
        start = time.perf_counter()
        try:
            return self._choose(candidates)
        finally:
            self.seconds += time.perf_counter() - start


class ErrorCounter:
    """How often the policy failed: then LRU decided, and the figures are not the policy's own."""

    def __init__(self) -> None:
        self.errors = 0

    def on_eviction(self, stats: EvictionStats) -> None: ...

    def on_plugin_error(self, plugin: str, hook: str) -> None:  # noqa: ARG002
        self.errors += 1


def run_case(case: Case, source: PolicySource) -> Result:
    """Raises ConfigError or PluginError: trace, policy or option are wrong."""
    trace = read_trace(Path(case.trace))
    if case.half == "first":
        trace = trace.first_half()
    counter = Counter(trace, case.cost, len(trace.requests) // 2 if case.half == "second" else 0)
    observer = ErrorCounter()
    chosen = choose_policy(case, trace, source)
    policy = TimedPolicy(chosen)
    replay = make_replay(case, trace, chosen, policy, counter, observer)
    start = time.perf_counter()
    replay.run()
    return Result(
        case=case,
        trace_name=trace.name,
        trace_format=trace.format,
        block_tokens=trace.block_tokens,
        tally=counter.tally,
        second_half=counter.second_half,
        evictions=replay.evictions,
        policy_errors=observer.errors,
        decision_seconds=policy.seconds,
        replay_seconds=time.perf_counter() - start,
    )


def choose_policy(case: Case, trace: Trace, source: PolicySource) -> EvictionPolicy:
    if case.policy == OPT:
        return OptPolicy(Lookahead(trace.requests))
    return LRUPolicy() if case.policy == INFINITE else source.create(case.policy)


def make_replay(
    case: Case, trace: Trace, chosen: EvictionPolicy, policy: EvictionPolicy, counter: Counter, observer: ErrorCounter
) -> Replay:
    """`policy` is `chosen`, measured."""
    capacity = case.capacity_blocks or max(trace.num_different_blocks, 1)
    if isinstance(chosen, OptPolicy):
        return OptReplay(trace, capacity, policy, counter, observer, opt=chosen)
    if case.mode == "live":
        return LiveReplay(trace, capacity, policy, counter, observer, case.cost)
    if case.mode == "radix":
        return RadixReplay(trace, capacity, policy, counter, observer)
    return FlatReplay(trace, capacity, policy, counter, observer, head=case.mode == "flat-head")

"""The command `simulate`: from options to results."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from openai_kv.config_values import check_writable, positive
from openai_kv.errors import ConfigError
from openai_kv.simulate.cost import CostModel
from openai_kv.simulate.plot import check_plot, write_plot
from openai_kv.simulate.readers import read_trace
from openai_kv.simulate.report import make_tables, write_csv, write_json
from openai_kv.simulate.result import BOUNDS, INFINITE, Case, Half, Mode, Result
from openai_kv.simulate.run_case import PolicySource
from openai_kv.simulate.sweep import run_cases


@dataclass(frozen=True, slots=True)
class Options:
    """The command line. Capacities are in blocks of each trace, and in tokens, which each trace turns into blocks."""

    traces: tuple[str, ...]
    policies: tuple[str, ...]
    capacities: tuple[int, ...] = ()
    capacity_tokens: tuple[int, ...] = ()
    mode: Mode = "radix"
    half: Half = "all"
    cost: CostModel = field(default_factory=CostModel)
    jobs: int = 1
    json: Path | None = None
    csv: Path | None = None
    plots: tuple[Path, ...] = ()


def parse_options(values: Mapping[str, Any]) -> Options:
    """`values` as `add_arguments` names them, without the prefix. Raises ConfigError."""
    if values["live"] and values["flat"]:
        raise ConfigError("--live and --flat exclude each other")
    flat: Mode = "flat-head" if values["insert_order"] == "head" else "flat-tail"
    return Options(
        traces=tuple(values["traces"]),
        policies=split(values["policy"]) or ("lru",),
        capacities=tuple(map(positive, split(values["capacity"]))),
        capacity_tokens=tuple(map(positive, split(values["capacity_tokens"]))),
        mode=flat if values["flat"] else "live" if values["live"] else "radix",
        half=values["half"],
        cost=CostModel(values["prefill_rate"], values["crossover"], values["decode_rate"]),
        jobs=values["jobs"],
        json=values["json"],
        csv=values["csv"],
        plots=tuple(values["plot"]),
    )


def split(words: Sequence[str]) -> tuple[str, ...]:
    """`["a,b", "c"]` as a, b, c, each once."""
    return tuple(dict.fromkeys(part.strip() for word in words for part in word.split(",") if part.strip()))


def simulate(options: Options, source: PolicySource) -> int:
    """Replay, print the table, write the files. Raises ConfigError or PluginError."""
    check(options, source)
    cases = list(make_cases(options))
    results = run_with_progress(cases, source, options.jobs)
    for table in make_tables(results):
        Console().print(table)
    warn(results)
    write(options, results)
    return 0


def check(options: Options, source: PolicySource) -> None:
    """What can be known to be wrong before the work begins."""
    for policy in options.policies:
        if policy not in BOUNDS:
            source.create(policy)
    for path in options.plots:
        check_plot(path)
    check_writable(options.json, options.csv, *options.plots)


def make_cases(options: Options) -> Iterator[Case]:
    """Trace by trace, policy by policy; `infinite` comes once."""
    for trace in options.traces:
        block_tokens = read_trace(Path(trace)).block_tokens
        sizes = [*options.capacities, *(max(1, tokens // block_tokens) for tokens in options.capacity_tokens)]
        for policy in options.policies:
            if not sizes and policy != INFINITE:
                raise ConfigError(f"--policy {policy} needs a --capacity or --capacity-tokens")
            mode = "radix" if policy in BOUNDS else options.mode
            for capacity in [None] if policy == INFINITE else dict.fromkeys(sizes):
                yield Case(trace, policy, capacity, mode, options.half, options.cost)


def run_with_progress(cases: Sequence[Case], source: PolicySource, jobs: int) -> list[Result]:
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("replay", total=len(cases))
        return run_cases(cases, source, jobs, lambda: progress.advance(task))


def warn(results: Sequence[Result]) -> None:
    failed = {result.case.policy: result.policy_errors for result in results if result.policy_errors}
    for policy, errors in failed.items():
        Console(stderr=True).print(f"policy {policy} failed {errors} times; lru stood in, the figures are not its own")


def write(options: Options, results: Sequence[Result]) -> None:
    if options.json:
        write_json(options.json, results, options.cost)
    if options.csv:
        write_csv(options.csv, results)
    for path in options.plots:
        write_plot(path, results)

"""Replay traces under every built-in policy; write the tables and plots of docs/policies.md.

    python benchmarks/policy_table.py conversation_trace.jsonl synthetic_trace.jsonl
    python benchmarks/policy_table.py conversation_trace.jsonl synthetic_trace.jsonl --policy arc   this one only
    python benchmarks/policy_table.py                                            no replay: tables from kept results

Results are kept in benchmarks/results/policies.json: what is replayed takes the place of what stands there.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from benchmarks.page import write_tables
from benchmarks.policy_counts import Sheet, load, save, to_sheet
from benchmarks.policy_markdown import tables
from openai_kv.plugins import Plugin, load_plugins
from openai_kv.simulate.command import run_with_progress
from openai_kv.simulate.plot import write_plot
from openai_kv.simulate.result import OPT, Case
from openai_kv.simulate.run_case import PolicySource

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "policies.json"
PAGE = ROOT / "docs" / "policies.md"
PLOTS = ("policies.png", "policies.svg")
CAPACITIES = (977, 1953, 3906, 9766, 19531)


def built_in_policies() -> list[Plugin]:
    plugins = [plugin for plugin in load_plugins().plugins if plugin.origin.source == "builtin"]
    return [plugin for plugin in plugins if plugin.hook == "register_eviction_policies"]


def needs_attention(policy: Plugin) -> bool:
    """Then a trace can't tell what it does: it has no attention weights."""
    return bool(getattr(policy.cls, "needs_attention", False))


def replayable() -> list[str]:
    return [policy.name for policy in built_in_policies() if not needs_attention(policy)]


def replay(options: argparse.Namespace) -> None:
    """Policy by policy; each is kept when it is done, so that an interruption costs little."""
    for policy in options.policy or [OPT, *replayable()]:
        cases = [Case(trace, policy, blocks) for trace in options.traces for blocks in options.capacity or CAPACITIES]
        results = run_with_progress(cases, PolicySource(), options.jobs)
        save(options.results, {**load(options.results), **to_sheet(results)})


def write(sheet: Sheet, page: Path) -> None:
    """The plots lie beside the page."""
    write_tables(page, tables(sheet))
    for name in PLOTS:
        write_plot(page.parent / name, [sheet[cell] for cell in sorted(sheet)])


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", metavar="TRACE", nargs="*")
    parser.add_argument("--policy", action="append", help="repeatable; default: all built-in ones, and opt")
    parser.add_argument("--capacity", action="append", type=int, help=f"blocks, repeatable; default: {CAPACITIES}")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes side by side")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    if options.traces:
        replay(options)
    write(load(options.results), options.page)


if __name__ == "__main__":
    main()

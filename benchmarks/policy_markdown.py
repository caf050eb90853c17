"""The tables of docs/policies.md in Markdown, from the kept results."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.page import markdown, number
from benchmarks.policy_counts import Cell, Sheet
from openai_kv.simulate.result import OPT, Half, Result

BASE = "lru"
HALVES: tuple[Half, ...] = ("all", "second")


@dataclass(frozen=True, slots=True)
class Column:
    """One workload: a trace at a capacity."""

    trace: str
    capacity: int

    def __str__(self) -> str:
        return f"{self.trace.removesuffix('_trace')} {self.capacity:,}"


@dataclass(frozen=True, slots=True)
class Standing:
    """One policy in one half: its hit ratio in each column, and LRU's and OPT's beside it."""

    policy: str
    ratios: Mapping[Column, float]
    lru: Mapping[Column, float]
    opt: Mapping[Column, float]

    @property
    def average(self) -> float:
        return fmean(self.ratios.values())

    def relative(self, column: Column) -> float:
        """To LRU: 0.02 is 2 % more hits."""
        return self.ratios[column] / self.lru[column] - 1 if self.lru[column] else 0.0

    def closed(self, column: Column) -> float:
        """Share of the gap between LRU and OPT; below 0: worse than LRU."""
        gap = self.opt[column] - self.lru[column]
        return (self.ratios[column] - self.lru[column]) / gap if gap else 0.0


def tables(sheet: Sheet) -> dict[str, str]:
    """By the name of the marker: `cost`, and for each half `hits-all`, `gap-all`, `summary-all`."""
    made = {"cost": cost_table(sheet)}
    for half in HALVES:
        standings = rank(sheet, half)
        made[f"hits-{half}"] = hits_table(standings)
        made[f"gap-{half}"] = gap_table(standings)
        made[f"summary-{half}"] = summary_table(standings)
    return made


def ratio(result: Result, half: Half) -> float:
    tally = result.second_half if half == "second" else result.tally
    return tally.hit_blocks / tally.blocks


def columns(sheet: Sheet) -> list[Column]:
    return sorted({Column(cell.trace, cell.capacity) for cell in sheet}, key=lambda c: (c.trace, c.capacity))


def rank(sheet: Sheet, half: Half) -> list[Standing]:
    """The best average first. A policy that lacks a column is left out; without LRU or OPT there is no table."""
    everywhere = columns(sheet)

    def ratios(policy: str) -> dict[Column, float]:
        cells = {column: Cell(column.trace, policy, column.capacity) for column in everywhere}
        return {column: ratio(sheet[cell], half) for column, cell in cells.items() if cell in sheet}

    lru, opt = ratios(BASE), ratios(OPT)
    if len(lru) < len(everywhere) or len(opt) < len(everywhere):
        raise LookupError(f"replay {BASE} and {OPT} on all traces and capacities first")
    found = [Standing(name, ratios(name), lru, opt) for name in sorted({cell.policy for cell in sheet})]
    complete = [standing for standing in found if len(standing.ratios) == len(everywhere)]
    return sorted(complete, key=lambda standing: -standing.average)


def hits_table(standings: Sequence[Standing]) -> str:
    everywhere = list(standings[0].ratios)
    rows = [[s.policy, *(number(s.ratios[column]) for column in everywhere), number(s.average)] for s in standings]
    return markdown(["policy", *map(str, everywhere), "average"], rows)


def summary_table(standings: Sequence[Standing]) -> str:
    """The mean over all columns, and the worst of them."""
    head = ["policy", "average", "against LRU", "worst", "gap closed", "worst"]
    return markdown(head, [[s.policy, number(s.average), *spread(s)] for s in standings])


def spread(standing: Standing) -> Iterator[str]:
    for measure in (standing.relative, standing.closed):
        values = [measure(column) for column in standing.ratios]
        yield from (f"{value:+.1%}" for value in (fmean(values), min(values)))


def gap_table(standings: Sequence[Standing]) -> str:
    """Share of the way from LRU to OPT, column by column."""
    everywhere = list(standings[0].ratios)
    rows = [[s.policy, *(f"{s.closed(column):+.0%}" for column in everywhere)] for s in standings]
    return markdown(["policy", *map(str, everywhere)], rows)


def cost_table(sheet: Sheet) -> str:
    """Over all replays of a policy; the bound is no policy and costs what nobody pays."""
    rows = []
    for policy in sorted({cell.policy for cell in sheet} - {OPT}):
        results = [result for cell, result in sheet.items() if cell.policy == policy]
        decisions = [1e6 * r.decision_seconds / r.evictions for r in results if r.evictions]
        seconds = [r.replay_seconds for r in results]
        errors = sum(r.policy_errors for r in results)
        rows.append([policy, f"{fmean(decisions):.1f}", f"{max(decisions):.1f}", f"{sum(seconds):.0f}", str(errors)])
    return markdown(["policy", "µs a decision", "worst replay", "seconds of all replays", "errors"], rows)

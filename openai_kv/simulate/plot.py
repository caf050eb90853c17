"""Hit ratio against capacity: one picture a trace, one line a policy and mode. Needs matplotlib."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from openai_kv.errors import ConfigError
from openai_kv.simulate.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".svg")
COLORS = 10  # of matplotlib's default cycle; further lines are dashed, so that each is told apart


def check_plot(path: Path) -> None:
    """Before hours of work: is the suffix one we can write, and matplotlib there? Raises ConfigError."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"--plot {path}: the name ends with neither {' nor '.join(SUFFIXES)}")
    try:
        import matplotlib as _  # noqa: F401, PLC0415
    except ImportError:
        raise ConfigError("--plot needs matplotlib: pip install 'openai-kv[plot]'") from None


def write_plot(path: Path, results: Sequence[Result]) -> None:
    """PNG or SVG by the suffix of `path`."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    traces = list(dict.fromkeys(result.trace_name for result in results))
    figure = Figure(figsize=(7 * len(traces), 5), layout="constrained")
    for axes, trace in zip(figure.subplots(1, len(traces), squeeze=False)[0], traces, strict=True):
        draw(axes, trace, [result for result in results if result.trace_name == trace])
    figure.savefig(path, dpi=150)


def draw(axes: "Axes", trace: str, results: Sequence[Result]) -> None:
    axes.set(title=trace, xlabel="capacity (blocks)", ylabel="hit ratio (blocks)", xscale="log")
    axes.grid(alpha=0.3)
    for index, (label, group) in enumerate(groupby(sorted(results, key=place), key=label_of)):
        draw_line(axes, label, list(group), "-" if index < COLORS else "--")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")


def label_of(result: Result) -> str:
    case = result.case
    return case.policy if case.mode == "radix" else f"{case.policy} ({case.mode})"


def place(result: Result) -> tuple[str, int]:
    return label_of(result), result.case.capacity_blocks or 0


def draw_line(axes: "Axes", label: str, results: Sequence[Result], style: str) -> None:
    """What has no capacity is a ceiling."""
    ratios = [result.block_hit_ratio for result in results]
    if results[0].case.capacity_blocks is None:
        axes.axhline(ratios[0], color="gray", linestyle=":", label=label)
        return
    capacities = [result.case.capacity_blocks or 0 for result in results]
    axes.plot(capacities, ratios, style, marker="o", markersize=3, label=label)

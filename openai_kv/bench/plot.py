"""Distributions of TTFT and of the time between tokens, a line a phase. Needs matplotlib."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from openai_kv.bench.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def write_plot(path: Path, results: Sequence[Result]) -> None:
    """Cumulative; PNG or SVG by the suffix of `path`."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(12, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    draw(left, "time to first token", gather(results, [result.ttfts for result in results]))
    draw(right, "time between tokens", gather(results, [result.gaps for result in results]))
    figure.savefig(path, dpi=150)


def gather(results: Sequence[Result], samples: Sequence[Sequence[float]]) -> dict[str, list[float]]:
    """The rounds of a phase together."""
    together: dict[str, list[float]] = {}
    for result, values in zip(results, samples, strict=True):
        together.setdefault(result.label, []).extend(values)
    return together


def draw(axes: "Axes", title: str, samples: Mapping[str, list[float]]) -> None:
    axes.set(title=title, xlabel="ms", ylabel="share of requests or tokens", xscale="log", ylim=(0, 1))
    axes.grid(alpha=0.3)
    for label, values in samples.items():
        if values:
            axes.ecdf([1e3 * value for value in values], label=label)
    axes.legend(fontsize="small")

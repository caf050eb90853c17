"""The plot of context_cost.py. Needs matplotlib."""

from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.context_line import Cost

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def write_plot(path: Path, cost: Cost) -> None:
    """On the left the decode step and its line, on the right both ways to a token; PNG or SVG by the suffix."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(12, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    draw_line(left, cost)
    draw_recompute(right, cost)
    figure.savefig(path, dpi=150)


def draw_line(axes: "Axes", cost: Cost) -> None:
    contexts, line = [point.context for point in cost.points], cost.line
    axes.plot(contexts, [point.decode_ms for point in cost.points], "o", label="decode step")
    label = f"{line.intercept:.1f} ms + {1e3 * line.slope:.2f} us a token, R² {line.r2:.4f}"
    axes.plot(contexts, [line.intercept + line.slope * context for context in contexts], label=label)
    ideal = cost.bytes_per_token / (cost.bandwidth_gb_s * 1e6)
    label = f"K and V at {cost.bandwidth_gb_s:.1f} GB/s"
    axes.plot(contexts, [line.intercept + ideal * context for context in contexts], "--", label=label)
    axes.set(title=f"{cost.model}, {cost.dtype}", xlabel="tokens of context", ylabel="ms a token", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def draw_recompute(axes: "Axes", cost: Cost) -> None:
    again = [(point.context, point.recompute_ms) for point in cost.points if point.recompute_ms is not None]
    cached = [(point.context, point.decode_ms) for point in cost.points]
    for points, label in ((again, "all of it computed again"), (cached, "from the cache")):
        axes.plot(*zip(*points, strict=True), "o-", label=label)
    axes.set(title="the same token", xlabel="tokens of context", ylabel="ms a token", xscale="log", yscale="log")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")

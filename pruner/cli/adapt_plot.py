"""Tuning curves of several methods with bands over seeds, against trials and seconds."""

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pruner.search.offline.comparison import Comparison

_POINTS = 200


def plot_curves(comparison: Comparison, path: Path, title: str) -> None:
    """Mean and range over seeds of the relative latency; a method a colour, references dashed."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    pairs = matplotlib.colormaps["tab20"].colors  # type: ignore[attr-defined]
    colors = [*pairs[0::2], *pairs[1::2]]  # strong ones first
    for number, method in enumerate(comparison.methods):
        color = colors[number % len(colors)]
        _draw(left, comparison, method, "trials", color)
        _draw(right, comparison, method, "elapsed_s", color)
    left.set_yscale("log")
    left.set_xlabel("trials")
    right.set_xlabel("simulated seconds")
    left.set_ylabel("latency / best of the pools (geometric mean)")
    right.legend(fontsize=7, ncols=2)
    figure.suptitle(title)
    figure.savefig(path, dpi=110)


def _draw(
    axes: Axes, comparison: Comparison, method: str, unit: str, color: tuple[float, float, float]
) -> None:
    curves = [cell.curve for cell in comparison.cells(method)]
    start = max(getattr(curve, unit)[0] for curve in curves)
    end = min(getattr(curve, unit)[-1] for curve in curves)
    grid = np.linspace(start, end, _POINTS)
    values = np.stack([_steps(getattr(c, unit), c.relative_latency, grid) for c in curves])
    style = "--" if method in ("random", "ansor", comparison.baseline) else "-"
    axes.plot(grid, values.mean(axis=0), style, color=color, label=method)
    axes.fill_between(grid, values.min(axis=0), values.max(axis=0), color=color, alpha=0.12, lw=0)


def _steps(at: np.ndarray, values: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """A step function at the points of a grid that begins at or after its first step."""
    return values[np.searchsorted(at, grid, side="right") - 1]

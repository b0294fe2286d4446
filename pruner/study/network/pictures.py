"""Pictures of a network's run, each one ``<svg>`` element."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pruner.study.network.run import TaskLine
from pruner.study.plots import plain_log_ticks, svg_element, svg_style
from pruner.study.tuning import NAMES, RunCurve

MANY = 24  # tasks that a picture shows
_FAR = 20.0  # times as slow: then only a logarithmic axis shows the others
_LARGE = 100  # milliseconds that are written without a fraction
_OURS, _OTHERS, _BEFORE = "tab:blue", "tab:gray", "lightsteelblue"


def latency_bars(rows: Sequence[Mapping[str, Any]], ours: str) -> str:
    """Medians with the first and ninth decile; the bar of `ours` stands out."""

    def draw(axis: Axes) -> None:
        median = np.array([row["median_s"] for row in rows]) * 1e3
        low = median - np.array([row["low_s"] for row in rows]) * 1e3
        high = np.array([row["high_s"] for row in rows]) * 1e3 - median
        colours = [_OURS if row["name"] == ours else _OTHERS for row in rows]
        labels = [row["label"] for row in rows]
        spread = np.maximum([low, high], 0.0)
        bars = axis.barh(labels, median, xerr=spread, color=colours, capsize=2)
        texts = [f"{v:.3g}" if v < _LARGE else f"{v:,.0f}" for v in median]
        axis.bar_label(bars, texts, padding=4, fontsize=8)
        if median.max() > _FAR * median.min():
            axis.set_xscale("log")
        axis.margins(x=0.12)
        axis.invert_yaxis()
        axis.set_xlabel("latency (ms), median and first to ninth decile")

    return _picture("latency", (6.4, 0.8 + 0.34 * len(rows)), draw)


def task_bars(tasks: Sequence[TaskLine]) -> str:
    """What the calls of each task take together, the longest first; behind it its first program."""
    total_s = sum(task.total_s for task in tasks)
    longest = sorted(tasks, key=lambda task: -task.total_s)[:MANY]
    shown = [task for task in longest if task.total_s > 0]

    def draw(axis: Axes) -> None:
        labels = [f"{task.name}  x{task.weight:g}" for task in shown]
        best_ms = [1e3 * task.total_s for task in shown]
        before = axis.barh(labels, [1e3 * task.first_total_s for task in shown], color=_BEFORE)
        axis.barh(labels, best_ms, color=_OURS)
        axis.bar_label(before, [f"{task.total_s / total_s:.1%}" for task in shown], padding=3)
        if max(task.first_total_s for task in shown) > _FAR * max(task.total_s for task in shown):
            axis.set_xscale("log")
        axis.margins(x=0.12)
        axis.invert_yaxis()
        axis.set_xlabel("calls x latency (ms), pale: first program, dark: best; share of the sum")

    return _picture("tasks", (6.4, 0.8 + 0.24 * len(shown)), draw)


def curve_lines(curves: Sequence[RunCurve], *, trials: bool) -> str:
    """Estimated latency of the network over measured candidates, or over seconds."""

    def draw(axis: Axes) -> None:
        for curve in curves:
            x = curve.trial if trials else curve.elapsed_s
            axis.step(x, 1e3 * curve.best_s, where="post", label=curve.name)
        plain_log_ticks(axis)
        axis.set_xlabel("measured candidates" if trials else "seconds of tuning")
        axis.set_ylabel("estimated latency (ms)")
        axis.grid(visible=True, which="both", alpha=0.3)
        if len(curves) > 1:
            axis.legend(fontsize=8, frameon=False)

    return _picture("trials" if trials else "seconds", (6.4, 2.8), draw)


def phase_bars(curves: Mapping[str, Mapping[str, float]]) -> str:
    """Where the seconds of each run went."""

    def draw(axis: Axes) -> None:
        left = np.zeros(len(curves))
        for phase in NAMES:
            width = np.array([seconds.get(phase, 0.0) for seconds in curves.values()])
            if width.any():
                axis.barh(list(curves), width, left=left, label=phase)
            left += width
        axis.invert_yaxis()
        axis.set_xlabel("seconds")
        axis.legend(fontsize=7, ncols=8, loc="lower left", bbox_to_anchor=(0, 1), frameon=False)

    return _picture("phases", (6.4, 0.8 + 0.35 * len(curves)), draw)


def _picture(mark: str, size: tuple[float, float], draw: Callable[[Axes], None]) -> str:
    with svg_style(mark):
        figure = Figure(figsize=size)
        draw(figure.subplots())
        return svg_element(figure, mark)

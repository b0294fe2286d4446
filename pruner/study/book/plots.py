"""Plots of the book as SVG text that is the same whenever the data are."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from pruner.study.book.items import Plot
from pruner.study.book.results import Series
from pruner.study.plots import svg_element, svg_style


def digest(plot: Plot, series: Sequence[Series]) -> str:
    """Fingerprint of what the plot shows; the drawing itself changes with matplotlib."""
    return hashlib.sha256(repr((plot, list(series))).encode()).hexdigest()[:16]


def described(plot: Plot, series: Sequence[Series]) -> str:
    """What the plot shows, in words: for readers who do not see it."""
    shape = "Lines" if plot.kind == "line" else "Bars"
    names = ", ".join(one.name for one in series)
    x, y = plot.xlabel or plot.x, plot.ylabel or plot.y
    return f"{shape} of {y} over {x}: {names}. {plot.title}"


def svg(plot: Plot, series: Sequence[Series]) -> str:
    """One self-contained ``<svg>`` element, its digest in a comment."""
    mark = digest(plot, series)
    with svg_style(mark):
        figure = Figure(figsize=(6.4, 3.2))
        axis = figure.subplots()
        _lines(axis, series) if plot.kind == "line" else _bars(axis, series)
        for name in plot.log:
            axis.set(**{f"{name}scale": "log"})
            _plain_ticks(axis, name)
        axis.set_xlabel(plot.xlabel or (plot.x if plot.kind == "line" else ""))
        axis.set_ylabel(plot.ylabel or plot.y)
        axis.grid(axis="y", alpha=0.3)
        axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
        return svg_element(figure, mark)


def _plain_ticks(axis: Axes, name: str) -> None:
    """Ticks of a logarithmic axis as plain numbers, at 1, 2 and 5 where there are few decades."""
    one = axis.xaxis if name == "x" else axis.yaxis
    low, high = one.get_view_interval()
    narrow = high < 100 * low
    one.set_major_locator(LogLocator(subs=(1, 2, 5) if narrow else (1,)))
    one.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    one.set_minor_formatter(NullFormatter())


def _lines(axis: Axes, series: Sequence[Series]) -> None:
    for one in series:
        axis.errorbar(one.x, one.y, yerr=_spread(one), label=one.name, marker="o", capsize=3)


def _bars(axis: Axes, series: Sequence[Series]) -> None:
    names = list(dict.fromkeys(x for one in series for x in one.x))
    width = 0.8 / len(series)
    for number, one in enumerate(series):
        places = np.array([names.index(x) for x in one.x]) + width * (
            number - (len(series) - 1) / 2
        )
        axis.bar(places, one.y, width=width, yerr=_spread(one), label=one.name, capsize=2)
    tilted: dict[str, Any] = {"rotation": 30, "ha": "right"} if len("".join(names)) > 40 else {}
    axis.set_xticks(range(len(names)), names, **tilted)


def _spread(one: Series) -> Sequence[float] | None:
    return one.spread if any(one.spread) else None

"""Plots of the book as SVG text; equal data give equal text."""

import hashlib
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from pruner.study import plots
from pruner.study.book.items import Plot
from pruner.study.book.key_numbers import Series

SHARES = ("top", "pairwise", "best1", "relative_performance")  # columns of numbers from 0 to 1
_REPEATED = "random"  # the series that every panel shows


def digest(plot: Plot, series: Sequence[Series]) -> str:
    """Fingerprint of a plot's data; the drawing itself changes with matplotlib."""
    return hashlib.sha256(repr((plot, list(series))).encode()).hexdigest()[:16]


def described(plot: Plot, series: Sequence[Series]) -> str:
    """The plot's content in words, as its alternative text."""
    shape = "Lines" if plot.kind == "line" else "Bars"
    names = "; ".join(plots.label(one.name) for one in series)
    x = plots.label(plot.xlabel or plot.x)
    return f"{shape} of {quantity(plot)} over {x}: {names}. {plot.title}"


def quantity(plot: Plot, gap: str = " ") -> str:
    """The quantity of its numbers, and the better direction."""
    better = "more" if is_share(plot) else "less"
    return f"{plots.label(plot.ylabel or plot.y)}{gap}({better} is better)"


def svg(plot: Plot, series: Sequence[Series]) -> str:
    """A self-contained ``<svg>`` element, its digest in a comment."""
    draw = _lines if plot.kind == "line" else _bars
    return plots.picture(digest(plot, series), lambda: draw(plot, series))


def panels(series: Sequence[Series]) -> dict[str, list[tuple[str, Series]]]:
    """Lines of each panel with their names, by its title."""
    found: dict[str, list[tuple[str, Series]]] = {}
    for one in series:
        name = one.name.removeprefix(f"{one.panel}, ")
        found.setdefault(plots.label(one.panel), []).append((name, one))
    out = {}
    for title, mine in found.items():
        shared = [one for one in mine if one[0] == _REPEATED]
        own = [one for one in mine if one[0] != _REPEATED]
        count = -(-len(mine) // plots.MANY)
        size = -(-len(own) // count)
        for n in range(count):
            name = title if count == 1 else f"{title}, part {n + 1} of {count}".removeprefix(", ")
            out[name] = [*own[n * size : (n + 1) * size], *shared]
    return out


def _lines(plot: Plot, series: Sequence[Series]) -> Figure:
    found = panels(series)
    colour = plots.colours([name for mine in found.values() for name, _ in mine])
    figure = Figure(figsize=(5.0, 0.7 + 2.3 * len(found)), layout="constrained")
    plots.headline(figure, plot.title)
    axes = figure.subplots(len(found), 1, squeeze=False, sharex=True, sharey=True)[:, 0]
    for axis, (title, mine) in zip(axes, found.items(), strict=True):
        for (name, one), marker in zip(mine, plots.MARKERS, strict=False):
            axis.plot(one.x, one.y, color=colour[name], marker=marker, label=name)
            y, spread = np.array(one.y), np.array(one.spread)
            if spread.any():
                high = np.minimum(y + spread, 1.0 if is_share(plot) else np.inf)
                axis.fill_between(one.x, y - spread, high, color=colour[name], alpha=0.1, lw=0)
        axis.set_title(title)
        axis.set_ylabel(quantity(plot, "\n"))
        axis.grid(axis="y")
        for direction in plot.log:
            plots.plain_log(axis, direction)
    axes[-1].set_xlabel(plots.label(plot.xlabel or plot.x))
    for axis, mine in zip(axes, found.values(), strict=True):
        plots.name_lines(axis, {name: plots.label(name) for name, _ in mine})
    return figure


def is_share(plot: Plot) -> bool:
    """Whether its numbers are shares from 0 to 1."""
    return plot.y.startswith(SHARES)


def _bars(plot: Plot, series: Sequence[Series]) -> Figure:
    groups = list(dict.fromkeys(str(x) for one in series for x in one.x))
    share, parts = is_share(plot), [part for one in series for part in one.name.split(", ")]
    known = any(part in plots.SYSTEMS for part in parts)
    colour = plots.colours([one.name for one in series])
    y = np.full((len(groups), len(series)), np.nan)
    spread = np.zeros((len(groups), 2, len(series)))
    for column, one in enumerate(series):
        for x, value, around in zip(one.x, one.y, one.spread, strict=True):
            y[groups.index(x), column] = value
            above = min(around, 1 - value) if share else around
            spread[groups.index(x), :, column] = around, above
    # Over the panel's mean: a series that was not run everywhere keeps its place among the others.
    place = np.nanmean(y / np.nanmean(y, axis=1, keepdims=True), axis=0)
    order = np.argsort(-place if share else place, kind="stable")
    names = [plots.label(group) for group in groups]
    shown = [series[column].name for column in order]
    return plots.bar_panels(
        plot.title,
        {plots.label(name): colour[name] if known else plots.BLUE for name in shown},
        dict(zip(names, y[:, order], strict=True)),
        spread=dict(zip(names, spread[:, :, order], strict=True)),
        limit=1.0 if share else None,
        xlabel=quantity(plot),
    )

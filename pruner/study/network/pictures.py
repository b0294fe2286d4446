"""Plots of a network's run, an ``<svg>`` element each."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pruner.study.network.run import TaskLine
from pruner.study.plots import (
    BLUE,
    GREY,
    bar_panels,
    colours,
    label,
    number,
    picture,
    short,
)
from pruner.study.tuning_plots import RunCurve, curve_figure, time_figure

MANY = 24  # tasks that a picture shows


def latency_bars(network: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Medians with the first and ninth decile, the fastest on top."""
    rows = sorted(rows, key=lambda row: float(row["median_s"]))
    median, low, high = (
        1e3 * np.array([row[name] for row in rows]) for name in ("median_s", "low_s", "high_s")
    )
    colour = colours([row["label"] for row in rows])
    spread = np.maximum([median - low, high - median], 0.0)
    return picture(
        "latency",
        lambda: bar_panels(
            f"{network}: latency of one run, by library",
            {short(label(row["label"])): colour[row["label"]] for row in rows},
            {"": median.tolist()},
            spread={"": spread},
            xlabel="median latency (ms, less is better); whiskers: first to ninth decile",
        ),
    )


def task_bars(tasks: Sequence[TaskLine], network_s: float | None) -> str:
    """Plot milliseconds of all calls of each task, the longest on top.

    The last bar is the rest of the network's time. Shares are of the network's `network_s`, or of
    the tasks' sum where that was not measured.
    """
    measured = sorted((task for task in tasks if task.total_s), key=lambda task: -task.total_s)
    shown, rest = measured[:MANY], measured[MANY:]
    rows = {f"{short(task.name)}  x{task.weight:g}": (BLUE, task.total_s) for task in shown}
    if rest:
        rows[f"{len(rest)} more tasks"] = (BLUE, sum(task.total_s for task in rest))
    sum_s = sum(task.total_s for task in measured)
    if network_s is not None and network_s > sum_s:
        rows["in no measured task"] = (GREY, network_s - sum_s)
    whole_s = network_s or sum_s
    return picture(
        "tasks",
        lambda: bar_panels(
            "Where the time of the network goes: all calls of each task",
            {name: colour for name, (colour, _) in rows.items()},
            {"": [1e3 * s for _, s in rows.values()]},
            text=[f"{number(1e3 * s)} ms, {s / whole_s:.1%}" for _, s in rows.values()],
            xlabel="calls x best latency (ms); share of "
            + ("the network's latency" if network_s else "their sum"),
        ),
    )


def curve_lines(curves: Sequence[RunCurve]) -> str:
    """Estimated latency of the network over measured programs and over seconds."""
    return picture("curves", lambda: curve_figure(curves))


def phase_bars(runs: Sequence[tuple[str, Mapping[str, float]]]) -> str:
    """Plot the seconds of each phase, by run."""
    return picture("phases", lambda: time_figure(runs))

"""Pictures and tables of tuning runs: best latency against trials and seconds, where time went."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pruner.errors import DataError
from pruner.files import METRICS_FILE, as_written, load_metrics
from pruner.study.plots import plain_log_ticks
from pruner.tune.phases import IDLE, PHASES
from pruner.tune.run.journal import JOURNAL_FILE, Trial, read_trials

CURVES, TIME = "curves.png", "time.png"
NAMES = (*PHASES, IDLE)
EXPLORATION = ("sample", "draft", "verify")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCurve:
    """One run: best weighted latency (seconds) after every trial, from where all tasks have one.

    ``trial`` int64 [T], ``elapsed_s`` and ``best_s`` float64 [T]; ``seconds`` by phase.
    """

    name: str
    tasks: tuple[str, ...]
    trial: NDArray[np.int64]
    elapsed_s: NDArray[np.float64]
    best_s: NDArray[np.float64]
    seconds: Mapping[str, float]


def best_curve(
    trials: Sequence[Trial], weights: Mapping[str, float]
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Trial numbers, seconds and best weighted sums of latencies, once every task has a program."""
    best = dict.fromkeys(weights, float("inf"))
    rows = []
    for number, trial in enumerate(trials, start=1):
        best[trial.task] = min(best[trial.task], trial.latency_s)
        total = sum(weight * best[name] for name, weight in weights.items())
        if total < float("inf"):
            rows.append((number, trial.elapsed_s, total))
    values = np.array(rows, np.float64).reshape(-1, 3)
    return values[:, 0].astype(np.int64), values[:, 1], values[:, 2]


def load_run(folder: Path) -> RunCurve:
    """Read a run folder. Raises `DataError` where it holds no measured candidate."""
    trials = read_trials(folder / JOURNAL_FILE)
    if not trials:
        raise DataError(f"{folder}: no {JOURNAL_FILE} with measured candidates; name a run folder")
    with as_written(folder / METRICS_FILE):
        metrics = load_metrics(folder) or {}
        tasks = dict(metrics.get("tasks", {}))
        seconds = {name: float(value) for name, value in dict(metrics.get("seconds", {})).items()}
        weights = {t.task: float(dict(tasks.get(t.task, {})).get("weight", 1.0)) for t in trials}
    number, elapsed_s, best_s = best_curve(trials, weights)
    return RunCurve(
        name=folder.name,
        tasks=tuple(weights),
        trial=number,
        elapsed_s=elapsed_s,
        best_s=best_s,
        seconds=seconds,
    )


def exploration_share(seconds: Mapping[str, float]) -> float | None:
    """What Table 1 of the paper calls exploration, candidates made and scored, of all seconds.

    None of a run without seconds.
    """
    whole_s = sum(seconds.values())
    return sum(seconds.get(name, 0.0) for name in EXPLORATION) / whole_s if whole_s else None


def time_table(seconds: Mapping[str, float]) -> str:
    """Seconds and share of every phase, one line each."""
    total = sum(seconds.values()) or 1.0
    lines = [
        f"{name:<12}{seconds.get(name, 0.0):>9.2f} s{100 * seconds.get(name, 0.0) / total:>7.1f} %"
        for name in NAMES
    ]
    return "\n".join([*lines, f"{'total':<12}{total:>9.2f} s"])


def draw(runs: Sequence[RunCurve], folder: Path) -> list[Path]:
    """Write ``curves.png`` and ``time.png`` into `folder`."""
    return [_draw_curves(runs, folder / CURVES), _draw_time(runs, folder / TIME)]


def _draw_curves(runs: Sequence[RunCurve], path: Path) -> Path:
    """A row of panels for each set of tasks: latencies of different programs share no axis."""
    from matplotlib.figure import Figure

    groups: dict[tuple[str, ...], list[RunCurve]] = {}
    for run in runs:
        groups.setdefault(run.tasks, []).append(run)
    figure = Figure(figsize=(10.5, 3.2 * len(groups)), layout="constrained")
    table = figure.subplots(len(groups), 2, squeeze=False)
    for axes, (tasks, members) in zip(table, groups.items(), strict=True):
        for axis, label in zip(axes, ("measured candidates", "seconds"), strict=True):
            for run in members:
                x = run.trial if label != "seconds" else run.elapsed_s
                axis.step(x, 1e3 * run.best_s, where="post", label=run.name)
            axis.set(xlabel=label, ylabel="best latency (ms)")
            plain_log_ticks(axis)
            axis.grid(visible=True, which="both", alpha=0.3)
        axes[0].set_title(tasks[0] if len(tasks) == 1 else f"{len(tasks)} tasks", fontsize=9)
        axes[1].legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    figure.savefig(path, dpi=130)
    return path


def _draw_time(runs: Sequence[RunCurve], path: Path) -> Path:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 1.6 + 0.4 * len(runs)), layout="constrained")
    axis = figure.subplots()
    left = np.zeros(len(runs))
    for name in NAMES:
        width = np.array([run.seconds.get(name, 0.0) for run in runs])
        if width.any():
            axis.barh([run.name for run in runs], width, left=left, label=name)
        left += width
    axis.set(xlabel="seconds")
    axis.tick_params(axis="y", labelsize=7)
    if axis.get_legend_handles_labels()[0]:
        figure.legend(fontsize=7, ncols=6, loc="outside upper center", frameon=False)
    figure.savefig(path, dpi=130)
    return path

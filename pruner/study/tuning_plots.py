"""Plots and tables of tuning runs: best latency, and seconds by phase."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from pruner.errors import DataError
from pruner.files import METRICS_FILE, as_written, load_metrics, read_json
from pruner.study import plots
from pruner.tune.deploy.forms import OTHER
from pruner.tune.networks.request import TASKS
from pruner.tune.phases import IDLE, PHASES
from pruner.tune.run.journal import JOURNAL_FILE, Trial, read_trials

CURVES, TIME = "curves.png", "time.png"
NAMES = (*PHASES, IDLE)
PHASE_NAMES = {
    "sample": "draw random programs",
    "draft": "draft with the analyzer",
    "verify": "rank with the model",
    "instantiate": "make the programs",
    "build": "wait for compilers",
    "run": "wait for timings",
    "train": "train the model",
    IDLE: "all else",
}
_WIDE = 10.0  # largest over smallest latency of a logarithmic axis
EXPLORATION = ("sample", "draft", "verify")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCurve:
    """A run: best weighted latency (seconds) once every task has a program.

    ``trial`` int64 [T], ``elapsed_s`` and ``best_s`` float64 [T]; ``seconds`` by phase.
    """

    name: str
    tasks: tuple[str, ...]
    trial: NDArray[np.int64]
    elapsed_s: NDArray[np.float64]
    best_s: NDArray[np.float64]
    seconds: Mapping[str, float]

    @classmethod
    def of(
        cls,
        name: str,
        trials: Iterable[Trial],
        weights: Mapping[str, float],
        seconds: Mapping[str, float],
    ) -> Self:
        """Compute the curve of a run's trials of the tasks in `weights`."""
        best = dict.fromkeys(weights, float("inf"))
        rows = []
        for num, trial in enumerate((t for t in trials if t.task in weights), start=1):
            best[trial.task] = min(best[trial.task], trial.latency_s)
            total = sum(weight * best[name] for name, weight in weights.items())
            if total < float("inf"):
                rows.append((num, trial.elapsed_s, total))
        number, elapsed_s, best_s = np.array(rows, np.float64).reshape(-1, 3).T
        return cls(
            name=name,
            tasks=tuple(sorted(weights)),
            trial=number.astype(np.int64),
            elapsed_s=elapsed_s,
            best_s=best_s,
            seconds=seconds,
        )


def load_run(folder: Path) -> RunCurve:
    """Read a run folder; raises `DataError` without a measured candidate."""
    trials = read_trials(folder / JOURNAL_FILE)
    if not trials:
        raise DataError(f"{folder}: no {JOURNAL_FILE} with measured candidates; name a run folder")
    with as_written(folder / METRICS_FILE):
        metrics = load_metrics(folder) or {}
        tasks = dict(metrics.get("tasks", {}))
        seconds = {name: float(value) for name, value in dict(metrics.get("seconds", {})).items()}
        calls = _calls(folder)
        weights = {
            t.task: float(dict(tasks.get(t.task, {})).get("weight", calls.get(t.task, 1.0)))
            for t in trials
        }
    return RunCurve.of(folder.name, trials, weights, seconds)


def _calls(folder: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    for place in (folder / OTHER / TASKS, folder / TASKS):
        if place.is_file():
            with as_written(place):
                found |= {row["name"]: float(row["weight"]) for row in read_json(place, list)}
    return found


def exploration_share(seconds: Mapping[str, float]) -> float | None:
    """Share of making and scoring candidates (Table 1 of the paper); None without seconds."""
    whole_s = sum(seconds.values())
    return sum(seconds.get(name, 0.0) for name in EXPLORATION) / whole_s if whole_s else None


def time_table(seconds: Mapping[str, float]) -> str:
    """Seconds and share of every phase, a line each."""
    total = sum(seconds.values()) or 1.0
    lines = [
        f"{name:<12}{seconds.get(name, 0.0):>9.2f} s{100 * seconds.get(name, 0.0) / total:>7.1f} %"
        for name in NAMES
    ]
    return "\n".join([*lines, f"{'total':<12}{total:>9.2f} s"])


def draw(runs: Sequence[RunCurve], folder: Path) -> list[Path]:
    """Write ``curves.png`` and ``time.png`` into `folder`."""
    paths = [folder / CURVES, folder / TIME]
    with plots.style():
        curve_figure(runs).savefig(paths[0], dpi=130, bbox_inches="tight")
        seconds = [(run.name, run.seconds) for run in runs]
        time_figure(seconds).savefig(paths[1], dpi=130, bbox_inches="tight")
    return paths


def curve_figure(runs: Sequence[RunCurve]) -> Figure:
    """Plot best latency over measured programs and over seconds."""
    groups: dict[tuple[str, ...], list[RunCurve]] = {}
    for run in runs:
        groups.setdefault(run.tasks, []).append(run)
    figure = Figure(figsize=(5.6, 0.5 + 4.2 * len(groups)), layout="constrained")
    plots.headline(figure, "Best latency found so far")
    axes = figure.subplots(2 * len(groups), 1)
    for number, (tasks, members) in enumerate(groups.items()):
        colour = plots.colours([run.name for run in members])
        for axis, over in zip(axes[2 * number :], ("trial", "elapsed_s"), strict=False):
            for run in members:
                axis.step(getattr(run, over), 1e3 * run.best_s, where="post", label=run.name,
                          color=colour[run.name])  # fmt: skip
            # From zero, so that small steps look small; logarithmic above tenfold.
            known = np.concatenate([run.best_s for run in members])
            if len(known) and known.max() > _WIDE * known.min():
                plots.plain_log(axis, "y")
            elif len(known):
                axis.set_ylim(0, 1.1e3 * known.max())
            axis.set_xlim(0)
            axis.set_xlabel("measured programs" if over == "trial" else "seconds of tuning")
            axis.set_ylabel("latency (ms)\n(less is better)")
            axis.grid(axis="y")
        several = f"{len(tasks)} tasks, all calls together"
        what = plots.short(tasks[0]) if len(tasks) == 1 else several
        axes[2 * number].set_title(what)
    if len(runs) > 1:
        for number, members in enumerate(groups.values()):
            for axis in axes[2 * number : 2 * number + 2]:
                plots.name_lines(axis, {run.name: plots.short(run.name) for run in members})
    return figure


def time_figure(runs: Sequence[tuple[str, Mapping[str, float]]]) -> Figure:
    """Plot the seconds of each phase, a panel a run (name, seconds)."""
    names = [name for name in NAMES if any(seconds.get(name) for _, seconds in runs)]
    panels = {
        # a run that has not ended has none yet
        plots.short(run): [seconds.get(name, 0.0 if seconds else np.nan) for name in names]
        for run, seconds in runs
    }
    rows = {PHASE_NAMES[name]: plots.GREY if name == IDLE else plots.BLUE for name in names}
    return plots.bar_panels("Where the seconds of tuning went", rows, panels, xlabel="seconds")

"""Cells of a comparison: a method with a seed, a file each."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pruner.files import as_written, read_json, write_table
from pruner.models.adaptation.base import Adaptation, Setting, save_models
from pruner.models.checkpoint.checkpoint import ADAPTED, MODELS_FOLDER, SIAMESE
from pruner.models.checkpoint.tensors import SUFFIX, existing
from pruner.progress import Progress
from pruner.search.offline.adaptation_run import (
    MethodComparison,
    MethodRun,
    Quality,
    affordable,
    label_sizes,
    quality_by_labels,
    tune,
    without_draft,
)
from pruner.search.policy import RoundSettings
from pruner.study import plots
from pruner.study.adaptation.context import AdaptationContext, Budget
from pruner.study.grid import Job, results

# References beside the methods: random search, and the model learnt from scratch without a draft.
RANDOM, NO_DRAFT, FROM_SCRATCH = "random", "scratch_no_draft", "scratch"
REFERENCES = (RANDOM, NO_DRAFT)

Wanted = tuple[str, int]  # method and seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Paths of a run's results (``cells/``) and adapted models (``models/``)."""

    folder: Path

    def path(self, wanted: Wanted) -> Path:
        """Path of a cell's result."""
        return self.folder / "cells" / f"{wanted[0]}-seed-{wanted[1]}.json"

    def model(self, wanted: Wanted, name: str = ADAPTED) -> Path:
        """Path of a cell's adapted model, or of another of its models."""
        ending = "" if name == ADAPTED else f"-{name}"
        return self.folder / MODELS_FOLDER / f"{wanted[0]}-seed-{wanted[1]}{ending}{SUFFIX}"

    def missing(self, wanted: Iterable[Wanted]) -> list[Wanted]:
        """The cells without a result."""
        return [one for one in wanted if not self.path(one).is_file()]

    def finished(self, methods: Iterable[str], seeds: Sequence[int]) -> list[str]:
        """Methods that have a result with every seed."""
        return [name for name in methods if not self.missing([(name, seed) for seed in seeds])]

    def load(self, wanted: Wanted) -> MethodRun:
        """A finished cell."""
        with as_written(self.path(wanted)):
            return MethodRun.from_json(read_json(self.path(wanted), dict))


def run_cells(
    cells: Cells,
    wanted: Sequence[Wanted],
    context: AdaptationContext,
    budget: Budget,
    settings: RoundSettings,
    make: Callable[[str, Setting], Adaptation],
    *,
    title: str,
    num_workers: int,
    progress: Progress,
) -> None:
    """Compute and write cells of methods by `make`; raises PrunerError without a result."""
    (cells.folder / MODELS_FOLDER).mkdir(exist_ok=True)
    jobs = []
    for path, cell in ((cells.path(cell), cell) for cell in wanted):
        run = partial(_run_cell, cells, cell, context, budget, settings, make)
        jobs.append(Job(name=path.stem, leaves=path, run=run))
    again = f"resume={cells.folder} keeps what is finished"
    found = results(jobs, num_workers=num_workers, log=progress.log, again=again)
    for _ in progress.track(found, title, len(jobs)):
        pass


def _run_cell(
    cells: Cells,
    wanted: Wanted,
    context: AdaptationContext,
    budget: Budget,
    settings: RoundSettings,
    make: Callable[[str, Setting], Adaptation],
) -> dict[str, Any]:
    """Compute a cell as JSON: tune, save models, judge by labels and source."""
    name, seed = wanted

    def begin() -> Adaptation:
        """Make the method, with the budget's limit of steps an update."""
        made = make(FROM_SCRATCH if name == NO_DRAFT else name, context.setting(seed))
        if made.learns:
            limits = [made.fit.max_steps, budget.max_steps]
            made.fit.max_steps = min((one for one in limits if one is not None), default=None)
        return made

    adaptation = None if name == RANDOM else begin()
    curve = tune(
        context.pools,
        adaptation,
        without_draft(settings) if name == NO_DRAFT else settings,
        trials=affordable(context.pools, budget.trials),
        batch=budget.batch,
        seed=seed,
    )
    labels, source = {}, None
    if adaptation is not None:
        save_models(
            adaptation,
            partial(cells.model, wanted),
            start=context.start,
            dataflow=context.start.info.dataflow,  # type: ignore[arg-type]
            keys=[pool.key for pool in context.pools],
            about={"method": name, "seed": seed},
        )
    if adaptation is not None and name != NO_DRAFT:
        sizes = label_sizes(budget.labels, context.labelled.num_programs)
        labels = quality_by_labels(begin, context.labelled, context.held_out, sizes, seed=seed)
        if context.source_held_out is not None:
            source = Quality.of(adaptation.ranker, context.source_held_out)
    return MethodRun(method=name, seed=seed, curve=curve, labels=labels, source=source).to_json()


TABLE, PLOT = "results.csv", "curves.png"
_POINTS = 200
_A_PANEL = 5  # methods that one panel of the plot can show, beside the references


def compare(
    cells: Sequence[MethodRun], baseline: str, source: str, target: str, folder: Path
) -> dict[str, Any]:
    """Summarise all methods; write the table of cells and the plot into `folder`."""
    comparison = MethodComparison(cells, baseline)
    rows = [{"source": source, "target": target, **_row(comparison, cell)} for cell in cells]
    write_table(folder / TABLE, rows, floats=".6g")
    plot_curves(comparison, folder / PLOT, f"{source} to {target}")
    methods = {}
    for name in comparison.methods:
        methods[name] = comparison.summary(name)
        best = min(comparison.cells(name), key=lambda cell: cell.curve.area)
        for model, what in ((ADAPTED, "checkpoint"), (SIAMESE, SIAMESE)):
            path = existing(Cells(folder=folder).model((name, best.seed), model))
            if path.is_file():
                methods[name][what] = str(path)
    return {
        "source": source,
        "target": target,
        "baseline": baseline,
        "methods": methods,
        "results": str(folder / TABLE),
        "plot": str(folder / PLOT),
    }


def _row(comparison: MethodComparison, cell: MethodRun) -> dict[str, Any]:
    trials, seconds = comparison.reach(cell, "trials"), comparison.reach(cell, "seconds")
    row = {
        "method": cell.method,
        "seed": cell.seed,
        "area": cell.curve.area,
        "final_relative_latency": cell.curve.final,
        "reached_target": int(trials.reached),
        "trials_to_target": trials.at,
        "seconds_to_target": seconds.at,
        "total_s": cell.curve.elapsed_s[-1],
        "source_top1_after": None if cell.source is None else cell.source.top1,
    }
    for name, quality in cell.labels.items():
        row |= {f"top1_labels_{name}": quality.top1, f"top5_labels_{name}": quality.top5}
    return row


def summary_rows(methods: dict[str, Any]) -> list[dict[str, Any]]:
    """A row of means for each method; trials and seconds to the baseline's latency."""
    rows = []
    for name, found in methods.items():
        trials = found["trials_to_target"]
        row = {"method": name, **{unit: found[unit]["mean"] for unit in ("area", "final")}}
        row |= {"trials": trials["mean"], "seconds": found["seconds_to_target"]["mean"]}
        rows.append({**row, "reached": f"{trials['reached']}/{trials['runs']}"})
    return rows


AXES = {"trials": "measured programs", "elapsed_s": "simulated seconds"}  # columns of a curve


def plot_curves(
    comparison: MethodComparison, path: Path, title: str, units: Sequence[str] = tuple(AXES)
) -> None:
    """Plot relative latency against trials and seconds: mean and seed range."""
    references = [m for m in comparison.methods if m in (*REFERENCES, comparison.baseline)]
    methods = [m for m in comparison.methods if m not in references]
    moa = [m for m in methods if m.startswith("moa")]
    others = [m for m in methods if m not in moa]
    shown = {}
    for family, names in (("variants of MoA", moa), ("other methods", others)):
        for n in range(0, len(names), _A_PANEL):
            part = f", part {n // _A_PANEL + 1}" if len(names) > _A_PANEL else ""
            shown[family + part] = names[n : n + _A_PANEL]
    shown = shown or {"": []}
    with plots.style():
        size = (1.7 + 4.0 * len(units), 0.6 + 2.8 * len(shown))
        figure = Figure(figsize=size, layout="constrained")
        what = f"Model carried from {plots.label(title)}"
        plots.headline(figure, f"{what}: best latency so far (mean, range of seeds)")
        axes = figure.subplots(len(shown), len(units), sharex="col", sharey=True, squeeze=False)
        for row, (family, names) in zip(axes, shown.items(), strict=True):
            row[0].set_title(family)
            colour = plots.colours([*names, *references])
            for name, marker in zip((*references, *names), plots.MARKERS, strict=False):
                curves = [cell.curve for cell in comparison.cells(name)]
                for axis, unit in zip(row, units, strict=True):
                    start = max(getattr(curve, unit)[0] for curve in curves)
                    end = min(getattr(curve, unit)[-1] for curve in curves)
                    grid = np.linspace(start, end, _POINTS)
                    values = np.stack([_steps(curve, unit, grid) for curve in curves])
                    look: Any = {"color": colour[name], "marker": marker, "label": name}
                    axis.plot(grid, values.mean(axis=0), markevery=_POINTS // 8, **look)
                    low, high = values.min(axis=0), values.max(axis=0)
                    axis.fill_between(grid, low, high, color=colour[name], alpha=0.1, lw=0)
            row[0].set_ylabel("latency / best known\n(less is better)")
            for axis in row:
                plots.plain_log(axis, "y")
                axis.grid(axis="y")
        for axis, unit in zip(axes[-1], units, strict=True):
            axis.set_xlabel(AXES[unit])
        for row, names in zip(axes, shown.values(), strict=True):
            plots.name_lines(row[-1], {name: plots.label(name) for name in (*names, *references)})
        figure.savefig(path, dpi=110, bbox_inches="tight")


def _steps(curve: Any, unit: str, grid: np.ndarray) -> np.ndarray:
    at = np.searchsorted(getattr(curve, unit), grid, side="right") - 1
    return np.asarray(curve.relative_latency)[at]

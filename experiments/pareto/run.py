"""Measure fronts of latency and size on this machine's CPU, beside random search.

    python -m experiments.pareto.run [seeds=[0,1,2]] [trials=48]

A cell is one call of `tune` on a small convolution, by one method with one seed: ``pareto`` is
objective=[latency,size], ``latency`` the default search whose programs are sized, too, ``random``
draws legal programs. All three have equal trials and the same timing. Finished cells (under runs=)
are not run again, and an ended cell continues.

A program's point is (log latency, log size). The hypervolume of a cell is that of its points, with
the reference point that is 1.1 times as slow and as large as the worst coordinates on any cell's
front; it is divided by the hypervolume of the points of all cells together. Output: results.csv,
front.csv and front.png here, or in out=DIR.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pruner.arrays import Floats
from pruner.cli.shared.output import as_table, say
from pruner.cli.shared.script import run_script
from pruner.files import write_table
from pruner.search.objectives import Objective, check_pymoo, hypervolume, non_dominated
from pruner.search.policy import RandomDraws
from pruner.study.grid import Job, results
from pruner.study.plots import BLUE, GREY, VERMILION, headline, plain_log, style
from pruner.tune.measure.jobs import Timing
from pruner.tune.measure.measurer import MeasureSettings
from pruner.tune.run.budget import TuneBudget
from pruner.tune.run.journal import CODE, JOURNAL_FILE, SCRATCH, read_trials
from pruner.tune.run.tune_options import TuneOptions, this_cpu
from pruner.tune.run.tuning import tune
from pruner.tune.workloads import operator

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WORKLOAD = {"n": 1, "ci": 32, "h": 28, "w": 28, "co": 64, "kh": 3, "kw": 3}
METHODS = {"pareto": BLUE, "latency": VERMILION, "random": GREY}
BATCH, MARGIN = 16, 1.1


@dataclass(kw_only=True)
class Options:
    """Options of the script, explained above."""

    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    trials: int = 48
    runs: str = str(ROOT / "outputs" / "pareto")
    out: str = str(HERE)


def options_of(method: str, seed: int, trials: int) -> TuneOptions:
    """The options of a cell."""
    measure = MeasureSettings(
        timing=Timing(repeats=3, min_repeat_ms=30), baseline=False, sizes=True
    )
    changes: dict[str, Any] = {"measure": measure, "kernels": False}
    if method == "pareto":
        changes["objective"] = Objective.of(["latency", "size"])
    if method == "random":
        changes |= {"policy": RandomDraws(), "make_model": None}
    budget = TuneBudget(trials=trials, batch=BATCH)
    return this_cpu(seed=seed, budget=budget, **changes)


def measured(folder: Path, method: str, seed: int, trials: int) -> dict[str, Any]:
    """Run a cell; return latency, code and scratch memory of every trial, None for a failure."""
    workload = operator("conv2d", **WORKLOAD)
    tune(workload, options_of(method, seed, trials), folder, log=say)
    rows = read_trials(folder / JOURNAL_FILE)
    return {
        "points": [
            [row.latency_s, row.extra[CODE], row.extra[SCRATCH]]
            if row.latency_s < float("inf") else None
            for row in rows
        ]
    }  # fmt: skip


def points_of(cell: Mapping[str, Any], trials: int | None = None) -> Floats:
    """Latency (s) and size (bytes) [N, 2] of the first programs of a cell that ran."""
    found = [point for point in cell["points"][:trials] if point is not None]
    return np.array([[latency_s, code + scratch] for latency_s, code, scratch in found])


def volumes(cells: Mapping[Any, Mapping[str, Any]]) -> Iterator[tuple[Any, int, float]]:
    """Yield cell, trials and its share of the hypervolume of all cells together."""
    every = {key: np.log(points_of(cell)) for key, cell in cells.items()}
    fronts = [points[non_dominated(points)] for points in every.values()]
    reference = np.concatenate(fronts).max(axis=0) + np.log(MARGIN)
    whole = hypervolume(np.concatenate(list(every.values())), reference)
    for key, cell in cells.items():
        for trials in range(BATCH, len(cell["points"]) + 1, BATCH):
            points = np.log(points_of(cell, trials))
            yield key, trials, hypervolume(points, reference) / whole


def result_rows(cells: Mapping[tuple[str, int], Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for every cell and number of trials."""
    share = {(key, trials): value for key, trials, value in volumes(cells)}
    rows = []
    for ((method, seed), trials), value in share.items():
        points = points_of(cells[method, seed], trials)
        random = share.get((("random", seed), trials))
        rows.append({
            "method": method,
            "seed": seed,
            "trials": trials,
            "hypervolume_share": value,
            "over_random": None if random is None else value / random,
            "front_programs": int(non_dominated(points).sum()),
            "best_latency_s": points[:, 0].min(),
            "least_size_bytes": points[:, 1].min(),
        })  # fmt: skip
    return rows


def front_rows(cells: Mapping[tuple[str, int], Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The programs of every cell's front, the fastest first."""
    rows = []
    for (method, seed), cell in cells.items():
        points = points_of(cell)
        for latency_s, size_bytes in sorted(points[non_dominated(points)].tolist()):
            rows.append({
                "method": method, "seed": seed, "latency_s": latency_s, "size_bytes": size_bytes
            })  # fmt: skip
    return rows


def figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """The fronts of all cells, a colour for each method."""
    made = Figure(figsize=(6.4, 4.4), layout="constrained")
    headline(made, "Fronts of a convolution: latency, and code with scratch memory")
    axis = made.subplots()
    for method, colour in METHODS.items():
        seeds = sorted({row["seed"] for row in rows if row["method"] == method})
        for place, seed in enumerate(seeds):
            mine = [row for row in rows if (row["method"], row["seed"]) == (method, seed)]
            axis.step(
                [1e3 * row["latency_s"] for row in mine],
                [row["size_bytes"] / 1024 for row in mine],
                where="post", color=colour, marker="o", label=None if place else method,
            )  # fmt: skip
    plain_log(axis, "x")
    plain_log(axis, "y")
    axis.set_xlabel("latency (ms, less is better)")
    axis.set_ylabel("code and scratch memory (KiB)\n(less is better)")
    axis.legend()
    axis.grid(visible=True)
    return made


def run(options: Options) -> dict[str, Any]:
    """Run the missing cells, then write the tables and the plot."""
    check_pymoo()
    runs, out = Path(options.runs), Path(options.out)
    keys = [(method, seed) for seed in options.seeds for method in METHODS]
    jobs = [
        Job(
            name=f"{method}-{seed}",
            leaves=runs / f"{method}-{seed}.json",
            run=partial(measured, runs / f"{method}-{seed}", method, seed, options.trials),
            about={"workload": WORKLOAD, "trials": options.trials},
        )
        for method, seed in keys
    ]
    cells = dict(zip(keys, results(jobs), strict=True))
    rows, fronts = result_rows(cells), front_rows(cells)
    write_table(out / "results.csv", rows, floats=".5g")
    write_table(out / "front.csv", fronts, floats=".5g")
    with style():
        figure(fronts).savefig(out / "front.png", dpi=130, bbox_inches="tight")
    say(as_table([row for row in rows if row["trials"] == options.trials]))
    return {"rows": len(rows), "results": str(out / "results.csv")}


if __name__ == "__main__":
    run_script(Options, run, __doc__)

"""Measure fronts of latency and size on this machine's CPU, beside random search.

    python -m experiments.pareto.run                    a convolution, 32 trials
    python -m experiments.pareto.run part=network       the tasks of dcgan, 20 trials a task

A cell is one call of `tune` by one method with one seed: ``pareto`` is objective=[latency,size],
``latency`` the default search whose programs are sized, too, ``random`` draws legal programs. All
methods have equal trials and the same timing. Finished cells (under runs=) are not run again, and
an ended cell continues.

The front of the network is computed from the programs of its tasks, the network is not built:
latencies are added with the numbers of calls, code is added, scratch memory is the largest of any
task. Every choice of one measured program a task counts.

A point is (log latency, log size). The hypervolume of a cell is that of its points, with a
reference point that is 1.1 times as slow and as large as the worst coordinates on any cell's front;
it is divided by the hypervolume of the points of all cells together. Output: results.csv,
front.csv (rows of a part replace its earlier rows) and PART.png, here or in out=DIR.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.pareto.volume import hypervolume
from pruner.arrays import Floats
from pruner.cli.shared.output import as_table, say
from pruner.cli.shared.script import run_script
from pruner.errors import check_chosen
from pruner.files import merged_table, write_table
from pruner.search.objectives import Objective, check_pymoo, non_dominated
from pruner.search.policy import RandomDraws
from pruner.study.grid import Job, results
from pruner.study.plots import BLUE, GREY, VERMILION, headline, plain_log, style
from pruner.tune.measure.jobs import Timing
from pruner.tune.measure.measurer import MeasureSettings
from pruner.tune.measure.numerics import CODE, SCRATCH
from pruner.tune.networks.extraction import extract_tasks
from pruner.tune.networks.source import NetworkSource
from pruner.tune.run.budget import TuneBudget
from pruner.tune.run.journal import JOURNAL_FILE, read_trials
from pruner.tune.run.tune_options import TuneOptions, this_cpu
from pruner.tune.run.tuning import tune
from pruner.tune.workloads import Workload, operator

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SIZES = {"n": 1, "ci": 32, "h": 28, "w": 28, "co": 64, "kh": 3, "kw": 3, "stride": 1, "padding": 1}
NETWORK = "dcgan"
PARTS = {"conv2d": ("pareto", "latency", "random"), "network": ("pareto", "random")}
TRIALS = {"conv2d": 32, "network": 20}  # a task
COLOURS = {"pareto": BLUE, "latency": VERMILION, "random": GREY}
BATCH, MARGIN, STEPS = 16, 1.1, 3

Cells = Mapping[tuple[str, int], Mapping[str, Any]]


@dataclass(kw_only=True)
class Options:
    """Options of the script, explained above. null: all methods and the trials of the part."""

    part: str = "conv2d"
    methods: list[str] | None = None
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    trials: int | None = None
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


def workloads_of(part: str, folder: Path) -> list[Workload]:
    """The tasks of a part."""
    if part == "conv2d":
        return [operator("conv2d", **SIZES)]
    target = this_cpu().platform.target_json
    tasks = extract_tasks(NetworkSource(name=NETWORK), target, folder, log=say)
    return [task.workload for task in tasks if task.tuned]


def measured(folder: Path, part: str, method: str, seed: int, trials: int) -> dict[str, Any]:
    """Run a cell; return task, latency, code, scratch of each trial, None: failed."""
    workloads = workloads_of(part, folder / "tasks")
    options = options_of(method, seed, trials * len(workloads))
    tune(workloads, options, folder, log=say)
    rows = read_trials(folder / JOURNAL_FILE)[: trials * len(workloads)]
    return {
        "calls": {one.name: one.weight for one in workloads},
        "trials": [
            [row.task, row.latency_s, row.extra[CODE], row.extra[SCRATCH]]
            if row.latency_s < float("inf") else None
            for row in rows
        ],
    }  # fmt: skip


def points_of(cell: Mapping[str, Any], trials: int | None = None) -> Floats:
    """Latency (s) and size (bytes) [N, 2] of the first programs of a cell that ran."""
    found: dict[str, list[list[float]]] = {name: [] for name in cell["calls"]}
    for task, *values in filter(None, cell["trials"][:trials]):
        found[task].append(values)
    tasks = [np.array(values, float).reshape(-1, 3) for values in found.values()]
    return network_points(tasks, list(cell["calls"].values()))


def network_points(tasks: Sequence[Floats], calls: Sequence[float]) -> Floats:
    """The front [N, 2] of latency (s) and size (bytes), empty where a task has no program.

    ``tasks``: latency, code and scratch memory [P, 3] of the programs of each task.
    """
    if not all(map(len, tasks)):
        return np.zeros((0, 2))
    found = []
    for limit in np.unique(np.concatenate(tasks)[:, 2]):
        # with a limit on scratch memory both other quantities are sums, so that tasks are added one
        # after the other, and only fronts of the sums are kept
        total = np.zeros((1, 2))
        for programs, times in zip(tasks, calls, strict=True):
            own = programs[programs[:, 2] <= limit][:, :2] * [times, 1.0]
            total = front((total[:, None] + front(own)).reshape(-1, 2))
        found.append(total + np.array([0.0, limit]))
    return front(np.concatenate(found))


def front(points: Floats) -> Floats:
    """The points [N, 2] that no other point beats in both."""
    return points[non_dominated(points)]


def volumes(cells: Cells) -> Iterator[tuple[tuple[str, int], int, float]]:
    """Yield cell, trials and its share of the hypervolume of all cells together."""
    every = [np.log(points_of(cell)) for cell in cells.values()]
    reference = np.concatenate(every).max(axis=0) + np.log(MARGIN)
    whole = hypervolume(np.concatenate(every), reference)
    for key, cell in cells.items():
        for step in range(1, STEPS + 1):
            trials = len(cell["trials"]) * step // STEPS
            yield key, trials, hypervolume(np.log(points_of(cell, trials)), reference) / whole


def result_rows(part: str, cells: Cells) -> list[dict[str, Any]]:
    """A row for every cell after a third, two thirds and all of its trials."""
    share = {(key, trials): value for key, trials, value in volumes(cells)}
    rows = []
    for ((method, seed), trials), value in share.items():
        points = points_of(cells[method, seed], trials)
        random = share.get((("random", seed), trials))
        rows.append({
            "part": part,
            "method": method,
            "seed": seed,
            "trials": trials,
            "hypervolume_share": value,
            "over_random": value / random if random else None,
            "front_programs": len(points),
            "best_latency_s": points[:, 0].min() if len(points) else None,
            "least_size_bytes": points[:, 1].min() if len(points) else None,
        })  # fmt: skip
    return rows


def front_rows(part: str, cells: Cells) -> list[dict[str, Any]]:
    """The programs of every cell's front, the fastest first."""
    return [
        {"part": part, "method": method, "seed": seed, "latency_s": s, "size_bytes": size}
        for (method, seed), cell in cells.items()
        for s, size in sorted(points_of(cell).tolist())
    ]


def figure(part: str, rows: Sequence[Mapping[str, Any]]) -> Figure:
    """The fronts of all cells of a part, a colour for each method."""
    made = Figure(figsize=(6.4, 4.4), layout="constrained")
    what = "a convolution" if part == "conv2d" else NETWORK
    headline(made, f"Fronts of {what}: latency, and code with scratch memory")
    axis = made.subplots()
    for method in PARTS[part]:
        seeds = sorted({row["seed"] for row in rows if row["method"] == method})
        for place, seed in enumerate(seeds):
            mine = [row for row in rows if (row["method"], row["seed"]) == (method, seed)]
            axis.step(
                [1e3 * row["latency_s"] for row in mine],
                [row["size_bytes"] / 1024 for row in mine],
                where="post", color=COLOURS[method], marker="o", label=None if place else method,
            )  # fmt: skip
    plain_log(axis, "x")
    plain_log(axis, "y")
    axis.set_xlabel("latency (ms, less is better)")
    axis.set_ylabel("code and scratch memory (KiB)\n(less is better)")
    axis.legend()
    axis.grid(visible=True)
    return made


def run(options: Options) -> dict[str, Any]:
    """Run the missing cells of a part, then write its tables and its plot."""
    check_pymoo()
    part = options.part
    check_chosen("part", [part], PARTS)
    runs, out = Path(options.runs) / part, Path(options.out)
    trials = TRIALS[part] if options.trials is None else options.trials
    methods = PARTS[part] if options.methods is None else options.methods
    check_chosen("methods", methods, PARTS[part])
    keys = [(method, seed) for seed in options.seeds for method in methods]
    jobs = [
        Job(
            name=f"{method}-{seed}",
            leaves=runs / f"{method}-{seed}.json",
            run=partial(measured, runs / f"{method}-{seed}", part, method, seed, trials),
            about={"trials": trials, **(SIZES if part == "conv2d" else {"network": NETWORK})},
        )
        for method, seed in keys
    ]
    cells = dict(zip(keys, results(jobs), strict=True))
    rows, fronts = result_rows(part, cells), front_rows(part, cells)
    for name, found in (("results.csv", rows), ("front.csv", fronts)):
        write_table(out / name, merged_table(out / name, found, ("part",)), floats=".5g")
    with style():
        figure(part, fronts).savefig(out / f"{part}.png", dpi=130, bbox_inches="tight")
    say(as_table(rows))
    return {"rows": len(rows), "results": str(out / "results.csv")}


if __name__ == "__main__":
    run_script(Options, run, __doc__)

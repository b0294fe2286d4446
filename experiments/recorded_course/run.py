"""Race searches on recorded pools against the recorded course of MetaSchedule.

    pruner import_logs logs=DIR/metaschedule-a100/resnet34 out=RECORDS platform=a100
    python -m experiments.recorded_course.run data.root=RECORDS [method=[ours]] [seeds=[0]]

A database of MetaSchedule has its programs in the order of measuring: the course. The searches of
experiments/rounds search the same programs, a task at a time, each with a model from scratch. The
order of the draft and chance (exact) need no search: `method=[]` writes them in a minute. Finished
cells (under runs=) are not run again. Output: results.csv and summary.csv here, or in out=DIR.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from experiments.common.contest import Ground, budget_of, run_contest
from experiments.rounds.run import contestants
from pruner.arrays import Floats
from pruner.cli.shared.script import Data, keep_tables, run_script
from pruner.data.root import RecordRoot
from pruner.errors import PrunerError, check_chosen
from pruner.files import merged_table, write_table
from pruner.models.judging.judge import expected_ratio
from pruner.models.judging.metrics import ScoredTask, ranking
from pruner.search.offline.adaptation_run import affordable, first_reach, sign_flip_p
from pruner.study.adaptation.context import spreads_of

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
COURSE, CHANCE, DRAFT = "course", "chance", "draft"
SEARCHES = ("pruner_paper_eighth", "ours", "ansor")  # of experiments/rounds
GOALS = (1.0, 1.01, 1.05)  # times the final latency of the course
AFTER = (16, 64, 200)  # trials
BUDGET, POOL = "budget", "pool"  # trials of a row: those that a search gets, or the whole pool
KEY = ("task", "method", "seed", "until")

Row = Mapping[str, Any]


@dataclass(kw_only=True)
class Options:
    """Options of the script, explained above."""

    data: Data = field(default_factory=Data)
    platform: str = "a100"
    method: list[str] | None = None
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    trials: int = 64
    runs: str = str(ROOT / "outputs" / "recorded_course")
    out: str = str(HERE)


def measures(relative_latency: Floats, trials: int) -> dict[str, float | None]:
    """Trials to the goals, and performance along the way, of one run.

    ``relative_latency`` [n]: best so far / best of the pool. A run that does not reach a goal
    counts as `trials`; a run that ends early stays where it is.
    """
    best = np.pad(relative_latency[:trials], (0, max(0, trials - len(relative_latency))), "edge")
    row: dict[str, float | None] = {}
    for goal in GOALS:
        found = first_reach(best, np.arange(1.0, trials + 1), goal)
        row |= {f"trials_to_{goal:.2f}": found.at, f"reached_{goal:.2f}": float(found.reached)}
    for after in AFTER:
        row[f"performance_{after}"] = float(1 / best[after - 1]) if after <= trials else None
    return row


def unreached(num: int, good: int, trials: int) -> Float[np.ndarray, " trial"]:
    """Probability [0 .. trials] that so many random programs miss all `good` programs.

    Of `num`, without repetition; the sum of all but the last is the mean trials to a good one.
    """
    drawn = np.arange(trials)
    missed = np.clip(num - good - drawn, 0, None) / np.maximum(num - drawn, 1)
    return np.concatenate([[1.0], np.cumprod(missed)])


def chance_measures(latency_s: Floats, trials: int) -> dict[str, float | None]:
    """The exact means of :func:`measures` over all orders of a pool."""
    task = ScoredTask(name=CHANCE, latency_s=latency_s, score=-latency_s)
    row: dict[str, float | None] = {}
    for goal in GOALS:
        good = int((latency_s / task.best_s <= goal).sum())
        still = unreached(task.num_programs, good, trials)
        row |= {
            f"trials_to_{goal:.2f}": float(still[:-1].sum()),
            f"reached_{goal:.2f}": float(1 - still[-1]),
        }
    for after in AFTER:
        row[f"performance_{after}"] = expected_ratio(task, after) if after <= trials else None
    return row


def fixed_rows(race: Ground, trials: int) -> list[Row]:
    """Course, chance and draft of one task, which need no search."""
    (pool,) = race.pools("hardware", "paper")
    relative = pool.latency_s / pool.latency_s.min()
    orders = {COURSE: np.arange(len(pool))}  # records are read in the order of their file
    if pool.draft is not None:
        orders[DRAFT] = ranking(pool.draft)
    rows: list[Row] = []
    for until, most in ((BUDGET, affordable([pool], trials)), (POOL, len(pool))):
        about = {"num_programs": len(pool), "trials": most}
        found = {
            name: measures(np.minimum.accumulate(relative[order]), most)
            for name, order in orders.items()
        }
        found[CHANCE] = chance_measures(pool.latency_s, most)
        rows += [
            {**_key(pool.key.task, name, 0, until), **about, **row} for name, row in found.items()
        ]
    return rows


def _key(task: str, method: str, seed: int, until: str) -> dict[str, Any]:
    return dict(zip(KEY, (task, method, seed, until), strict=True))


def searched_rows(race: Ground, names: Sequence[str], runs: Path, seed: int) -> list[Row]:
    """The searches of one task with one seed."""
    (pool,) = race.pools("hardware", "paper")
    known = contestants()
    folder = runs / f"{race.platform}-{pool.key.task}"
    cells = run_contest({name: known[name] for name in names}, race, folder, seeds=[seed])
    most = affordable([pool], race.budget.trials)
    about = {"num_programs": len(pool), "trials": most}
    return [
        {
            **_key(pool.key.task, cell.method, seed, BUDGET),
            **about,
            **measures(cell.curve.relative_latency, most),
        }
        for cell in cells
    ]


def summary_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Means over tasks of each method, the tasks counting the same.

    A task's number is the mean over its seeds. Geometric means of trials and performance, with the
    number of tasks that have them; ``reached`` is the mean share of runs. ``p_over_chance``: sign
    flips of the tasks' logarithms.
    """
    out = []
    for until, method in dict.fromkeys((row["until"], row["method"]) for row in rows):
        ours, chance = _select(rows, until, method), _select(rows, until, CHANCE)
        line: dict[str, Any] = {
            "method": method,
            "until": until,
            "num_tasks": len({row["task"] for row in ours}),
            "num_seeds": len({str(row["seed"]) for row in ours}),
        }
        for goal in GOALS:
            name, reached = f"trials_to_{goal:.2f}", f"reached_{goal:.2f}"
            line[name] = _geometric_mean(list(_by_task(ours, name).values()))
            line[reached] = float(np.mean(list(_by_task(ours, reached).values())))
        for after in AFTER:
            name = f"performance_{after}"
            mine, theirs = _by_task(ours, name), _by_task(chance, name)
            line[f"tasks_{after}"] = len(mine)
            if mine:
                line[name] = _geometric_mean(list(mine.values()))
            if mine and method != CHANCE:
                gains = np.array([np.log(mine[task] / theirs[task]) for task in mine])
                line[f"p_over_chance_{after}"] = sign_flip_p(gains)
        out.append(line)
    return out


def _select(rows: Sequence[Row], until: str, method: str) -> list[Row]:
    return [row for row in rows if (row["until"], row["method"]) == (until, method)]


def _by_task(rows: Sequence[Row], column: str) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for row in rows:
        if row.get(column) not in (None, ""):
            found.setdefault(row["task"], []).append(float(row[column]))
    return {task: float(np.mean(values)) for task, values in found.items()}


def _geometric_mean(values: Sequence[float]) -> float:
    return float(np.exp(np.log(values).mean()))


def run(options: Options) -> dict[str, Any]:
    """Run the missing cells, then write the tables."""
    keep_tables(options, HERE, "trials")
    torch.set_num_threads(1)
    names = list(SEARCHES if options.method is None else options.method)
    check_chosen("method", names, SEARCHES)
    root = RecordRoot(options.data.root)
    budget = replace(budget_of("default"), trials=options.trials)
    ground = Ground(root=root, platform=options.platform, budget=budget)
    tasks = sorted(spreads_of(ground.programs("paper"), budget))
    if not tasks:
        raise PrunerError(
            f"data.root={root.path}: no task of {options.platform} has {budget.least} measured "
            "programs; import a larger database"
        )
    races = [ground.of_task(key) for key in tasks]
    results, summary = (Path(options.out) / f"{name}.csv" for name in ("results", "summary"))

    def write(rows: Sequence[Row]) -> None:
        merged = merged_table(results, rows, KEY)
        write_table(results, merged, floats=".6g")
        write_table(summary, summary_rows(merged), floats=".5g")

    write([row for race in races for row in fixed_rows(race, options.trials)])
    for seed in options.seeds if names else ():
        runs = Path(options.runs)
        write([row for race in races for row in searched_rows(race, names, runs, seed)])
    return {"tasks": len(races), "out": str(options.out)}


if __name__ == "__main__":
    run_script(Options, run, __doc__)

"""Tune live on this machine's CPU: ours, MetaSchedule and Ansor.

All have equal trials. A cell is one operator, seed and policy: one call of ``tune.py``. Finished
cells are skipped and interrupted cells continue, so you can stop and start the script at any time:

    python -m experiments.tune.run                              all cells, then the tables
    python -m experiments.tune.run summary=true                 the tables from the finished cells
    python -m experiments.tune.run trials=16 seeds=1 operators=[matmul] policies=[ours] out=DIR

With out=DIR cells and tables go there instead of to outputs/ and this folder. All policies measure
with the same settings on the same machine, one after another.
"""

from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.common.comparison import Tunings, places
from pruner.cli.shared.script import run_script
from pruner.errors import DataError, check_chosen
from pruner.files import METRICS_FILE, load_metrics, write_table
from pruner.study.grid import finished
from pruner.study.tuning_plots import exploration_share
from pruner.tune.run.journal import JOURNAL_FILE, read_trials

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OPERATORS = {
    "matmul": ["workload=matmul"],
    "batch_matmul": ["workload=batch_matmul"],
    "conv2d_3x3": ["workload=conv2d"],
    "conv2d_1x1_bias_relu": [
        "workload=conv2d", "workload.ci=256", "workload.h=28", "workload.w=28",
        "workload.co=128", "workload.kh=1", "workload.kw=1", "workload.padding=0",
        "workload.epilogue=[bias,relu]",
    ],
    "depthwise_3x3": ["workload=depthwise_conv2d"],
    "layer_norm": ["workload=layer_norm"],
}  # fmt: skip
# The rivals get half their default batch, so that their models learn once before the budget ends,
# and count them from the first batch on; Ansor's population is MetaSchedule's.
POLICIES = {
    "ours": ["policy=pruner_live", "budget.batch=16"],
    "metaschedule": ["policy=metaschedule", "budget.batch=32", "+policy.num_warmup_samples=32"],
    "ansor": [
        "policy=ansor_tvm", "budget.batch=32", "+policy.num_warmup_samples=32",
        "+policy.population=512",
    ],
}  # fmt: skip
SETTINGS = ["measure.min_repeat_ms=30", "measure.repeats=3", "num_threads=1"]
RIVALS = ("metaschedule", "ansor")
AFTER = (1, 2, 4, 8, 16, 24, 32, 48, 64)  # trials that curves.csv shows


@dataclass(kw_only=True)
class Options:
    """Options of the script; `summary`: run nothing, only make the tables."""

    trials: int = 64
    seeds: int = 3
    operators: list[str] = field(default_factory=lambda: list(OPERATORS))
    policies: list[str] = field(default_factory=lambda: list(POLICIES))
    summary: bool = False
    out: str = str(HERE)


def curve(folder: Path) -> dict[str, np.ndarray]:
    """Best latency (seconds) after every trial, with the elapsed seconds."""
    rows = read_trials(folder / JOURNAL_FILE)
    best_s = np.minimum.accumulate([row.latency_s for row in rows])
    return {"best_s": best_s, "elapsed_s": np.array([row.elapsed_s for row in rows])}


def reached(found: dict[str, np.ndarray], target_s: float) -> tuple[float, float]:
    """First trial and seconds at which a latency was reached, infinite if never."""
    hits = np.flatnonzero(found["best_s"] <= target_s)
    if not len(hits):
        return np.inf, np.inf
    return float(hits[0] + 1), float(found["elapsed_s"][hits[0]])


def rows_of(outputs: Path, trials: int, seeds: int) -> list[dict[str, Any]]:
    """A row a cell: final latency, and time to the rivals' final medians."""
    out = []
    for operator in OPERATORS:
        cells = {
            (policy, seed): outputs / "tune" / cell_name(operator, policy, seed, trials)
            for policy in POLICIES
            for seed in range(seeds)
        }
        done = {key: curve(f) for key, f in cells.items() if finished(f / METRICS_FILE)}
        finals = {
            policy: np.median([c["best_s"][-1] for (p, _), c in done.items() if p == policy])
            for policy in {p for p, _ in done}
        }
        for (policy, seed), found in done.items():
            metrics = load_metrics(cells[policy, seed]) or {}
            row: dict[str, Any] = {
                "operator": operator,
                "policy": policy,
                "seed": seed,
                "trials": len(found["best_s"]),
                "final_latency_s": found["best_s"][-1],
                "total_s": metrics["total_seconds"],
                "invalid_share": metrics["invalid_share"],
            }
            for rival in RIVALS:
                trial, seconds = reached(found, finals.get(rival, 0.0))
                row |= {f"trials_to_{rival}": trial, f"seconds_to_{rival}": seconds}
            seconds_by_phase = metrics["seconds"]
            row |= {f"{phase}_s": seconds_by_phase[phase] for phase in sorted(seconds_by_phase)}
            row["exploration_share"] = exploration_share(seconds_by_phase)
            out.append(row)
    return out


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """A row an operator and policy: medians over seeds and spread.

    The spread is (max - min) / median. ``speedup_to_X``: X's own median seconds to its median final
    latency, over these.
    """
    grouped = table.groupby(["operator", "policy"], sort=False)
    columns = ["final_latency_s", "total_s", "seconds_to_metaschedule", "seconds_to_ansor",
               "trials_to_metaschedule", "trials_to_ansor", "invalid_share"]  # fmt: skip
    out = grouped[columns].median()
    final = grouped["final_latency_s"]
    out["final_spread"] = (final.max() - final.min()) / final.median()
    out["seeds"] = grouped.size()
    out = out.reset_index()
    for rival in RIVALS:
        own = out[out.policy == rival].set_index("operator")
        seconds = out.operator.map(own[f"seconds_to_{rival}"])
        out[f"speedup_to_{rival}"] = seconds / out[f"seconds_to_{rival}"]
        out[f"final_over_{rival}"] = out.final_latency_s / out.operator.map(own.final_latency_s)
    return out


def curves(outputs: Path, trials: int, seeds: int) -> pd.DataFrame:
    """Best latency after some trials, relative to the operator's best run."""
    parts = []
    for operator, policy, seed in product(OPERATORS, POLICIES, range(seeds)):
        folder = outputs / "tune" / cell_name(operator, policy, seed, trials)
        if finished(folder / METRICS_FILE):
            found = curve(folder)
            after = np.array([number for number in AFTER if number <= len(found["best_s"])])
            part = pd.DataFrame({"trials": after})
            part["elapsed_s"] = found["elapsed_s"][after - 1]
            part["latency_s"] = found["best_s"][after - 1]
            parts.append(part.assign(operator=operator, policy=policy, seed=seed))
    table = pd.concat(parts, ignore_index=True)
    best_s = table.groupby("operator").latency_s.transform("min")
    return table.assign(relative_latency=table.latency_s / best_s)


def cell_name(operator: str, policy: str, seed: int, trials: int) -> str:
    """Run folder of a cell."""
    return f"{operator}-{policy}-{trials}-{seed}"


def cells(options: Options) -> dict[str, list[str]]:
    """Words of every run by name; a seed of everything comes before the next."""
    return {
        cell_name(operator, policy, seed, options.trials): [
            *OPERATORS[operator], *POLICIES[policy], *SETTINGS,
            f"budget.trials={options.trials}", f"seed={seed}",
        ]
        for seed, operator, policy in product(
            range(options.seeds), options.operators, options.policies
        )
    }  # fmt: skip


def run(options: Options) -> dict[str, Any]:
    """Run the missing cells, then write results.csv, summary.csv and curves.csv."""
    check_chosen("operators", options.operators, OPERATORS)
    check_chosen("policies", options.policies, POLICIES)
    folder, runs = places(options.out, HERE, "experiments-tune")
    if not options.summary:
        Tunings(runs, ROOT, cells(options)).run_all()
    table = pd.DataFrame(rows_of(runs, options.trials, options.seeds))
    if table.empty:
        raise DataError(f"{runs}: no finished cell; run without summary=true")
    tables = {
        "results": table,
        "summary": summarise(table),
        "curves": curves(runs, options.trials, options.seeds),
    }
    for name, content in tables.items():
        rows: list[dict[str, Any]] = content.to_dict("records")
        write_table(folder / f"{name}.csv", rows, floats=".6g")
    return {"cells": len(table), "summary": str(folder / "summary.csv")}


if __name__ == "__main__":
    run_script(Options, run, __doc__)

"""Live tuning on this machine's CPU: ours against MetaSchedule and Ansor, equal trials.

A cell is one operator, seed and policy: one call of ``tune.py``. A finished cell is skipped, a
broken one goes on where it stopped, so the script can be stopped and started at will:

    python experiments/tune/run.py                      all cells, then results.csv
    python experiments/tune/run.py trials=16 seeds=1    a quick look
    python experiments/tune/run.py summary=only         results.csv from the cells there are

All policies measure with the same settings on the same machine, one after another.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pruner.tune.journal import JOURNAL_FILE, read_trials

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
DEFAULTS = {"trials": "64", "seeds": "3", "outputs": "outputs/experiments-tune", "summary": "too"}


def run_cell(outputs: Path, name: str, options: list[str]) -> None:
    """Run a cell to its end, or take it up; a failure is told and costs that cell."""
    folder = outputs / "tune" / name
    if (folder / "metrics.json").is_file():
        return
    resume = (folder / "state.pkl").is_file() or (folder / "ansor.json").is_file()
    if folder.exists() and not resume:
        folder.rename(folder.with_name(f"{name}-broken-{int(time.time())}"))
    command = [sys.executable, str(ROOT / "tune.py")]
    command += (
        [f"resume={folder}"] if resume else [f"outputs={outputs}", f"run_id={name}", *options]
    )
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    ending = "done" if done.returncode == 0 else done.stderr.strip().splitlines()[-1:]
    print(f"{name}: {ending} in {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)


def curve(folder: Path) -> dict[str, np.ndarray]:
    """Best latency (seconds) after every trial, with the elapsed seconds."""
    rows = read_trials(folder / JOURNAL_FILE)
    best_s = np.minimum.accumulate([row.latency_s for row in rows])
    return {"best_s": best_s, "elapsed_s": np.array([row.elapsed_s for row in rows])}


def reached(found: dict[str, np.ndarray], target_s: float) -> tuple[float, float]:
    """First trial and seconds at which a latency was reached; infinite where it never was."""
    hits = np.flatnonzero(found["best_s"] <= target_s)
    if not len(hits):
        return np.inf, np.inf
    return float(hits[0] + 1), float(found["elapsed_s"][hits[0]])


def rows_of(outputs: Path, trials: int, seeds: int) -> list[dict[str, Any]]:
    """One row a cell: final latency, and what it took to reach the rivals' final median."""
    out = []
    for operator in OPERATORS:
        cells = {
            (policy, seed): outputs / "tune" / cell_name(operator, policy, seed, trials)
            for policy in POLICIES
            for seed in range(seeds)
        }
        done = {key: curve(f) for key, f in cells.items() if (f / "metrics.json").is_file()}
        finals = {
            policy: np.median([c["best_s"][-1] for (p, _), c in done.items() if p == policy])
            for policy in {p for p, _ in done}
        }
        for (policy, seed), found in done.items():
            metrics = json.loads((cells[policy, seed] / "metrics.json").read_text())
            row: dict[str, Any] = {
                "operator": operator,
                "policy": policy,
                "seed": seed,
                "trials": len(found["best_s"]),
                "final_latency_s": found["best_s"][-1],
                "total_s": metrics["total_seconds"],
                "invalid_share": metrics["invalid_share"],
            }
            for rival in ("metaschedule", "ansor"):
                trial, seconds = reached(found, finals.get(rival, 0.0))
                row |= {f"trials_to_{rival}": trial, f"seconds_to_{rival}": seconds}
            seconds_by_phase = metrics["seconds"]
            row |= {f"{phase}_s": seconds_by_phase[phase] for phase in sorted(seconds_by_phase)}
            out.append(row)
    return out


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """Medians over seeds and their spread, (max - min) / median, one row an operator and policy."""
    grouped = table.groupby(["operator", "policy"], sort=False)
    columns = ["final_latency_s", "total_s", "seconds_to_metaschedule", "seconds_to_ansor",
               "trials_to_metaschedule", "trials_to_ansor", "invalid_share"]  # fmt: skip
    out = grouped[columns].median()
    final = grouped["final_latency_s"]
    out["final_spread"] = (final.max() - final.min()) / final.median()
    out["seeds"] = grouped.size()
    return out.reset_index()


def cell_name(operator: str, policy: str, seed: int, trials: int) -> str:
    """Run folder of a cell."""
    return f"{operator}-{policy}-{trials}-{seed}"


def main() -> None:
    """Run what is missing, then write results.csv and summary.csv."""
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    options = DEFAULTS | given
    trials, seeds = int(options["trials"]), int(options["seeds"])
    outputs = (ROOT / options["outputs"]).resolve()
    if options["summary"] != "only":
        for seed in range(seeds):
            for operator, workload in OPERATORS.items():
                for policy, own in POLICIES.items():
                    common = [*SETTINGS, f"budget.trials={trials}", f"seed={seed}"]
                    name = cell_name(operator, policy, seed, trials)
                    run_cell(outputs, name, [*workload, *own, *common])
    table = pd.DataFrame(rows_of(outputs, trials, seeds))
    place = HERE if "outputs" not in given else outputs
    table.to_csv(place / "results.csv", index=False, float_format="%.6g")
    summary = summarise(table)
    summary.to_csv(place / "summary.csv", index=False, float_format="%.6g")
    print(json.dumps({"cells": len(table), "summary": str(place / "summary.csv")}))


if __name__ == "__main__":
    main()

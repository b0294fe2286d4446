"""Many networks, tuned by ours and by a rival: what it took to reach the rival's final latency.

A cell is a network, a policy and a seed. Latencies are estimates while a run tunes (calls x best of
every task) and measurements of the built network after it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pruner.study.network.run import NetworkRun
from pruner.study.tuning import RunCurve

RIVAL = "metaschedule"
TRIAL_SHARES = (0.25, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # of a run's trials, for curves
TIME_SHARES = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)  # of the rival's seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One finished run. ``network_s``: the built network's median latency, None if not built."""

    network: str
    policy: str
    seed: int
    run: NetworkRun
    network_s: float | None = None

    @property
    def curve(self) -> RunCurve:
        """Estimates after every trial; finished runs with too few trials for all tasks have none.

        Raises `ValueError` there.
        """
        if self.run.curve is None:
            raise ValueError(f"{self.run.folder}: some task has no measured program")
        return self.run.curve

    @property
    def final_s(self) -> float:
        """The last estimate."""
        return float(self.curve.best_s[-1])


def reached(curve: RunCurve, target_s: float) -> tuple[float, float]:
    """Trials and seconds until an estimate was reached; infinite where it never was."""
    hits = np.flatnonzero(curve.best_s <= target_s)
    if not len(hits):
        return np.inf, np.inf
    return float(curve.trial[hits[0]]), float(curve.elapsed_s[hits[0]])


def result_rows(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """One row a cell; the rival's final latency is the median of its seeds on that network."""
    finals = _rival_finals(cells)
    rows = []
    for cell in cells:
        trials, seconds = reached(cell.curve, finals.get(cell.network, 0.0))
        phases = {f"{name}_s": value for name, value in sorted(cell.run.seconds.items())}
        rows.append(
            {
                "network": cell.network,
                "policy": cell.policy,
                "seed": cell.seed,
                "tasks": len(cell.curve.tasks),
                "trials": cell.run.metrics.get("trials"),
                "failed": cell.run.metrics.get("failed"),
                "estimate_s": cell.final_s,
                "network_s": cell.network_s,
                "total_s": cell.run.metrics.get("total_seconds"),
                "trials_to_rival": trials,
                "seconds_to_rival": seconds,
                **phases,
            }
        )
    return rows


def _rival_finals(cells: Sequence[Cell]) -> dict[str, float]:
    return {
        network: float(np.median([c.final_s for c in cells if _is(c, network, RIVAL)]))
        for network in {cell.network for cell in cells if cell.policy == RIVAL}
    }


def _is(cell: Cell, network: str, policy: str) -> bool:
    return (cell.network, cell.policy) == (network, policy)


def summarise(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Medians over seeds, one row a network and policy.

    ``speedup``: the rival's median seconds to its own final estimate over these; 0 where that is
    never reached. ``estimate_over_rival`` and ``network_over_rival`` are ratios of latencies.
    """
    table = pd.DataFrame(rows)
    grouped = table.groupby(["network", "policy"], sort=False)
    columns = ["tasks", "trials", "estimate_s", "network_s", "total_s", "trials_to_rival",
               "seconds_to_rival"]  # fmt: skip
    table[columns] = table[columns].astype(float)
    out = grouped[columns].median()
    final = grouped["estimate_s"]
    out["spread"] = (final.max() - final.min()) / final.median()
    out["seeds"] = grouped.size()
    out = out.reset_index()
    rival = out[out.policy == RIVAL].set_index("network")
    out["speedup"] = out.network.map(rival.seconds_to_rival) / out.seconds_to_rival
    for name in ("estimate", "network"):
        theirs = out.network.map(rival[f"{name}_s"])
        out[f"{name}_over_rival"] = out[f"{name}_s"] / theirs
    return out


def curve_rows(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Estimates over the rival's final one, after shares of the trials and of its seconds.

    A share before every task had a program has no row.
    """
    finals, seconds = _rival_finals(cells), {}
    for cell in cells:
        if cell.policy == RIVAL:
            seconds[cell.network] = float(cell.curve.elapsed_s[-1])
    rows = []
    for cell in cells:
        if cell.network not in finals:
            continue
        curve, about = cell.curve, {"network": cell.network, "policy": cell.policy}
        for axis, shares, x, end in (
            ("trials", TRIAL_SHARES, curve.trial, curve.trial[-1]),
            ("time", TIME_SHARES, curve.elapsed_s, seconds[cell.network]),
        ):
            for share in shares:
                last = int(np.searchsorted(x, share * end, side="right")) - 1
                if last >= 0:
                    ratio = float(curve.best_s[last]) / finals[cell.network]
                    row = {**about, "seed": cell.seed, "share_of": axis, "share": share}
                    rows.append({**row, "relative_latency": ratio})
    return rows


def contender_rows(network: str, run: NetworkRun, ours: str) -> list[dict[str, Any]]:
    """The contenders of a run; ``over_ours``: their median latency over ours."""
    if run.beside is None:
        return []
    medians = {row["name"]: row["median_s"] for row in run.beside.ran}
    rows = []
    for row in run.beside.rows:
        out = {"network": network, "contender": row["label"], "error": row["error"]}
        if row["error"] is None:
            names = ("median_s", "min_s", "low_s", "high_s", "runs", "relative_error")
            out |= {name: row[name] for name in names}
            out["ready_s"] = row["facts"].get("ready_s")
            if ours in medians:
                out["over_ours"] = row["median_s"] / medians[ours]
        rows.append(out)
    return rows

"""Compare live runs of workloads, methods and seeds on a target.

Runs of a ground (a target, a workload and a budget) have equal tasks. So their latencies are
relative to the best latency of all of them, and equal seeds are compared in pairs. Tests and
intervals are over pairs of workload and seed; they say nothing about other workloads.

Runs are stored as the points at which they improved, which are small enough to be committed with
the tables. A run's folder stays on the machine that measured it; the tables need only its points,
so a comparison continues without the folders of earlier sessions.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool
from numpy.typing import NDArray

from experiments.common.contest import contest_rows, curve_rows
from pruner.errors import DataError
from pruner.files import load_metrics
from pruner.search.offline.adaptation_run import (
    MethodRun,
    TuningCurve,
    bootstrap_interval,
    sign_flip_p,
)
from pruner.study.network.run import read_network_run
from pruner.study.tuning_plots import exploration_share, load_run
from pruner.tune.networks.extraction import TASKS

GROUND = ("part", "target", "workload", "budget_trials")
RUN = (*GROUND, "method", "seed")
OF_RUN = ("total_s", "exploration_share", "failed")
OF_POINT = ("trial", "elapsed_s", "best_s")
TEXTS = ("part", "target", "workload", "method")
WHOLE = ("budget_trials", "seed", "failed", "trial")
EVERY_TARGET = "all"  # of a test over all targets of a part together
Ground = tuple[str, str, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place of a run in one part of a comparison.

    ``budget_trials``: trials a task that the comparison gives, of which some part may give a
    contender several times as many.
    """

    part: str
    target: str
    workload: str
    budget_trials: int
    method: str
    seed: int

    @property
    def key(self) -> dict[str, Any]:
        """The fields of `RUN` by name."""
        return {name: getattr(self, name) for name in RUN}

    @property
    def ground(self) -> Ground:
        """Runs of one ground are compared with each other."""
        return self.part, self.target, self.workload, self.budget_trials


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun(Place):
    """A finished run, as one part of a comparison sees it.

    ``trials`` int64 [T], ``elapsed_s`` and ``best_s`` float64 [T]
    (of a network the weighted sum over its tasks), from the trial at which every task has a
    program; ``total_s`` of the whole run, of which ``exploration_share`` made and scored
    candidates.
    """

    trials: NDArray[np.int64]
    elapsed_s: NDArray[np.float64]
    best_s: NDArray[np.float64]
    total_s: float
    exploration_share: float
    failed: int


def read_live_run(folder: Path, place: Place) -> LiveRun:
    """Read a cell's run folder; raises DataError where a task has no program."""
    network = (folder / TASKS).is_file()
    curve = read_network_run(folder).curve if network else load_run(folder)
    if curve is None or not len(curve.best_s):
        raise DataError(f"{folder}: some task has no program that ran; this cell has no curve")
    metrics, share = load_metrics(folder) or {}, exploration_share(curve.seconds)
    return LiveRun(
        **place.key,
        trials=curve.trial,
        elapsed_s=curve.elapsed_s,
        best_s=curve.best_s,
        total_s=float(metrics["total_seconds"]),
        exploration_share=np.nan if share is None else share,
        failed=int(metrics.get("failed", 0)),
    )


def by_ground(runs: Sequence[LiveRun]) -> dict[Ground, list[LiveRun]]:
    """Group comparable runs by ground, in order of appearance."""
    found: dict[Ground, list[LiveRun]] = {}
    for run in runs:
        found.setdefault(run.ground, []).append(run)
    return found


def cells_of(runs: Sequence[LiveRun]) -> list[MethodRun]:
    """The runs of a ground, latencies relative to the ground's best."""
    least_s = min(run.best_s[-1] for run in runs)
    return [
        MethodRun(
            method=run.method,
            seed=run.seed,
            curve=TuningCurve(
                trials=run.trials,
                relative_latency=run.best_s / least_s,
                elapsed_s=run.elapsed_s,
            ),
        )
        for run in runs
    ]


def result_rows(runs: Sequence[LiveRun], rivals: Sequence[str]) -> list[dict[str, Any]]:
    """A row a run and rival of the same seed and ground.

    See `contest_rows`. ``trials_to`` and ``seconds_to`` the rival's final latency of that seed:
    infinite where it is never reached. ``at_equal_s``: the best latency, in seconds, at the end of
    the shortest run of that ground and seed; infinite where there is none yet.
    """
    rows = []
    for ground, members in by_ground(runs).items():
        known = dict(zip(GROUND, ground, strict=True))
        cells = cells_of(members)
        shortest = {
            seed: min(run.elapsed_s[-1] for run in members if run.seed == seed)
            for seed in {run.seed for run in members}
        }
        for rival in rivals:
            seeds = {cell.seed for cell in cells if cell.method == rival}
            if not seeds:
                continue
            pairs = [pair for pair in zip(members, cells, strict=True) if pair[0].seed in seeds]
            found = contest_rows([cell for _, cell in pairs], rival, **known, against=rival)
            for (run, _), row in zip(pairs, found, strict=True):
                made = np.searchsorted(run.elapsed_s, shortest[run.seed], side="right")
                reached, trials = row.pop("reached"), row.pop("trials_to_baseline")
                seconds = row.pop("seconds_to_baseline")
                row |= {
                    "reached": reached,
                    "trials_to": trials if reached else np.inf,
                    "seconds_to": seconds if reached else np.inf,
                    "trials": int(run.trials[-1]),
                    "final_latency_s": float(run.best_s[-1]),
                    "at_equal_s": float(run.best_s[made - 1]) if made else np.inf,
                    "run_s": run.total_s,
                    "exploration_share": run.exploration_share,
                    "failed": run.failed,
                }
                rows.append(row)
    return rows


def summarise(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Medians over seeds, one row a ground, rival and method.

    ``final_low`` and ``final_high``: 95 % of resampled medians of the final latency. Times to the
    rival's latency have their least and most. ``final_over``: over the rival's own median final.
    """
    key = [*GROUND, "against", "method"]
    grouped = pd.DataFrame(rows).groupby(key, sort=False)
    columns = ["final_latency_s", "at_equal_s", "area", "run_s", "trials_to", "seconds_to",
               "speedup", "cost_share", "exploration_share", "failed"]  # fmt: skip
    out = grouped[columns].median()
    out["reached"] = grouped["reached"].sum()
    for name in ("trials_to", "seconds_to"):
        out[f"{name}_least"], out[f"{name}_most"] = grouped[name].min(), grouped[name].max()
    finals = grouped["final_latency_s"].apply(
        lambda values: _interval(values.to_numpy(), lambda some: float(np.median(some)))
    )
    out["final_low"] = [low for low, _ in finals]
    out["final_high"] = [high for _, high in finals]
    out["seeds"] = grouped.size()
    out = out.reset_index()
    own = out[out.method == out.against].set_index(key[:-1]).final_latency_s
    of_rival = own.reindex(pd.MultiIndex.from_frame(out[key[:-1]])).to_numpy()
    return out.assign(final_over=out.final_latency_s / of_rival)


def _interval(
    values: NDArray[np.float64], statistic: Callable[[NDArray[np.float64]], float]
) -> tuple[float, float]:
    return bootstrap_interval(len(values), lambda chosen: statistic(values[chosen]))


def p_rows(runs: Sequence[LiveRun]) -> list[dict[str, Any]]:
    """A row a part, target, budget and ordered pair of methods.

    It tests whether ``method`` is better than ``other``. A pair is a workload and a seed that both
    have; where a part has several targets, all of them together are tested, too (target
    `EVERY_TARGET`). ``area``: by how much the log relative latency of ``method`` is lower on
    average over the trials from which both have a latency, ``final``: in the end, each the mean
    over pairs with a 95 % interval and the one-sided p of flipped signs, at least ``0.5 ** pairs``.
    """
    units: dict[tuple[str, str, int], dict[str, dict[tuple[str, str, int], MethodRun]]] = {}
    targets: dict[tuple[str, int], set[str]] = {}
    for (part, target, workload, budget_trials), members in by_ground(runs).items():
        targets.setdefault((part, budget_trials), set()).add(target)
        for cell in cells_of(members):
            for tested in (target, EVERY_TARGET):
                methods = units.setdefault((part, tested, budget_trials), {})
                methods.setdefault(cell.method, {})[target, workload, cell.seed] = cell
    rows = []
    for (part, target, budget_trials), methods in units.items():
        if target == EVERY_TARGET and len(targets[part, budget_trials]) < 2:
            continue
        for method, other in permutations(methods, 2):
            shared = [unit for unit in methods[method] if unit in methods[other]]
            if shared:
                pairs = [_common(methods[method][unit], methods[other][unit]) for unit in shared]
                row: dict[str, Any] = {"part": part, "target": target}
                row |= {"budget_trials": budget_trials, "method": method, "other": other}
                row["pairs"] = len(pairs)
                for name, value in _MEASURES.items():
                    gains = np.array([value(theirs) - value(ours) for ours, theirs in pairs])
                    low, high = _interval(gains, lambda some: float(some.mean()))
                    row |= {f"{name}_gain": float(gains.mean()), f"{name}_low": low}
                    row |= {f"{name}_high": high, f"{name}_p": sign_flip_p(gains)}
                rows.append(row)
    return rows


def _common(one: MethodRun, other: MethodRun) -> tuple[MethodRun, MethodRun]:
    """Both runs from the later of their first trials on."""
    first = max(one.curve.trials[0], other.curve.trials[0])

    def cut(run: MethodRun) -> MethodRun:
        curve = run.curve
        start = min(int(np.searchsorted(curve.trials, first)), len(curve.trials) - 1)
        rest = TuningCurve(
            trials=curve.trials[start:],
            relative_latency=curve.relative_latency[start:],
            elapsed_s=curve.elapsed_s[start:],
        )
        return replace(run, curve=rest)

    return cut(one), cut(other)


_MEASURES: dict[str, Callable[[MethodRun], float]] = {
    "area": lambda cell: cell.curve.area,
    "final": lambda cell: float(np.log(cell.curve.final)),
}


def live_curves(runs: Sequence[LiveRun], every: int) -> list[dict[str, Any]]:
    """Relative latency after every so many trials of every run."""
    rows = []
    for ground, members in by_ground(runs).items():
        rows += curve_rows(cells_of(members), every, **dict(zip(GROUND, ground, strict=True)))
    return rows


def point_rows(runs: Iterable[LiveRun], every: int) -> list[dict[str, Any]]:
    """A row for each improvement, every `every` trials and the last trial."""
    rows = []
    for run in runs:
        known = {**run.key, **{name: getattr(run, name) for name in OF_RUN}}
        better = np.diff(run.best_s, prepend=np.inf) < 0
        better |= run.trials % every == 0
        better[-1] = True
        rows += [
            known
            | {
                "trial": int(run.trials[at]),
                "elapsed_s": float(run.elapsed_s[at]),
                "best_s": float(run.best_s[at]),
            }
            for at in np.flatnonzero(better)
        ]
    return rows


def read_points(path: Path) -> list[LiveRun]:
    """The runs of a file of points; none where it is absent.

    Between two points a run has the latency and the seconds of the earlier one. Raises `DataError`:
    no table, a column or a value is missing or no such number, or trials of a run do not grow.
    """
    if not path.is_file():
        return []
    try:
        table = pd.read_csv(path)
    except ValueError as error:
        raise DataError(f"{path}: no table ({str(error).splitlines()[0]})") from error
    if missing := {*RUN, *OF_RUN, *OF_POINT} - {*table.columns}:
        raise DataError(f"{path}: no column {', '.join(sorted(missing))}")
    for name in (*RUN, *OF_RUN, *OF_POINT):
        if (bad := ~_usable(name, table[name])).any():
            line = int(np.flatnonzero(bad)[0]) + 2
            raise DataError(f"{path}, line {line}: {name}={table[name][line - 2]}")
    return [_run(path, dict(zip(RUN, key, strict=True)), points)
            for key, points in table.groupby([*RUN], sort=False)]  # fmt: skip


def _usable(name: str, column: "pd.Series[Any]") -> Bool[np.ndarray, " row"]:
    if name in TEXTS:
        return column.notna().to_numpy()
    values = pd.to_numeric(column, errors="coerce").to_numpy(np.float64)
    if name in WHOLE:
        return np.isfinite(values) & (values % 1 == 0)
    return np.isfinite(values) | (column.isna().to_numpy() & (name == "exploration_share"))


def _run(path: Path, known: dict[str, Any], points: pd.DataFrame) -> LiveRun:
    at = points["trial"].to_numpy(np.int64)
    if (np.diff(at) <= 0).any():
        raise DataError(f"{path}: trials of {known} do not grow; was it written twice?")
    trials = np.arange(at[0], at[-1] + 1)
    last = np.searchsorted(at, trials, side="right") - 1
    first = points.iloc[0]
    return LiveRun(
        **known | {name: int(known[name]) for name in ("budget_trials", "seed")},
        trials=trials,
        elapsed_s=points["elapsed_s"].to_numpy(np.float64)[last],
        best_s=points["best_s"].to_numpy(np.float64)[last],
        total_s=float(first["total_s"]),
        exploration_share=float(first["exploration_share"]),
        failed=int(first["failed"]),
    )


def with_kept(runs: Sequence[LiveRun], kept: Iterable[LiveRun]) -> list[LiveRun]:
    """The runs, and the `kept` runs that are not among these."""
    have = [run.key for run in runs]
    return [*runs, *(run for run in kept if run.key not in have)]

"""Store live runs as the points at which they improved.

Points are small enough to be committed with the tables. A run's folder stays on the machine that
measured it; the tables need only its points, so a comparison continues without the folders of
earlier sessions.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool

from experiments.live.live import GROUND, LiveRun
from pruner.errors import DataError

RUN = (*GROUND, "method", "seed")
OF_RUN = ("total_s", "exploration_share", "failed")
OF_POINT = ("trial", "elapsed_s", "best_s")
TEXTS = ("part", "target", "workload", "method")
WHOLE = ("budget_trials", "seed", "failed", "trial")


def point_rows(runs: Iterable[LiveRun], every: int) -> list[dict[str, Any]]:
    """A row for each improvement and every `every` trials of a run.

    The last trial of a run has a row, too.
    """
    rows = []
    for run in runs:
        known = {name: getattr(run, name) for name in (*RUN, *OF_RUN)}
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

    Between two points a run has the latency and the seconds of the earlier one.

    Raises:
        DataError: no table, a column or a value is missing or no such number, or trials of a run
            do not grow.
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
    have = {_key(run) for run in runs}
    return [*runs, *(run for run in kept if _key(run) not in have)]


def _key(run: LiveRun) -> tuple[str | int, ...]:
    return tuple(getattr(run, name) for name in RUN)

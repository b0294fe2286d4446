"""Learn a forecast of seconds from measured programs.

Workloads that were not learned from have larger errors, so the interval gets a margin: trees that
left some workloads out are tested on these, and the margin is the least with which 90 % of the
programs lie inside (conformalised quantile regression: Romano, Patterson and Candes, NeurIPS 2019,
with folds of workloads in place of one calibration set). For a device without programs in the
training it is another margin, from trees that left a platform out.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from pruner.arrays import Floats, Ints
from pruner.models.analyzer.columns import SCORE, DraftValues
from pruner.models.forecast import ELSEWHERE, LatencyForecast
from pruner.models.trees.lightgbm import import_lightgbm

COVERED = 0.9  # share of programs inside the interval
_QUANTILES = ((1 - COVERED) / 2, 0.5, (1 + COVERED) / 2)
_FOLDS = 5
_MOST = 256  # programs of a task
_ROUNDS = 100
_TREES = {
    "objective": "quantile", "learning_rate": 0.05, "num_leaves": 7, "min_data_in_leaf": 60,
    "bagging_fraction": 0.8, "bagging_freq": 1, "feature_fraction": 0.5, "lambda_l2": 1.0,
    "verbosity": -1, "deterministic": True, "force_row_wise": True,
}  # fmt: skip


def fit_forecast(
    columns: DraftValues,
    latency_s: Float[np.ndarray, " program"],
    task: Int[np.ndarray, " program"],
    workload: Int[np.ndarray, " program"],
    platform: Sequence[str],
    *,
    seed: int = 0,
) -> LatencyForecast:
    """Learn from measured programs, in which every task has the same weight.

    `workload` [N] numbers the workload of a task, which tasks of several platforms may share;
    `platform` [N] are names of devices. A task with many programs is sampled evenly. Raises
    MissingExtra when lightgbm is not installed.
    """
    error = np.log(latency_s) + columns[:, SCORE]
    kept = _sampled(task, np.random.default_rng(seed))
    columns, error, task = columns[kept], error[kept], task[kept]
    names = np.asarray(platform)[kept]
    weight = 1.0 / np.bincount(task)[task]

    def margin(groups: NDArray[Any]) -> float:
        outside = np.zeros(len(error))
        for group in np.unique(groups):
            left_out = groups == group
            known = ~left_out
            trees = _grown(columns[known], error[known], weight[known], seed)
            low, _, high = (one.predict(columns[left_out]) for one in trees)
            outside[left_out] = np.maximum(low - error[left_out], error[left_out] - high)
        return weighted_quantile(outside, weight, COVERED)

    known = np.unique(names)
    own = margin(workload[kept] % _FOLDS)
    margins = dict.fromkeys(known.tolist(), own)
    margins[ELSEWHERE] = max(own, margin(names)) if len(known) > 1 else own
    return LatencyForecast(_grown(columns, error, weight, seed), margins)


def _sampled(task: Ints, rng: np.random.Generator) -> Ints:
    order = rng.permutation(len(task))
    place = np.empty(len(task), np.int64)  # in the random order, inside its task
    by_task = order[np.argsort(task[order], kind="stable")]
    starts = np.cumsum(np.bincount(task)) - np.bincount(task)
    place[by_task] = np.arange(len(task)) - starts[task[by_task]]
    return np.flatnonzero(place < _MOST)


def weighted_quantile(values: Floats, weight: Floats, share: float) -> float:
    """Return the least value that with all smaller values has `share` of the weight."""
    order = np.argsort(values)
    reached = np.cumsum(weight[order]) >= share * weight.sum() * (1 - 1e-12)
    return float(values[order][np.argmax(reached)])


def _grown(columns: DraftValues, error: Floats, weight: Floats, seed: int) -> list[Any]:
    lightgbm = import_lightgbm()
    data = {"data": columns, "label": error, "weight": weight / weight.mean()}
    parameters = {**_TREES, "seed": seed, "num_threads": 1}
    return [
        lightgbm.train({**parameters, "alpha": share}, lightgbm.Dataset(**data), _ROUNDS)
        for share in _QUANTILES
    ]

"""Predict the seconds of programs, with an interval, before anything runs.

The analyzer's seconds are right within a factor of a few, and its error depends on the program: on
its symbols, and on the terms that decide (:mod:`pruner.models.analyzer.columns`). Trees with the
quantile loss (LightGBM) learn the 5 %, 50 % and 95 % quantile of ``log(latency / the analyzer's
seconds)`` from these columns. Workloads that were not learned from have larger errors, so the
interval gets a margin: trees that left some workloads out are tested on these, and the margin is
the least with which 90 % of the programs lie inside (conformalised quantile regression: Romano,
Patterson and Candes, NeurIPS 2019, with folds of workloads in place of one calibration set). For a
device without programs in the training it is another margin, from trees that left a platform out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray

from pruner.arrays import Floats, Ints
from pruner.errors import DataError, MissingExtra
from pruner.models.analyzer.columns import DRAFT_COLUMNS, SCORE, DraftValues
from pruner.models.checkpoint.tensors import load_tensors, save_tensors
from pruner.models.trees.lightgbm import import_lightgbm
from pruner.models.trees.validation import checked_lightgbm
from pruner.paths import checkpoints_folder
from pruner.program.device import Device, GpuDevice

COVERED = 0.9  # share of programs inside the interval
_QUANTILES = ((1 - COVERED) / 2, 0.5, (1 + COVERED) / 2)
ELSEWHERE = ""  # the margin of devices without programs in the training
_FOLDS = 5
_MOST = 256  # programs of a task
_ROUNDS = 100
_TREES = {
    "objective": "quantile", "learning_rate": 0.05, "num_leaves": 7, "min_data_in_leaf": 60,
    "bagging_fraction": 0.8, "bagging_freq": 1, "feature_fraction": 0.5, "lambda_l2": 1.0,
    "verbosity": -1, "deterministic": True, "force_row_wise": True,
}  # fmt: skip
_NAMES = [column.name for column in DRAFT_COLUMNS]
_OPERATIONS = {"cpu": _NAMES.index("cpu.comp_count"), "gpu": _NAMES.index("gpu.l2_comp_count")}

Seconds = Float[np.ndarray, "program 3"]


class LatencyForecast:
    """Seconds of programs from the analyzer's columns: low, median and high."""

    def __init__(self, boosters: Sequence[Any], margins: Mapping[str, float]) -> None:
        """`margins`: by platform of the training, and `ELSEWHERE`."""
        self._boosters, self._margins = boosters, dict(margins)

    @classmethod
    def fit(
        cls,
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
        return cls(_grown(columns, error, weight, seed), margins)

    def __call__(self, columns: DraftValues, device: Device) -> Seconds:
        """Predict the seconds on a device; at least operations over its peak."""
        low, median, high = (one.predict(columns) for one in self._boosters)
        margin = self._margins.get(device.name, self._margins[ELSEWHERE])
        # the trees are grown apart, so quantiles may cross
        error = np.sort([low - margin, median, high + margin], axis=0)
        return np.asarray(np.maximum(np.exp(error - columns[:, SCORE]), least_s(columns, device)).T)

    def holds_on(self, device: Device) -> bool:
        """True on CPUs, and on the GPUs of the training.

        On other GPUs the interval does not hold (experiments/forecast).
        """
        return not isinstance(device, GpuDevice) or device.name in self._margins

    def save(self, path: Path) -> None:
        """Write a file for `load`."""
        texts = [one.model_to_string().encode() for one in self._boosters]
        boosters = [torch.frombuffer(bytearray(text), dtype=torch.uint8) for text in texts]
        save_tensors(path, {"columns": _NAMES, "margins": self._margins, "boosters": boosters})

    @classmethod
    def load(cls, path: Path) -> LatencyForecast:
        """Read a file; raises DataError if absent or damaged, MissingExtra without lightgbm."""
        try:
            content = load_tensors(path)
            if content["columns"] != _NAMES:
                raise DataError("it reads other columns than this version of the analyzer has")
            texts = [state.numpy().tobytes().decode() for state in content["boosters"]]
            booster = import_lightgbm().Booster
            boosters = [booster(model_str=checked_lightgbm(text)) for text in texts]
            margins = {name: float(margin) for name, margin in content["margins"].items()}
            return cls(boosters, {ELSEWHERE: margins[ELSEWHERE], **margins})
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise DataError(f"{path}: no forecast of latencies ({error})") from error
        except DataError as error:
            raise DataError(f"{path}: {error}") from error


def _sampled(task: Ints, rng: np.random.Generator) -> Ints:
    order = rng.permutation(len(task))
    place = np.empty(len(task), np.int64)  # in the random order, inside its task
    by_task = order[np.argsort(task[order], kind="stable")]
    starts = np.cumsum(np.bincount(task)) - np.bincount(task)
    place[by_task] = np.arange(len(task)) - starts[task[by_task]]
    return np.flatnonzero(place < _MOST)


def least_s(columns: DraftValues, device: Device) -> Float[np.ndarray, " program"]:
    """Return the operations of programs over the device's highest peak of floats."""
    peak = device.peak_flops_per_s
    if isinstance(device, GpuDevice):
        peak = max(peak, device.half_peak_flops_per_s)
    operations = np.exp2(columns[:, _OPERATIONS[device.kind]].astype(np.float64)) - 1.0
    return np.asarray(operations / peak)


def weighted_quantile(values: Floats, weight: Floats, share: float) -> float:
    """Return the least value that with all smaller values has `share` of the weight."""
    order = np.argsort(values)
    reached = np.cumsum(weight[order]) >= share * weight.sum() * (1 - 1e-12)
    return float(values[order][np.argmax(reached)])


def forecast_path(kind: str) -> Path:
    """Return the file of a kind's forecast that comes with the project."""
    return checkpoints_folder() / "forecast" / f"{kind}.safetensors"


@cache
def boxed_forecast(kind: str) -> LatencyForecast:
    """Load the forecast that comes with the project; errors as in `LatencyForecast.load`."""
    return LatencyForecast.load(forecast_path(kind))


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Expected seconds: median and range; of several programs sums, as if errors agreed."""

    low_s: float
    median_s: float
    high_s: float

    @property
    def seconds(self) -> list[float]:
        """List low, median and high."""
        return [self.low_s, self.median_s, self.high_s]

    def __str__(self) -> str:
        """Format milliseconds."""
        low, median, high = (f"{1e3 * seconds:.3g}" for seconds in self.seconds)
        return f"{median} ms ({low} to {high})"


def forecast_of(
    columns: Sequence[Sequence[float]], calls: Sequence[float], device: Device
) -> Forecast | None:
    """Forecast the seconds of programs that are called so many times, in all.

    None without programs, records of the GPU, columns of this version, lightgbm or file: no run
    ends.
    """
    if not len(columns) or {len(row) for row in columns} != {len(_NAMES)}:
        return None
    try:
        model = boxed_forecast(device.kind)
    except (MissingExtra, DataError, OSError):
        return None
    if not model.holds_on(device):
        return None
    seconds = model(np.asarray(columns, np.float32), device)
    low_s, median_s, high_s = (np.asarray(calls) @ seconds).tolist()
    return Forecast(low_s=low_s, median_s=median_s, high_s=high_s)


def _grown(columns: DraftValues, error: Floats, weight: Floats, seed: int) -> list[Any]:
    lightgbm = import_lightgbm()
    data = {"data": columns, "label": error, "weight": weight / weight.mean()}
    parameters = {**_TREES, "seed": seed, "num_threads": 1}
    return [
        lightgbm.train({**parameters, "alpha": share}, lightgbm.Dataset(**data), _ROUNDS)
        for share in _QUANTILES
    ]

"""Predict the seconds of programs, with an interval, before anything runs.

The analyzer's seconds are right within a factor of a few, and its error depends on the program: on
its symbols, and on the terms that decide (:mod:`pruner.models.analyzer.columns`). Trees with the
quantile loss (LightGBM) learn the 5 %, 50 % and 95 % quantile of ``log(latency / the analyzer's
seconds)`` from these columns. The interval gets a margin, with which 90 % of the programs of unseen
workloads lie inside; for a device without programs in the training it is another margin. How both
are found: experiments/forecast/fit.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from pruner.errors import DataError, MissingExtra
from pruner.models.analyzer.columns import DRAFT_COLUMNS, SCORE, DraftValues
from pruner.models.checkpoint.tensors import load_tensors, save_tensors
from pruner.models.trees.lightgbm import import_lightgbm
from pruner.models.trees.validation import checked_lightgbm
from pruner.paths import checkpoints_folder
from pruner.program.device import Device, GpuDevice

ELSEWHERE = ""  # the margin of devices without programs in the training
_NAMES = [column.name for column in DRAFT_COLUMNS]
_OPERATIONS = {"cpu": _NAMES.index("cpu.comp_count"), "gpu": _NAMES.index("gpu.l2_comp_count")}

Seconds = Float[np.ndarray, "program 3"]


class LatencyForecast:
    """Seconds of programs from the analyzer's columns: low, median and high."""

    def __init__(self, boosters: Sequence[Any], margins: Mapping[str, float]) -> None:
        """`margins`: by platform of the training, and `ELSEWHERE`."""
        self._boosters, self._margins = boosters, dict(margins)

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


def least_s(columns: DraftValues, device: Device) -> Float[np.ndarray, " program"]:
    """Return the operations of programs over the device's highest peak of floats."""
    peak = device.peak_flops_per_s
    if isinstance(device, GpuDevice):
        peak = max(peak, device.half_peak_flops_per_s)
    operations = np.exp2(columns[:, _OPERATIONS[device.kind]].astype(np.float64)) - 1.0
    return np.asarray(operations / peak)


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

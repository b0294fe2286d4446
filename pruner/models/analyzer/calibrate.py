"""Calibration: fit the analyzer's rates to a few measured programs.

Least squares of the error of log latency, each task's mean removed, by Levenberg and Marquardt's
method on log rates; a ridge holds them near the defaults.
"""

import dataclasses
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from pruner.errors import PrunerError
from pruner.features.symbols.symbol_table import Symbols
from pruner.models.analyzer.analyzer import SymbolAnalyzer
from pruner.models.analyzer.constants import AnalyzerConstants, GpuRates
from pruner.models.analyzer.cpu import CpuRates

log = logging.getLogger(__name__)
_FREE_GPU = (
    "live_operands",
    "kept_operands", "unroll_limit", "unrolled_body", "rolled", "loop", "multiply_add",
    "shared_load", "bank_conflict", "stage", "short_rows", "odd_vectors", "write",
    "scattered_write", "step_cycles", "fetch_cycles", "chain_cycles", "overlap", "row_elements",
    "repeated_traffic", "traffic",
)  # fmt: skip
FREE = {GpuRates: _FREE_GPU, CpuRates: tuple(f.name for f in dataclasses.fields(CpuRates))}
_STEP = 1e-2
_CLIP = 1.5  # log units: a larger error of a program counts no more


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Measured programs of one task: `latency_s` [N] in the order of `symbols`."""

    symbols: tuple[Symbols, ...]
    latency_s: Float[np.ndarray, " program"]
    task: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationResult:
    """Fitted constants, and weighted root mean square errors of log latency."""

    constants: AnalyzerConstants[Any]
    num_programs: int
    error_before: float
    error_after: float


def calibrate(
    samples: Sequence[Sample],
    analyzer: SymbolAnalyzer,
    *,
    ridge: float = 0.5,
    max_steps: int = 25,
    free: Sequence[str] = (),
) -> CalibrationResult:
    """Fit the rates `free` (by default :data:`FREE`) to samples of measured programs.

    Fast programs weigh more: ``sqrt(best / latency)``. A ridge regression towards the analyzer's
    present rates. Raises PrunerError where no task has two programs.
    """
    usable = [s for s in samples if len(s.latency_s) > 1]
    if not usable:
        raise PrunerError("calibration: no task with two measured programs; measure 50 or more")
    constants = analyzer.constants
    free = free or FREE[type(constants.rates)]
    start = np.log([getattr(constants.rates, name) for name in free])

    def with_rates(x: Float[np.ndarray, " rate"]) -> AnalyzerConstants[Any]:
        values = {name: float(np.exp(v)) for name, v in zip(free, x, strict=True)}
        return dataclasses.replace(constants, rates=dataclasses.replace(constants.rates, **values))

    def residual(x: Float[np.ndarray, " rate"]) -> Float[np.ndarray, " row"]:
        fitted = dataclasses.replace(analyzer, constants=with_rates(x))
        rows = [_errors(sample, fitted) for sample in usable]
        return np.concatenate([*rows, ridge * (x - start)])

    x = _least_squares(residual, start, max_steps)
    count = sum(len(s.latency_s) for s in usable)
    before, after = (float(np.sqrt(np.mean(residual(v)[:count] ** 2))) for v in (start, x))
    log.info("calibrated on %d programs: error %.3f -> %.3f", count, before, after)
    names = ", ".join(s.task for s in usable)
    origin = f"fitted to {count} measured programs of {len(usable)} tasks: {names}"
    fitted = dataclasses.replace(with_rates(x), origin=origin)
    return CalibrationResult(
        constants=fitted, num_programs=count, error_before=before, error_after=after
    )


def _errors(sample: Sample, analyzer: SymbolAnalyzer) -> Float[np.ndarray, " program"]:
    predicted = np.concatenate([analyzer.latency_s(symbols) for symbols in sample.symbols])
    weight = np.sqrt(sample.latency_s.min() / sample.latency_s)
    error = np.log(predicted / sample.latency_s)
    # A common factor of a task (its operator, a launch) changes no order, so the fit must not chase
    # it.
    error = error - np.average(error, weights=weight)
    # tanh bounds the pull of one program that the formulas cannot explain (a failed timing, a bug).
    return _CLIP * np.tanh(error / _CLIP) * np.sqrt(weight)


def _least_squares(
    residual: Callable[[Float[np.ndarray, " rate"]], Float[np.ndarray, " row"]],
    start: Float[np.ndarray, " rate"],
    max_steps: int,
) -> Float[np.ndarray, " rate"]:
    """Levenberg-Marquardt with finite differences."""
    x, damping = start.copy(), 1e-2
    r = residual(x)
    for _ in range(max_steps):
        jacobian = np.stack(
            [(residual(x + step) - r) / _STEP for step in np.eye(len(x)) * _STEP], axis=1
        )
        normal, gradient = jacobian.T @ jacobian, jacobian.T @ r
        improved = False
        for _ in range(5):
            move = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-9), -gradient)
            # At most a factor e a step: far away the linearisation of a ceiling or a minimum means
            # nothing.
            candidate = residual(x + np.clip(move, -1, 1))
            if candidate @ candidate < r @ r:
                gain = 1 - (candidate @ candidate) / (r @ r)
                x, r, damping, improved = x + np.clip(move, -1, 1), candidate, damping / 3, True
                break
            damping *= 4
        if not improved or gain < 1e-4:
            break
    return x

"""Judge the draft on measured records, and calibrate its rates.

Best-k stands beside random drafts and the oracle. Calibration fits the rates to a few measured
programs: least squares of the error of log latency, each task's mean removed, by Levenberg and
Marquardt's method on log rates; a ridge holds them near the defaults. Calibrated rates of one half
of the tasks (by a hash of their work) come from the other half.
"""

import hashlib
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from pruner.data.tasks import TaskKey, TaskRecords
from pruner.errors import PrunerError
from pruner.features.symbols.symbol_table import Symbols
from pruner.models.analyzer.analyzer import Analyzer, SymbolAnalyzer
from pruner.models.analyzer.constants import AnalyzerConstants, CpuRates, GpuRates
from pruner.models.judging import metrics
from pruner.models.judging.judge import draft_sizes, expected_latency
from pruner.models.judging.metrics import ScoredTask
from pruner.program.device import Device, GpuDevice
from pruner.program.replay import Definitions, find_definition, replay

log = logging.getLogger(__name__)
_ARCHITECTURE = re.compile(r"-(?:arch|mcpu)=(\w+)")
_TASKS_FITTED = 20
_PROGRAMS_FITTED = 30  # a task with fewer measured programs is not fitted to
_FREE_GPU = (
    "live_operands",
    "kept_operands", "unroll_limit", "unrolled_body", "rolled", "loop", "multiply_add",
    "shared_load", "bank_conflict", "stage", "short_rows", "odd_vectors", "write",
    "scattered_write", "step_cycles", "fetch_cycles", "chain_cycles", "overlap", "row_elements",
    "repeated_traffic", "traffic",
)  # fmt: skip
FREE = {GpuRates: _FREE_GPU, CpuRates: tuple(f.name for f in fields(CpuRates))}
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
        return replace(constants, rates=replace(constants.rates, **values))

    def residual(x: Float[np.ndarray, " rate"]) -> Float[np.ndarray, " row"]:
        fitted = replace(analyzer, constants=with_rates(x))
        rows = [_errors(sample, fitted) for sample in usable]
        return np.concatenate([*rows, ridge * (x - start)])

    x = _least_squares(residual, start, max_steps)
    count = sum(len(s.latency_s) for s in usable)
    before, after = (float(np.sqrt(np.mean(residual(v)[:count] ** 2))) for v in (start, x))
    log.info("calibrated on %d programs: error %.3f -> %.3f", count, before, after)
    names = ", ".join(s.task for s in usable)
    origin = f"fitted to {count} measured programs of {len(usable)} tasks: {names}"
    fitted = replace(with_rates(x), origin=origin)
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskSymbols:
    """Measured programs of one task with symbols, by skeleton.

    `groups`: pairs of rows of the task and their symbols; other rows cannot be replayed.
    """

    name: str
    identity: str
    latency_s: Float[np.ndarray, " program"]
    groups: tuple[tuple[np.ndarray, Symbols], ...]
    timed_s: Float[np.ndarray, "program 2"] | None = None
    key: TaskKey | None = None

    @property
    def fold(self) -> int:
        """Half 0 or 1 by a hash of the work, equal on all platforms."""
        return hashlib.sha256(self.identity.encode()).digest()[0] % 2


def of_another_gpu(records: TaskRecords, device: Device) -> bool:
    """Whether the records' target names another architecture than the device."""
    named = _ARCHITECTURE.search(records.target)
    own = device.architecture if isinstance(device, GpuDevice) else None
    return named is not None and own is not None and named[1] != own


def task_symbols(
    records: TaskRecords, analyzer: SymbolAnalyzer, tasks: Definitions | None = None
) -> TaskSymbols:
    """Symbols of a task's measured programs; raises UnsupportedProgram for an unknown operator."""
    records = records.select(records.valid)
    task = find_definition(records.workload_key, records.fused, records.steps, tasks)
    return TaskSymbols(
        name=task_label(records),
        identity=records.key.identity,
        latency_s=records.latency_s,
        timed_s=records.timed_s,
        key=records.key,
        groups=tuple(
            (rows, analyzer.symbols(nests))
            for rows, nests in replay(task, records.steps, lambda nests: nests).parts
        ),
    )


def task_label(records: TaskRecords) -> str:
    """``platform/task``, as other models name scored tasks."""
    return f"{records.key.platform}/{records.key.task}"


def score_task(task: TaskSymbols, analyzer: SymbolAnalyzer) -> ScoredTask:
    """Scores of a task; minus infinity for programs without symbols."""
    score = np.full(len(task.latency_s), -np.inf)
    for rows, symbols in task.groups:
        score[rows] = -np.log(analyzer.latency_s(symbols))
    names = ("name", "latency_s", "timed_s", "key")
    return ScoredTask(score=score, **{name: getattr(task, name) for name in names})


def score_records(
    records: TaskRecords, scorer: Analyzer, tasks: Definitions | None = None
) -> ScoredTask:
    """Scores of a task's programs without stored symbols; raises as `task_symbols`."""
    records = records.select(records.valid)
    dag = find_definition(records.workload_key, records.fused, records.steps, tasks)
    return ScoredTask(
        name=task_label(records),
        latency_s=records.latency_s,
        score=scorer.score_steps(dag, records.steps),
        timed_s=records.timed_s,
        key=records.key,
    )


def sample_programs(
    tasks: Sequence[TaskSymbols],
    analyzer: SymbolAnalyzer,
    num: int,
    rng: np.random.Generator,
    *,
    every_task: bool = False,
) -> list[Sample]:
    """Draw about `num` programs from 20 tasks that have rates, or from `every_task`."""
    least, most = (2, None) if every_task else (_PROGRAMS_FITTED, _TASKS_FITTED)
    useful = [task for task in tasks if len(task.latency_s) >= least and task.groups]
    useful = [t for t in useful if every_task or analyzer.has_rates_for(t.groups[0][1])]
    chosen = rng.permutation(len(useful))[:most]
    # Two at least: the fit removes each task's mean, so a single program would say nothing.
    each = max(2, num // max(1, len(chosen)))
    return [_sample(useful[number], each, rng) for number in chosen]


def _sample(task: TaskSymbols, num: int, rng: np.random.Generator) -> Sample:
    size = sum(len(rows) for rows, _ in task.groups)
    drawn = np.zeros(size, bool)
    drawn[rng.choice(size, min(num, size), replace=False)] = True
    parts, latency, start = [], [], 0
    for rows, symbols in task.groups:
        pick = np.flatnonzero(drawn[start : start + len(rows)])
        start += len(rows)
        if len(pick):
            parts.append(replace(symbols, values=symbols.values[:, :, pick]))
            latency.append(task.latency_s[rows[pick]])
    return Sample(symbols=tuple(parts), latency_s=np.concatenate(latency), task=task.name)


def cross_calibrated(
    tasks: Sequence[TaskSymbols], analyzer: SymbolAnalyzer, num: int, rng: np.random.Generator
) -> tuple[dict[int, SymbolAnalyzer], dict[int, CalibrationResult]]:
    """Analyzers and fits by fold, from default rates; raises PrunerError without tasks."""
    fits = {}
    analyzer = analyzer.uncalibrated()
    for fold in (0, 1):
        samples = sample_programs([t for t in tasks if t.fold != fold], analyzer, num, rng)
        if not samples:
            raise PrunerError(
                f"calibration: a half of the tasks has none with {_PROGRAMS_FITTED} measured "
                "programs (on GPUs: with staged operands); give more tasks"
            )
        fits[fold] = calibrate(samples, analyzer)
    return {f: replace(analyzer, constants=fit.constants) for f, fit in fits.items()}, fits


def quality(tasks: Sequence[ScoredTask]) -> dict[str, Any]:
    """Best-1 by set size with a random draft's expectation, and ranking metrics."""
    out: dict[str, Any] = {
        "num_tasks": len(tasks),
        "num_programs": sum(task.num_programs for task in tasks),
        "top1": metrics.top_k(tasks, 1),
        "top5": metrics.top_k(tasks, 5),
        "rank_correlation": float(np.mean([_rank_correlation(task) for task in tasks])),
    }
    best_s = sum(task.best_s for task in tasks)
    for name, sizes in draft_sizes(tasks).items():
        pairs = list(zip(tasks, sizes, strict=True))
        expected_s = [expected_latency(task, k) for task, k in pairs]
        ours, chance = metrics.best_k(tasks, 1, sizes), best_s / sum(expected_s)
        own = np.mean([task.best_s / metrics.best_k_latency(task, 1, k) for task, k in pairs])
        random = np.mean([t.best_s / s for t, s in zip(tasks, expected_s, strict=True)])
        out[f"best1_at_{name}"] = ours
        out[f"random_at_{name}"] = chance
        out[f"regret_ratio_at_{name}"] = metrics.regret_against_random(ours, chance)
        mean_regret = metrics.regret_against_random(float(own), float(random))
        out[f"task_mean_regret_ratio_at_{name}"] = mean_regret
    return out


def _rank_correlation(task: ScoredTask) -> float:
    """Spearman's rank correlation; 0 where scores or latencies are constant."""
    # Equal values share the mean of their ranks.
    ranks = [pd.Series(values).rank().to_numpy() for values in (task.score, -task.latency_s)]
    if min(np.ptp(rank) for rank in ranks) == 0:
        return 0.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])

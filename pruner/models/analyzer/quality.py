"""Judge the draft on measured records: Best-k, random and the oracle.

Calibrated rates of one half of the tasks (by a hash of their work) come from the other half.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from pruner.data.tasks import TaskKey, TaskRecords
from pruner.errors import PrunerError
from pruner.features.symbols.symbol_table import Symbols
from pruner.models.analyzer.analyzer import Analyzer, SymbolAnalyzer
from pruner.models.analyzer.calibrate import CalibrationResult, Sample, calibrate
from pruner.models.judging import metrics
from pruner.models.judging.judge import draft_sizes, expected_latency
from pruner.models.judging.metrics import ScoredTask
from pruner.program.device import Device, GpuDevice
from pruner.program.replay import Definitions, find_definition, replay

_ARCHITECTURE = re.compile(r"-(?:arch|mcpu)=(\w+)")
_TASKS_FITTED = 20
_PROGRAMS_FITTED = 30  # a task with fewer measured programs is not fitted to


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
        groups=tuple(replay(task, records.steps, analyzer.symbols).parts),
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
    """At most `num` programs of one task, by skeleton."""
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

"""Fit a cell; judge it on validation tasks, later on test tasks.

Its folder holds the cell's description (``cell.json``), the checkpoint, ``metrics.json``
(validation, and a few training tasks to measure how much it learned by heart), ``valid.npz``
(latencies and scores, for a diagnosis), and, once the choice is made, ``test.json``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from experiments.model.ablation.cells import AblationCell
from pruner.archives import read_arrays
from pruner.data.frozen import Side
from pruner.errors import DataError, PrunerError
from pruner.models.analyzer.columns import SCORE
from pruner.models.judging import metrics
from pruner.models.judging.judge import expected_ratio, noise_ceiling, random_ratio
from pruner.models.judging.metrics import ScoredTask
from pruner.models.programs.assemble import divide
from pruner.models.programs.batch import ProgramBatch
from pruner.models.programs.program_table import ProgramTable
from pruner.models.ranker import RandomRanker, Ranker
from pruner.models.training.fit import fit, ranker_of
from pruner.models.training.recipe import Recipe

TEST, SCORES = "test.json", "valid.npz"
CHANCE, ANALYZER, CEILING = "random", "analyzer", "ceiling"
WITHIN = (1, 5, 8, 16)  # first programs of which the best counts
BY_HEART = 20  # training tasks that are judged, too
_DRAWS_SEED = 0
MAX_SCORES_BYTES = 1 << 32
"""Unpacked: a hundred million programs have less."""

Numbers = dict[str, float]


def numbers_of(tasks: Sequence[ScoredTask]) -> Numbers:
    """Task means of best / best of first k, ratio of sums, accuracy."""
    found = {f"top{k}_task_mean": metrics.top_k_task_mean(tasks, k) for k in WITHIN}
    return {
        **found,
        "top1": metrics.top_k(tasks, 1),
        "pairwise_accuracy": metrics.pairwise_accuracy(tasks),
        "num_tasks": len(tasks),
    }


def chance_of(tasks: Sequence[ScoredTask]) -> Numbers:
    """The metrics of a random ranking, exact except the ratio of sums."""
    found = {
        f"top{k}_task_mean": float(np.mean([expected_ratio(task, k) for task in tasks]))
        for k in WITHIN
    }
    rng = np.random.default_rng(_DRAWS_SEED)
    top1 = random_ratio(tasks, [1] * len(tasks), rng=rng)
    return {**found, "top1": top1, "pairwise_accuracy": 0.5, "num_tasks": len(tasks)}


def ceiling_of(tasks: Sequence[ScoredTask]) -> Numbers | None:
    """The metrics of a second timing; None where programs were timed once."""
    found = noise_ceiling(tasks)
    if found is None:
        return None
    return {name: found[name] for name in (*numbers_of(tasks), "spread") if name in found}


def judged_side(
    ranker: Ranker, programs: ProgramTable, index: Tensor, platforms: Sequence[str]
) -> dict[str, list[ScoredTask]]:
    """Scored tasks of a side, by requested platform with tasks."""
    found = {name: list[ScoredTask]() for name in platforms}
    for task in ranker.score_tasks(programs, index):
        platform = task.name.partition("/")[0]
        if platform in found:
            found[platform].append(task)
    return {name: tasks for name, tasks in found.items() if tasks}


def fit_cell(
    cell: AblationCell, recipe: Recipe, programs: ProgramTable, folder: Path
) -> Mapping[str, Any]:
    """Fit a cell and judge it on validation tasks; returns its metrics."""
    own = folder / cell.name
    split = cell.setting.divided(programs.keys, cell.seed)
    fitted = fit(replace(recipe, seed=cell.seed), programs, split, folder=own)
    sides = divide(programs, split)
    valid = judged_side(fitted.ranker, programs, sides["valid"], cell.setting.learned)
    measured = sides["train"][torch.isfinite(programs.latency_s[sides["train"]])]
    tasks = programs.by_task(measured)
    few = torch.cat(tasks[:: max(1, len(tasks) // BY_HEART)]) if tasks else measured
    learned = judged_side(fitted.ranker, programs, few, cell.setting.learned)
    save_scores(own / SCORES, programs, [task for tasks in valid.values() for task in tasks])
    return {
        **fitted.numbers,
        "valid": {name: numbers_of(tasks) for name, tasks in valid.items()},
        "train": {name: numbers_of(tasks) for name, tasks in learned.items()},
        "split": split.name,
        "split_fingerprint": split.fingerprint,
    }


def judge_cell(cell: AblationCell, programs: ProgramTable, folder: Path) -> dict[str, Numbers]:
    """Judge a fitted cell on test tasks; returns numbers by platform."""
    ranker, _ = ranker_of(folder / cell.name)
    tested = tasks_of(ranker, cell, programs, "test")
    return {name: numbers_of(tasks) for name, tasks in tested.items()}


def tasks_of(
    ranker: Ranker, cell: AblationCell, programs: ProgramTable, side: Side
) -> dict[str, list[ScoredTask]]:
    """Scored tasks of a side by platform; raises DataError where a judge has none."""
    setting = cell.setting
    split = setting.divided(programs.keys, cell.seed)
    platforms = setting.judged if side == "test" else setting.learned
    found = judged_side(ranker, programs, divide(programs, split)[side], platforms)
    if lacking := sorted(set(platforms) - set(found)):
        raise DataError(f"{cell.name}: no {side} task of {', '.join(lacking)}")
    return found


class AnalyzerRanker(Ranker):
    """The score of the analyzer alone, from programs read with draft."""

    needs_fit = False

    def score_batch(self, batch: ProgramBatch, *_: Any) -> Float[np.ndarray, " program"]:
        """Its scores; raises PrunerError where programs were read without draft."""
        if batch.draft is None:
            raise PrunerError("programs were read without what the analyzer makes of them")
        return batch.draft[:, SCORE].numpy().astype(np.float64)


def references(cell: AblationCell, programs: ProgramTable, side: Side) -> list[dict[str, Any]]:
    """Reference rows of a cell's tasks: chance and, if known, analyzer, second timing."""
    rows = []
    drafted = {} if programs.draft is None else tasks_of(AnalyzerRanker(), cell, programs, side)
    for platform, tasks in tasks_of(RandomRanker(), cell, programs, side).items():
        about = {"setting": cell.setting.name, "platform": platform, "seed": cell.seed}
        rows.append({**about, "model": CHANCE, **chance_of(tasks)})
        if platform in drafted:
            rows.append({**about, "model": ANALYZER, **numbers_of(drafted[platform])})
        ceiling = ceiling_of(tasks)
        if ceiling is not None:
            rows.append({**about, "model": CEILING, **ceiling})
    return rows


def save_scores(path: Path, programs: ProgramTable, tasks: Sequence[ScoredTask]) -> None:
    """Save latencies and scores as arrays, and which tasks have dataflow rows."""
    numbers = {f"{key.platform}/{key.task}": n for n, key in enumerate(programs.keys)}

    def has_rows(task: ScoredTask) -> bool:
        own = programs.programs_of([numbers[task.name]])
        return bool(programs.dataflow[own].any())

    arrays: dict[str, np.ndarray] = {
        "names": np.array([task.name for task in tasks]),
        "has_rows": np.array([has_rows(task) for task in tasks]),
        "start": np.cumsum([0, *(task.num_programs for task in tasks)]),
        "latency_s": np.concatenate([task.latency_s for task in tasks]),
        "score": np.concatenate([task.score for task in tasks]),
    }
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]  # the stub knows one keyword


def load_scores(path: Path) -> list[tuple[ScoredTask, bool]]:
    """Load the file of `save_scores`: tasks, and whether they have dataflow rows."""
    try:
        stored = read_arrays(path, most_unpacked=MAX_SCORES_BYTES)
        bounds = list(zip(stored["start"][:-1], stored["start"][1:], strict=True))
        latency_s, score = stored["latency_s"], stored["score"]
        return [
            (
                ScoredTask(name=str(name), latency_s=latency_s[start:end], score=score[start:end]),
                bool(has_rows),
            )
            for name, has_rows, (start, end) in zip(
                stored["names"], stored["has_rows"], bounds, strict=True
            )
        ]
    except (DataError, KeyError, ValueError, TypeError) as error:
        raise DataError(f"{path}: {error}; delete it, and its model is fitted anew") from error

"""A training run: fits of a recipe, each judged, and their summary."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import Logger

from pruner.data.splits import TaskSplit, make_split
from pruner.data.tasks import TaskKey
from pruner.errors import DataError, PrunerError
from pruner.files import load_metrics, save_metrics, write_table
from pruner.models.checkpoint.checkpoint import BEST, git_commit
from pruner.models.checkpoint.tensors import existing
from pruner.models.judging.judge import Report, judge
from pruner.models.programs.program_table import ProgramTable
from pruner.models.training.fit import cpu_threads, fit
from pruner.models.training.recipe import Recipe, Start
from pruner.models.trees.xgboost import Grown
from pruner.progress import silent

TASKS_FILE = "tasks.csv"
NETWORKS_FILE = "networks.csv"  # where the split holds out networks
AVERAGED = (
    "top1", "top5", "top1_task_mean", "top5_task_mean", "pairwise_accuracy",
    "peak_score_1", "peak_score_5", "ndcg", "top1_regret", "top5_regret",
)  # fmt: skip
NETWORK_MEANS = ("top1_network_mean", "top5_network_mean")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """A fit of a run, perhaps without a platform (`left_out`); named "" if alone."""

    name: str
    folder: Path
    split: TaskSplit
    seed: int
    left_out: str | None = None

    @property
    def checkpoint(self) -> Path:
        """Weights of the best epoch."""
        return existing(self.folder / BEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Observers of a fit: callbacks, loggers, tree rounds, the judged result."""

    callbacks: Sequence[Callback] = ()
    loggers: Sequence[Logger] = ()
    grown: Grown | None = None
    judged: Callable[[Mapping[str, Any], Report, Path], None] = silent


Watching = Callable[[Fold], AbstractContextManager[Watch]]


def unwatched(_: Fold) -> AbstractContextManager[Watch]:
    """No observers."""
    return nullcontext(Watch())


def plan(
    keys: Sequence[TaskKey],
    *,
    folder: Path,
    split: TaskSplit,
    seeds: Sequence[int],
    leave_out: Sequence[str] = (),
) -> list[Fold]:
    """Every fit of a run; raises PrunerError for bad seeds or platforms."""
    if not seeds or len(set(seeds)) != len(seeds):
        raise PrunerError(f"seeds={list(seeds)}: give at least one seed, each once")
    present = sorted({key.platform for key in keys})
    if unknown := sorted(set(leave_out) - set(present)):
        raise PrunerError(
            f"leave_out={list(leave_out)}: no records for {unknown}; known: {present}"
        )
    splits: dict[str | None, TaskSplit] = {None: split}
    for name in leave_out:
        splits[name] = make_split("by_platform", keys, split.seed, held_out=[name])
    folds = []
    for left, own_split in splits.items():
        for seed in seeds:
            names = [f"without-{left}"] if left else []
            names += [f"seed-{seed}"] if len(seeds) > 1 else []
            name, own = "/".join(names), folder.joinpath(*names)
            folds.append(Fold(name=name, folder=own, split=own_split, seed=seed, left_out=left))
    return folds


def run_fold(
    recipe: Recipe,
    programs: ProgramTable,
    fold: Fold,
    *,
    config: Mapping[str, Any] | None = None,
    watching: Watching = unwatched,
    stop_after: int | None = None,
    start: Start | None = None,
) -> dict[str, Any] | None:
    """Fit and judge, or return an earlier start's result, None after `stop_after`.

    `start` is a trained model to continue; test tasks whose work it has seen are left out. Raises
    DataError where none is left.
    """
    finished = load_metrics(fold.folder) if fold.name else None
    if finished is not None:
        return finished
    fold.folder.mkdir(parents=True, exist_ok=True)
    recipe = replace(recipe, seed=fold.seed)
    if start is not None:
        left = start.unseen(fold.split)
        if fold.split.test and not left.test:
            raise DataError(
                f"split={left.name}: the checkpoint has seen the work of all "
                f"{len(fold.split.test)} test tasks; give it other records, or the split and "
                "split.seed that it was trained with"
            )
        fold = replace(fold, split=left)
    with watching(fold) as watch, cpu_threads(recipe.num_threads):
        fitted = fit(
            recipe,
            programs,
            fold.split,
            folder=fold.folder,
            config=config,
            callbacks=watch.callbacks,
            loggers=watch.loggers,
            grown=watch.grown,
            stop_after=stop_after,
            start=start,
        )
        if not fitted.finished:
            return None
        report = judge(fitted.ranker, programs, fold.split, min_programs=recipe.min_programs)
        metrics = {
            "seed": fold.seed,
            "num_threads": torch.get_num_threads(),
            "checkpoint": str(fold.checkpoint),
            **report.metrics,
            **fitted.numbers,
            "train_pick": recipe.train_pick,
            "split": fold.split.name,
            "split_fingerprint": fold.split.fingerprint,
            "commit": git_commit(),
        }
        write_table(fold.folder / TASKS_FILE, report.rows)
        if report.networks:
            write_table(fold.folder / NETWORKS_FILE, report.network_rows)
        watch.judged(metrics, report, fold.checkpoint)
    if fold.name:
        save_metrics(fold.folder, metrics)
    return metrics


Results = Mapping[str, Mapping[str, Any] | None]


def judging_folds(folds: Sequence[Fold]) -> list[Fold]:
    """The judging fits: with a platform left out if any."""
    own = [fold for fold in folds if fold.left_out is None]
    return [fold for fold in folds if fold.left_out is not None] or own


def summarise(folds: Sequence[Fold], results: Results, *, transfer: bool) -> dict[str, Any]:
    """Summarise a run: means over the judging fits, and each fit; see `judging_folds`."""
    own = [fold for fold in folds if fold.left_out is None]
    judges = judging_folds(folds)
    found = [(fold, results[fold.name]) for fold in judges]
    done = [(fold, result) for fold, result in found if result is not None]

    def best_valid(fold: Fold) -> float:
        return float((results[fold.name] or {}).get("best_valid", -np.inf))

    summary: dict[str, Any] = {
        "checkpoint": str(max(own, key=best_valid).checkpoint),  # else the first
        "finished": all(result is not None for result in results.values()),
    }
    if done:
        summary |= _averages([result for _, result in done])
        for name in ("num_tasks", "num_programs"):  # all seeds judge the same tasks
            of_each = {fold.left_out: result.get(name, 0) for fold, result in done}
            summary[name] = sum(of_each.values())
        # the full metrics of a part are in its own folder
        numbers = ("seed", "best_epoch", "fit_seconds", "num_tasks", "num_programs")
        names = (*AVERAGED[:5], *NETWORK_MEANS, *numbers)
        summary["parts"] = {
            fold.name or "run": {name: result[name] for name in names if name in result}
            for fold, result in done
        }
    if transfer:
        summary["validation"] = (
            "leave one platform out" if judges != own else "tasks of all platforms"
        )
    return summary


def _averages(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = results[0]
    summary: dict[str, Any] = _means(results, (*AVERAGED, *NETWORK_MEANS))
    if len(results) > 1:
        summary["spread"] = {
            name: float(np.std([result[name] for result in results], ddof=1)) for name in summary
        }
        randoms = [result["random"] for result in results]
        summary["random"] = _means(randoms, (*AVERAGED[:5], *NETWORK_MEANS))
    else:
        summary |= {"random": first["random"], "best_k": first["best_k"]}
    if ceilings := [result["ceiling"] for result in results if "ceiling" in result]:
        summary["ceiling"] = _means(ceilings, ceilings[0])
    for name in ("epochs", "num_threads"):
        summary[name] = max(result.get(name, 0) for result in results)
    if "num_networks" in first:
        summary["num_networks"] = first["num_networks"]
    rates = [r["train_programs_per_second"] for r in results if "train_programs_per_second" in r]
    if rates:
        summary["train_programs_per_second"] = float(np.mean(rates))
    return summary


def _means(rows: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, float]:
    """Mean of every number that all rows have; earlier fits lack some."""
    return {
        name: float(np.mean([row[name] for row in rows]))
        for name in names
        if all(name in row for row in rows)
    }

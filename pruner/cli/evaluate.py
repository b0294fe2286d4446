"""``python evaluate.py``: judge a checkpoint on measured records, a random ranker beside it."""

import time
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor

from pruner.cli.common import (
    build,
    new_run_folder,
    plain,
    run_door,
    save_config,
    save_metrics,
    say,
)
from pruner.cli.dataset import load_dataset, record_root, required_platforms
from pruner.cli.fit import BEST, ranker_of
from pruner.errors import DataError, PrunerError
from pruner.models.assemble import small_tasks_removed
from pruner.models.checkpoint import CheckpointInfo
from pruner.models.ranker import Ranker
from pruner.models.report import full_report
from pruner.models.store import ProgramStore


def evaluate(config: DictConfig) -> dict[str, Any]:
    """Run the command; returns the object of the last line."""
    start = time.perf_counter()
    ranker, info = _ranker(config)
    root = record_root(config.data)
    platforms = required_platforms(config, root)
    folder = new_run_folder(Path(config.outputs), "evaluate", config.run_id, "-".join(platforms))
    save_config(folder, config)
    dataflow = info.dataflow if info else config.features.dataflow
    dataset = load_dataset(
        root, platforms, dataflow=dataflow, duplicates=config.data.duplicates, folder=folder
    )
    index = small_tasks_removed(
        dataset.store, _judged(config, dataset.store, info), config.min_programs
    )
    if not len(index):
        raise DataError(
            "no task is left to judge: all were used for training or have fewer than "
            f"min_programs={config.min_programs} programs; tasks=all judges them anyway"
        )
    scoring = time.perf_counter()
    scored = ranker.score_tasks(dataset.store, index)
    scoring = time.perf_counter() - scoring
    result = {
        **full_report(scored),
        "run_dir": str(folder),
        "checkpoint": config.checkpoint,
        "model": plain(config.model) if info is None else dict(info.model),
        "scored_programs_per_second": round(len(index) / max(scoring, 1e-9)),
        "data": dataset.report(),
        "seconds": round(time.perf_counter() - start, 2),
    }
    save_metrics(folder, result)
    _show(result)
    return result


def _ranker(config: DictConfig) -> tuple[Ranker, CheckpointInfo | None]:
    model = config.get("model")
    if (config.checkpoint is None) == (model is None):
        raise PrunerError("give either checkpoint=FILE (of train.py) or model=random")
    if config.checkpoint is not None:
        return ranker_of(_checkpoint_file(Path(config.checkpoint)))
    ranker = build(model)
    if not isinstance(ranker, Ranker) or hasattr(ranker, "fit"):
        raise PrunerError("this model learns: train it with train.py and give checkpoint=FILE")
    return ranker, None


def _checkpoint_file(path: Path) -> Path:
    """The file itself, or the checkpoint of a run folder with one fit."""
    if not path.is_dir():
        return path
    parts = sorted(path.glob(f"*/{BEST}"))
    if parts and not (path / BEST).exists():
        raise PrunerError(
            f"{path} holds {len(parts)} fits; give one of them, such as checkpoint={parts[0]}"
        )
    return path / BEST


def _judged(config: DictConfig, store: ProgramStore, info: CheckpointInfo | None) -> Tensor:
    """Programs of the tasks to judge; by default not those that the checkpoint was fitted on."""
    if config.tasks not in ("unseen", "all"):
        raise PrunerError(f"tasks={config.tasks} is unknown; known: unseen, all")
    if info is None or config.tasks == "all":
        return torch.arange(store.num_programs)
    numbers = [
        number
        for number, key in enumerate(store.keys)
        if key.task not in info.seen_tasks.get(key.platform, ())
    ]
    if len(numbers) < len(store.keys):
        say(
            f"{len(store.keys) - len(numbers)} of {len(store.keys)} tasks left out: the checkpoint "
            "was fitted or validated on them (tasks=all judges them too)"
        )
    return store.programs_of(numbers)


def _show(result: dict[str, Any]) -> None:
    """A small table for people, on stderr."""
    chance = result["random"]
    say(f"{result['num_tasks']} tasks, {result['num_programs']:,} programs     ours   random")
    for name in ("top1", "top5", "pairwise_accuracy"):
        say(f"{name:32s} {result[name]:7.4f}  {chance[name]:7.4f}")
    for name, value in result["best_k"].items():
        say(f"{name:32s} {value:7.4f}  {chance['best_k'][name]:7.4f}")


def main() -> None:
    """Open the door."""
    run_door("evaluate", evaluate)


if __name__ == "__main__":
    main()

"""``pruner predict``: score recorded programs, or forecast networks, into CSV."""

import time
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig

from pruner.cli.shared.known import check_idle
from pruner.cli.shared.options import own_models
from pruner.cli.shared.output import check_file, say
from pruner.cli.shared.progress import track
from pruner.cli.shared.records import kind_of, record_root, required_platforms
from pruner.cli.shared.runs import open_run
from pruner.data.quarantine import Quarantine
from pruner.errors import MissingExtra, PrunerError
from pruner.files import save_metrics, write_atomic
from pruner.models.predict import scored_tasks
from pruner.models.training.fit import ranker_of
from pruner.models.trees.lightgbm import import_lightgbm
from pruner.program.replay import definitions_of

_OF_NETWORKS = ("below_ms", "candidates", "layout", "precision", "target", "drafts", "seed")


def _has_seconds(config: DictConfig) -> bool:
    if config.seconds:
        try:
            import_lightgbm()
        except MissingExtra as error:
            say(f"no column predicted_s: {error}")
            return False
    return bool(config.seconds)


def predict(config: DictConfig) -> dict[str, Any]:
    """Run the command; return the object of the last line."""
    start = time.perf_counter()
    check_file("out", config.out)
    if config.networks is not None:
        from pruner.cli.tuning.predict_networks import predict_networks  # imports TVM

        return predict_networks(config)
    check_idle("predict", config, _OF_NETWORKS, "it is an option of networks=")
    if config.checkpoint is None:
        raise PrunerError(
            "give checkpoint=FILE, or the folder of a run of train.py; or networks= for networks"
        )
    ranker, info = ranker_of(Path(config.checkpoint), own_models(config.models.own))
    root = record_root(config.data, kind_of(config, info))
    platforms = required_platforms(config, root)
    label = "-".join(platforms)
    folder = open_run(config, "predict", label)
    out = Path(config.out or folder / "scores.csv")
    out.parent.mkdir(parents=True, exist_ok=True)  # a wrong path ends the command before its work
    with Quarantine(folder / "quarantine.jsonl") as quarantine:
        files = len(root.task_files(list(platforms)))
        read = root.read(
            quarantine, list(platforms), duplicates=config.data.duplicates, measured=False
        )
        known = definitions_of(root.path)
        tasks = scored_tasks(
            ranker, read, info.dataflow, known, quarantine, seconds=_has_seconds(config)
        )
        table = pd.concat(list(track(tasks, f"scoring {label}", files)), ignore_index=True)
    with write_atomic(out) as partial:
        table.to_csv(partial, index=False)
    without = int(table.score.isna().sum())
    if without:
        say(f"{without:,} of {len(table):,} programs have no features, so no score")
    result = {
        "run_dir": str(folder),
        "scores": str(out),
        "num_programs": len(table),
        "num_tasks": len(table[["platform", "task"]].drop_duplicates()),
        "num_without_score": without,
        "quarantined": dict(quarantine.counts),
        "seconds": round(time.perf_counter() - start, 2),
    }
    save_metrics(folder, result)
    return result

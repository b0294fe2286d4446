"""``python -m pruner.cli.results_table``: models x platforms x seeds, one table.

Every fit keeps its folder under the run folder, so an interrupted run goes on with `resume=`.
"""

import csv
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hydra import compose
from omegaconf import DictConfig

from pruner.cli.common import (
    load_metrics,
    new_run_folder,
    resumed_config,
    run_door,
    save_config,
    save_metrics,
    say,
)
from pruner.cli.dataset import Dataset, load_dataset, record_root
from pruner.cli.fit import Part, judge, ranker_of, run_part
from pruner.data.splits import Split, make_split
from pruner.data.store import RecordRoot
from pruner.errors import PrunerError
from pruner.models.assemble import divide, small_tasks_removed
from pruner.models.checkpoint import git_commit
from pruner.models.ranker import RandomRanker
from pruner.models.report import random_report

METRICS = ("top1", "top5", "pairwise_accuracy", "top1_task_mean", "top5_task_mean", "ndcg")
COLUMNS = (
    "platform",
    "model",
    "seed",
    "split",
    *METRICS,
    "num_tasks",
    "num_programs",
    "num_train_programs",
    "fit_seconds",
    "train_programs_per_second",
    "best_epoch",
    "commit",
)
Row = dict[str, Any]


def results_table(config: DictConfig) -> dict[str, Any]:
    """Run the command; returns the object of the last line."""
    start = time.perf_counter()
    earlier = Path(config.resume) if config.resume else None
    if earlier is not None:
        config = resumed_config(earlier, config)
    root = record_root(config.data)
    missing = sorted(set(config.platforms) - set(root.platforms))
    if missing or not config.platforms or not config.models or not config.seeds:
        raise PrunerError(
            f"platforms={list(config.platforms)}, models={list(config.models)}, "
            f"seeds={list(config.seeds)}: each needs an entry; records here: {root.platforms}"
        )
    folder = earlier or new_run_folder(
        Path(config.outputs), "results_table", config.run_id, "-".join(config.platforms)
    )
    save_config(folder, config)
    rows = [row for name in config.platforms for row in platform_rows(config, root, name, folder)]
    out = Path(config.out)
    write_csv(out / "results.csv", rows)
    text = markdown(rows)
    (out / "results.md").write_text(text, encoding="utf-8")
    say(text)
    result = {
        "run_dir": str(folder),
        "results": str(out / "results.csv"),
        "rows": len(rows),
        "mean": {f"{p}/{m}": _means(found) for (p, m), found in grouped(rows).items()},
        "seconds": round(time.perf_counter() - start, 1),
    }
    save_metrics(folder, result)
    return result


def platform_rows(config: DictConfig, root: RecordRoot, platform: str, folder: Path) -> list[Row]:
    """All rows of one platform; its records are read once for each kind of dataflow features."""
    datasets: dict[str, Dataset] = {}

    def dataset(dataflow: str) -> Dataset:
        if dataflow not in datasets:
            datasets[dataflow] = load_dataset(root, [platform], dataflow=dataflow, folder=folder)
        return datasets[dataflow]

    rows = []
    for seed in config.seeds:
        for model in config.models:
            part_folder = folder / platform / model / f"seed-{seed}"
            finished = load_metrics(part_folder)
            metrics = finished or _metrics(config, model, platform, seed, part_folder, dataset)
            rows.append(_row(platform, model, seed, metrics))
        for name, path in config.checkpoints.items():
            _, info = ranker_of(Path(path))
            store = dataset(info.dataflow).store
            test = divide(store, _split(config, store.keys, seed))["test"]
            judged = {**judge(Path(path), store, test, 1), "split": config.split}
            rows.append(_row(platform, name, seed, judged))
    return rows


def _metrics(
    config: DictConfig, model: str, platform: str, seed: int, folder: Path, dataset: Any
) -> Mapping[str, Any]:
    choices = [f"platform={platform}", *config.overrides]
    if model == "random":
        store = dataset("paper").store
        test = divide(store, _split(config, store.keys, seed))["test"]
        return _random_metrics(store, test, config.split)
    fit_config = compose("train", overrides=[*choices, f"model={model}"])
    store = dataset(fit_config.features.dataflow).store
    part = Part(
        name=f"{platform}/{model}/seed-{seed}",
        folder=folder,
        split=_split(config, store.keys, seed),
        seed=seed,
    )
    metrics = run_part(fit_config, store, part)
    if metrics is None:
        raise PrunerError(f"{part.name}: stop_after= has no place in a table")
    return metrics


def _random_metrics(store: Any, test: Any, split: str) -> Row:
    """Exact means over random rankings where there is a closed form, else over many draws."""
    tasks = RandomRanker().score_tasks(store, small_tasks_removed(store, test, 1))
    report = random_report(tasks)
    return {
        **{name: report[name] for name in ("top1", "top5", "pairwise_accuracy")},
        "split": split,
        "num_tasks": len(tasks),
        "num_programs": sum(task.num_programs for task in tasks),
    }


def _split(config: DictConfig, keys: Any, seed: int) -> Split:
    return make_split(config.split, keys, seed if config.resplit else 0)


def _row(platform: str, model: str, seed: int, metrics: Mapping[str, Any]) -> Row:
    row = {name: metrics.get(name) for name in COLUMNS}
    return row | {"platform": platform, "model": model, "seed": seed, "commit": git_commit()}


def grouped(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """Rows of each platform and model, in order of appearance."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["platform"], row["model"]), []).append(row)
    return groups


def _means(rows: Sequence[Row]) -> dict[str, float]:
    return {
        name: float(np.mean([row[name] for row in rows]))
        for name in METRICS
        if all(row[name] is not None for row in rows)
    }


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """One line a row, numbers with six digits, columns as in COLUMNS."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, COLUMNS)
        writer.writeheader()
        for row in rows:
            writer.writerow({k: f"{v:.6f}" if isinstance(v, float) else v for k, v in row.items()})


def markdown(rows: Sequence[Row]) -> str:
    """Means, with the sample standard deviation over seeds behind them."""
    shown = METRICS[:5]
    lines = [
        "| platform | model | seeds | " + " | ".join(shown) + " |",
        "|---|---|---|" + "---|" * len(shown),
    ]
    for (platform, model), found in grouped(rows).items():
        cells = [_cell([row[name] for row in found]) for name in shown]
        lines.append(f"| {platform} | {model} | {len(found)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    spread = f" ± {np.std(known, ddof=1):.3f}" if len(known) > 1 else ""
    return f"{np.mean(known):.3f}{spread}"


def main() -> None:
    """Open the door."""
    run_door("results_table", results_table)


if __name__ == "__main__":
    main()

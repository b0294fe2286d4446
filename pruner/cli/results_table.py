"""``python -m pruner.cli.results_table``: models x platforms x seeds, one table.

Every fit keeps its folder under the run folder, so an interrupted run goes on with `resume=`.
"""

import csv
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
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
from pruner.cli.dataset import Dataset, chosen_platforms, load_dataset, record_root
from pruner.cli.fit import Part, ranker_of, run_part, scored_tasks
from pruner.cli.options import check_options
from pruner.data.splits import Split, make_split
from pruner.data.store import RecordRoot
from pruner.errors import PrunerError
from pruner.models.assemble import divide, small_tasks_removed
from pruner.models.checkpoint import git_commit
from pruner.models.ranker import RandomRanker
from pruner.models.report import full_report, random_report

METRICS = ("top1", "top5", "pairwise_accuracy", "top1_task_mean", "top5_task_mean", "ndcg")
COLUMNS = (
    "platform",
    "model",
    "seed",
    "train_share",
    "train_pick",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """One cell of the table: `variant` are the options of train.py that make the model."""

    platform: str
    model: str
    seed: int
    variant: tuple[str, ...] = ()
    share: float = 1.0

    @property
    def name(self) -> str:
        """Folder of the fit below the run folder."""
        share = "" if self.share == 1 else f"-share-{self.share}"
        return f"{self.platform}/{self.model}{share}/seed-{self.seed}"


def results_table(config: DictConfig) -> dict[str, Any]:
    """Run the command; returns the object of the last line."""
    start = time.perf_counter()
    earlier = Path(config.resume) if config.resume else None
    if earlier is not None:
        config = resumed_config(earlier, config)
    root = record_root(config.data)
    missing = sorted(set(config.platforms) - set(root.platforms))
    lists = ("platforms", "models", "seeds", "shares")
    if missing or not all(config[name] for name in lists):
        given = ", ".join(f"{name}={list(config[name])}" for name in lists)
        raise PrunerError(f"{given}: each needs an entry; records here: {root.platforms}")
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
        "mean": {"/".join(key): _means(found) for key, found in grouped(rows).items()},
        "seconds": round(time.perf_counter() - start, 1),
    }
    save_metrics(folder, result)
    return result


def platform_rows(config: DictConfig, root: RecordRoot, platform: str, folder: Path) -> list[Row]:
    """All rows of one platform; records are read once for each kind of dataflow features."""

    @cache
    def dataset(dataflow: str, platforms: tuple[str, ...] = (platform,)) -> Dataset:
        return load_dataset(root, platforms, dataflow=dataflow, folder=folder)

    rows = []
    for seed, share, model in product(config.seeds, config.shares, config.models):
        fit = Fit(
            platform=platform,
            model=model,
            variant=tuple(config.variants.get(model, (f"model={model}",))),
            seed=seed,
            share=share,
        )
        finished = load_metrics(folder / fit.name)
        metrics = finished or _metrics(config, fit, folder / fit.name, root, dataset)
        rows.append(_row(fit, metrics))
    for seed in config.seeds:
        for name, path in config.checkpoints.items():
            ranker, info = ranker_of(Path(path))
            store = dataset(info.dataflow).store
            test = divide(store, _split(config, store.keys, seed))["test"]
            judged = {**full_report(scored_tasks(ranker, store, test, 1)), "split": config.split}
            rows.append(_row(Fit(platform=platform, model=name, seed=seed), judged))
    return rows


def _metrics(
    config: DictConfig, fit: Fit, folder: Path, root: RecordRoot, dataset: Any
) -> Mapping[str, Any]:
    if fit.model == "random":
        store = dataset("paper").store
        test = divide(store, _split(config, store.keys, fit.seed))["test"]
        return _random_metrics(store, test, config.split)
    choices = [f"platform={fit.platform}", f"train_share={fit.share}", *config.overrides]
    fit_config = compose("train", overrides=[*choices, *fit.variant])
    check_options(fit_config)
    platforms = chosen_platforms(fit_config.data, fit.platform, root)
    store = dataset(fit_config.features.dataflow, platforms).store
    split = _split(config, store.keys, fit.seed)
    own = tuple(key for key in split.test if key.platform == fit.platform)
    split = replace(split, test=own)  # a variant may learn from other platforms, too
    part = Part(name=fit.name, folder=folder, split=split, seed=fit.seed)
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


def _row(fit: Fit, metrics: Mapping[str, Any]) -> Row:
    known = {"platform": fit.platform, "model": fit.model, "seed": fit.seed}
    row = {name: metrics.get(name) for name in COLUMNS}
    return row | known | {"train_share": fit.share, "commit": git_commit()}


def grouped(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """Rows of each platform and model (with its share, unless 1), in order of appearance."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        share = row["train_share"]
        model = row["model"] if share == 1 else f"{row['model']} at {share}"
        groups.setdefault((row["platform"], model), []).append(row)
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

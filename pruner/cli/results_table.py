"""``python -m pruner.cli.results_table``: models x platforms x seeds, one table.

Every fit keeps its folder under the run folder, so an interrupted run goes on with `resume=`. With
``keep_rows=true`` the table itself is what goes on: rows that it has are not made again. Options
that would make those rows otherwise are written beside the table, and have to be the same.
"""

import csv
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra import compose
from omegaconf import DictConfig, OmegaConf

from pruner.cli.dataset import chosen_platforms, load_dataset, record_root
from pruner.cli.door import run_door
from pruner.cli.fit import Part, ranker_of, run_part, scored_tasks
from pruner.cli.options import check_options, plain
from pruner.cli.output import say
from pruner.cli.runs import new_run_folder, resumed_config, save_config
from pruner.data.root import RecordRoot
from pruner.data.splits import Split, make_split
from pruner.errors import DataError, PrunerError
from pruner.files import load_metrics, save_metrics
from pruner.models.checkpoint.checkpoint import git_commit
from pruner.models.judging.summary import full_report, random_report
from pruner.models.programs.assemble import divide, small_tasks_removed
from pruner.models.programs.dataset import Dataset
from pruner.models.programs.store import ProgramStore
from pruner.models.ranker import RandomRanker
from pruner.study.workers import forked

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
SAME = ["split", "resplit", "overrides"]  # options that a table has one value of
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

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells its row from others of the table."""
        return (self.platform, self.model, self.seed, self.share)


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
    rows = _kept_rows(config) if config.keep_rows else []
    kept = {(row["platform"], row["model"], row["seed"], row["train_share"]) for row in rows}
    _refuse_foreign_platforms(config, root, kept)
    folder = earlier or new_run_folder(
        Path(config.outputs), "results_table", config.run_id, "-".join(config.platforms)
    )
    save_config(folder, config)
    torch.set_num_threads(1)  # processes share the cores; every fit has its own num_threads
    out = Path(config.out or folder)
    for name in config.platforms:
        for row in platform_rows(config, root, name, folder, kept):
            rows.append(row)
            if config.keep_rows:  # whatever happens later, this one is made
                _write(config, out, rows)
    _write(config, out, rows)
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


def _kept_rows(config: DictConfig) -> list[Row]:
    """Rows of the table in ``config.out``, none where there is no table.

    Raises PrunerError when this run would make them otherwise.
    """
    if config.out is None:
        raise PrunerError("keep_rows=true: give out=, the folder of the table that goes on")
    out = Path(config.out)
    rows = read_csv(out / "results.csv")
    beside = out / "options.yaml"
    earlier = plain(OmegaConf.load(beside)) if beside.is_file() else {}
    for name in SAME if rows else []:
        before, now = earlier.get(name), plain(config[name])
        if before != now:
            raise PrunerError(
                f"keep_rows=true: rows of {out} have {name}={before}, not {now}, by {beside}; "
                "give the same, or another out="
            )
    return rows


def _write(config: DictConfig, out: Path, rows: Sequence[Row]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(OmegaConf.masked_copy(config, SAME), out / "options.yaml", resolve=True)
    write_csv(out / "results.csv", rows)


def _fits(config: DictConfig, platform: str, kept: Set[tuple[Any, ...]]) -> list[Fit]:
    """Fits of a platform whose rows are not `kept`."""
    fits = [
        Fit(
            platform=platform,
            model=model,
            variant=tuple(config.variants.get(model, (f"model={model}",))),
            seed=seed,
            share=share,
        )
        for seed, share, model in product(config.seeds, config.shares, config.models)
    ]
    return [fit for fit in fits if fit.key not in kept]


def _refuse_foreign_platforms(
    config: DictConfig, root: RecordRoot, kept: Set[tuple[Any, ...]]
) -> None:
    """Raise PrunerError for a row on a platform that its model does not learn from: the fit, hours
    perhaps, would be in vain."""
    fits = [fit for name in config.platforms for fit in _fits(config, name, kept)]
    for fit in {(fit.platform, fit.model): fit for fit in fits if fit.model != "random"}.values():
        data = _options_of(config, fit).data
        try:
            learned = chosen_platforms(data, fit.platform, root)
        except DataError as error:
            raise DataError(f"{error}; or leave {fit.model} out of models=") from error
        if fit.platform not in learned:
            raise PrunerError(
                f"{fit.model} learns from {', '.join(learned)}, so it has no row of "
                f"{fit.platform}: leave {fit.model} out of models=, or {fit.platform} out of "
                "platforms="
            )


def platform_rows(
    config: DictConfig, root: RecordRoot, platform: str, folder: Path, kept: Set[tuple[Any, ...]]
) -> Iterator[Row]:
    """Rows of one platform that are not `kept`, one after another; records are read once for each
    kind of dataflow features."""

    @cache
    def dataset(dataflow: str, platforms: tuple[str, ...] = (platform,)) -> Dataset:
        stored = config.data.get("cache")
        return load_dataset(root, platforms, dataflow=dataflow, folder=folder, cache=stored)

    fits = _fits(config, platform, kept)
    for fit, metrics in _all_metrics(config, fits, root, folder, dataset):
        yield _row(fit, metrics)
    for seed, (name, path) in product(config.seeds, config.checkpoints.items()):
        fit = Fit(platform=platform, model=name, seed=seed)
        if fit.key in kept:
            continue
        ranker, info = ranker_of(Path(path))
        store = dataset(info.dataflow).store
        test = divide(store, _split(config, store.keys, seed))["test"]
        judged = {**full_report(scored_tasks(ranker, store, test, 1)), "split": config.split.name}
        yield _row(fit, judged)


def _all_metrics(
    config: DictConfig, fits: Sequence[Fit], root: RecordRoot, folder: Path, dataset: Any
) -> Iterator[tuple[Fit, Mapping[str, Any]]]:
    """Every fit with its metrics, in order; `num_workers` processes share what is not there yet."""

    def finished(fit: Fit) -> Mapping[str, Any] | None:
        return load_metrics(folder / fit.name)

    def make(fit: Fit) -> Mapping[str, Any]:
        return _metrics(config, fit, folder, root, dataset)

    waiting = [fit for fit in fits if fit.model != "random" and finished(fit) is None]
    number = min(config.num_workers or 1, len(waiting))
    if number < 2:
        for fit in fits:
            yield fit, finished(fit) or make(fit)
        return
    for fit in waiting:  # read before the fork
        _data_of(config, fit, root, dataset)
    with forked(waiting, make, number, say) as working:
        for fit in fits:
            metrics = make(fit) if fit.model == "random" else finished(fit)
            while metrics is None and working():
                metrics = finished(fit)
            metrics = metrics or finished(fit)
            if metrics is None:
                raise PrunerError(f"{fit.name}: no result; resume={folder} tries it again")
            yield fit, metrics


def _metrics(
    config: DictConfig, fit: Fit, run: Path, root: RecordRoot, dataset: Any
) -> Mapping[str, Any]:
    if fit.model == "random":
        store = dataset("paper").store
        test = divide(store, _split(config, store.keys, fit.seed))["test"]
        return _random_metrics(store, test, config.split.name)
    fit_config, store = _data_of(config, fit, root, dataset)
    split = _split(config, store.keys, fit.seed)
    joint = "+".join(sorted({key.platform for key in store.keys}))
    name = replace(fit, platform=joint).name  # one fit for the rows of all its platforms
    part = Part(name=name, folder=run / name, split=split, seed=fit.seed)
    metrics = run_part(fit_config, store, part)
    if metrics is None:
        raise PrunerError(f"{part.name}: stop_after= has no place in a table")
    if joint == fit.platform:
        return metrics
    own = tuple(key for key in split.test if key.platform == fit.platform)
    test = divide(store, replace(split, test=own))["test"]
    scored = scored_tasks(ranker_of(part.checkpoint)[0], store, test, fit_config.min_programs)
    metrics |= full_report(scored)
    (run / fit.name).mkdir(parents=True, exist_ok=True)
    save_metrics(run / fit.name, metrics)
    return metrics


def _options_of(config: DictConfig, fit: Fit) -> DictConfig:
    """Options of train.py for a fit; those given to every training come last."""
    choices = [f"platform={fit.platform}", f"train_share={fit.share}", *fit.variant]
    options = compose("train", overrides=[*choices, *config.overrides])
    check_options(options)
    return options


def _data_of(
    config: DictConfig, fit: Fit, root: RecordRoot, dataset: Any
) -> tuple[DictConfig, ProgramStore]:
    """The options of a fit and the programs that it learns from or is judged by."""
    fit_config = _options_of(config, fit)
    platforms = chosen_platforms(fit_config.data, fit.platform, root)
    return fit_config, dataset(fit_config.features.dataflow, platforms).store


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
    options = plain(config.split)
    name, own_seed = options.pop("name"), options.pop("seed")
    return make_split(name, keys, seed if config.resplit else own_seed, **options)


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
    with path.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, COLUMNS)
        writer.writeheader()
        for row in rows:
            writer.writerow({k: f"{v:.6f}" if isinstance(v, float) else v for k, v in row.items()})


def read_csv(path: Path) -> list[Row]:
    """What `write_csv` wrote; no rows where there is no file.

    Raises PrunerError for a file with other columns.
    """
    if not path.is_file():
        return []
    with path.open(encoding="utf-8") as handle:
        reader = csv.DictReader(handle)
        if wrong := set(reader.fieldnames or ()) ^ set(COLUMNS):
            raise PrunerError(
                f"{path}: the table lacks, or only it has, {', '.join(sorted(wrong))}; "
                "leave out keep_rows=true, or give another out="
            )
        return [{k: _value(v) for k, v in row.items()} for row in reader]


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text or None


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

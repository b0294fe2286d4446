"""``pruner results_table``: a table of models x platforms x seeds.

Each fit keeps its folder, so `resume=` continues a run; ``keep_rows=true`` continues a table.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from pruner.cli.shared import loggers
from pruner.cli.shared.known import read_words
from pruner.cli.shared.options import plain, several
from pruner.cli.shared.output import say
from pruner.cli.shared.recipe_options import recipe_of, watching
from pruner.cli.shared.records import chosen_platforms, load_dataset, record_root, split_of
from pruner.cli.shared.runs import continued, open_run
from pruner.data.root import RecordRoot
from pruner.data.splits import TaskSplit
from pruner.data.tasks import TaskKey
from pruner.errors import DataError, PrunerError
from pruner.features.device_vector import platform_kind
from pruner.files import save_metrics, write_table
from pruner.models.programs.program_table import ProgramTable
from pruner.models.programs.reading import ReadSpec
from pruner.models.training.training import build_network
from pruner.study.model_table import (
    NOT_FITTED,
    ResultsTable,
    Row,
    Source,
    TableCell,
    Variant,
    grouped,
    markdown,
    means,
    read_rows,
)

# options with a single value for a table; earlier tables lack those of the records
SAME, RECORDS = ["split", "resplit", "overrides"], ["data.root", "data.duplicates"]


def results_table(config: DictConfig) -> dict[str, Any]:
    """Run the command; return the object of the last line."""
    start = time.perf_counter()
    config, earlier = continued(config)
    for name in ("platforms", "models", "overrides"):
        config[name] = several(config[name])
    root = record_root(config.data, next(map(platform_kind, config.platforms), None))
    missing = sorted(set(config.platforms) - set(root.platforms))
    lists = ("platforms", "models", "seeds", "shares")
    if missing or not all(config[name] for name in lists):
        given = ", ".join(f"{name}={list(config[name])}" for name in lists)
        raise PrunerError(f"{given}: each needs an entry; records here: {root.platforms}")
    rows = _kept_rows(config) if config.keep_rows else []
    kept = {(row["platform"], row["model"], row["seed"], row["train_share"]) for row in rows}
    grid = [*product(config.seeds, config.shares, config.models)]
    cells = {
        name: [TableCell(platform=name, model=m, seed=s, share=share) for s, share, m in grid]
        for name in config.platforms
    }
    every = [cell for found in cells.values() for cell in found if cell.key not in kept]
    _refuse_foreign_platforms(config, root, every)
    if config.out is not None:  # a file there ends the command before its work
        Path(config.out).mkdir(parents=True, exist_ok=True)
    folder = open_run(config, "results_table", "-".join(config.platforms), earlier)
    torch.set_num_threads(1)  # processes share the cores; every fit has its own num_threads
    out = Path(config.out or folder)
    for name in config.platforms:  # before the fits of any platform
        _table(config, root, folder).check(name, list(config.seeds), kept)
    for name in config.platforms:
        table = _table(config, root, folder)
        for row in table.rows(name, cells[name], list(config.seeds), kept):
            rows.append(row)
            if config.keep_rows:  # a later failure must not lose this row
                _write(config, out, rows)
    _write(config, out, rows)
    text = markdown(rows)
    (out / "results.md").write_text(text, encoding="utf-8")
    say(text)
    mean = {"/".join(key): means(found) for key, found in grouped(rows).items()}
    result = {
        "run_dir": str(folder),
        "results": str(out / "results.csv"),
        "rows": len(rows),
        "mean": mean,
        "seconds": round(time.perf_counter() - start, 1),
    }
    save_metrics(folder, result)
    numbers = {
        f"{name}/{metric}": value for name, found in mean.items() for metric, value in found.items()
    }
    tags = list(config.platforms)
    loggers.log_result(config, folder, numbers, rows, under="table", tags=tags, group=folder.name)
    return result


def _kept_rows(config: DictConfig) -> list[Row]:
    if config.out is None:
        raise PrunerError("keep_rows=true: add out=, the folder of the table to continue")
    out = Path(config.out)
    rows = read_rows(out / "results.csv")
    beside = out / "options.yaml"
    earlier = plain(OmegaConf.load(beside)) if beside.is_file() else {}
    names = [*SAME, *(name for name in RECORDS if name in earlier)]
    for name in names if rows else []:
        before, now = earlier.get(name), plain(OmegaConf.select(config, name))
        if before != now:
            raise PrunerError(
                f"keep_rows=true: rows of {out} have {name}={before}, not {now}, by {beside}; "
                "give the same, or another out="
            )
    return rows


def _write(config: DictConfig, out: Path, rows: Sequence[Row]) -> None:
    kept = {name: plain(OmegaConf.select(config, name)) for name in (*SAME, *RECORDS)}
    OmegaConf.save(OmegaConf.create(kept), out / "options.yaml")
    write_table(out / "results.csv", rows, ".6f")


def _table(config: DictConfig, root: RecordRoot, folder: Path) -> ResultsTable:
    @cache
    def programs(source: Source) -> ProgramTable:
        platforms, spec = source
        spec = replace(spec, duplicates=config.data.duplicates, cache=config.data.cache)
        return load_dataset(root, platforms, spec, folder=folder).store

    def split(keys: Sequence[TaskKey], seed: int) -> TaskSplit:
        return split_of(config.split, keys, root, seed if config.resplit else None)

    def variant(cell: TableCell) -> Variant:
        options = _options_of(config, cell)
        recipe = recipe_of(options)
        spec = ReadSpec(
            dataflow=options.features.dataflow,
            draft=build_network(recipe.model, seed=0).reads_draft,
            failures=options.train_failures,
        )
        source = chosen_platforms(options.data, cell.platform, root), spec
        watch = watching(options)
        return Variant(recipe=recipe, source=source, config=plain(options), watching=watch)

    # min_programs= of the trainings is also for rows without a training
    least = [word for word in config.overrides if word.lstrip("+").startswith("min_programs=")]

    return ResultsTable(
        folder=folder,
        variant=variant,
        programs=programs,
        split=split,
        min_programs=int(read_words("train", least).config.min_programs),
        checkpoints={name: Path(path) for name, path in config.checkpoints.items()},
        num_workers=config.num_workers or 1,
        log=say,
    )


def _options_of(config: DictConfig, cell: TableCell) -> DictConfig:
    variant = config.variants.get(cell.model, (f"model={cell.model}",))
    choices = [f"platform={cell.platform}", f"train_share={cell.share}", *variant]
    options = read_words("train", [*choices, *config.overrides]).config
    options.logger = config.logger
    return options


def _refuse_foreign_platforms(
    config: DictConfig, root: RecordRoot, cells: Sequence[TableCell]
) -> None:
    for cell in dict.fromkeys(replace(cell, seed=0, share=1.0) for cell in cells):
        if cell.model in NOT_FITTED:
            continue
        data = _options_of(config, cell).data
        try:
            learned = chosen_platforms(data, cell.platform, root)
        except DataError as error:
            raise DataError(f"{error}; or leave {cell.model} out of models=") from error
        if cell.platform not in learned:
            raise PrunerError(
                f"{cell.model} learns from {', '.join(learned)}, so it has no row of "
                f"{cell.platform}: leave {cell.model} out of models=, or {cell.platform} out of "
                "platforms="
            )

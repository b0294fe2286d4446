"""``python adapt.py``: adaptation methods compared by replaying online tuning on records."""

import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from omegaconf import DictConfig, OmegaConf

from pruner.cli.adapt_data import Bench, prepare
from pruner.cli.adapt_plot import plot_curves
from pruner.cli.dataset import record_root
from pruner.cli.door import run_door
from pruner.cli.options import build, plain
from pruner.cli.output import say
from pruner.cli.progress import track
from pruner.cli.runs import new_run_folder, resumed_config, save_config
from pruner.errors import PrunerError
from pruner.files import jsonable, load_metrics, save_metrics
from pruner.models.adaptation.base import Adaptation, FittedAdaptation
from pruner.models.training.fit import checkpoint_file
from pruner.places import conf_folder
from pruner.search.offline.comparison import Cell, Comparison
from pruner.search.offline.tuning import (
    Quality,
    affordable,
    label_sizes,
    quality_by_labels,
    tune,
    without_draft,
)
from pruner.search.policy import RoundSettings
from pruner.study.workers import forked

METHODS = conf_folder() / "adaptation"
RANDOM, ANSOR, ANSOR_MODEL = "random", "ansor", "scratch"  # references, and what Ansor learns by

Wanted = tuple[str, int]  # method and seed


def adapt(config: DictConfig) -> dict[str, Any]:
    """Run the command; returns the object of the last line."""
    start = time.perf_counter()
    earlier = Path(config.resume) if config.resume is not None else None
    if earlier is not None:
        config = resumed_config(earlier, config)
    _check(config)
    if config.num_threads:
        torch.set_num_threads(config.num_threads)
    folder = earlier or _new_folder(config)
    save_config(folder, config)
    names = dict.fromkeys([*names_of(config), *finished_methods(config, folder)])
    wanted = [(name, seed) for seed in config.seeds for name in names]
    missing = [w for w in wanted if not _cell_file(folder, w).is_file()]
    if missing:
        run_cells(config, folder, prepare(config, folder), missing)
    cells = [_load(_cell_file(folder, w)) for w in wanted]
    result = report(config, folder, cells)
    result["seconds"] = round(time.perf_counter() - start, 2)
    save_metrics(folder, result)
    return result


def names_of(config: DictConfig) -> list[str]:
    """Baseline, references and methods, each once.

    Raises PrunerError for a method that conf/adaptation does not have, with those it has.
    """
    known = _known_methods()
    given = config.method
    methods = known if given == "all" else [given] if isinstance(given, str) else list(given)
    for name in (config.baseline, *methods):
        if name not in known:
            raise PrunerError(f"method={name} is unknown; known: {', '.join(known)}, all")
    for name in config.references:
        if name not in (RANDOM, ANSOR):
            raise PrunerError(f"references: {name} is unknown; known: {RANDOM}, {ANSOR}")
    return list(dict.fromkeys([config.baseline, *config.references, *methods]))


def finished_methods(config: DictConfig, folder: Path) -> list[str]:
    """Methods that earlier starts of the run have finished with every seed."""
    return [
        name
        for name in _known_methods()
        if all(_cell_file(folder, (name, seed)).is_file() for seed in config.seeds)
    ]


def _known_methods() -> list[str]:
    return sorted(path.stem for path in METHODS.glob("*.yaml"))


def run_cells(config: DictConfig, folder: Path, bench: Bench, wanted: Sequence[Wanted]) -> None:
    """Compute and write cells, in `num_workers` processes."""
    (folder / "cells").mkdir(exist_ok=True)
    run = partial(run_cell, config, folder, bench)
    title = f"{config.source} to {config.target}"
    if config.num_workers in (None, 1):
        for cell in track(wanted, title, len(wanted)):
            run(cell)
        return
    with forked(wanted, run, config.num_workers, say) as working:
        for cell in track(wanted, title, len(wanted)):
            path = _cell_file(folder, cell)
            while not path.is_file() and working():
                pass
            if not path.is_file():
                raise PrunerError(f"{path.stem}: no result; resume={folder} keeps what is finished")


def run_cell(config: DictConfig, folder: Path, bench: Bench, wanted: Wanted) -> None:
    """Tune, learn from labels, look back at the source; write the file whole or not at all."""
    name, seed = wanted
    budget = config.budget
    settings: RoundSettings = build(config.policy)
    adaptation = None
    if name != RANDOM:
        make = partial(_adaptation, config, bench, ANSOR_MODEL if name == ANSOR else name, seed)
        adaptation = make()
    curve = tune(
        bench.pools,
        adaptation,
        without_draft(settings) if name == ANSOR else settings,
        trials=affordable(bench.pools, budget.trials),
        batch=budget.batch,
        seed=seed,
    )
    labels, source = {}, None
    if adaptation is not None and name != ANSOR:
        sizes = label_sizes(budget.labels, bench.labelled.num_programs)
        labels = quality_by_labels(make, bench.labelled, bench.held_out, sizes, seed=seed)
        if bench.source_held_out is not None:
            source = Quality.of(adaptation.ranker, bench.source_held_out)
    cell = Cell(method=name, seed=seed, curve=curve, labels=labels, source=source)
    path = _cell_file(folder, wanted)
    partial_file = path.with_suffix(".part")
    partial_file.write_text(json.dumps(jsonable(cell.to_json())), encoding="utf-8")
    partial_file.replace(path)


def _adaptation(config: DictConfig, bench: Bench, name: str, seed: int) -> Adaptation:
    """A method as its file has it, with no more steps an update than the budget allows."""
    method = plain(OmegaConf.load(METHODS / f"{name}.yaml"))
    made: Adaptation = build(method, setting=bench.setting(seed))
    if isinstance(made, FittedAdaptation):
        most = config.budget.max_steps
        made.fit.max_steps = min(made.fit.max_steps or most, most)
    return made


def report(config: DictConfig, folder: Path, cells: Sequence[Cell]) -> dict[str, Any]:
    """Summary of all methods; writes the table of cells and the plot."""
    comparison = Comparison(cells, config.baseline)
    rows = [_row(config, comparison, cell) for cell in cells]
    table, plot = folder / "results.csv", folder / "curves.png"
    pd.DataFrame(rows).to_csv(table, index=False, float_format="%.6g")
    plot_curves(comparison, plot, f"{config.source} to {config.target}")
    before = (load_metrics(folder / "source") or {}).get("top1")
    result = {
        "source": config.source,
        "target": config.target,
        "baseline": config.baseline,
        "seeds": list(config.seeds),
        "trials": config.budget.trials,
        "source_top1_before": before,
        "methods": {name: comparison.summary(name) for name in comparison.methods},
        "results": str(table),
        "plot": str(plot),
        "run_dir": str(folder),
    }
    _show(result)
    return result


def _row(config: DictConfig, comparison: Comparison, cell: Cell) -> dict[str, Any]:
    trials, seconds = comparison.reach(cell, "trials"), comparison.reach(cell, "seconds")
    row = {
        "source": config.source,
        "target": config.target,
        "method": cell.method,
        "seed": cell.seed,
        "area": cell.curve.area,
        "final_relative_latency": cell.curve.final,
        "reached_target": int(trials.reached),
        "trials_to_target": trials.at,
        "seconds_to_target": seconds.at,
        "total_s": cell.curve.elapsed_s[-1],
        "source_top1_after": None if cell.source is None else cell.source.top1,
    }
    for name, quality in cell.labels.items():
        row |= {f"top1_labels_{name}": quality.top1, f"top5_labels_{name}": quality.top5}
    return row


def _show(result: dict[str, Any]) -> None:
    """A small table for people, on stderr."""
    say(f"{'method':18s}    area   final   trials  seconds  reached  (to the baseline's final)")
    for name, found in result["methods"].items():
        trials, seconds = found["trials_to_target"], found["seconds_to_target"]
        say(
            f"{name:18s} {found['area']['mean']:7.4f} {found['final']['mean']:7.4f} "
            f"{trials['mean']:8.1f} {seconds['mean']:8.1f}  {trials['reached']}/{trials['runs']}"
        )


def _check(config: DictConfig) -> None:
    if config.source is None or config.target is None:
        raise PrunerError(
            "give source=PLATFORM and target=PLATFORM, such as source=k80 target=v100"
        )
    if config.source == config.target:
        raise PrunerError(f"source and target are both {config.source}; choose two platforms")
    if config.seeds is None:
        raise PrunerError("give seeds=[...] with at least one seed")
    if (config.num_workers or 1) > 1 and config.num_threads != 1:
        raise PrunerError(
            f"num_workers={config.num_workers} num_threads={config.num_threads}: several processes "
            "have one thread each; give num_threads=1, or num_workers=1"
        )
    root = record_root(config.data)
    for platform in (config.source, config.target):
        root.task_files(platform)  # raises where there are none
    if config.checkpoint and not (path := checkpoint_file(Path(config.checkpoint))).is_file():
        raise PrunerError(f"checkpoint={config.checkpoint}: {path} does not exist")
    if not isinstance(build(config.policy), RoundSettings):
        raise PrunerError("adapt.py compares models in rounds: policy=pool, ansor or pruner_*")
    names_of(config)


def _new_folder(config: DictConfig) -> Path:
    label = f"{config.source}-{config.target}"
    return new_run_folder(Path(config.outputs), "adapt", config.run_id, label)


def _cell_file(folder: Path, wanted: Wanted) -> Path:
    return folder / "cells" / f"{wanted[0]}-seed-{wanted[1]}.json"


def _load(path: Path) -> Cell:
    return Cell.from_json(json.loads(path.read_text(encoding="utf-8")))


def main() -> None:
    """Open the door."""
    run_door("adapt", adapt)


if __name__ == "__main__":
    main()

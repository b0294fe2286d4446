"""Find changes of PaCM that help on validation tasks; test the best.

    python -m experiments.model.run data.root=DIR plan=true              cells and minutes, no work
    python -m experiments.model.run data.root=DIR stage=single           every change by itself
    python -m experiments.model.run data.root=DIR stage=together         all helpful changes at once
    python -m experiments.model.run data.root=DIR stage=test             once: the choice, baselines
    python -m experiments.model.run data.root=DIR stage=diagnosis        analysis of the errors
    python -m experiments.model.run data.root=DIR stage=clean            rates of each split alone

stage=all runs the first four stages in this order. Every fit has a folder below `work`, so the same
command continues an interrupted stage; a folder of other options is refused. Each seed has its own
split.
``single`` and ``together`` use validation tasks only: on each platform alone, and on all at once (a
change of the device only on all at once). `ablation/choice.py` has the rule of the choice. ``test``
writes the choice to choice.json, and tests the choice and the baselines, also with each platform
left out of the training; it refuses another choice later. platforms=[...] may also be CPUs, with
split=bundled or split=by_task.

``clean`` (GPUs) judges the analyzer and the models that read it on test tasks twice: with the
shipped rates and with rates that are fitted to the training and validation tasks of each split
alone (calibrate= programs of these tasks; `ablation/rates.py`). earlier= is a table of test tasks
whose rows of the other models are taken where records, splits and epochs are the same; earlier=null
fits these models, too.

Output, in out= or here: valid.csv, gains.csv, choice.json, results.csv (test), diagnosis.csv and
diagnosis.md; of ``clean`` clean.csv and clean.md.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from experiments.model.ablation.candidates import (
    BASIS,
    CANDIDATES,
    EVERY,
    MODEL_S,
    PLATFORM_S,
    QUESTIONS,
    Change,
    together,
)
from experiments.model.ablation.cells import (
    AblationCell,
    Guess,
    Setting,
    check_seeds,
    planned,
    settings_of,
)
from experiments.model.ablation.choice import best, helping
from experiments.model.ablation.clean import READERS, Clean
from experiments.model.ablation.clean import report as clean_report
from experiments.model.ablation.diagnosis import report
from experiments.model.ablation.rates import NestedRates, gpu_analyzer, tasks_reader
from experiments.model.ablation.run import Ablation
from pruner.cli.shared.output import as_table, say
from pruner.cli.shared.progress import ON_STDERR
from pruner.cli.shared.records import load_dataset
from pruner.cli.shared.script import Data, run_script
from pruner.data.root import RecordRoot
from pruner.errors import PrunerError, check_chosen
from pruner.files import merged_table, read_table, write_json, write_table
from pruner.models.programs.program_table import ProgramTable
from pruner.models.training.recipe import Recipe
from pruner.models.training.sampler import TaskBatches
from pruner.study.model_table import Source

HERE = Path(__file__).resolve().parent
JOINED = "together"
SEVERAL_ONLY = ("device",)  # changes that mean nothing where one platform is learned from
PER_TASK_OF_SEVERAL = 96  # as many programs an epoch as from one platform
CLEAN_ROW = ("platform", "seed", "model", "rates")
ROW = ("setting", "platform", "model", "seed")
EPOCHS = 12  # of the committed tables
CLEAN = "clean"  # a stage of its own, which stage=all does not run
STAGES = ("single", "together", "test", "diagnosis", "all", CLEAN)


@dataclass(kw_only=True)
class Options:
    """Options of the script, explained above."""

    data: Data = field(default_factory=Data)
    stage: str = "all"
    plan: bool = False
    platforms: list[str] = field(default_factory=lambda: ["k80", "v100", "mi50"])
    split: str = "by_task"
    models: list[str] = field(default_factory=lambda: [*QUESTIONS, *CANDIDATES])
    baselines: list[str] = field(default_factory=lambda: ["tensetmlp", "xgboost", "lightgbm"])
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    epochs: int = EPOCHS
    calibrate: int = 2000
    earlier: str | None = str(HERE / "results.csv")
    num_workers: int = 1
    cache: str = "outputs/cache"
    work: str = "outputs/model"
    out: str = str(HERE)


def changes_of(options: Options, joined: Sequence[str] | None = None) -> dict[str, Change]:
    """The models by name, with the joined model."""
    known = dict(EVERY)
    if joined:
        known[JOINED] = together({name: EVERY[name] for name in joined})
    check_chosen("models", [*options.models, *options.baselines], known)
    return known


def expected_times(epochs: int) -> Guess:
    """Times of the committed fits for `epochs`; guesses for other models and settings."""
    took: dict[tuple[str, str], list[float]] = {}
    for name in ("valid.csv", "results.csv"):
        for row in read_table(HERE / name):
            if row["fit_seconds"]:
                cell = row["setting"], row["model"]
                took.setdefault(cell, []).append(float(row["fit_seconds"]))
    means = {cell: sum(each) / len(each) * epochs / EPOCHS for cell, each in took.items()}
    return Guess(platform_s=PLATFORM_S, model=MODEL_S, took=means)


def ablation_of(options: Options, changes: dict[str, Change]) -> Ablation:
    """The common settings of all stages."""
    root = RecordRoot(Path(options.data.root))

    @lru_cache(maxsize=1)  # programs of a source are gigabytes
    def read(source: Source) -> ProgramTable:
        platforms, spec = source
        return load_dataset(root, platforms, replace(spec, cache=options.cache)).store

    def basis(cell: AblationCell) -> Recipe:
        several = len(cell.setting.learned) > 1
        per_task = PER_TASK_OF_SEVERAL if several else 256
        return Recipe(epochs=options.epochs, batches=TaskBatches(per_task=per_task))

    return Ablation(
        folder=Path(options.work),
        changes=changes,
        basis=basis,
        read=read,
        guess=expected_times(options.epochs),
        num_workers=options.num_workers,
        log=say,
        known={"records": root.path.resolve()},
    )


def trying(
    settings: Sequence[Setting], models: Sequence[str], seeds: Sequence[int]
) -> list[AblationCell]:
    """The cells that choose; changes of the device need several platforms."""
    found = []
    for setting in settings:
        if setting.left_out:
            continue
        own = [m for m in models if len(setting.learned) > 1 or m not in SEVERAL_ONLY]
        found += AblationCell.product([setting], own, seeds)
    return found


def single(options: Options, settings: Sequence[Setting]) -> list[AblationCell]:
    """Every change alone, and the model that it is compared with."""
    return trying(settings, [BASIS, *options.models], options.seeds)


def run_single(options: Options, settings: Sequence[Setting]) -> list[str]:
    """Fit, write valid.csv and gains.csv; the candidates that help."""
    ablation = ablation_of(options, changes_of(options))
    cells = single(options, settings)
    ablation.fit(cells)
    rows = ablation.valid_rows(cells)
    tried = [name for name in options.models if any(cell.model == name for cell in cells)]
    found = helping(rows, tried, BASIS)
    out = Path(options.out)
    reference = ablation.reference_rows(cells, "valid")
    write_table(out / "valid.csv", [*rows, *reference], ".6f")
    write_table(out / "gains.csv", [one.row for one in found], ".6f")
    say(as_table([one.row for one in found]))
    return [one.model for one in found if one.helps and one.model in CANDIDATES]


def run_together(options: Options, settings: Sequence[Setting]) -> tuple[str, list[str], Ablation]:
    """Join helpful changes, fit the joined model, choose; return it, its changes, and all cells."""
    helpful = _compatible(run_single(options, settings))
    joined = together({name: EVERY[name] for name in helpful})
    is_new = helpful and not any(joined.same_as(EVERY[name]) for name in helpful)
    changes = changes_of(options, helpful if is_new else None)  # else it was tried alone
    ablation = ablation_of(options, changes)
    cells = single(options, settings)
    if JOINED in changes:
        more = trying(settings, [JOINED], options.seeds)
        ablation.fit(more)
        cells += more
        path = Path(options.out) / "valid.csv"
        write_table(path, merged_table(path, ablation.valid_rows(more), ROW), ".6f")
    rows = ablation.valid_rows(cells)
    names = [name for name in (*helpful, JOINED) if name in changes]
    if JOINED in changes:
        out = Path(options.out)
        table = [one.row for one in helping(rows, [*options.models, JOINED], BASIS)]
        write_table(out / "gains.csv", table, ".6f")
    return best(rows, names, BASIS), helpful, ablation


def _compatible(names: Sequence[str]) -> list[str]:
    """The most helpful changes first, without changes in conflict with an earlier."""
    kept: list[str] = []
    for name in names:
        try:
            together({one: EVERY[one] for one in (*kept, name)})
        except PrunerError as error:
            say(f"{name} stays out of what goes together: {error}")
        else:
            kept.append(name)
    return kept


def run_test(options: Options, settings: Sequence[Setting]) -> dict[str, Any]:
    """Judge the choice, PaCM and baselines on test tasks, once: results.csv."""
    model, helpful, ablation = run_together(options, settings)
    out = Path(options.out)
    chosen = {"model": model, "of": helpful if model == JOINED else [model]}
    path = out / "choice.json"
    if path.is_file():
        before = json.loads(path.read_text(encoding="utf-8"))
        if before != chosen:
            raise PrunerError(
                f"{path}: the test was told of {before}, the choice is {chosen} now; test tasks "
                "are looked at once: give another out= and work=, and say so"
            )
    models = list(dict.fromkeys((model, BASIS, *options.baselines)))
    cells = AblationCell.product(settings, models, options.seeds)
    ablation.fit(cells)
    out.mkdir(parents=True, exist_ok=True)
    write_json(path, chosen, indent=1)  # before the first look
    rows = ablation.test_rows(cells)
    rows += ablation.reference_rows(cells, "test")
    write_table(out / "results.csv", rows, ".6f")
    return chosen


def run_diagnosis(options: Options, settings: Sequence[Setting]) -> None:
    """Write diagnosis.csv and diagnosis.md, of validation tasks."""
    model, _, ablation = run_together(options, settings)
    shown = list(dict.fromkeys((BASIS, model, *options.baselines)))
    alone = [setting for setting in settings if len(setting.platforms) == 1]
    cells = AblationCell.product(alone, shown, options.seeds)
    ablation.fit(cells)
    text, rows = report(ablation, cells, single(options, settings))
    out = Path(options.out)
    (out / "diagnosis.md").write_text(text, encoding="utf-8")
    write_table(out / "diagnosis.csv", rows, ".6f")


def clean_of(options: Options, settings: Sequence[Setting]) -> Clean:
    """``clean``: each GPU alone; raises PrunerError without a reader of the analyzer."""
    readers = [name for name in READERS if name in options.models]
    if not readers:
        known = ", ".join(READERS)
        raise PrunerError(f"models={options.models}: stage=clean compares {known}: name one")
    others = sorted(set(options.models) - set(READERS))
    if others and options.models != Options().models:
        raise PrunerError(f"models: stage=clean compares {', '.join(READERS)}; leave out {others}")
    reading = [name for name in options.baselines if EVERY[name].reads_draft()]
    if reading:
        raise PrunerError(f"baselines={reading}: they read the analyzer; name them in models=")
    if options.calibrate < 2:
        raise PrunerError(f"calibrate={options.calibrate}: a number of programs, 2 or more")
    if options.earlier and not Path(options.earlier).is_file():
        raise PrunerError(f"earlier={options.earlier}: no such table; earlier=null does without")
    alone = [setting for setting in settings if len(setting.platforms) == 1]
    for setting in alone:
        gpu_analyzer(setting.name)
    nested = NestedRates(
        folder=Path(options.work),
        read=tasks_reader(RecordRoot(Path(options.data.root)), ON_STDERR),
        num_programs=options.calibrate,
    )
    is_usual = options.epochs == EPOCHS
    return Clean(
        ablation=replace(ablation_of(options, changes_of(options)), nested=nested),
        settings=alone,
        seeds=options.seeds,
        readers=readers,
        rivals=[BASIS, *options.baselines],
        # with another number of epochs its rows are of other models
        earlier=read_table(Path(options.earlier)) if options.earlier and is_usual else [],
    )


def run_clean(options: Options, settings: Sequence[Setting]) -> None:
    """Write clean.csv after each step, and clean.md at the end."""
    clean, out = clean_of(options, settings), Path(options.out)

    def write(rows: Sequence[Mapping[str, Any]]) -> None:
        # a part of the work keeps the rows of other parts
        merged = merged_table(out / "clean.csv", rows, CLEAN_ROW)
        write_table(out / "clean.csv", merged, ".6f")

    rows = clean.run(write)
    text = clean_report(rows, clean.readers[0])
    (out / "clean.md").write_text(text, encoding="utf-8")
    say(text)


def show_plan(options: Options, settings: Sequence[Setting]) -> dict[str, Any]:
    """Print each stage's fits and the minutes left."""
    if options.stage == CLEAN:
        rows = clean_of(options, settings).planned()  # in the order of the work
        say(as_table(rows))
        left = sum(row["minutes left"] for row in rows) / options.num_workers
        return {"minutes_left": round(left, 1), "cells": sum(row["cells"] for row in rows)}
    guess = expected_times(options.epochs)
    first = single(options, settings)
    more = trying(settings, [JOINED], options.seeds)
    tested = AblationCell.product(settings, [JOINED, BASIS, *options.baselines], options.seeds)
    last = [cell for cell in tested if cell not in {*first, *more}]
    minutes = {}
    for stage, cells in (("single", first), ("together", more), ("test", last)):
        found = planned(cells, Path(options.work), guess)
        say(f"stage={stage}\n{as_table(found)}")
        left = sum(row["minutes left"] for row in found)
        minutes[stage] = round(left / options.num_workers, 1)
    return {"minutes_left": minutes, "cells": len(first) + len(more) + len(last)}


def run(options: Options) -> dict[str, Any]:
    """Run a stage; its summary."""
    check_chosen("stage", [options.stage], STAGES)
    check_seeds(options.seeds)
    torch.set_num_threads(1)  # fits are compared by their seed, not by the cores of a machine
    settings = settings_of(options.platforms, options.split)
    changes_of(options)
    if options.plan:
        return show_plan(options, settings)
    Path(options.out).mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"stage": options.stage}
    if options.stage == "single":
        result["helps"] = run_single(options, settings)
    elif options.stage == "together":
        result["model"], result["of"], _ = run_together(options, settings)
    if options.stage in ("test", "all"):
        result |= run_test(options, settings)
    if options.stage in ("diagnosis", "all"):
        run_diagnosis(options, settings)
    if options.stage == CLEAN:
        run_clean(options, settings)
    return result


if __name__ == "__main__":
    run_script(Options, run, __doc__)

"""Cells of a comparison: a method with a seed, a file each."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pruner.files import as_written, read_json
from pruner.models.adaptation.base import Adaptation, FittedAdaptation, Setting
from pruner.models.adaptation.keeping import save_models
from pruner.models.checkpoint.checkpoint import ADAPTED, MODELS_FOLDER
from pruner.models.checkpoint.tensors import SUFFIX
from pruner.progress import Progress
from pruner.search.offline.adaptation_run import (
    Quality,
    affordable,
    label_sizes,
    quality_by_labels,
    tune,
    without_draft,
)
from pruner.search.offline.comparison import MethodRun
from pruner.search.policy import RoundSettings
from pruner.study.adaptation.context import AdaptationContext, Budget
from pruner.study.grid import Job, results

# References beside the methods: random search, and the model learnt from scratch without a draft.
RANDOM, NO_DRAFT, FROM_SCRATCH = "random", "scratch_no_draft", "scratch"
REFERENCES = (RANDOM, NO_DRAFT)

Wanted = tuple[str, int]  # method and seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Paths of a run's results (``cells/``) and adapted models (``models/``)."""

    folder: Path

    def path(self, wanted: Wanted) -> Path:
        """Path of a cell's result."""
        return self.folder / "cells" / f"{wanted[0]}-seed-{wanted[1]}.json"

    def model(self, wanted: Wanted, name: str = ADAPTED) -> Path:
        """Path of a cell's adapted model, or of another of its models."""
        ending = "" if name == ADAPTED else f"-{name}"
        return self.folder / MODELS_FOLDER / f"{wanted[0]}-seed-{wanted[1]}{ending}{SUFFIX}"

    def missing(self, wanted: Iterable[Wanted]) -> list[Wanted]:
        """The cells without a result."""
        return [one for one in wanted if not self.path(one).is_file()]

    def finished(self, methods: Iterable[str], seeds: Sequence[int]) -> list[str]:
        """Methods that have a result with every seed."""
        return [name for name in methods if not self.missing([(name, seed) for seed in seeds])]

    def load(self, wanted: Wanted) -> MethodRun:
        """A finished cell."""
        with as_written(self.path(wanted)):
            return MethodRun.from_json(read_json(self.path(wanted), dict))


def run_cells(
    cells: Cells,
    wanted: Sequence[Wanted],
    context: AdaptationContext,
    budget: Budget,
    settings: RoundSettings,
    make: Callable[[str, Setting], Adaptation],
    *,
    title: str,
    num_workers: int,
    progress: Progress,
) -> None:
    """Compute and write cells of methods by `make`; raises PrunerError without a result."""
    (cells.folder / MODELS_FOLDER).mkdir(exist_ok=True)
    jobs = [
        Job(
            name=path.stem,
            leaves=path,
            run=partial(_run_cell, cells, cell, context, budget, settings, make),
        )
        for cell in wanted
        for path in [cells.path(cell)]
    ]
    again = f"resume={cells.folder} keeps what is finished"
    found = results(jobs, num_workers=num_workers, log=progress.log, again=again)
    for _ in progress.track(found, title, len(jobs)):
        pass


def _run_cell(
    cells: Cells,
    wanted: Wanted,
    context: AdaptationContext,
    budget: Budget,
    settings: RoundSettings,
    make: Callable[[str, Setting], Adaptation],
) -> dict[str, Any]:
    """Compute a cell as JSON: tune, save models, judge by labels and source."""
    name, seed = wanted

    def begin() -> Adaptation:
        """Make the method, with the budget's limit of steps an update."""
        made = make(FROM_SCRATCH if name == NO_DRAFT else name, context.setting(seed))
        if isinstance(made, FittedAdaptation):
            limits = [made.fit.max_steps, budget.max_steps]
            made.fit.max_steps = min((one for one in limits if one is not None), default=None)
        return made

    adaptation = None if name == RANDOM else begin()
    curve = tune(
        context.pools,
        adaptation,
        without_draft(settings) if name == NO_DRAFT else settings,
        trials=affordable(context.pools, budget.trials),
        batch=budget.batch,
        seed=seed,
    )
    labels, source = {}, None
    if adaptation is not None:
        save_models(
            adaptation,
            partial(cells.model, wanted),
            start=context.start,
            dataflow=context.start.info.dataflow,  # type: ignore[arg-type]
            keys=[pool.key for pool in context.pools],
            about={"method": name, "seed": seed},
        )
    if adaptation is not None and name != NO_DRAFT:
        sizes = label_sizes(budget.labels, context.labelled.num_programs)
        labels = quality_by_labels(begin, context.labelled, context.held_out, sizes, seed=seed)
        if context.source_held_out is not None:
            source = Quality.of(adaptation.ranker, context.source_held_out)
    return MethodRun(method=name, seed=seed, curve=curve, labels=labels, source=source).to_json()

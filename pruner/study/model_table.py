"""A results table: models, platforms, seeds and shares, a row and a folder each."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pruner.data.splits import TaskSplit
from pruner.data.tasks import TaskKey
from pruner.errors import PrunerError
from pruner.files import METRICS_FILE, read_table
from pruner.models.checkpoint.checkpoint import CheckpointInfo, git_commit
from pruner.models.judging.judge import (
    judge,
    network_means,
    noise_ceiling,
    random_report,
    scored_networks,
    tested_programs,
)
from pruner.models.judging.metrics import ScoredTask
from pruner.models.programs.program_table import ProgramTable
from pruner.models.programs.reading import ReadSpec
from pruner.models.ranker import RandomRanker, Ranker
from pruner.models.training.fit import ranker_of
from pruner.models.training.recipe import Recipe
from pruner.progress import Log, silent
from pruner.study.grid import Job, results
from pruner.study.markdown import markdown_table, mean_text
from pruner.study.training_run import NETWORK_MEANS, Fold, Watching, run_fold, unwatched

RANDOM = "random"  # a model that is not fitted: exact chance
CEILING = "ceiling"  # not fitted either: the result of a second timing of the same programs
NOT_FITTED = (RANDOM, CEILING)
_SHOWN = ("top1", "top5", "pairwise_accuracy", "top1_task_mean", "top5_task_mean")
METRICS = (*_SHOWN, "ndcg", *NETWORK_MEANS)  # the last two where the split holds out networks
COLUMNS = (
    "platform", "model", "seed", "train_share", "train_pick", "split", *METRICS, "num_tasks",
    "num_programs", "num_train_programs", "fit_seconds", "train_programs_per_second", "best_epoch",
    "commit",
)  # fmt: skip
Row = dict[str, Any]
CellKey = tuple[str, str, int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCell:
    """A row to make: a model judged on a platform."""

    platform: str
    model: str
    seed: int
    share: float = 1.0

    @property
    def name(self) -> str:
        """Folder of the fit below that of the table."""
        share = "" if self.share == 1 else f"-share-{self.share}"
        return f"{self.platform}/{self.model}{share}/seed-{self.seed}"

    @property
    def key(self) -> CellKey:
        """The identity of its row in the table."""
        return (self.platform, self.model, self.seed, self.share)


Source = tuple[tuple[str, ...], ReadSpec]  # platforms, and what to read of their programs


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A model's recipe and training records; `config` is written into its checkpoints."""

    recipe: Recipe
    source: Source
    config: Mapping[str, Any] = field(default_factory=dict)
    watching: Watching = unwatched


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsTable:
    """A table of models, platforms and seeds, and `checkpoints` on the same test tasks.

    `variant` gives a cell's recipe, `programs` those of a source, `split` a seed's division.
    `min_programs`: test tasks with fewer are left out, except where a recipe has its own number.
    """

    folder: Path
    variant: Callable[[TableCell], Variant]
    programs: Callable[[Source], ProgramTable]
    split: Callable[[Sequence[TaskKey], int], TaskSplit]
    checkpoints: Mapping[str, Path] = field(default_factory=dict)
    min_programs: int = 1
    num_workers: int = 1
    log: Log = silent

    def rows(
        self, platform: str, cells: Sequence[TableCell], seeds: Sequence[int], kept: Set[CellKey]
    ) -> Iterator[Row]:
        """Yield a platform's rows that are not in `kept`, as they are made."""
        missing = [cell for cell in cells if cell.key not in kept]
        jobs = [
            Job(
                name=cell.name,
                leaves=None if cell.model in NOT_FITTED else self.folder / cell.name / METRICS_FILE,
                run=partial(self._metrics, cell),
            )
            for cell in missing
        ]
        if self.num_workers > 1:  # read before the fork, so that all workers share the memory
            for cell, job in zip(missing, jobs, strict=True):
                if job.leaves is not None and job.result is None:
                    self.programs(self.variant(cell).source)
        again = f"resume={self.folder} tries it again"
        found = results(jobs, num_workers=self.num_workers, log=self.log, again=again)
        for cell, metrics in zip(missing, found, strict=True):
            yield row_of(cell, metrics)
        for cell, path in self._judged(platform, seeds, kept):
            ranker, _, programs, split = self._opened(cell, path)
            report = judge(ranker, programs, split, min_programs=self.min_programs)
            yield row_of(cell, {**report.metrics, "split": split.name})

    def _opened(
        self, cell: TableCell, path: Path
    ) -> tuple[Ranker, CheckpointInfo, ProgramTable, TaskSplit]:
        ranker, info = ranker_of(path)
        spec = ReadSpec(dataflow=info.dataflow, draft=ranker.reads_draft)  # type: ignore[arg-type]
        programs = self.programs(((cell.platform,), spec))
        return ranker, info, programs, self.split(programs.keys, cell.seed)

    def check(self, platform: str, seeds: Sequence[int], kept: Set[CellKey]) -> None:
        """Raise PrunerError where a checkpoint has seen the work of a platform's test task."""
        for cell, path in self._judged(platform, seeds, kept):
            _, info, _, split = self._opened(cell, path)
            seen = [] if split.by_rows else [key for key in split.test if info.has_seen_work(key)]
            if seen:
                raise PrunerError(
                    f"checkpoints.{cell.model}: it has seen the work of {len(seen)} of "
                    f"{len(split.test)} test tasks (seed {cell.seed}); give resplit=false with its "
                    "split.seed=, or leave it out"
                )

    def _judged(
        self, platform: str, seeds: Sequence[int], kept: Set[CellKey]
    ) -> list[tuple[TableCell, Path]]:
        cells = [
            (TableCell(platform=platform, model=name, seed=seed), path)
            for seed in seeds
            for name, path in self.checkpoints.items()
        ]
        return [(cell, path) for cell, path in cells if cell.key not in kept]

    def _metrics(self, cell: TableCell) -> Mapping[str, Any]:
        if cell.model in NOT_FITTED:
            programs = self.programs(((cell.platform,), ReadSpec()))
            split = self.split(programs.keys, cell.seed)
            test = tested_programs(programs, split, self.min_programs)
            judged = _random_metrics if cell.model == RANDOM else _ceiling_metrics
            tasks = RandomRanker().score_tasks(programs, test)
            return {**judged(tasks, split), "split": split.name}
        variant = self.variant(cell)
        programs = self.programs(variant.source)
        split = self.split(programs.keys, cell.seed)
        joint = "+".join(sorted({key.platform for key in programs.keys}))
        # a joint fit serves the rows of all its platforms
        name = replace(cell, platform=joint).name
        fold = Fold(name=name, folder=self.folder / name, split=split, seed=cell.seed)
        metrics = run_fold(
            variant.recipe, programs, fold, config=variant.config, watching=variant.watching
        )
        assert metrics is not None, fold.name  # nothing stops a fit of a table early
        if joint == cell.platform:
            return metrics
        own = tuple(key for key in split.test if key.platform == cell.platform)
        ranker, _ = ranker_of(fold.checkpoint)
        least, split = variant.recipe.min_programs, replace(split, test=own)
        return {**metrics, **judge(ranker, programs, split, min_programs=least).metrics}


def _random_metrics(tasks: Sequence[ScoredTask], split: TaskSplit) -> Row:
    """Metrics of random rankings: exact in closed form, else means of draws."""
    report = random_report(tasks)
    if networks := scored_networks(tasks, split.networks):
        report |= network_means(networks, random=True)
    return {
        **{name: report[name] for name in METRICS if name in report},
        "num_tasks": len(tasks),
        "num_programs": sum(task.num_programs for task in tasks),
    }


def _ceiling_metrics(tasks: Sequence[ScoredTask], _: TaskSplit) -> Row:
    found = noise_ceiling(tasks)
    if found is None:
        raise PrunerError(
            f"models: {CEILING} needs records with two timings a program; leave it out, or measure "
            "them with pruner collect"
        )
    return found


def row_of(cell: TableCell, metrics: Mapping[str, Any]) -> Row:
    """The columns of a cell."""
    known = {"platform": cell.platform, "model": cell.model, "seed": cell.seed}
    row = {name: metrics.get(name) for name in COLUMNS}
    commit = metrics.get("commit") or git_commit()  # of a fit that an earlier start made: its own
    return row | known | {"train_share": cell.share, "commit": commit}


def grouped(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """Rows by platform and model (with its share, unless 1), in order of appearance."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        share = row["train_share"]
        model = row["model"] if share == 1 else f"{row['model']} at {share}"
        groups.setdefault((row["platform"], model), []).append(row)
    return groups


def means(rows: Sequence[Row]) -> dict[str, float]:
    """Mean of every metric that all rows have."""
    return {
        name: float(np.mean([row[name] for row in rows]))
        for name in METRICS
        if all(row[name] is not None for row in rows)
    }


def read_rows(path: Path) -> list[Row]:
    """Rows of an earlier table; raises PrunerError for other columns."""
    rows = read_table(path)
    if rows and (wrong := (set(rows[0]) ^ set(COLUMNS)) - set(NETWORK_MEANS)):
        raise PrunerError(
            f"{path}: the table lacks, or only it has, {', '.join(sorted(wrong))}; "
            "leave out keep_rows=true, or give another out="
        )

    def value(text: str) -> Any:
        for kind in (int, float):
            with suppress(ValueError):
                return kind(text)
        return text or None

    return [{name: value(row.get(name, "")) for name in COLUMNS} for row in rows]


def markdown(rows: Sequence[Row]) -> str:
    """The table as Markdown: means with the sample deviation over seeds."""
    of_networks = [name for name in NETWORK_MEANS if any(row.get(name) is not None for row in rows)]
    shown = (*_SHOWN, *of_networks)
    lines = []
    for (platform, model), found in grouped(rows).items():
        values = ([row[name] for row in found if row[name] is not None] for name in shown)
        lines.append([platform, model, len(found), *map(mean_text, values)])
    return markdown_table(["platform", "model", "seeds", *shown], lines) + "\n"

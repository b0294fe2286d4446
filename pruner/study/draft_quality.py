"""Judge the symbol-based draft, which learns nothing, on measured records."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from jaxtyping import Bool

from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot
from pruner.data.tasks import Duplicates, TaskRecords
from pruner.errors import DataError, PrunerError, UnsupportedProgram, check_chosen
from pruner.files import read_json
from pruner.models.analyzer.analyzer import Formula, SymbolAnalyzer, load_analyzer, terms
from pruner.models.analyzer.choice import AnalyzerChoice
from pruner.models.analyzer.constants import GROUPS, save_constants
from pruner.models.analyzer.quality import (
    TaskSymbols,
    calibrate,
    cross_calibrated,
    of_another_gpu,
    quality,
    sample_programs,
    score_records,
    score_task,
    task_symbols,
)
from pruner.models.judging.metrics import ScoredTask
from pruner.program.device import Device, GpuDevice
from pruner.program.replay import Definitions, definitions_of
from pruner.progress import Progress
from pruner.study.plots import bar_panels, colours, label, style

_Made = TypeVar("_Made")
ALL = 1  # programs that a pool of the rows "all pools" must have
FORMULAS_DRAWN = ("paper", "hardware", "hardware_calibrated")

# Columns that a terminal shows.
SHOWN = (
    "platform", "form", "min_programs", "best1_at_2pct", "random_at_2pct", "regret_ratio_at_2pct",
    "best1_at_eighth", "random_at_eighth", "rank_correlation",
)  # fmt: skip


class Pools:
    """Measured tasks of record folders, with counts of the omissions."""

    def __init__(self, root: RecordRoot, progress: Progress) -> None:
        self.root, self.progress, self.index = root, progress, definitions_of(root.path)
        self.counts, self.failures = Counter[str](), Counter[str]()

    def of(
        self, platform: str, device: Device, read: Iterator[TaskRecords]
    ) -> Iterator[TaskRecords]:
        """Yield tasks with a measured program; another GPU's are counted and reported."""
        number = len(self.root.task_files([platform]))
        for records in self.progress.track(read, f"reading {platform}", number):
            num = int(records.valid.sum())
            self.counts["records"] += len(records)
            self.counts["measured"] += num
            if num and platform == device.name and of_another_gpu(records, device):
                self.refuse(records, "another-gpu", f"measured on another GPU: {records.target}")
            elif num:
                yield records

    def refuse(self, records: TaskRecords, reason: str, detail: str) -> None:
        """Count and report a task that cannot be judged."""
        num = int(records.valid.sum())
        self.failures[reason] += num
        self.progress.log(f"{records.file} left out ({num} programs): {detail}")

    def each(
        self,
        read: Iterable[TaskRecords],
        make: Callable[[TaskRecords, Any, Definitions | None], _Made],
        analyzer: Any,
    ) -> Iterator[_Made]:
        """Yield `make(task, analyzer, index)`; unknown operators are counted and reported."""
        for records in read:
            try:
                yield make(records, analyzer, self.index)
            except UnsupportedProgram as error:
                self.refuse(records, error.reason, str(error))


Judged = tuple[list[ScoredTask], dict[str, Any]]  # and a report about data, rates and fits


def judge_draft(
    root: RecordRoot,
    platforms: Sequence[str],
    choice: AnalyzerChoice,
    *,
    conf: Path,
    device_of: Callable[[str], Device],
    folder: Path,
    duplicates: Duplicates = "drop",
    progress: Progress | None = None,
) -> Judged:
    """Score every task of the record folders with the analyzer, read from `conf`.

    ``<folder>/quarantine.jsonl`` lists lines set aside, ``<folder>/draft`` gets fitted rates.
    """
    progress = progress or Progress()
    pools, scored = Pools(root, progress), list[ScoredTask]()
    fits: dict[str, Any] = {}
    rates: dict[str, str] = {}
    with Quarantine(folder / "quarantine.jsonl") as quarantine:
        for platform in platforms:
            device = device_of(platform)
            read = pools.of(
                platform, device, root.read(quarantine, platform, duplicates=duplicates)
            )
            scorer = choice.scorer(conf, device)
            if not choice.calibrate:
                if choice.form == "hardware" and isinstance(scorer, SymbolAnalyzer):
                    rates[device.name] = scorer.constants.origin
                scored += pools.each(read, score_records, scorer)
                continue
            assert isinstance(scorer, SymbolAnalyzer), scorer  # no other form is calibrated
            symbols = list(pools.each(read, task_symbols, scorer))
            tasks, fit = _calibrated(symbols, choice, scorer, folder)
            scored += tasks
            fits[device.name] = fit
            progress.log(
                f"rates fitted to {fit['whole']['num_programs']} programs: {fit['saved']}; copy it "
                "to conf/draft to use it"
            )
    without_score = sum(int(np.isneginf(task.score).sum()) for task in scored)
    if without_score:
        progress.log(f"{without_score:,} programs have no symbols; they are ranked last")
    return scored, {
        "platforms": list(platforms),
        "num_records": pools.counts["records"],
        "num_measured": pools.counts["measured"],
        "quarantined": dict(quarantine.counts),
        "num_left_out": pools.failures.total(),
        "left_out": dict(pools.failures),
        "num_without_score": without_score,
        "rates": rates,
        "calibration": fits,
    }


def _calibrated(
    tasks: Sequence[TaskSymbols], choice: AnalyzerChoice, analyzer: SymbolAnalyzer, folder: Path
) -> Judged:
    """Score tasks with rates fitted to the other half; save rates fitted to all."""
    rng = np.random.default_rng(choice.seed)
    halves, fits = cross_calibrated(tasks, analyzer, choice.calibrate, rng)
    start = analyzer.uncalibrated()
    whole = calibrate(sample_programs(tasks, start, choice.calibrate, rng), start)
    path = folder / "draft" / f"{analyzer.device.name}.yaml"
    path.parent.mkdir(exist_ok=True)
    save_constants(path, whole.constants)
    report: dict[str, Any] = {"saved": str(path)}
    for name, fit in {"whole": whole, **{f"half_{n}": fit for n, fit in fits.items()}}.items():
        numbers = ("num_programs", "error_before", "error_after")
        report[name] = {number: getattr(fit, number) for number in numbers}
    return [score_task(task, halves[task.fold]) for task in tasks], report


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTable:
    """Options of a table of the draft's forms.

    ``calibrate``: measured programs a half of the tasks (0: no calibrated form); ``official``: also
    the released form, which needs the general engine (minutes); ``terms``: also the forms without
    each single term, not only without a group; ``min_programs``: least programs of a large pool;
    ``origin``: only programs found in that way, where the records contain it; ``repeats``: a
    program's latency is the mean or the fastest of its timings (for busy machines).
    """

    calibrate: int = 200
    official: bool = False
    terms: bool = False
    min_programs: int = 200
    origin: str | None = None
    repeats: Literal["mean", "fastest"] = "mean"
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises PrunerError for values out of range."""
        check_chosen("repeats", [self.repeats], ("mean", "fastest"))
        if type(self.calibrate) is not int or self.calibrate < 0:
            raise PrunerError(f"calibrate={self.calibrate}: a number of programs, 0 or more")

    def title(self, platform: str) -> str:
        """The name of a platform's rows."""
        fastest = "fastest" if self.repeats == "fastest" else None
        return " ".join(filter(None, (platform, self.origin, fastest)))


def draft_rows(
    root: RecordRoot,
    platform: str,
    table: DraftTable,
    *,
    conf: Path,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Rows by form and pool selection; raises PrunerError without tasks."""
    rows = []
    for form, tasks in _forms(root, platform, table, conf, progress or Progress()).items():
        for least in (ALL, table.min_programs):
            kept = [task for task in tasks if task.num_programs >= least]
            if kept:
                name = table.title(platform)
                rows.append(
                    {"platform": name, "form": form, "min_programs": least, **quality(kept)}
                )
    return rows


def found_by(root: Path, records: TaskRecords, origin: str) -> Bool[np.ndarray, " program"]:
    """Return which programs of a task have the origin `origin`, bool [N].

    Ansor refuses records with unknown keys, so a side file may have them, a text a record line:
    ``<root>/origin/<platform>/<task>.json``. Raises `DataError` without origins, or for too few.
    """
    marks: list[str | None] = records.origin
    if None in marks:
        path = root / "origin" / records.key.platform / f"{records.key.task}.json"
        if not path.is_file():
            raise DataError(
                f"{records.file}: its records have no origin, and there is no {path}; "
                "leave out the choice by origin"
            )
        beside = read_json(path, list)
        if len(beside) <= int(records.line.max(initial=-1)):
            raise DataError(f"{path}: expected a list with one text for every line of the records")
        marks = [beside[line] for line in records.line]
    return np.array([mark == origin for mark in marks], bool)


def _measured(root: RecordRoot, platform: str, table: DraftTable) -> Iterator[TaskRecords]:
    for task in root.read(Quarantine(), platform):
        chosen = task.select(found_by(root.path, task, table.origin)) if table.origin else task
        chosen = chosen.select(chosen.valid)
        if table.repeats == "fastest":
            chosen = replace(chosen, latency_s=np.array([min(costs) for costs in chosen.costs_s]))
        yield chosen


def _forms(
    root: RecordRoot, platform: str, table: DraftTable, conf: Path, progress: Progress
) -> dict[str, list[ScoredTask]]:
    hardware = load_analyzer(conf, platform).uncalibrated()
    on_gpu = isinstance(hardware.device, GpuDevice)
    forms: tuple[Formula, ...] = get_args(Formula) if on_gpu else ("hardware",)
    pools = Pools(root, progress)
    read = list(pools.of(platform, hardware.device, _measured(root, platform, table)))
    tracked = progress.track(read, f"analyzing {platform}", len(read))
    tasks = list(pools.each(tracked, task_symbols, hardware))
    if not tasks:
        of = f" of origin={table.origin}" if table.origin else ""
        raise PrunerError(f"{platform}: no measured program{of} that can be judged")
    scored: dict[str, list[ScoredTask]] = {}
    if on_gpu and table.official:
        released = AnalyzerChoice(form="official").scorer(conf, hardware.device)
        again = progress.track(read, f"{platform}, released form", len(read))
        scored["official"] = list(pools.each(again, score_records, released))
    scored |= {form: [score_task(t, replace(hardware, form=form)) for t in tasks] for form in forms}
    scored["oracle"] = [
        ScoredTask(name=t.name, latency_s=t.latency_s, score=-t.latency_s) for t in tasks
    ]
    for form in forms:
        own = tuple(terms(form, type(hardware.device))) if table.terms else ()
        for term, name in (*GROUPS.items(), *zip(own, own, strict=True)):
            ablated = replace(hardware, form=form, without=term)
            scored[f"{form}_without_{name}"] = [score_task(t, ablated) for t in tasks]
    if table.calibrate:
        rng = np.random.default_rng(table.seed)
        folds, fits = cross_calibrated(tasks, hardware, table.calibrate, rng)
        scored["hardware_calibrated"] = [score_task(t, folds[t.fold]) for t in tasks]
        for fit in fits.values():
            progress.log(
                f"{platform}: {fit.num_programs} programs, error {fit.error_before:.3f} -> "
                f"{fit.error_after:.3f}"
            )
    return scored


def plot_draft(path: Path, rows: Sequence[dict[str, Any]], min_programs: int) -> None:
    """Plot the 1/50 draft's regret by form, a panel a platform and pool size."""
    forms = [form for form in FORMULAS_DRAWN if any(row["form"] == form for row in rows)]
    panels: dict[str, list[float]] = {}
    for least, what in ((ALL, "all pools"), (min_programs, f"pools of {min_programs}+")):
        for platform in dict.fromkeys(row["platform"] for row in rows):
            mine = [row for row in rows if row["platform"] == platform]
            of = {row["form"]: row for row in mine if row["min_programs"] == least}
            if any(form in of for form in forms):
                chance = next(1 - of[form]["random_at_2pct"] for form in forms if form in of)
                found = [1 - of[form]["best1_at_2pct"] if form in of else np.nan for form in forms]
                panels.setdefault(f"{label(platform)}, {what}", [chance, *found])
    colour = colours(["random", *forms])
    with style():
        figure = bar_panels(
            "What is lost when the draft keeps 1/50 of each pool of programs",
            {label(name): colour[name] for name in ("random", *forms)},
            panels,
            xlabel="regret: 1 - best latency of the pool / best latency kept (less is better)",
        )
        figure.savefig(path, dpi=120)

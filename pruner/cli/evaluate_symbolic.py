"""The half of ``python evaluate.py`` that judges the symbol-based analyzer (``model=symbolic``)."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from pruner.cli.options import plain
from pruner.cli.output import say
from pruner.cli.progress import track
from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot
from pruner.data.tasks import TaskRecords
from pruner.errors import UnsupportedProgram
from pruner.models.analyzer.analyzer import Analyzer
from pruner.models.analyzer.calibrate import Fit, calibrate
from pruner.models.analyzer.choice import SymbolicDraft
from pruner.models.analyzer.constants import save_constants
from pruner.models.analyzer.quality import (
    DraftTask,
    cross_calibrated,
    draft_task,
    of_another_gpu,
    sample_programs,
    score_records,
    score_task,
)
from pruner.models.judging.metrics import ScoredTask
from pruner.places import conf_folder
from pruner.program.dag.task_index import TaskIndex, task_index_of
from pruner.program.device import Device, device_from_mapping, load_device


@dataclass(slots=True)
class _Judge:
    """Scores task after task and counts what happened to the records on the way."""

    root: RecordRoot
    index: TaskIndex | None
    counts: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    fits: dict[str, Any] = field(default_factory=dict)
    rates: dict[str, str] = field(default_factory=dict)

    def records(
        self, platform: str, device: Device, read: Iterator[TaskRecords]
    ) -> Iterator[TaskRecords]:
        """Tasks with a measured program; those that name another GPU are counted and told.

        Records of a folder that is named otherwise than the device are the user's choice.
        """
        for records in track(read, f"reading {platform}", len(self.root.task_files([platform]))):
            num = int(records.valid.sum())
            self.counts["records"] += len(records)
            self.counts["measured"] += num
            if num and platform == device.name and of_another_gpu(records, device):
                self.refuse(records, "another-gpu", f"measured on another GPU: {records.target}")
            elif num:
                yield records

    def refuse(self, records: TaskRecords, reason: str, detail: str) -> None:
        """Count a task that cannot be judged, and tell."""
        num = int(records.valid.sum())
        self.failures[reason] += num
        say(f"{records.file} left out ({num} programs): {detail}")


def judge_symbolic(
    config: DictConfig,
    draft: SymbolicDraft,
    root: RecordRoot,
    platforms: Sequence[str],
    folder: Path,
) -> tuple[list[ScoredTask], dict[str, Any]]:
    """Scores of every task of the record folders, and what the run reports about its data.

    A device is that of ``platform=``, or else the one named like the record folder. Lines set aside
    are listed in ``<folder>/quarantine.jsonl``; fitted rates are saved under ``<folder>/draft``.
    """
    judge, scored = _Judge(root, task_index_of(root.path)), []
    with Quarantine(folder / "quarantine.jsonl") as quarantine:
        for platform in platforms:
            read = root.read(quarantine, platform, duplicates=config.data.duplicates)
            device = _device(config, platform)
            tasks = judge.records(platform, device, read)
            scored += _scores(judge, tasks, draft, device, folder)
    without_score = sum(int(np.isneginf(task.score).sum()) for task in scored)
    if without_score:
        say(f"{without_score:,} programs have no symbols; they are ranked last")
    return scored, {
        "platforms": list(platforms),
        "num_records": judge.counts["records"],
        "num_measured": judge.counts["measured"],
        "quarantined": dict(quarantine.counts),
        "num_left_out": judge.failures.total(),
        "left_out": dict(judge.failures),
        "num_without_score": without_score,
        "rates": judge.rates,
        "calibration": judge.fits,
    }


def _device(config: DictConfig, platform: str) -> Device:
    if config.get("platform"):
        return device_from_mapping(plain(config.platform), origin="platform")
    return load_device(conf_folder() / "platform" / f"{platform}.yaml")


def _scores(
    judge: _Judge,
    tasks: Iterator[TaskRecords],
    draft: SymbolicDraft,
    device: Device,
    folder: Path,
) -> list[ScoredTask]:
    scorer = draft.scorer(conf_folder(), device)
    if draft.form == "hardware" and isinstance(scorer, Analyzer) and not draft.calibrate:
        judge.rates[device.name] = scorer.constants.origin
    if draft.calibrate:
        assert isinstance(scorer, Analyzer), scorer  # SymbolicDraft lets no other form through
        return _calibrated(judge, tasks, draft, scorer, folder)
    out = []
    for records in tasks:
        try:
            out.append(score_records(records, scorer, judge.index))
        except UnsupportedProgram as error:
            judge.refuse(records, error.reason, str(error))
    return out


def _calibrated(
    judge: _Judge,
    records: Iterator[TaskRecords],
    draft: SymbolicDraft,
    analyzer: Analyzer,
    folder: Path,
) -> list[ScoredTask]:
    """Every task is scored with rates fitted to the other half; rates of all tasks are saved."""
    name = analyzer.device.name
    tasks: list[DraftTask] = []
    for task in records:
        try:
            tasks.append(draft_task(task, analyzer, judge.index))
        except UnsupportedProgram as error:
            judge.refuse(task, error.reason, str(error))
    rng = np.random.default_rng(draft.seed)
    halves, fits = cross_calibrated(tasks, analyzer, draft.calibrate, rng)
    start = analyzer.uncalibrated()
    whole = calibrate(sample_programs(tasks, start, draft.calibrate, rng), start)
    path = folder / "draft" / f"{name}.yaml"
    path.parent.mkdir(exist_ok=True)
    save_constants(path, whole.constants)
    say(f"rates fitted to {whole.num_programs} programs: {path}; copy it to conf/draft to use it")
    judge.fits[name] = {
        "saved": str(path),
        "whole": _summary(whole),
        **{f"half_{number}": _summary(fit) for number, fit in fits.items()},
    }
    return [score_task(task, halves[task.fold]) for task in tasks]


def _summary(fit: Fit) -> dict[str, Any]:
    return {
        "num_programs": fit.num_programs,
        "error_before": fit.error_before,
        "error_after": fit.error_after,
    }

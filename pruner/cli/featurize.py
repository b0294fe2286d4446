"""``pruner featurize``: write the features of record files as NumPy archives.

One ``<out>/<platform>/<task>.npz`` for each record file, with a row for every readable record:
`index` int64 [N] line numbers (from 0), `statement` float32 [N, S, columns] zero padded,
`num_statements` int32 [N], `dataflow` float32 [N, 10 or 8, columns], `valid` bool [N] (False: could
not be replayed, rows are zero), with ``features.psa=true`` also `psa` float32 [N, S, columns];
`about` (JSON) has settings and source, and digests of code and definitions. Columns:
:mod:`pruner.features.columns`.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from pruner import features
from pruner.archives import read_arrays, write_arrays
from pruner.cli.shared.options import plain
from pruner.cli.shared.output import say
from pruner.cli.shared.progress import track
from pruner.cli.shared.records import record_root, required_platforms
from pruner.data.quarantine import Quarantine, of_all
from pruner.data.root import TaskFile
from pruner.data.tasks import TaskRecords, read_tasks
from pruner.errors import DataError, PrunerError, UnsupportedProgram
from pruner.features.batch import ProgramFeatures, padded
from pruner.files import digest_of
from pruner.models.programs.cache import basis_of
from pruner.processes import in_workers
from pruner.program.replay import Definitions, definitions_of


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReport:
    """The result for a record file; `reused`: an earlier run wrote it."""

    programs: int
    failures: Counter[str] = field(default_factory=Counter)
    quarantined: Counter[str] = field(default_factory=Counter)
    reused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The settings of all files of a run; picklable."""

    out: Path
    spec: features.FeatureSpec
    basis: Mapping[str, str]  # see `basis_of`
    data_root: Path | None = None  # may hold TenSet's task files

    def target(self, file: TaskFile) -> Path:
        """Return the path for the features of a record file."""
        return self.out / file.platform / f"{file.task}.npz"

    def about(self, file: TaskFile) -> dict[str, Any]:
        """Identify the content of a target by settings, source, code and definitions."""
        return {
            **self.basis,
            "dataflow": self.spec.dataflow,
            "psa": self.spec.psa,
            "source": file.path.name,
            "source_sha256": _digest(file.path),
        }


def _digest(path: Path) -> str | None:
    try:
        return digest_of([path])
    except OSError:  # the reader sets it aside
        return None


def featurize_file(file: TaskFile, plan: Plan) -> FileReport:
    """Write a record file's features, unless the target exists already."""
    target, about = plan.target(file), plan.about(file)
    earlier = _earlier(target, about)
    if earlier is not None:
        return earlier
    failures: Counter[str] = Counter()
    with Quarantine(target.with_suffix(".quarantine.jsonl")) as quarantine:
        tasks = read_tasks(
            file.path, quarantine, platform=file.platform, task=file.task, duplicates="keep"
        )
        rows = [_task_rows(task, plan, failures, quarantine) for task in tasks if len(task)]
    arrays = _joined(rows, plan)
    about = {**about, "failures": dict(failures), "quarantined": dict(quarantine.counts)}
    arrays["about"] = np.array(json.dumps(about))
    target.parent.mkdir(parents=True, exist_ok=True)
    write_arrays(target, **arrays)
    return FileReport(
        programs=len(arrays["index"]),
        failures=failures,
        quarantined=quarantine.counts,
    )


def _earlier(target: Path, about: dict[str, Any]) -> FileReport | None:
    if not target.is_file():
        return None
    try:
        stored = read_arrays(target)
        stored_about = dict(json.loads(str(stored["about"])))
        programs = len(stored["index"])
    except (DataError, ValueError, KeyError, TypeError):  # another file or damaged: write it anew
        return None
    if any(stored_about.get(name) != value for name, value in about.items()):
        return None
    return FileReport(
        programs=programs,
        failures=Counter(stored_about["failures"]),
        quarantined=Counter(stored_about["quarantined"]),
        reused=True,
    )


@cache
def _tasks(data_root: Path | None) -> Definitions | None:
    return None if data_root is None else definitions_of(data_root)


_Rows = tuple[np.ndarray, ProgramFeatures, int]  # lines, their features, least rows a program


def _task_rows(
    records: TaskRecords, plan: Plan, failures: Counter[str], quarantine: Quarantine
) -> _Rows:
    try:
        found = features.featurize_records(
            records.workload_key,
            records.fused,
            records.steps,
            plan.spec,
            tasks=_tasks(plan.data_root),
        )
    except UnsupportedProgram as error:
        failures[error.reason] += len(records)
        why = of_all(error.reason, len(records))
        quarantine.not_replayed(file=records.file, line=int(records.line[0]), why=why)
        return _nothing(records.line, plan)
    failures.update(found.failures.values())
    for row, why in sorted(found.failures.items()):
        quarantine.not_replayed(file=records.file, line=int(records.line[row]), why=why)
    return records.line, found, 0


def _nothing(line: np.ndarray, plan: Plan) -> _Rows:
    nothing = ProgramFeatures.empty(len(line), plan.spec)
    return np.asarray(line, dtype=np.int64), nothing, 1


def _joined(parts: Sequence[_Rows], plan: Plan) -> dict[str, np.ndarray]:
    parts = parts or [_nothing(np.zeros(0, np.int64), plan)]
    lines = np.concatenate([line for line, _, _ in parts])
    order = np.argsort(lines, kind="stable")
    width = max(max(int(f.num_statements.max(initial=0)), least) for _, f, least in parts)

    def column(values: Callable[[ProgramFeatures], np.ndarray]) -> np.ndarray:
        return np.concatenate([values(features) for _, features, _ in parts])[order]

    def symbols(features: ProgramFeatures) -> np.ndarray:
        assert features.psa is not None, "the plan asks for them"
        return padded(features.psa, features.row_start, width)

    arrays = {
        "index": lines[order],
        "statement": column(lambda f: padded(f.statement, f.row_start, width)),
        "num_statements": column(lambda f: f.num_statements.astype(np.int32)),
        "dataflow": column(lambda f: f.dataflow),
        "valid": column(lambda f: f.valid),
    }
    return arrays | ({"psa": column(symbols)} if plan.spec.psa else {})


def reports(files: Sequence[TaskFile], plan: Plan, num_workers: int) -> Iterator[FileReport]:
    """Featurise files in workers, in any order, unless `num_workers` is 1."""
    if num_workers == 1:
        for file in files:
            yield featurize_file(file, plan)
        return
    # Fresh interpreters: there is nothing to share, and a fork of a threaded process can hang.
    run = partial(featurize_file, plan=plan)
    with in_workers(files, run, num_workers, method="spawn") as ended:
        for done in ended():
            yield done.get()


def featurize(config: DictConfig) -> dict[str, Any]:
    """Run the command; return the object of the last line."""
    if config.out is None:
        raise PrunerError("out=DIR is missing: the folder for <platform>/<task>.npz")
    workers = int(config.num_workers or os.cpu_count() or 1)
    start = time.perf_counter()
    root = record_root(config.data)
    files = root.task_files(list(required_platforms(config, root)))
    chosen = plain(config.features)
    plan = Plan(
        out=Path(config.out),
        spec=features.FeatureSpec(dataflow=chosen["dataflow"], psa=bool(chosen["psa"])),
        basis=basis_of(root.path),
        data_root=root.path,
    )
    _tasks(root.path)  # raises for a damaged folder at once, not in a worker
    found = list(track(reports(files, plan, workers), "featurising", len(files)))
    seconds = time.perf_counter() - start
    failures = sum((report.failures for report in found), Counter[str]())
    quarantined = sum((report.quarantined for report in found), Counter[str]())
    programs = sum(report.programs for report in found)
    fresh = sum(report.programs for report in found if not report.reused)
    reused = sum(report.reused for report in found)
    if reused:
        say(f"{reused} of {len(found)} files were already there")
    if not programs:
        raise PrunerError("no record could be read; see the .quarantine.jsonl files in out")
    return {
        "programs": programs,
        "failed": failures.total(),
        "failures": dict(failures),
        "quarantined": dict(quarantined),
        "files": len(found),
        "files_reused": reused,
        "out": str(plan.out),
        "seconds": round(seconds, 3),
        "programs_per_second": round(fresh / max(seconds, 1e-9), 1),
    }

"""Fit the analyzer's rates inside a split, and make its columns by these rates.

The shipped rates were chosen by hand with all logs in view, so a held-out table flatters a model
that reads the analyzer. Nested rates are fitted to programs of the split's own training and
validation tasks; the latency of a test program is never used. The fit starts from values that
follow from the definition of each rate, a data sheet or the manual of a compiler (`NEUTRAL`). The
terms of the formulas are not fitted: they stay as they were chosen, with all logs in view.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from experiments.model.ablation.cells import AblationCell, Setting
from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot
from pruner.data.tasks import TaskKey, TaskRecords
from pruner.errors import DataError, PrunerError, UnsupportedProgram
from pruner.models.analyzer.analyzer import SymbolAnalyzer, load_analyzer
from pruner.models.analyzer.columns import NUM_DRAFT_COLUMNS, DraftColumns
from pruner.models.analyzer.constants import AnalyzerConstants, GpuRates
from pruner.models.analyzer.quality import FREE as CALIBRATED
from pruner.models.analyzer.quality import TaskSymbols, calibrate, sample_programs, task_label
from pruner.models.programs.program_table import ProgramTable
from pruner.paths import conf_folder
from pruner.program.replay import Definitions, definitions_of, find_definition, replay
from pruner.progress import Progress
from pruner.study.grid import Job, results

NEUTRAL: Mapping[str, float] = {
    "base_registers": 16.0,  # three 64-bit addresses, block and thread numbers, loop counters
    "reserved_registers": 0.0,  # the device's own limit is already what a program may use
    "live_operands": 2.0,  # of one multiply-add
    "spill": 3.0,  # a multiply-add loads two operands and stores its result: three more
    "rolled": 3.0,  # the same
    "unroll_limit": 300.0,  # LLVM unrolls loops of up to 300 instructions at -O3
    "multiply_add": 1.0,  # one instruction
    "shared_load": 1.0,  # one warp in one cycle of its 32 lanes
    "bank_conflict": 1.0,  # every way takes as long as the first (CUDA C++ Programming Guide)
    "kept_operands": 1.0,  # no load more than the least possible
    "loop": 3.0,  # increment, comparison, branch
    "unrolled_body": 1.0,  # nothing is unrolled but what the pragma requests
    "stage": 4.0,  # load, store, an address for each
    "vector_saving": 1.0,  # a vector moves in one instruction
    "short_rows": 1.0,  # every sector takes as long as the first
    "odd_vectors": 1.0,  # every scalar takes as long as the first
    "write": 2.0,  # an address, a store
    "scattered_write": 1.0,  # every request takes as long as the first
    "step_cycles": 400.0,  # global memory: a few hundred cycles (CUDA C++ Programming Guide)
    "fetch_cycles": 400.0,  # the same
    "chain_cycles": 4.0,  # Volta: 4 cycles (the same guide); a GCN wavefront takes 4 cycles
    "overlap": 2.0,  # between a sum (1) and the larger of both (infinite)
    "row_elements": 8.0,  # a sector of 32 bytes has 8 elements of 4 bytes
    "repeated_traffic": 0.5,  # a share, unknown: one half
    "traffic": 1.0,  # the peak bandwidth is reached
    "idle_threads": 0.5,  # a share, unknown: one half
    "block_launch_ns": 400.0,  # 400 cycles at 1 GHz, as global memory
    "whole_waves": 0.0,  # off
}
FREE = (*CALIBRATED[GpuRates], "spill", "vector_saving", "idle_threads", "block_launch_ns")
_CHUNK = 4096  # programs at once, as in features
_STEPS = 60  # of the fit: the start is farther away than that of a calibration
FOLDER = "rates"  # of the fits, below the folder of the cells
RATES_S = {"k80": 10.0, "v100": 15.0, "mi50": 10.0}  # seconds of a fit, with a share of the symbols


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredTask:
    """Symbols of a task's measured programs; `line` [N]: where each is in its file."""

    key: TaskKey
    line: Int[np.ndarray, " program"]
    symbols: TaskSymbols

    @staticmethod
    def of(
        records: TaskRecords, analyzer: SymbolAnalyzer, definitions: Definitions
    ) -> "MeasuredTask":
        """Replay measured programs; raises UnsupportedProgram for an unknown operator."""
        records = records.select(records.valid)
        steps = records.steps
        dag = find_definition(records.workload_key, records.fused, steps, definitions)
        symbols = TaskSymbols(
            name=task_label(records),
            identity=records.key.identity,
            latency_s=records.latency_s,
            groups=tuple(replay(dag, steps, analyzer.symbols, _CHUNK).parts),
            key=records.key,
        )
        return MeasuredTask(key=records.key, line=records.line, symbols=symbols)


ReadTasks = Callable[[str], Sequence[MeasuredTask]]


def gpu_analyzer(platform: str) -> SymbolAnalyzer:
    """The analyzer of a GPU, by shipped rates; raises PrunerError for others."""
    analyzer = load_analyzer(conf_folder(), platform).uncalibrated()
    if not isinstance(analyzer.constants.rates, GpuRates):
        raise PrunerError(
            f"platforms: {platform} is no GPU; stage=clean fits rates of GPUs: leave it out"
        )
    return analyzer


def tasks_reader(root: RecordRoot, progress: Progress) -> ReadTasks:
    """A function that reads a platform's tasks with symbols; those of three stay in memory."""
    definitions = definitions_of(root.path)

    @lru_cache(maxsize=3)
    def read(platform: str) -> Sequence[MeasuredTask]:
        analyzer, found = gpu_analyzer(platform), []
        number = len(root.task_files(platform))
        each = root.read(Quarantine(), platform)
        for records in progress.track(each, f"symbols of {platform}", number):
            if records.valid.any():
                try:
                    found.append(MeasuredTask.of(records, analyzer, definitions))
                except UnsupportedProgram as error:  # it has no features either
                    progress.log(f"{records.file} left out: {error}")
        return found

    return read


def fit_rates(
    tasks: Sequence[TaskSymbols],
    analyzer: SymbolAnalyzer,
    num_programs: int,
    seed: int,
    max_steps: int = _STEPS,
) -> dict[str, Any]:
    """Fit rates to programs of all given tasks, from neutral values, as JSON.

    The errors are weighted root mean squares of log latency on the same programs: of the neutral
    rates, of the fitted rates, and of the shipped rates.
    """
    start = time.perf_counter()
    neutral = replace(
        analyzer, constants=AnalyzerConstants(rates=GpuRates(**NEUTRAL), origin="neutral")
    )
    rng = np.random.default_rng(seed)
    samples = sample_programs(tasks, neutral, num_programs, rng, every_task=True)
    fit = calibrate(samples, neutral, max_steps=max_steps, free=FREE)
    shipped = calibrate(samples, analyzer.uncalibrated(), max_steps=0)
    return {
        "rates": asdict(fit.constants.rates),
        "origin": fit.constants.origin,
        "num_programs": fit.num_programs,
        "num_tasks": len(samples),
        "error_neutral": fit.error_before,
        "error_nested": fit.error_after,
        "error_shipped": shipped.error_after,
        "fit_seconds": round(time.perf_counter() - start, 2),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class NestedRates:
    """Rates of every split and platform, each fit in a file of its own below `folder`.

    `read`: tasks of a platform with symbols; `num_programs`: measured programs of a fit. Called
    with a cell and its programs, it returns the programs with the analyzer's columns by the rates
    of the cell's split.
    """

    folder: Path
    read: ReadTasks
    num_programs: int = 2000
    max_steps: int = _STEPS

    @property
    def about(self) -> str:
        """All that determines the rates besides records and split."""
        start = sha256(repr((sorted(NEUTRAL.items()), FREE, self.max_steps)).encode()).hexdigest()
        return f"fitted to {self.num_programs} programs from start {start[:8]}"

    def path(self, setting: Setting, seed: int, platform: str) -> Path:
        """The file of a fit."""
        return self.folder / FOLDER / setting.name / f"seed-{seed}" / f"{platform}.json"

    def jobs(self, cells: Iterable[AblationCell], programs: ProgramTable) -> list[tuple[str, Job]]:
        """The fits of the splits; raises PrunerError for a judge not learned from."""
        found = []
        for setting, seed in dict.fromkeys((cell.setting, cell.seed) for cell in cells):
            if setting.left_out:
                raise PrunerError(f"{setting.name}: no rates can be fitted to a platform left out")
            split = setting.divided(programs.keys, seed)
            ours = frozenset((*split.train, *split.valid))
            for platform in setting.learned:
                job = Job(
                    name=f"{FOLDER}/{setting.name}/seed-{seed}/{platform}",
                    leaves=self.path(setting, seed, platform),
                    run=partial(self._fit_one, platform, seed, ours),
                    about={"rates": self.about, "split": split.fingerprint},
                )
                found.append((platform, job))
        return found

    def _fit_one(self, platform: str, seed: int, ours: frozenset[TaskKey]) -> dict[str, Any]:
        # Chosen by their keys: no latency of another task goes any further.
        tasks = [one.symbols for one in self.read(platform) if one.key in ours]
        analyzer = gpu_analyzer(platform)
        return fit_rates(tasks, analyzer, self.num_programs, seed, self.max_steps)

    def fit(
        self, cells: Iterable[AblationCell], programs: ProgramTable, num_workers: int = 1
    ) -> list[dict[str, Any]]:
        """Fit what is missing, several fits at a time; a result a job."""
        jobs = self.jobs(cells, programs)
        for platform, job in jobs:
            if job.result is None:  # before the processes fork, so that they share the symbols
                self.read(platform)
        return list(results([job for _, job in jobs], num_workers=num_workers))

    def __call__(self, cell: AblationCell, programs: ProgramTable) -> ProgramTable:
        """The programs with columns by nested rates; raises DataError without symbols."""
        analyzers = {}
        for platform, found in zip(cell.setting.learned, self.fit([cell], programs), strict=True):
            rates = AnalyzerConstants(rates=GpuRates(**found["rates"]), origin=found["origin"])
            analyzers[platform] = replace(gpu_analyzer(platform), constants=rates)
        return replace(programs, draft=draft_by(analyzers, self.read, programs))


def draft_by(
    analyzers: Mapping[str, SymbolAnalyzer], read: ReadTasks, programs: ProgramTable
) -> Float[Tensor, "program draft"]:
    """The analyzers' columns of all programs; raises DataError without symbols."""
    if programs.draft is None:
        raise PrunerError("programs were read without what the analyzer makes of them")
    out = torch.full_like(programs.draft, torch.nan)
    for platform, analyzer in analyzers.items():
        columns = DraftColumns(analyzer)
        tasks = {one.key: one for one in read(platform)}
        for number, key in enumerate(programs.keys):
            if key.platform == platform and key in tasks:
                rows = programs.programs_of([number])
                out[rows] = _columns_of(tasks[key], columns, programs.line[rows].numpy())
    lacking = programs.task[torch.isnan(out).any(dim=1)].unique().tolist()
    if lacking:
        names = ", ".join(programs.keys[number].task for number in lacking)
        raise DataError(f"programs without symbols or rates, of the tasks {names}")
    return out


def _columns_of(
    task: MeasuredTask, columns: DraftColumns, line: Int[np.ndarray, " program"]
) -> Float[Tensor, "program draft"]:
    """Columns of the programs at the given lines of the task's file; NaN without symbols."""
    every = np.full((len(task.line), NUM_DRAFT_COLUMNS), np.nan, np.float32)
    for rows, symbols in task.symbols.groups:
        every[rows] = columns.of(symbols)
    place = np.searchsorted(task.line, line)  # lines of a file are in order
    if not np.array_equal(task.line[np.minimum(place, len(task.line) - 1)], line):
        raise DataError(f"{task.symbols.name}: its records changed since its features were made")
    return torch.from_numpy(every[place])

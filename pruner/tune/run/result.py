"""The results of a tuning run, of every task and in all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pruner.search.task_order import Estimate
from pruner.tune.measure.measurer import Outcome, Platform
from pruner.tune.networks.coverage import ReplayShare
from pruner.tune.run.finalists import Finalists
from pruner.tune.run.journal import Trial
from pruner.tune.workloads import Workload, arguments, flops

if TYPE_CHECKING:  # it imports torch
    from pruner.models.forecast import Forecast
    from pruner.tune.run.final_choice import FinalChoice

WRONG = "wrong_result"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    """The result of a task.

    ``best_s`` infinite: no program ran and was right. ``refused`` programs never reached a builder;
    ``exhausted``: there were no programs left. ``untuned_s``: the operator without a schedule, None
    where that was not timed. ``peak_share``: the share of the described peak arithmetic, None
    without a description. ``checked``: the results of the best program are right; None where
    nothing ran, or an earlier run measured the best. ``replayed``: the number of its design spaces
    that TVM replays, None where they were not opened. ``unscheduled``: the best program is the
    function without schedule. ``forecast``: of the best program, without its measurement.
    """

    name: str
    weight: float
    flops: float
    best_s: float
    trials: int
    failures: Counter[str]
    refused: int = 0
    exhausted: bool = False
    untuned_s: float | None = None
    peak_share: float | None = None
    compiled: int = 0  # programs that were only built
    kernel: Path | None = None  # the library of the best program
    checked: bool | None = None
    check: bool = True  # it was requested
    replayed: int | None = None
    unscheduled: bool = False
    message: str = ""  # of the last failure
    forecast: Forecast | None = None
    finalists: Finalists | None = None  # timed in turns; the winner is the best program

    @staticmethod
    def of(
        workload: Workload,
        trials: Sequence[Trial],
        *,
        platform: Platform | None = None,
        known_s: float = float("inf"),
        unscheduled: Outcome | None = None,
        finalists: Finalists | None = None,
        **known: Any,
    ) -> TaskOutcome:
        """Count the journal's rows of a task.

        `platform` has the peak; `known` are the fields without rows, `known_s` the best latency of
        earlier runs in seconds, or of the function without schedule, whose outcome is `unscheduled`
        where no program is faster.
        """
        mine = [trial for trial in trials if trial.task == workload.name]
        best_s, work = (
            min([known_s, *(t.latency_s for t in mine)]),
            flops(workload.module),
        )
        best = min(mine, key=lambda trial: trial.latency_s, default=None)
        ours = best is not None and best.latency_s <= best_s < float("inf")
        # 0 for a task without a program: its time is infinite
        peak_flops_per_s = None if platform is None else _peak_flops_per_s(workload, platform)
        checked = best.checked if best is not None and ours else None
        won = finalists if ours and unscheduled is None else None
        if won is not None:
            best_s, checked = won.latency_s, won.checked
        share = None if peak_flops_per_s is None else work / best_s / peak_flops_per_s
        return TaskOutcome(
            name=workload.name,
            weight=workload.weight,
            flops=work,
            best_s=best_s,
            trials=sum(not trial.compiled_only for trial in mine),
            failures=Counter(trial.error for trial in mine if trial.error is not None),
            peak_share=share,
            checked=checked if unscheduled is None else unscheduled.checked,
            unscheduled=unscheduled is not None,
            message=next((trial.message for trial in reversed(mine) if trial.error), ""),
            finalists=won,
            compiled=sum(trial.compiled_only and trial.error is None for trial in mine),
            **known,
        )

    @property
    def all_failed(self) -> bool:
        """True if no program ran and was right."""
        return self.trials > 0 and self.best_s == float("inf")

    @property
    def all_wrong(self) -> bool:
        """True if all failed, and some ran with wrong results."""
        return self.all_failed and self.failures[WRONG] > 0

    @property
    def unsuccessful(self) -> bool:
        """True if the task was tried without a program of checked results."""
        return self.all_failed or (self.check and self.checked is False)

    def verdict(self) -> str:
        """Describe the result in a line: latency and comparison, or failure."""
        if not self.trials and self.best_s == float("inf"):
            why = "no program of it could be tried" if self.exhausted else "the run ended before"
            return f"{self.name}: not tuned, {why}"
        if self.all_failed:
            kinds = ", ".join(f"{num} {kind}" for kind, num in self.failures.most_common())
            what = "NO CORRECT PROGRAM" if self.all_wrong else "NO PROGRAM THAT RUNS"
            why = f": {self.message}" if self.message else ""
            return f"{self.name}: {what} among {self.trials} that were tried ({kinds}){why}"
        parts = [f"{self.name}: {1e3 * self.best_s:.4g} ms"]
        if self.unscheduled:
            parts.append("the function without schedule: no program is faster")
            failed = self.failures.total()
            parts += [f"{failed} of {self.trials} failed ({self.message})"] if failed else []
        elif self.untuned_s is not None:
            parts.append(f"untuned {1e3 * self.untuned_s:.4g} ms")
            parts.append(f"{self.untuned_s / self.best_s:.3g} times as fast")
        if self.peak_share is not None:
            parts.append(f"{100 * self.peak_share:.3g} % of peak")
        if self.finalists is not None:
            parts.append(f"the best of {len(self.finalists.trials)} timed in turns")
        if self.forecast is not None:
            parts.append(f"forecast {self.forecast}")
        if self.exhausted and self.trials:
            parts.append(f"the search has no other program after {self.trials}")
        if self.checked is False:
            parts.append("NOT CHECKED" if self.check else "not checked (measure.check=false)")
        return ", ".join(parts)

    def row(self) -> dict[str, Any]:
        """Return the results for the last line."""
        return {
            "best_latency_s": self.best_s,
            "untuned_latency_s": self.untuned_s,
            "gflops_per_s": self.flops / self.best_s / 1e9,
            "peak_share": self.peak_share,
            "forecast_s": None if self.forecast is None else self.forecast.seconds,
            "finalists": None if self.finalists is None else self.finalists.row(),
            "trials": self.trials,
            "failures": dict(self.failures),
            "all_failed": self.all_failed,
            "all_wrong": self.all_wrong,
            "checked": self.checked,
            "unscheduled": self.unscheduled,
            "weight": self.weight,
            "exhausted": self.exhausted,
            "replayed": self.replayed,
            "kernel": None if self.kernel is None else str(self.kernel),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """The results of a finished tuning run.

    ``work_dir`` has TVM's database. ``seconds`` is the time per phase. ``models`` has the
    checkpoints by name: "adapted" scored the last batch, "siamese" is the Siamese model of MoA.
    ``final``: the choice among the programs, in runs that measure.
    """

    tasks: Sequence[TaskOutcome]
    seconds: Mapping[str, float]
    folder: Path
    work_dir: Path
    compile_only: bool = False
    models: Mapping[str, Path] = field(default_factory=dict)
    final: FinalChoice | None = None

    @property
    def best_latency_s(self) -> float:
        """Weighted sum over tasks in seconds; infinite without a task's program."""
        return sum(task.weight * task.best_s for task in self.tasks)

    @property
    def untuned_latency_s(self) -> float | None:
        """Weighted sum without schedules in seconds; None if a task was not timed."""
        # a sum that lacks a task would be compared with the sum of all
        known_s = [task.weight * s for task in self.tasks if (s := task.untuned_s) is not None]
        return sum(known_s) if len(known_s) == len(self.tasks) else None

    @property
    def unsuccessful(self) -> list[str]:
        """List tasks without a checked program, or without a compiled program."""
        if self.compile_only:
            return [task.name for task in self.tasks if task.failures and not task.compiled]
        return [task.name for task in self.tasks if task.unsuccessful]

    @property
    def checked(self) -> bool | None:
        """True if all best programs were checked; None if none is of this run."""
        known = [task.checked for task in self.tasks if task.checked is not None]
        return all(known) if known else None

    @property
    def estimate(self) -> Estimate:
        """Estimate all tasks together, including tasks without a program."""
        return Estimate.of((one.weight, one.flops, one.best_s) for one in self.tasks)

    @property
    def replayed(self) -> ReplayShare:
        """The tasks with design spaces that TVM replays."""
        return ReplayShare.of(
            (one.name, one.weight * one.flops, one.replayed) for one in self.tasks
        )

    def metrics(self) -> dict[str, Any]:
        """Return the last line of ``tune.py``."""
        failures = sum((task.failures for task in self.tasks), Counter[str]())
        trials, failed = sum(task.trials for task in self.tasks), failures.total()
        row: dict[str, Any] = {
            "best_latency_s": None if self.compile_only else self.best_latency_s,
            "untuned_latency_s": self.untuned_latency_s,
            "trials": trials,
            "failed": failed,
            "failures": dict(failures),
            "invalid_share": failed / trials if trials else 0.0,
            "all_failed": [task.name for task in self.tasks if task.all_failed],
            "all_wrong": [task.name for task in self.tasks if task.all_wrong],
            "checked": None if self.compile_only else self.checked,
            "unsuccessful": self.unsuccessful,
            "replayed_share": self.replayed.share,
            "refused_before_build": sum(task.refused for task in self.tasks),
            "tasks": {} if self.compile_only else {task.name: task.row() for task in self.tasks},
            "seconds": dict(self.seconds),
            "total_seconds": sum(self.seconds.values()),
            "run_dir": str(self.folder),
            "work_dir": str(self.work_dir),
            "models": {name: str(path) for name, path in self.models.items()},
        }
        row |= {} if self.final is None else self.final.metrics()
        compiled = sum(task.compiled for task in self.tasks)
        return row | ({"compiled": compiled} if self.compile_only else {})


def _peak_flops_per_s(workload: Workload, platform: Platform) -> float | None:
    """Return the float16 peak for a task with a float16 argument, else float32's."""
    half = platform.half_peak_flops_per_s
    if half is None or all(dtype != "float16" for _, dtype in arguments(workload.module)):
        return platform.peak_flops_per_s
    return half

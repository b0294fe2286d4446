"""Rows from the runs of a campaign; missing runs are left out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from experiments.common.comparison import Step
from experiments.gpu.options import CampaignOptions, Group, NetworkChoice
from experiments.gpu.stages import (
    ADATUNE,
    METASCHEDULE,
    METHODS,
    OURS,
    POLICIES,
    RANDOM,
    SCRATCH,
    network_run,
)
from pruner.files import as_written, load_metrics, read_json
from pruner.study.network.run import NetworkRun, baseline_rows, read_network_run
from pruner.study.tuning_plots import RunCurve, exploration_share
from pruner.tune.compare.benchmark import SideBySide
from pruner.tune.deploy.built_files import KERNELS_FILE
from pruner.tune.networks.extraction import TASKS
from pruner.tune.phases import IDLE, PHASES
from pruner.tune.run.journal import JOURNAL_FILE, Trial, read_trials

Row = dict[str, Any]
_EVERY = 8  # trials between two points of a curve
_REPEATS = 2  # of a timing, at least, to say how far they differ


@dataclass(frozen=True, kw_only=True)
class GroupRun:
    """The trials of one policy on a group of operators."""

    policy: str
    folder: Path

    @cached_property
    def trials(self) -> Sequence[Trial]:
        """In their order."""
        return read_trials(self.folder / JOURNAL_FILE)

    @property
    def tasks(self) -> list[str]:
        """Names, in the order of their first trials."""
        return list(dict.fromkeys(trial.task for trial in self.trials))

    def of(self, task: str) -> list[Trial]:
        """The trials of a task."""
        return [trial for trial in self.trials if trial.task == task]

    def best_s(self, task: str, trials: int | None = None) -> float | None:
        """Best latency, or that of the first `trials`; None where none ran."""
        found = min((t.latency_s for t in self.of(task)[:trials]), default=np.inf)
        return float(found) if np.isfinite(found) else None

    def curve(self, tasks: Sequence[str]) -> RunCurve:
        """The sum of the best latencies of `tasks`, from where all have a program."""
        return RunCurve.of(self.policy, self.trials, dict.fromkeys(tasks, 1.0), {})

    @property
    def noise(self) -> float | None:
        """Spread of a timing's repeats: median of (most - least) / median."""
        timed = [np.array(t.costs_s) for t in self.trials if len(t.costs_s) >= _REPEATS]
        spreads = [(costs.max() - costs.min()) / np.median(costs) for costs in timed]
        return float(np.median(spreads)) if spreads else None


def group_runs(options: CampaignOptions, group: Group) -> list[GroupRun]:
    """The begun runs of a group: of policies, or of adaptation methods."""
    names = [*POLICIES, ADATUNE, *METHODS]
    runs = [GroupRun(policy=name, folder=_folder(options, group, name)) for name in names]
    return [run for run in runs if run.trials]


def _folder(options: CampaignOptions, group: Group, policy: str) -> Path:
    """Folder of a run; the first kernels are tuned by ours alone."""
    alone = group.name == options.sanity.name and policy == OURS
    return options.run(group.name if alone else f"{group.name}-{policy}")


def _tuned_groups(options: CampaignOptions) -> list[Group]:
    return [*options.groups, options.reduction, options.adapted]


def operator_rows(options: CampaignOptions) -> list[Row]:
    """A row an operator and policy; ``over_random``: over random search's best."""
    rows: list[Row] = []
    for group in _tuned_groups(options):
        runs, raced = group_runs(options, group), _raced(options, group)
        for task in dict.fromkeys(task for run in runs for task in run.tasks):
            having = [run for run in runs if run.of(task)]
            equal = min(len(run.of(task)) for run in having)
            medians = {row["name"]: row.get("median_s") for row in raced.get(task, [])}
            found = {run.policy: _operator_row(group, run, task, equal, medians) for run in having}
            chance_s = found.get(RANDOM, {}).get("best_at_equal_s")
            for row in found.values():
                row["over_random"] = _over(row["best_at_equal_s"], chance_s)
            rows += found.values()
    return rows


def _operator_row(
    group: Group, run: GroupRun, task: str, equal: int, medians: Mapping[str, float | None]
) -> Row:
    mine = run.of(task)
    raced_s = medians.get(OURS if run.policy == OURS else run.folder.name)
    torch_s = medians.get("eager")
    return {
        "table": "operators",
        "group": group.name,
        "task": task,
        "policy": run.policy,
        "trials": sum(not trial.compiled_only for trial in mine),
        "compiled": sum(trial.compiled_only and trial.error is None for trial in mine),
        "failed": sum(trial.error is not None for trial in mine),
        "seconds": mine[-1].elapsed_s,
        "best_s": run.best_s(task),
        "equal_trials": equal,
        "best_at_equal_s": run.best_s(task, equal),
        "raced_s": raced_s,
        "over_torch": _over(torch_s, raced_s),
        "checked": any(trial.checked for trial in mine),
    }


def _over(mine_s: float | None, other_s: float | None) -> float | None:
    return mine_s / other_s if mine_s and other_s else None


def group_rows(options: CampaignOptions) -> list[Row]:
    """A row a group and policy: all operators together.

    The first kernels are a group, too. ``build_each_s`` and ``run_each_s`` are of a trial, in the
    workers; `phases` of the whole run. The rival is MetaSchedule; among models, the model that
    begins anew. ``seconds_to_rival``: until the sum of the best latencies was the rival's last sum
    (0 in ``times_less``: never); ``over_rival``: geometric mean of the latencies at equal trials
    over the rival's. ``over_random``: the same over random search.
    """
    rows = []
    for group in [options.sanity, *_tuned_groups(options)]:
        runs = group_runs(options, group)
        rival = next((run for run in runs if run.policy in (METASCHEDULE, SCRATCH)), None)
        chance = next((run for run in runs if run.policy == RANDOM), None)
        for run in runs:
            metrics = load_metrics(run.folder) or {}
            rows.append(
                {
                    "table": "groups",
                    "group": group.name,
                    "policy": run.policy,
                    "tasks": len(run.tasks),
                    "trials": len(run.trials),
                    "failed": sum(trial.error is not None for trial in run.trials),
                    "compiled": sum(t.compiled_only and t.error is None for t in run.trials),
                    "total_s": metrics.get("total_seconds"),
                    "build_each_s": float(np.mean([trial.build_s for trial in run.trials])),
                    "run_each_s": float(np.mean([trial.run_s for trial in run.trials])),
                    "noise": run.noise,
                    **phases(metrics.get("seconds", {})),
                    **(_beside_rival(run, rival) if rival is not None else {}),
                    "over_random": None if chance is None else _at_equal(run, chance),
                }
            )
    return rows


def phases(seconds: Mapping[str, float]) -> Row:
    """Seconds by phase, and `exploration_share`; None before the run ended."""
    return {
        **{f"{name}_s": seconds.get(name) for name in (*PHASES, IDLE)},
        "exploration_share": exploration_share(seconds),
    }


def curve_rows(options: CampaignOptions) -> list[Row]:
    """Points of the best latencies: of groups (sums) and networks (estimates).

    They begin where all tasks have a program. ``relative``: over the best sum of any policy.
    Networks of two policies may have other tasks (layouts are part of ours): their built networks
    are in `network_rows`.
    """
    rows = []
    for group in _tuned_groups(options):
        runs = group_runs(options, group)
        tasks = list(dict.fromkeys(task for run in runs for task in run.tasks))
        rows += _points(group.name, {run.policy: run.curve(tasks) for run in runs})
    for network, precision in options.networks:
        runs_of = {
            policy: network_run(options, network, precision, policy).leaves.parent
            for policy in (OURS, METASCHEDULE)
        }
        found = {policy: _network_curve(folder) for policy, folder in runs_of.items()}
        curves = {policy: curve for policy, curve in found.items() if curve is not None}
        rows += _points(f"{network.label}-{precision}", curves)
    return rows


def _network_curve(folder: Path) -> RunCurve | None:
    return read_network_run(folder).curve if (folder / TASKS).is_file() else None


def _points(group: str, curves: Mapping[str, RunCurve]) -> list[Row]:
    """Every eighth point of a group's curves, by policy, and their last."""
    least_s = min((c.best_s[-1] for c in curves.values() if len(c.best_s)), default=1.0)
    rows = []
    for policy, curve in curves.items():
        num = len(curve.trial)
        chosen = sorted({*range(0, num, _EVERY), num - 1} - {-1})
        rows += [
            {
                "table": "curves",
                "group": group,
                "policy": policy,
                "after": int(curve.trial[at]),
                "elapsed_s": float(curve.elapsed_s[at]),
                "sum_s": float(curve.best_s[at]),
                "relative": float(curve.best_s[at] / least_s),
            }
            for at in chosen
        ]
    return rows


def _beside_rival(run: GroupRun, rival: GroupRun) -> Row:
    """When a run reached the rival's final sum, and both latencies."""
    tasks = rival.tasks
    ours, theirs = run.curve(tasks), rival.curve(tasks)
    if not len(theirs.best_s):
        return {}
    return {
        "sum_s": float(ours.best_s[-1]) if len(ours.best_s) else None,
        **_to_rival(ours, theirs),
        "over_rival": _at_equal(run, rival),
    }


def _at_equal(run: GroupRun, other: GroupRun) -> float | None:
    """Geometric mean of a run's latencies over another's, each after equal trials."""
    equal = {task: min(len(run.of(task)), len(other.of(task))) for task in other.tasks}
    pairs = [(run.best_s(task, n), other.best_s(task, n)) for task, n in equal.items()]
    ratios = [a / b for a, b in pairs if a is not None and b is not None]
    return float(np.exp(np.mean(np.log(ratios)))) if ratios else None


def _to_rival(ours: RunCurve, theirs: RunCurve) -> Row:
    """Seconds to the rival's final latency, and the rival's own over these."""
    firsts = (curve.elapsed_s[curve.best_s <= theirs.best_s[-1]][:1] for curve in (ours, theirs))
    found, ends_s = (float(first[0]) if len(first) else float("inf") for first in firsts)
    return {
        "seconds_to_rival": found if np.isfinite(found) else None,
        "times_less": ends_s / found,
    }


def beside_rows(options: CampaignOptions) -> list[Row]:
    """A row an operator and contender, from the finals if they ran."""
    names = ("median_s", "low_s", "high_s", "relative_error", "watts", "joules", "error")
    rows = []
    for group in [options.sanity, *options.groups, options.reduction]:
        for task, timed in _raced(options, group).items():
            ours = next((row.get("median_s") for row in timed if row["name"] == OURS), None)
            for row in timed:
                median_s, about = row.get("median_s"), {"group": group.name, "task": task}
                rows.append(
                    {
                        "table": "beside",
                        **about,
                        "contender": row["label"],
                        **{name: row.get(name) for name in names},
                        "over_ours": _over(median_s, ours),
                    }
                )
    return rows


def network_rows(options: CampaignOptions) -> list[Row]:
    """A row a network, precision and contender.

    Without others where none was timed. Seconds by phase (`phases`) are of the tuning. Where
    MetaSchedule tuned it too (``stages=[rivals]``), the columns of `group_rows` against it are of
    the sums over all calls of the tasks that are tuned, without import and draft.
    """
    rows = []
    for network, precision in options.networks:
        folder = network_run(options, network, precision).leaves.parent
        if not (folder / TASKS).is_file():
            continue
        run = read_network_run(folder)
        trials = read_trials(folder / JOURNAL_FILE)
        about = {
            "table": "networks",
            "precision": precision,
            "trials": sum(not trial.compiled_only for trial in trials),
            "compiled": sum(trial.compiled_only and trial.error is None for trial in trials),
            "failed": sum(trial.error is not None for trial in trials),
            "tuned_s": run.metrics.get("total_seconds"),
            "estimate_s": run.estimate_s or None,
            **phases(run.seconds),
            **_beside_network(run, network_run(options, network, precision, METASCHEDULE)),
        }
        found = _contenders(options, network, precision, run)
        if not found:  # it was built and timed alone, or was not built
            names = ("median_s", "low_s", "high_s", "relative_error")
            alone = {"contender": OURS, **{n: run.ours.get(n) for n in names}, "over_ours": 1.0}
            found = [{"network": network.name, **(alone if run.ours else {})}]
        rows += [{**about, **row} for row in found]
    return rows


def _contenders(
    options: CampaignOptions, network: NetworkChoice, precision: str, run: NetworkRun
) -> list[Row]:
    """Rows of a network's comparisons; a contender's last comparison counts.

    A new comparison begins by building the network, which removes an earlier comparison from the
    run folder: if it is ended before it is complete, the copies are all there is.
    """
    kept = (
        SideBySide.read(options.kept(f"{network.label}-{precision}-{stage}"))
        for stage in ("beside", "rivals", "finals")
    )
    found: dict[str, Row] = {}
    for comparison in (*kept, run.comparison):
        rows = baseline_rows(network.name, replace(run, comparison=comparison), OURS)
        found |= {row["contender"]: row for row in rows}
    return list(found.values())


def _beside_network(run: NetworkRun, rival: Step) -> Row:
    """When a network's run reached the rival's final estimate; empty without a rival."""
    theirs = _network_curve(rival.leaves.parent)
    if theirs is None or run.curve is None:
        return {}
    over_rival = float(run.curve.best_s[-1] / theirs.best_s[-1])
    return {**_to_rival(run.curve, theirs), "over_rival": over_rival}


def _raced(options: CampaignOptions, group: Group) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Contenders of every task of a group, of the latest comparison."""
    unfinished = _folder(options, group, OURS) / KERNELS_FILE
    first, last = (options.kept(f"{group.name}-{stage}") for stage in ("beside", "finals"))
    found: dict[str, Any] = {}
    for path in (first, unfinished, last):
        if path.is_file():
            with as_written(path):
                found |= read_json(path, dict)["tasks"]
    return found

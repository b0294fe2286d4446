"""The end of a run with another objective than latency.

Where NVML or powercap counts joules, the fastest programs of a task are built again and run in
turns. Where nothing counts them, a model (:mod:`pruner.models.analyzer.estimates`) gives joules
to every measured program, and all its columns are called a model.
"""

import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pruner.errors import PrunerError
from pruner.files import write_table
from pruner.models.analyzer.analyzer import SymbolAnalyzer
from pruner.search.decision_search import DecisionSearch
from pruner.search.objectives import EDP, ENERGY, LATENCY, SIZE, Objective, non_dominated
from pruner.tune.deploy.built_files import REPORT
from pruner.tune.measure.energy import LEAST_WINDOW_S, EnergyMeter, count_energy, energy_meter
from pruner.tune.run.finalists import ENERGY_FILE, in_turns, ranked
from pruner.tune.run.journal import JOURNAL_FILE, Trial, read_trials
from pruner.tune.run.setup import LiveTask, Prepared
from pruner.tune.run.tune_options import RunContext, TuneOptions
from pruner.tune.spaces.union import UnionSpace

FRONT_FILE, FRONT_FOLDER = "pareto.csv", "pareto"
FRONT_PLOT = "pareto.png"
MOST = 8  # programs of a task whose joules are counted
TURNS = 3
JOULES, MODELLED = "joules", "energy_model_j"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalProgram:
    """A measured program; ``chosen``: the best of its task, or on the front."""

    trial: Trial
    joules: float | None = None
    watts: float | None = None
    temperature_c: float | None = None
    chosen: bool = False

    def value(self, name: str) -> float:
        """Return the value of an objective; smaller is better."""
        size, joules = self.trial.size_bytes, self.joules
        values = {
            LATENCY: self.trial.latency_s,
            SIZE: float("inf") if size is None else size,
            ENERGY: float("inf") if joules is None else joules,
        }
        return values[ENERGY] * values[LATENCY] if name == EDP else values[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalChoice:
    """The programs of every task, in the order of latency.

    ``counter``: the meter that gave the joules; empty: none did, and joules are a model's.
    """

    objective: Objective
    counter: str = ""
    programs: Mapping[str, Sequence[FinalProgram]] = field(default_factory=dict)

    def best(self, task: str) -> FinalProgram | None:
        """Return the chosen program of a task; None where the fastest is the best."""
        if self.objective.has_front:
            return None
        return next((one for one in self.programs.get(task, ()) if one.chosen), None)

    @property
    def has_chosen(self) -> bool:
        """True if a program of any task is chosen."""
        return any(one.chosen for programs in self.programs.values() for one in programs)

    def lines(self) -> list[str]:
        """Describe the choice of every task."""
        counters = {"nvml": "counted by NVML", "powercap": "counted by powercap"}
        objective, counter, out = self.objective, counters.get(self.counter, "a model"), []
        for task, programs in self.programs.items():
            chosen = [one for one in programs if one.chosen]
            if not chosen:
                out.append(f"{task}: no program has all values of objective={objective}")
            elif objective.has_front:
                out.append(f"{task}: {len(chosen)} of {len(programs)} programs are on the front")
                out += [f"  {_values(one, objective, counter)}" for one in chosen]
            else:
                out.append(f"{task}: least {objective}, {_values(chosen[0], objective, counter)}")
                out.append(f"  the fastest: {_values(programs[0], objective, counter)}")
        return out

    def metrics(self) -> dict[str, Any]:
        """Return the additions to the last line; nothing for latency alone."""
        if self.objective.is_latency:
            return {}
        rows = table_rows(self.programs, self.objective, counted=bool(self.counter))
        chosen = "on_front" if self.objective.has_front else "chosen"
        energy = {"energy": self.counter or "model"} if self.objective.has_energy else {}
        return {
            "objective": list(self.objective.names),
            **energy,
            "chosen": [row for row in rows if row[chosen]],
        }


def run_meter(options: TuneOptions) -> EnergyMeter | None:
    """Open the energy meter of a run; None: a model, or no energy.

    Raises `PrunerError` if neither a meter nor a model can give joules.
    """
    platform = options.platform
    if not options.objective.has_energy:
        return None
    meter = energy_meter(platform.device) if platform.address is None else None
    lacking = ""
    if not isinstance(options.analyzer, SymbolAnalyzer):
        lacking = "needs a described device: platform=NAME"
    elif options.replay_only:
        lacking = "cannot read replayed programs: leave spaces=replay out"
    if meter is None and lacking:
        raise PrunerError(
            f"objective={options.objective}: nothing counts joules here (NVML, powercap), and the "
            f"model of energy {lacking}"
        )
    return meter


def choose_programs(
    prepared: Prepared, options: TuneOptions, context: RunContext, meter: EnergyMeter | None
) -> dict[str, list[FinalProgram]]:
    """Give measured programs their values, mark the choice, write the table.

    Returns each task's programs in the order of latency; nothing for latency alone, or if ended.
    """
    objective = options.objective
    if objective.is_latency:
        return {}
    if objective.has_energy:
        how = "no counter; a MODEL gives" if meter is None else f"{meter.name} counts"
        context.log(f"energy: {how} the joules of programs (docs/tuning.md)")
    rows = read_trials(context.folder / JOURNAL_FILE)
    found = {}
    for task in prepared.tasks:
        programs = [FinalProgram(trial=row) for row in ranked(rows, task.name)]
        if objective.has_energy and meter is None:
            programs = _modelled(task, programs)
        elif meter is not None:
            programs = _counted(task, programs[:MOST], context, meter)
        found[task.name] = _all_checked(task, programs, objective, context)
        if context.interrupted():  # then programs may lack that were not counted
            return {}
    table = FRONT_FILE if objective.has_front else ENERGY_FILE
    counted = meter is not None
    write_table(context.folder / table, table_rows(found, objective, counted=counted))
    return found


def marked(programs: Sequence[FinalProgram], objective: Objective) -> list[FinalProgram]:
    """Mark the front of two objectives, or the best program of a single objective."""
    points = np.array([[one.value(name) for name in objective.names] for one in programs])
    known = np.isfinite(points).all(axis=1) if len(points) else np.zeros(0, bool)
    chosen = np.zeros(len(points), bool)
    if known.any():
        if objective.has_front:
            chosen[known] = non_dominated(points[known])
        else:
            chosen[int(np.argmin(np.where(known, points[:, 0], np.inf)))] = True
    return [replace(one, chosen=bool(is_)) for one, is_ in zip(programs, chosen, strict=True)]


def table_rows(
    found: Mapping[str, Sequence[FinalProgram]], objective: Objective, *, counted: bool
) -> list[dict[str, Any]]:
    """Return a row for every program; a modelled energy is called a model."""
    rows = []
    for task, programs in found.items():
        for one in programs:
            row: dict[str, Any] = {
                "task": task,
                "trial": one.trial.trial,
                "latency_s": one.trial.latency_s,
            }
            if objective.has_size:
                row |= {"size_bytes": one.trial.size_bytes, **one.trial.extra}
            if objective.has_energy:
                row |= {JOULES if counted else MODELLED: one.joules}
                row |= {"watts": one.watts, "temperature_c": one.temperature_c} if counted else {}
            row["checked"] = int(one.trial.checked)
            row["on_front" if objective.has_front else "chosen"] = int(one.chosen)
            rows.append(row)
    return rows


def _modelled(task: LiveTask, programs: Sequence[FinalProgram]) -> list[FinalProgram]:
    if not programs:
        return []  # this task's spaces may be refused, or were never opened
    search = task.search
    if not isinstance(search, DecisionSearch):
        return list(programs)
    assert isinstance(search.space, UnionSpace), task.name
    rows = np.array([search.row(one.trial.space, one.trial.decisions) for one in programs])
    latency_s = np.array([one.trial.latency_s for one in programs])
    joules = search.space.energy_model_j(rows, latency_s).tolist()
    search.space.clear_cache()
    return [
        replace(one, joules=value if np.isfinite(value) else None)
        for one, value in zip(programs, joules, strict=True)
    ]


def _counted(
    task: LiveTask, programs: Sequence[FinalProgram], context: RunContext, meter: EnergyMeter
) -> list[FinalProgram]:
    """Build programs again; count the joules of those programs that run, in turns."""

    def held(path: Path, latency_s: float) -> int | None:
        if context.interrupted():
            return None
        return context.measurer.hold(path, task.arguments, LEAST_WINDOW_S, latency_s)

    with ExitStack() as libraries:
        runs = {}
        for number, one in enumerate(programs):
            path = context.folder / f"final-{task.name}-{one.trial.trial}.so"
            libraries.callback(path.unlink, missing_ok=True)
            if _export(task, one.trial, path, context) is None:
                runs[number] = partial(held, path, one.trial.latency_s)
        rest = partial(time.sleep, LEAST_WINDOW_S)
        try:
            counts = count_energy(meter, runs, rest=rest, turns=TURNS)
        except OSError as error:
            context.log(f"{task.name}: no energy: {error}")
            counts = {}
    unknown = sum(count["joules"] is None for count in counts.values())
    if unknown:
        why = "took no more power than the device at rest (did other work run?)"
        context.log(f"{task.name}: no energy of {unknown} of {len(counts)} programs: they {why}")
    return [
        replace(one, **counts[number]) if number in counts else one
        for number, one in enumerate(programs)
    ]


def _all_checked(
    task: LiveTask, programs: Sequence[FinalProgram], objective: Objective, context: RunContext
) -> list[FinalProgram]:
    """Mark the choice; compare chosen programs with the reference, and drop wrong programs."""
    tried, found = set[int](), marked(programs, objective)
    while task.find_check() is not None:
        new = [
            n for n, one in enumerate(found)
            if one.chosen and not one.trial.checked and one.trial.trial not in tried
        ]  # fmt: skip
        outcomes = in_turns(task, [found[n].trial for n in new], context, 1) if new else []
        if not outcomes:  # none is left, or the run was asked to end
            break
        wrong = set()
        for number, outcome in zip(new, outcomes, strict=True):
            trial = replace(found[number].trial, checked=outcome.checked)
            found[number] = replace(found[number], trial=trial)
            tried.add(trial.trial)
            if outcome.error is not None:
                wrong.add(number)
                context.log(f"{task.name}: trial {trial.trial} is left out, its check failed")
        found = marked([one for n, one in enumerate(found) if n not in wrong], objective)
    return found


def _export(task: LiveTask, trial: Trial, path: Path, context: RunContext) -> str | None:
    record, target = trial.record or "", context.platform.target
    module = context.database.scheduled(task.workload.module, record, target)
    return context.measurer.export(module, path)


def remove_front(folder: Path) -> None:
    """Remove the front of an earlier start: further programs may beat its programs."""
    shutil.rmtree(folder / FRONT_FOLDER, ignore_errors=True)
    for name in (FRONT_FILE, FRONT_PLOT, REPORT):
        (folder / name).unlink(missing_ok=True)


def export_front(
    prepared: Prepared, found: Mapping[str, Sequence[FinalProgram]], context: RunContext
) -> None:
    """Keep the fronts' programs as ``pareto/TASK-TRIAL.so``."""
    folder = context.folder / FRONT_FOLDER
    folder.mkdir(exist_ok=True)
    for task in prepared.tasks:
        for one in [one for one in found[task.name] if one.chosen]:
            path = folder / f"{task.name}-{one.trial.trial}.so"
            reason = _export(task, one.trial, path, context)
            if reason is not None:
                context.log(f"{path.stem}: it was not kept as a library ({reason})")


def _values(one: FinalProgram, objective: Objective, counter: str) -> str:
    parts = [f"trial {one.trial.trial}: {1e3 * one.trial.latency_s:.4g} ms"]
    if objective.has_size:
        parts.append(f"{one.value(SIZE) / 1024:.4g} KiB")
    if objective.has_energy and one.joules is None:
        parts.append("its energy is unknown")
    elif objective.has_energy:
        parts.append(f"{1e3 * one.value(ENERGY):.4g} mJ a run ({counter})")
    return ", ".join(parts)

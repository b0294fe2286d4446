"""Compare tuning methods on recorded pools.

Each contestant has its own rounds, draft and model. The tasks of a platform take turns, a batch at
a time, with a simulated clock (:func:`pruner.search.offline.adaptation_run.tune`). Every pair of
contestant and seed is a cell with a file, so an interrupted contest continues. A cell with other
rounds, another draft or another budget is computed anew.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from pruner.cli.shared.known import chosen
from pruner.cli.shared.options import build, plain
from pruner.cli.shared.progress import ON_STDERR
from pruner.data.root import RecordRoot
from pruner.data.tasks import TaskKey
from pruner.features.dataflow import DataflowKind
from pruner.files import jsonable
from pruner.models.adaptation.base import Adaptation
from pruner.models.analyzer.analyzer import AnyFormula, load_analyzer
from pruner.models.programs.dataset import RecordReader
from pruner.models.programs.program_table import ProgramTable, TaskPrograms
from pruner.models.programs.reading import ReadSpec
from pruner.paths import conf_folder
from pruner.search.offline.adaptation_run import MethodComparison, MethodRun, affordable, tune
from pruner.search.offline.recorded import RecordedTask
from pruner.search.policy import RoundSettings
from pruner.study.adaptation.cells import Cells
from pruner.study.adaptation.context import (
    Budget,
    Chosen,
    choose_tasks,
    pools_of,
    read_programs,
    spreads_of,
)
from pruner.study.grid import Job, results

CACHE = Path(__file__).resolve().parents[2] / "outputs" / "cache"  # of features


def policy(name: str) -> RoundSettings:
    """A preset of conf/policy."""
    settings: RoundSettings = build(chosen("policy", name))
    return settings


def budget_of(name: str) -> Budget:
    """A preset of conf/budget."""
    return Budget(**plain(chosen("budget", name)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A way to tune.

    ``settings``: its rounds, with the analyzer's `form` as draft; ``model`` makes the learning
    model from a seed (None: programs are drawn at random); ``dataflow``: the rows of the pattern
    that the model reads; ``times``: multiple of the common number of trials.
    """

    settings: RoundSettings = field(default_factory=RoundSettings)
    form: AnyFormula = "hardware"
    dataflow: DataflowKind = "paper"
    model: Callable[[int], Adaptation] | None = None
    times: int = 1


@dataclass(frozen=True, kw_only=True)
class Ground:
    """The tasks of one platform; ``tuned`` None: those that the budget chooses."""

    root: RecordRoot
    platform: str
    budget: Budget
    tuned: Sequence[TaskKey] | None = None
    _read: dict[DataflowKind, Mapping[TaskKey, TaskPrograms]] = field(default_factory=dict)
    _pools: dict[tuple[AnyFormula, DataflowKind], Sequence[RecordedTask]] = field(
        default_factory=dict
    )

    def of_task(self, key: TaskKey) -> "Ground":
        """The same ground with a single tuned task; it shares the features."""
        return replace(self, tuned=(key,), _pools={})

    @cached_property
    def chosen(self) -> Chosen:
        """Tasks by use: tuned, kept to judge, to draw labels from."""
        return choose_tasks(spreads_of(self.programs("paper"), self.budget), self.budget)

    def programs(self, dataflow: DataflowKind) -> Mapping[TaskKey, TaskPrograms]:
        """All programs of the platform by task."""
        if dataflow not in self._read:
            reader = RecordReader(self.root, ReadSpec(dataflow=dataflow, cache=CACHE))
            self._read[dataflow] = read_programs(reader, self.platform, ON_STDERR)
        return self._read[dataflow]

    def labelled(self, dataflow: DataflowKind) -> ProgramTable:
        """Programs of the tasks that labels are drawn from."""
        programs = self.programs(dataflow)
        return ProgramTable.build(programs[key] for key in self.chosen.labelled)

    def pools(self, form: AnyFormula, dataflow: DataflowKind) -> Sequence[RecordedTask]:
        """The tuned tasks as pools."""
        if (form, dataflow) not in self._pools:
            programs = self.programs(dataflow)
            keys = self.chosen.tuned if self.tuned is None else self.tuned
            tuned = [programs[key] for key in keys]
            analyzer = load_analyzer(conf_folder(), self.platform, form=form)
            self._pools[form, dataflow] = pools_of(self.root, self.platform, tuned, analyzer)
        return self._pools[form, dataflow]


def run_contest(
    contestants: Mapping[str, Contestant], ground: Ground, folder: Path, *, seeds: Sequence[int]
) -> list[MethodRun]:
    """Run the cells without a result in `folder`; returns all cells."""
    cells = Cells(folder=folder)
    wanted = [(name, seed) for seed in seeds for name in contestants]

    def run(name: str, seed: int) -> dict[str, Any]:
        one = contestants[name]
        pools = ground.pools(one.form, one.dataflow)
        curve = tune(
            pools,
            None if one.model is None else one.model(seed),
            one.settings,
            trials=affordable(pools, one.times * ground.budget.trials),
            batch=ground.budget.batch,
            seed=seed,
        )
        return MethodRun(method=name, seed=seed, curve=curve).to_json()

    def about(one: Contestant) -> Any:
        """The settings that determine a cell besides model and records, as JSON."""
        budget = asdict(ground.budget)
        budget["trials"] *= one.times
        known = {"settings": asdict(one.settings), "form": one.form, "dataflow": one.dataflow}
        return jsonable({**known, "budget": budget})

    jobs = [
        Job(
            name=f"{name}-{seed}",
            leaves=cells.path((name, seed)),
            run=partial(run, name, seed),
            about=about(contestants[name]),
        )
        for name, seed in wanted
    ]
    for _ in ON_STDERR.track(results(jobs), f"tuning {ground.platform}", len(jobs)):
        pass
    return [cells.load(one) for one in wanted]


def contest_rows(
    cells: Sequence[MethodRun], baseline: str, **known: Any
) -> list[dict[str, str | int | float]]:
    """A row a cell, compared with the baseline of the same seed.

    `known` columns come first. ``cost_share``: its total seconds over the baseline's; ``speedup``:
    the baseline's seconds over its own to the baseline's final latency, 0 where it never gets
    there; ``final_over``: its final latency over the baseline's.
    """
    comparison = MethodComparison(cells, baseline)
    whole_s = {cell.seed: float(cell.curve.elapsed_s[-1]) for cell in comparison.cells(baseline)}
    final = {cell.seed: cell.curve.final for cell in comparison.cells(baseline)}
    rows = []
    for cell in cells:
        trials, seconds = comparison.reach(cell, "trials"), comparison.reach(cell, "seconds")
        total_s = float(cell.curve.elapsed_s[-1])
        rows.append({
            **known,
            "method": cell.method,
            "seed": cell.seed,
            "area": cell.curve.area,
            "final_relative_latency": cell.curve.final,
            "final_over": cell.curve.final / final[cell.seed],
            "reached": int(trials.reached),
            "trials_to_baseline": trials.at,
            "seconds_to_baseline": seconds.at,
            "total_s": total_s,
            "cost_share": total_s / whole_s[cell.seed],
            "speedup": whole_s[cell.seed] / seconds.at if seconds.reached else 0.0,
        })  # fmt: skip
    return rows


def curve_rows(cells: Sequence[MethodRun], every: int, **known: Any) -> list[dict[str, Any]]:
    """The curves at every so many trials."""
    return [
        {**known, "method": cell.method, "seed": cell.seed, "trials": int(trials),
         "relative_latency": round(float(value), 5), "elapsed_s": round(float(at), 2)}
        for cell in cells
        for trials, value, at in zip(
            cell.curve.trials, cell.curve.relative_latency, cell.curve.elapsed_s, strict=True
        )
        if trials % every == 0
    ]  # fmt: skip

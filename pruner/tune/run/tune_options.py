"""The options of a tuning run, as typed values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pruner.errors import PrunerError
from pruner.models.adaptation.base import Setting
from pruner.models.adaptation.warm import Scratch
from pruner.models.analyzer.analyzer import Analyzer
from pruner.models.networks.pacm import PaCM
from pruner.paths import conf_folder
from pruner.program.device import load_device
from pruner.progress import Log
from pruner.search.explorer import ExplorerSettings
from pruner.search.objectives import Objective, check_pymoo
from pruner.search.policy import PolicySettings, RandomDraws, RoundSettings
from pruner.search.task_order import USUAL, Order, check_order
from pruner.tune.measure.machine import make_platform, platform_analyzer
from pruner.tune.measure.measurer import DeviceMeasurer, MeasureSettings, Platform, never
from pruner.tune.measure.targets import local_platform
from pruner.tune.phases import Phases
from pruner.tune.rivals.ansor import Ansor
from pruner.tune.rivals.metaschedule import MetaSchedule
from pruner.tune.run.budget import TuneBudget
from pruner.tune.run.database import RECORDS, Database
from pruner.tune.run.learning import AdaptedModel, OnlineModel

# conf/policy/pruner_live.yaml says why
LIVE = RoundSettings(
    draft=ExplorerSettings(population=512, generations=2, keep=256),
    verify=ExplorerSettings(population=256, generations=1, keep=64),
    random_sample=64,
    draft_leads=True,
    prior=50,
    first_apart=None,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """Options of a tuning run.

    * ``analyzer``: the draft's model. None: no draft.
    * ``make_model``: makes the learned model of a run. None: nothing is learned, or the policy has
      its own model.
    * ``num_reference``: number of random programs of a task that normalise the learned model before
      it scores.
    * ``refit``: fit the model again when the measured programs have grown by this share; 0: after
      every batch.
    * ``draft_all``: draft all tasks in parallel before the first measurement, and measure the
      drafted programs first.
    * ``replay_only``: TVM replays every design space (slow).
    * ``compile_only``: build the first proposals of every search, run nothing.
    * ``kernels``: keep the best program of every task as a library.
    * ``work_dir``: the folder of TVM's database; by default the run folder.
    * ``warm_start``: folders of earlier runs on the same target, whose measurements of identical
      tasks are reused.
    * ``objective``: what is made small; other than latency, for operators.
    """

    platform: Platform
    policy: PolicySettings | MetaSchedule | Ansor = LIVE
    budget: TuneBudget = field(default_factory=TuneBudget)
    measure: MeasureSettings = field(default_factory=MeasureSettings)
    analyzer: Analyzer | None = None
    make_model: Callable[[], OnlineModel] | None = None
    order: Order = USUAL
    num_reference: int = 64
    refit: float = 0.1
    draft_all: bool = False
    replay_only: bool = False
    compile_only: bool = False
    kernels: bool = True
    work_dir: Path | None = None
    warm_start: Sequence[Path] = ()
    seed: int = 0
    objective: Objective = field(default_factory=Objective)

    def __post_init__(self) -> None:
        # all checks before any process starts: a wrong option costs no time
        check_order(self.order)
        if self.refit < 0:
            raise PrunerError(f"refit={self.refit}: a share of the measured programs, 0 or more")
        if self.measure.timing.flush_cache and self.platform.device != "cpu":
            raise PrunerError(
                "measure.flush_cache=true empties the caches of CPUs, and reads the addresses of "
                "arrays for that; leave it out on a GPU"
            )
        if self.compile_only and self.measure.finalists:
            raise PrunerError(
                f"measure.finalists={self.measure.finalists}: compile_only=true measures nothing; "
                "leave one of them out"
            )
        if self.measure.finalists and len(self.platform.environments) > 1:
            raise PrunerError(
                f"measure.finalists={self.measure.finalists}: one device times all programs of a "
                "turn; choose measure.devices=1"
            )
        self._check_baseline_tuner()
        self._check_objective()
        if self.make_model is not None and not self.policy.takes_model:
            raise PrunerError(
                f"{type(self.policy).__name__}: this policy takes no learned model; leave it out"
            )
        for folder in self.warm_start:
            if not (folder / RECORDS).is_file():
                raise PrunerError(f"warm_start={folder}: no {RECORDS} there; name a run of tune.py")

    def _check_objective(self) -> None:
        """Refuse an objective that this run could not follow."""
        if self.objective.is_latency:
            return
        what, rounds = f"objective={self.objective}", isinstance(self.policy, RoundSettings)
        if self.compile_only:
            raise PrunerError(f"{what}: compile_only=true measures nothing; leave one of them out")
        if not rounds and not isinstance(self.policy, RandomDraws):
            raise PrunerError(
                f"{what}: {type(self.policy).__name__} looks for small latency alone; choose "
                "policy=pruner_live, ansor or random"
            )
        if self.warm_start:
            raise PrunerError(
                f"{what}: the runs of warm_start= have no sizes and joules; leave it out"
            )
        if self.objective.has_size and self.platform.device != "cpu":
            raise PrunerError(f"{what}: code is sized on CPUs only; choose a CPU, or leave it out")
        if self.objective.has_size and self.replay_only:
            raise PrunerError(f"{what}: sizes are estimated in batches; leave spaces=replay out")
        if self.objective.has_size and rounds and self.analyzer is None:
            raise PrunerError(f"{what}: the estimate of sizes needs a described CPU: platform=NAME")
        if self.objective.has_energy and len(self.platform.environments) > 1:
            raise PrunerError(f"{what}: one device counts its joules; choose measure.devices=1")
        if self.objective.has_front:
            check_pymoo()

    def _check_baseline_tuner(self) -> None:
        """Refuse options that another tuner's search would not follow."""
        measure, usual = self.measure, MeasureSettings()
        exclusive, lag, memory_gib = measure.exclusive, measure.lag, measure.memory_gib
        if isinstance(self.policy, Ansor):
            refused = {  # false, None or empty: not given
                "compile_only": self.compile_only,
                "budget.seconds": self.budget.seconds,
                "budget.patience": self.budget.patience,
                "warm_start": ",".join(map(str, self.warm_start)),
                "work_dir": self.work_dir,
                # defaults are no requests: the process is refused only what a user gave
                "task_order": None if self.order == USUAL else self.order,
                "spaces": "replay" if self.replay_only else None,
                "measure.exclusive": None if exclusive is None else str(exclusive).lower(),
                "measure.lag": None if lag is None else str(lag),
                "measure.cv_limit": measure.timing.cv_limit,
                "measure.stop_above": measure.timing.stop_above,
                "measure.finalists": measure.finalists,
                "measure.memory_gib": None if memory_gib == usual.memory_gib else memory_gib,
            }
            for option in (name for name, value in refused.items() if value):
                raise PrunerError(
                    f"{option}={refused[option]}: policy=ansor_tvm cannot do that; leave it out"
                )
        if isinstance(self.policy, MetaSchedule):
            given = {f"measure.lag={lag}": lag, "spaces=replay": self.replay_only}
            for option in (name for name, value in given.items() if value):
                raise PrunerError(
                    f"{option}: {type(self.policy).__name__} has its own proposals "
                    "and its own spaces; leave the option out"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The state that all tasks of a run share."""

    platform: Platform
    measurer: DeviceMeasurer
    phases: Phases
    database: Database
    folder: Path
    log: Log
    interrupted: Callable[[], bool] = never

    def is_over(self, limit_s: float | None) -> bool:
        """True if an end was requested, or the time `limit_s` is spent."""
        return self.interrupted() or (limit_s is not None and self.phases.elapsed_s >= limit_s)


def this_cpu(*, trials: int = 64, seed: int = 0, **changes: Any) -> TuneOptions:
    """Make options for all cores of this CPU: draft, then verify by untrained PaCM.

    `trials` are measured programs of all tasks, failures included; `seed` is of the search and of
    the model's weights; `changes` are further fields of `TuneOptions`. Raises `PrunerError`: no
    described platform has the instructions of this CPU.
    """
    device = load_device(conf_folder() / "platform" / f"{local_platform()}.yaml")
    platform = make_platform(device, target="host")
    values = {
        "analyzer": platform_analyzer(platform),
        "make_model": lambda: AdaptedModel(Scratch(Setting(make_network=PaCM, seed=seed))),
        "budget": TuneBudget(trials=trials),
        **changes,
    }
    return TuneOptions(platform=platform, seed=seed, **values)

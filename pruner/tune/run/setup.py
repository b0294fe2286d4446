"""From workloads and options to the tasks of a run: spaces, searches, references."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pruner.data.tasks import TaskKey
from pruner.errors import PrunerError, UnsupportedProgram
from pruner.models.analyzer.analyzer import Analyzer
from pruner.search.adatune import AdaTunePolicy, AdaTuneSettings, decision_columns
from pruner.search.explorer import ExplorerSettings
from pruner.search.failures import AvoidFailures, FailureModel
from pruner.search.policy import DraftThenVerify, Policy, RandomPolicy, RoundSettings
from pruner.tune.measure.measurer import Check, Measurer, Platform
from pruner.tune.measure.numerics import tolerance
from pruner.tune.phases import Phases
from pruner.tune.rivals.metaschedule import MetaScheduleSearch
from pruner.tune.rivals.settings import MetaSchedule, RandomDraws
from pruner.tune.run.database import Database
from pruner.tune.run.learning import LiveLearner, OnlineModel, SharedModel
from pruner.tune.run.live_search import DecisionSearch, LiveSearch
from pruner.tune.run.loop import LiveTask, TuneBudget
from pruner.tune.spaces.base import LiveSpace
from pruner.tune.spaces.batched.space import BatchedSpace
from pruner.tune.spaces.design import DesignSpace, design_spaces
from pruner.tune.spaces.tvm import ReplaySpace
from pruner.tune.spaces.union import UnionSpace
from pruner.tune.workloads import Workload, arguments, flops

Tell = Callable[[str], None]

_REPLAYED = 64  # programs a generation where each one is replayed by TVM
_PROBES = 8  # programs that tell whether a space has legal ones


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """What all tasks of a run search with. ``model`` None: no verifier."""

    policy: RoundSettings | RandomDraws | AdaTuneSettings | MetaSchedule
    analyzer: Analyzer | None
    model: OnlineModel | None
    platform_name: str
    seed: int
    replay_only: bool = False  # every space through TVM's replay


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Tasks, and the objects that a snapshot of the run names instead of saving."""

    tasks: Sequence[LiveTask]
    fixed: Mapping[str, object]


def prepare(
    workloads: Sequence[Workload],
    platform: Platform,
    options: SearchOptions,
    measurer: Measurer,
    *,
    budget: TuneBudget,
    database: Database,
    phases: Phases,
    folder: Path,
    check: bool,
    tell: Tell,
) -> Prepared:
    """Make every task ready; what is not as asked for is told once.

    Raises:
        PrunerError: a workload has no design space on this target, or symbolic shapes.
    """
    shared = SharedModel(options.model) if options.model is not None else None
    tasks: list[LiveTask] = []
    fixed: dict[str, object] = {"phases": phases}
    for number, workload in enumerate(workloads):
        wanted = arguments(workload.module)
        search: LiveSearch
        if isinstance(options.policy, MetaSchedule):
            search = MetaScheduleSearch(
                workload.module,
                platform.target,
                database.tvm_database,
                settings=options.policy,
                budget=(budget.trials, budget.batch),
                seed=options.seed,
                phases=phases,
            )
        else:
            space = _spaces(workload, platform, options, phases, tell)
            fixed[f"space-{workload.name}"] = space
            rng = np.random.default_rng([options.seed, number])
            legality = FailureModel(space)
            policy = _policy(workload, space, legality, options, shared, phases, rng)
            search = DecisionSearch(space, policy, legality)
        task = LiveTask(
            workload=workload, flops=flops(workload.module), arguments=wanted, search=search
        )
        if check:
            with phases.time("run"):
                task.check = _reference(task, measurer, folder, tell)
        tasks.append(task)
    return Prepared(tasks=tasks, fixed=fixed)


def _spaces(
    workload: Workload, platform: Platform, options: SearchOptions, phases: Phases, tell: Tell
) -> UnionSpace:
    with phases.time("sample"):
        designs = design_spaces(workload.module, platform.target)
        made = [_space(design, replay_only=options.replay_only) for design in designs]
        spaces = [(space, reason) for space, reason in made if _has_programs(space)]
    empty = len(made) - len(spaces)
    if made and not spaces:
        raise PrunerError(f"{workload.name}: no random program is legal on this target")
    if empty:
        tell(
            f"{workload.name}: {empty} of {len(made)} design spaces are left out, "
            "none of their random programs is legal on this target"
        )
    reasons = [reason for _, reason in spaces if reason]
    if reasons:
        how = "without draft" if len(reasons) == len(spaces) else "drafted by chance"
        tell(
            f"{workload.name}: {len(reasons)} of {len(spaces)} design spaces go through TVM's "
            f"replay, slowly and {how} ({', '.join(sorted(set(reasons)))})"
        )
    return UnionSpace([s for s, _ in spaces], phases, options.analyzer)


def _space(design: DesignSpace, *, replay_only: bool) -> tuple[LiveSpace, str]:
    """The space of a design, and why it is the slow one."""
    if replay_only:
        return ReplaySpace(design), "spaces=replay"
    try:
        return BatchedSpace(design), ""
    except UnsupportedProgram as error:
        return ReplaySpace(design), str(error)


def _has_programs(space: LiveSpace) -> bool:
    """Whether some random program is legal; a space without any would end the run later."""
    try:
        space.sample(_PROBES, np.random.default_rng(0))
    except PrunerError:
        return False
    return True


def _policy(
    workload: Workload,
    space: UnionSpace,
    legality: FailureModel,
    options: SearchOptions,
    shared: SharedModel | None,
    phases: Phases,
    rng: np.random.Generator,
) -> Policy:
    chosen: Any = space
    draft = AvoidFailures(space.draft_score, legality)
    replayed = sum(isinstance(part, ReplaySpace) for part in space.spaces)
    most = _REPLAYED * len(space.spaces) // max(1, replayed)  # all spaces are drawn alike
    if isinstance(options.policy, RandomDraws):
        draws = min(options.policy.draws, most) if replayed else options.policy.draws
        return RandomPolicy(chosen, rng, accept=draft, draws=draws)
    if isinstance(options.policy, AdaTuneSettings):
        forest = options.policy
        if replayed:
            explorer = replace(forest.explorer, population=most, generations=0)
            forest = replace(forest, explorer=explorer)
        return AdaTunePolicy(chosen, decision_columns, forest, rng, accept=draft)
    if not isinstance(options.policy, RoundSettings):
        raise PrunerError(f"policy: tune.py cannot search with {type(options.policy).__name__}")
    settings = options.policy
    if replayed:
        settings = _for_replay(settings, most, blind=replayed == len(space.spaces))
    learner = None
    if shared is not None:
        key = TaskKey(
            platform=options.platform_name, task=workload.name, workload_key="[]", target=""
        )
        learner = LiveLearner(key, space, shared, phases, np.random.default_rng(options.seed))
    return DraftThenVerify(chosen, draft, learner, settings, rng)


def _for_replay(settings: RoundSettings, most: int, *, blind: bool) -> RoundSettings:
    """The same round with `most` programs a generation; nothing to draft with where `blind`."""

    def fewer(explorer: ExplorerSettings) -> ExplorerSettings:
        return replace(explorer, population=min(most, explorer.population))

    draft = None if settings.draft is None else fewer(settings.draft)
    if draft is not None and blind:
        draft = replace(draft, generations=0)
    return replace(
        settings,
        draft=draft,
        verify=fewer(settings.verify),
        random_sample=min(most, settings.random_sample),
    )


def _reference(task: LiveTask, measurer: Measurer, folder: Path, tell: Tell) -> Check | None:
    path = folder / f"reference-{task.workload.name}.npz"
    if not path.is_file():
        reason = measurer.reference(task.workload.module, task.arguments, path)
        if reason is not None:
            tell(f"{task.workload.name}: results are not checked, no reference ({reason})")
            return None
    return Check(expected=str(path), tolerance=tolerance(task.arguments))

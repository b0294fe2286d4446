"""From workloads and options to the tasks of a run: spaces, searches, references."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pruner.data.tasks import TaskKey
from pruner.errors import PrunerError, UnsupportedProgram
from pruner.files import write_whole
from pruner.models.analyzer.analyzer import Analyzer
from pruner.progress import Tell
from pruner.search.failures import AvoidFailures, FailureModel
from pruner.search.policy import Learner, PolicySettings
from pruner.tune.measure.measurer import Check
from pruner.tune.measure.numerics import tolerance
from pruner.tune.phases import Phases
from pruner.tune.rivals.rival import RivalProcess, RivalSearch
from pruner.tune.run.learning import LiveLearner, SharedModel
from pruner.tune.run.live_search import DecisionSearch, LiveSearch
from pruner.tune.run.loop import LiveTask
from pruner.tune.run.options import RunContext, TuneOptions
from pruner.tune.spaces.base import LiveSpace
from pruner.tune.spaces.batched.space import BatchedSpace
from pruner.tune.spaces.design import DesignSpace, design_spaces
from pruner.tune.spaces.tvm import ReplaySpace
from pruner.tune.spaces.union import UnionSpace
from pruner.tune.workloads import Workload, arguments, described, flops

UNTUNED_FILE = "untuned.json"  # seconds of every task without schedule
_PROBES = 8  # programs that tell whether a space has legal ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Tasks, and the objects that a snapshot of the run names instead of saving."""

    tasks: Sequence[LiveTask]
    fixed: Mapping[str, object]


def prepare(workloads: Sequence[Workload], options: TuneOptions, context: RunContext) -> Prepared:
    """Make every task ready; what is not as asked for is told once.

    Raises:
        PrunerError: a workload has no design space on this target, or symbolic shapes.
    """
    shared = None if options.make_model is None else SharedModel(options.make_model())
    theirs = None
    if isinstance(options.policy, RivalSearch):
        theirs = options.policy.shared(context.platform)
    tasks: list[LiveTask] = []
    fixed: dict[str, object] = {"phases": context.phases}
    for number, workload in enumerate(workloads):
        wanted = arguments(workload.module)
        context.tell(described(workload))
        policy = options.policy
        assert not isinstance(policy, RivalProcess), policy
        search: LiveSearch
        if isinstance(policy, RivalSearch):
            search = policy.make(
                workload,
                context.platform,
                context.database.tvm_database,
                shared=theirs,
                budget=(options.budget.trials, options.budget.batch),
                seed=options.seed,
                phases=context.phases,
            )
        else:
            space = _spaces(workload, options, context)
            fixed[f"space-{workload.name}"] = space
            rng = np.random.default_rng([options.seed, number])
            learner = None
            if shared is not None and space.has_features:
                learner = _learner(workload, space, shared, options, context)
            search = decision_search(space, policy, learner, rng)
        task = LiveTask(
            workload=workload, flops=flops(workload.module), arguments=wanted, search=search
        )
        if options.measure.check and not options.compile_only:
            with context.phases.time("run"):
                task.check = _reference(task, context)
        if options.measure.baseline and not options.compile_only:
            task.untuned_s = _untuned_s(task, context)
        tasks.append(task)
    return Prepared(tasks=tasks, fixed=fixed)


def decision_search(
    space: UnionSpace, policy: PolicySettings, learner: Learner | None, rng: np.random.Generator
) -> DecisionSearch:
    """A policy in a task's space that learns from failures, too."""
    failures = FailureModel(space)
    if space.affordable is not None:
        policy = policy.limited(space.affordable, can_draft=space.can_draft)
    made = policy.make(space, AvoidFailures(space.draft_score, failures), learner, rng)
    return DecisionSearch(space, made, failures)


def _learner(
    workload: Workload,
    space: UnionSpace,
    shared: SharedModel,
    options: TuneOptions,
    context: RunContext,
) -> LiveLearner:
    key = TaskKey(platform=context.platform.name, task=workload.name, workload_key="[]", target="")
    rng = np.random.default_rng(options.seed)
    return LiveLearner(key, space, shared, context.phases, rng)


def _spaces(workload: Workload, options: TuneOptions, context: RunContext) -> UnionSpace:
    with context.phases.time("sample"):
        designs = design_spaces(workload.module, context.platform.target)
    return open_spaces(
        designs,
        name=workload.name,
        analyzer=options.analyzer,
        learns=options.make_model is not None,
        replay_only=options.replay_only,
        phases=context.phases,
        tell=context.tell,
    )


def open_spaces(
    designs: Sequence[DesignSpace],
    *,
    name: str,
    analyzer: Analyzer | None,
    learns: bool,
    phases: Phases,
    tell: Tell,
    replay_only: bool = False,
) -> UnionSpace:
    """All spaces of a task that have legal programs; what the engine refuses TVM replays.

    ``learns``: a model will rank, so tell of the spaces that it cannot rank.

    Raises:
        PrunerError: no random program of any space is legal on this target.
    """
    with phases.time("sample"):
        made = [_space(design, replay_only=replay_only) for design in designs]
        spaces = [(space, reason) for space, reason in made if _has_programs(space)]
    empty = len(made) - len(spaces)
    if made and not spaces:
        raise PrunerError(f"{name}: no random program is legal on this target")
    if empty:
        tell(
            f"{name}: {empty} of {len(made)} design spaces are left out, "
            "none of their random programs is legal on this target"
        )
    reasons = [reason for _, reason in spaces if reason]
    if reasons:
        how = "without draft" if len(reasons) == len(spaces) else "drafted by chance"
        if learns:
            how += ", and the learned model does not rank their programs"
        tell(
            f"{name}: {len(reasons)} of {len(spaces)} design spaces go through TVM's "
            f"replay, slowly and {how} ({', '.join(sorted(set(reasons)))})"
        )
    return UnionSpace([s for s, _ in spaces], phases, analyzer)


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


def _untuned_s(task: LiveTask, context: RunContext) -> float | None:
    """Timed once a run: a resumed one reads what was found."""
    path, name = context.folder / UNTUNED_FILE, task.workload.name
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if name not in known:
        known[name] = context.measurer.untuned_s(task.workload.module, task.arguments)
        with write_whole(path) as partial:
            partial.write_text(json.dumps(known), encoding="utf-8")
    seconds: float | None = known[name]
    if seconds is not None:
        context.tell(f"{name}: untuned {1e3 * seconds:.4g} ms")
    return seconds


def _reference(task: LiveTask, context: RunContext) -> Check | None:
    path = context.folder / f"reference-{task.workload.name}.npz"
    if not path.is_file():
        reason = context.measurer.reference(task.workload.module, task.arguments, path)
        if reason is not None:
            context.tell(f"{task.workload.name}: results are not checked, no reference ({reason})")
            return None
    return Check(expected=str(path), tolerance=tolerance(task.arguments))

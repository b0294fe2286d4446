"""Make the tasks of a run: spaces, searches, references, each on first use."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pruner.data.tasks import TaskKey
from pruner.errors import PrunerError
from pruner.files import as_written, read_json, write_json
from pruner.search.decision_search import DecisionSearch, Search, decision_search
from pruner.search.loop import TuningTask
from pruner.search.objectives import ParetoSettings, dominated
from pruner.search.policy import RoundSettings
from pruner.tune.measure.measurer import Outcome, wait_for
from pruner.tune.measure.numerics import TaskReference, size_bytes
from pruner.tune.networks.draft_network import FOLDER as DRAFTS
from pruner.tune.networks.draft_network import draft_tasks, drafted_traces
from pruner.tune.rivals.ansor import Ansor
from pruner.tune.rivals.metaschedule import MetaSchedule
from pruner.tune.run.database import (
    Database,
    best_s,
    foreign_target,
    is_unscheduled,
    measured_s,
    programs_of,
    records_of,
    unscheduled,
)
from pruner.tune.run.learning import LiveLearner, SharedModel
from pruner.tune.run.tune_options import RunContext, TuneOptions
from pruner.tune.spaces.design import design_spaces
from pruner.tune.spaces.opening import open_spaces
from pruner.tune.spaces.union import Traces, UnionSpace
from pruner.tune.workloads import Workload, arguments, described, flops

UNTUNED_FILE = "untuned.json"  # seconds of every task without schedule
# A function whose single run took less than this multiple of its best program's time, or so little
# that the clock's grain counts, may be faster without schedule.
_CLOSE, _GRAIN_S = 1.25, 2e-6


@dataclass(slots=True, kw_only=True, eq=False)
class LiveTask(TuningTask):
    """A task with programs that are measured now.

    ``untuned_s``: seconds without schedule, None where that was not timed. ``unscheduled``: the
    function without schedule, where no program is faster. ``sized``: latency and bytes of programs.
    """

    workload: Workload
    reference: TaskReference
    open_search: Callable[[], Search]  # to restore an earlier start's state into
    untuned_s: float | None = None
    unscheduled: Outcome | None = None
    sized: list[tuple[float, float]] = field(default_factory=list)

    def improves(self, outcome: Any) -> bool:
        """See `TuningTask`; a sized program improves where none dominates it."""
        size = size_bytes(outcome.extra)
        if size is None or outcome.error is not None:
            return TuningTask.improves(self, outcome)
        return not dominated((outcome.latency_s, size), self.sized)

    def note_size(self, latency_s: float, size_bytes: float | None) -> None:
        """Add a measured program."""
        if size_bytes is not None and latency_s < float("inf"):
            self.sized.append((latency_s, size_bytes))


class Prepared:
    """The tasks of a run and their shared state.

    ``limit_s``: seconds of the run after which its search ends, None: no limit. ``savable``: the
    ``state()`` of a search is complete, so that a resumed run continues exactly and batches may
    overlap.
    """

    def __init__(
        self, workloads: Sequence[Workload], options: TuneOptions, context: RunContext
    ) -> None:
        """Make the tasks, begin none; raise `PrunerError` for symbolic shapes."""
        self._options, self._context = options, context
        self.limit_s = options.budget.seconds
        self.shared = _shared(options)
        policy = options.policy
        self.savable = not isinstance(policy, MetaSchedule)
        self._theirs = policy.shared(context.platform) if isinstance(policy, MetaSchedule) else None
        self.tasks = list(map(self._task, range(len(workloads)), workloads))
        self._known = read_known(options.warm_start, workloads, context.platform.target)
        keep(self._known, workloads, context.database, context.platform.target)
        self._drafted: Mapping[str, Any] = {}  # traces of programs that tasks measure first
        self.replayed: dict[str, int | None] = {}  # spaces of a task that TVM replays, once opened
        for task in self.tasks:
            task.current_best_s = best_s(self._known[task.name])

    def _task(self, number: int, workload: Workload) -> LiveTask:
        context, given = self._context, arguments(workload.module)
        path = context.folder / f"reference-{workload.name}.npz"
        what = workload.name, workload.module, given, path, context.measurer, context.log
        reference = TaskReference(*what)
        return LiveTask(
            name=workload.name,
            weight=workload.weight,
            operator=workload.operator,
            workload=workload,
            flops=flops(workload.module),
            arguments=given,
            untuned_s=_untuned(context.folder).get(workload.name),
            reference=reference,
            make_search=partial(self._begin, number),
            open_search=partial(self._open, number),
            find_check=partial(self._check, reference),
        )

    def begin_anew(self) -> None:
        """Replace the shared model by an untrained model; searches are made anew."""
        self.shared = _shared(self._options)

    def draft_all(self) -> None:
        """Draft the first program of every task, if the options request it.

        Tasks with known measurements, or begun by an earlier start, need no draft. It ends early on
        request, or once half of the run's time is spent, including earlier starts.
        """
        options, context = self._options, self._context
        if not options.draft_all or options.analyzer is None or options.replay_only:
            return
        new = [
            task.workload for task in self.tasks if task.made is None and not self._known[task.name]
        ]
        if not new:
            return
        place, limit_s = context.folder / DRAFTS, self.limit_s
        with context.phases.time("draft"):
            found = draft_tasks(
                new,
                context.platform,
                options.analyzer,
                place,
                seed=options.seed,
                log=context.log,
                # the second half stays for measuring: a draft alone is no tuned network
                stopped=partial(context.is_over, None if limit_s is None else limit_s / 2),
            )
            self._drafted = drafted_traces(place, new, context.platform.target)
        self.replayed |= {draft.task: draft.replayed for draft in found.drafts}
        replayed = str(found.replayed(new))
        if replayed:
            context.log(replayed)
        if len(found.drafts) < len(new) and not context.interrupted():
            left = f"{len(new) - len(found.drafts)} tasks begin without a draft"
            context.log(f"{left}: half of the search's {limit_s:g} s is over")

    def keep_unscheduled(self) -> None:
        """Record the functions that are faster without schedule than their programs are.

        A schedule costs a function of a microsecond more than it gains. The single run at the
        beginning of a task is no fair timing: where it comes near the best program, the function is
        timed and checked as its programs were.
        """
        context = self._context
        database, target = context.database, context.platform.target
        for task in self.tasks:
            module, name = task.workload.module, task.workload.name
            single_s, tuned_s = task.untuned_s, task.current_best_s
            known = records_of(database.tvm_database, module, target)
            found = list(filter(is_unscheduled, known))
            is_near = single_s is not None and single_s <= _CLOSE * tuned_s + _GRAIN_S
            if not task.trials or single_s is None or not (found or is_near):
                continue
            check = task.find_check()
            if found:  # of an earlier start, or a space's only program
                costs_s = tuple(map(float, min(found, key=measured_s).run_secs))
                outcome = Outcome(costs_s=costs_s, checked=check is not None)
            else:
                outcome = context.measurer.unscheduled(module, task.arguments, check)
            if outcome.error is not None:
                continue
            task.untuned_s = outcome.latency_s
            _keep_untuned(context.folder, name, outcome.latency_s)
            if outcome.latency_s > tuned_s:
                continue
            if not found:
                database.commit(module, unscheduled(module), outcome.costs_s, target)
            task.unscheduled, task.current_best_s = outcome, outcome.latency_s
            context.log(f"{name}: no program is faster than the function without schedule")

    def _begin(self, number: int) -> Search:
        """Begin a task: reference, search, untuned time; report deviations."""
        task, options, context = self.tasks[number], self._options, self._context
        context.log(described(task.workload))
        if options.measure.check and not options.compile_only:
            # first, so that a builder computes it while the spaces are opened
            task.reference.begin()
        search = self._open(number)
        if isinstance(search, DecisionSearch):
            self._teach(search, task.name)
        if options.measure.baseline and not options.compile_only:
            task.untuned_s = _untuned_s(task, context)
        return search

    def _open(self, number: int) -> Search:
        """Make the search of a task without any measurements."""
        task, options, context = self.tasks[number], self._options, self._context
        name, workload, policy = task.name, task.workload, options.policy
        if isinstance(policy, MetaSchedule):
            return policy.make(
                workload,
                context.platform,
                context.database.tvm_database,
                shared=self._theirs,
                budget=(options.budget.trials, options.budget.batch),
                seed=options.seed,
                phases=context.phases,
            )
        assert not isinstance(policy, Ansor), policy
        with context.phases.time("sample"):
            designs = design_spaces(workload.module, context.platform.target)
        space = open_spaces(
            designs,
            name=name,
            analyzer=options.analyzer,
            learns=options.make_model is not None,
            replay_only=options.replay_only,
            phases=context.phases,
            log=context.log,
        )
        self.replayed[name] = len(space.replayed)
        # rebuilt from the journal: the same stream would draw the measured programs again
        stream = [options.seed, number, *([task.trials] if task.trials else [])]
        learner = None
        if self.shared is not None and space.has_features:
            device, key = context.platform.name, workload.key
            learner = LiveLearner(
                TaskKey(platform=device, task=name, workload_key=key, target=""),
                space,
                self.shared,
                context.phases,
                np.random.default_rng(options.seed),
                num_reference=options.num_reference,
            )
        # random draws follow no score, so they stay as they are
        if options.objective.has_size and isinstance(policy, RoundSettings):
            policy = ParetoSettings(settings=policy)
        rng, gpu = np.random.default_rng(stream), context.platform.on_gpu
        return decision_search(space, policy, space.draft_score, learner, rng, gpu=gpu)

    def _teach(self, search: DecisionSearch, name: str) -> None:
        """Add programs of earlier runs to a search, and begin with the drafted program."""
        known, space = self._known[name], search.space
        assert isinstance(space, UnionSpace), name
        if known:
            rows, latency_s, _ = programs_of(known, space)
            if len(rows):
                search.know(rows, latency_s)
            self._context.log(
                f"{name}: {len(rows)} programs of earlier runs are known, the best takes "
                f"{1e3 * best_s(known):.4g} ms"
            )
        if name in self._drafted:
            # a trace of another version's spaces gives no row: the search begins without it
            rows, ours = Traces(space).rows([self._drafted[name]])
            search.begin_with(rows[ours])

    def _check(
        self, reference: TaskReference, is_over: Callable[[], bool] | None = None
    ) -> Path | None:
        """Return the reference to compare with; wait for it or the end."""
        if not self._options.measure.check:
            return None
        ends = is_over or partial(self._context.is_over, self.limit_s)

        def wait(begun: Future[Any]) -> None:
            with self._context.phases.time("run"):
                wait_for(begun, ends)

        return reference.check(wait)


def _shared(options: TuneOptions) -> SharedModel | None:
    if options.make_model is None:
        return None
    return SharedModel(options.make_model(), refit=options.refit)


def _untuned(folder: Path) -> Mapping[str, float | None]:
    path = folder / UNTUNED_FILE
    if not path.is_file():
        return {}
    with as_written(path):
        found = read_json(path, dict).items()
        return {name: None if value is None else float(value) for name, value in found}


def _untuned_s(task: LiveTask, context: RunContext) -> float | None:
    name, known = task.workload.name, dict(_untuned(context.folder))
    if name not in known:
        known[name] = context.measurer.untuned_s(task.workload.module, task.arguments)
        _keep_untuned(context.folder, name, known[name])
    seconds = known[name]
    if seconds is not None:
        context.log(f"{name}: untuned {1e3 * seconds:.4g} ms")
    return seconds


def _keep_untuned(folder: Path, name: str, seconds: float | None) -> None:
    write_json(folder / UNTUNED_FILE, {**_untuned(folder), name: seconds})


def read_known(
    folders: Sequence[Path], workloads: Sequence[Workload], target: Any
) -> Mapping[str, list[Any]]:
    """Read records of equal programs that ran in earlier runs, by task name.

    Raises `PrunerError` for records of another target.
    """
    known = {workload.name: list[Any]() for workload in workloads}
    for folder in folders:
        database = Database.read(folder).tvm_database
        # TVM's own lookup ignores the target, so it would mix the latencies of two devices
        theirs = foreign_target(database.get_all_tuning_records(), target)
        if theirs is not None:
            raise PrunerError(
                f"warm_start={folder}: measured on {theirs}, this run is for {target}; latencies "
                "of another target cannot be used"
            )
        for workload in workloads:
            records = records_of(database, workload.module, target)
            known[workload.name] += [one for one in records if measured_s(one) < float("inf")]
    return known


def keep(
    known: Mapping[str, list[Any]], workloads: Sequence[Workload], database: Database, target: Any
) -> None:
    """Add the best earlier record of every task that the database lacks."""
    for workload in workloads:
        found = known[workload.name]
        own = records_of(database.tvm_database, workload.module, target)
        # strictly less: an equal record of an earlier start is not added again
        if best_s(found) < best_s(own):
            database.adopt(workload.module, min(found, key=measured_s))

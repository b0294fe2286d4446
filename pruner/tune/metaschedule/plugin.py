"""Our search strategy and our cost model as objects of MetaSchedule."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pruner.errors import PrunerError
from pruner.models.analyzer.analyzer import Analyzer
from pruner.models.training.fit import cpu_threads
from pruner.search.decision_search import DecisionSearch, decision_search
from pruner.search.explorer import ScoreFunction
from pruner.search.policy import PolicySettings, guard, standard, weighed
from pruner.search.space import Candidate, History
from pruner.tune.kinds import is_gpu
from pruner.tune.metaschedule.session import (
    MetaScheduleSession,
    MetaScheduleTask,
    identity,
    know_earlier,
    outcomes,
)
from pruner.tune.run.learning import OnlineModel
from pruner.tune.run.tune_options import LIVE
from pruner.tune.spaces.design import drawn_spaces, refusal
from pruner.tune.spaces.union import Traces
from pruner.tune.tvm_import import load_tvm

_ms = load_tvm().meta_schedule
_derived_object = load_tvm().tvm.ir.utils.derived_object
_PySearchStrategy: Any = _ms.search_strategy.PySearchStrategy
_PyCostModel: Any = _ms.cost_model.PyCostModel


def search_strategy(
    *,
    platform: str | None = None,
    analyzer: Analyzer | None = None,
    model: str | OnlineModel | None = "pacm",
    policy: PolicySettings = LIVE,
    seed: int | None = None,
) -> Any:
    """Make the search strategy for ``tune_tir``, ``tune_relax`` and ``TuneContext``.

    Earlier measurements of the same task in the database count as measured. TVM's cost model is not
    used; ``cost_model="none"`` saves its updates.

    Args:
        platform: the device whose analyzer drafts; by default found from the target.
        analyzer: your own analyzer instead.
        model: ``"pacm"`` or ``"xgboost"``, untrained at the start and shared by all tasks; None:
            the draft decides; or your own model.
        policy: the settings of a round.
        seed: None: TVM's.

    Raises:
        PrunerError: the model is unknown; or, when tuning starts, no described device fits the
            target.
    """
    session = MetaScheduleSession(platform=platform, analyzer=analyzer, model=model, seed=seed)
    return PrunerStrategy(session, policy)


@_derived_object
class PrunerStrategy(_PySearchStrategy):
    """The search strategy object for TVM; see :func:`search_strategy`."""

    def __init__(self, session: MetaScheduleSession, policy: PolicySettings) -> None:
        self._session, self._policy = session, policy
        self._task: MetaScheduleTask | None = None

    def _initialize_with_tune_context(self, context: Any) -> None:
        """Store the task (called by TVM)."""
        self._task = MetaScheduleTask.of(context)

    def pre_tuning(
        self,
        max_trials: int,
        num_trials_per_iter: int,
        design_spaces: Sequence[Any],
        database: Any = None,
        cost_model: Any = None,
    ) -> None:
        """Begin a task with its budget, spaces and database (called by TVM)."""
        assert self._task is not None, "TVM initializes a strategy before it tunes"
        if cost_model is not None:
            self._task.log('the strategy brings its own model; cost_model="none" saves TVM\'s')
        # before the first round: a missing platform ends the tuning instead of giving up its task
        self._session.analyzer(self._task.target, self._task.log)
        self._schedules: Sequence[Any] = design_spaces
        self._database = database
        self._left, self._batch = max_trials, num_trials_per_iter
        self._search: DecisionSearch | None = None  # opened when the task has its first turn
        self._waiting: list[Candidate] = []
        self._rounds = 0

    def post_tuning(self) -> None:
        """End a task (called by TVM)."""
        # the strategy may outlive the tuning: spaces and history of the task are large
        self._search = self._task = self._database = None
        self._schedules = ()

    def generate_measure_candidates(self) -> list[Any] | None:
        """Propose the next round; None ends the task (called by TVM)."""
        task = self._task
        assert task is not None, "TVM calls pre_tuning first"
        num = min(self._batch, self._left)
        if num < 1:
            return None
        started = time.perf_counter()
        try:
            with cpu_threads(1):  # two slow down so small a network
                if self._search is None:
                    self._search = self._open(task)
                found = self._search.propose(num)
        except PrunerError as error:  # of this task; TVM continues with the others
            task.log(f"{task.name} is given up: {error}")
            return None
        seconds = time.perf_counter() - started
        self._rounds += 1
        self._left -= len(found)
        self._waiting = found
        task.log(f"{task.name}: round {self._rounds}, {len(found)} candidates in {seconds:.2f} s")
        if not found:
            return None
        info, made = _ms.arg_info.ArgInfo.from_entry_func, [one.schedule for one in found]
        # builders remove the block that rewrites weights, so arguments have their new layout
        return [_ms.MeasureCandidate(one, info(one.mod, remove_preproc=True)) for one in made]

    def notify_runner_results(
        self, measure_candidates: Sequence[Any], results: Sequence[Any]
    ) -> None:
        """Add the results of the last round, in its order (called by TVM)."""
        task, search = self._task, self._search
        assert task is not None, "TVM calls pre_tuning first"
        assert search is not None, task.name
        search.observe(self._waiting, outcomes(results, task.log))
        self._waiting = []

    def clone(self) -> Any:
        """Return a strategy for another task and this session (for TVM)."""
        return PrunerStrategy(self._session, self._policy)

    def _open(self, task: MetaScheduleTask) -> DecisionSearch:
        session = self._session
        space = session.open(task, task.designs(self._schedules))
        learner = session.learner(task, space) if self._policy.takes_model else None
        given = self._policy, space.draft_score, learner, session.rng(task)
        search = decision_search(space, *given, gpu=is_gpu(task.target))
        know_earlier(self._database, task, search, space)
        return search


def cost_model(
    *,
    platform: str | None = None,
    analyzer: Analyzer | None = None,
    model: str | OnlineModel | None = "pacm",
    prior: float = LIVE.prior,
    seed: int | None = None,
) -> Any:
    """Make the cost model for ``tune_tir`` and ``tune_relax`` with ``strategy="evolutionary"``.

    `platform`, `analyzer`, `model` and `seed` are those of `search_strategy`. The analyzer scores
    alone until a program of the task has been measured. Then its score has the weight
    ``prior / (prior + measured)``, and the learned score has the rest.

    Raises `PrunerError`: the model is unknown; or, when tuning starts, no described device fits.
    """
    session = MetaScheduleSession(platform=platform, analyzer=analyzer, model=model, seed=seed)
    return PrunerModel(session, prior)


class TaskScores:
    """Scores of a task's candidates, in (0, 1); 0 for uncertain programs."""

    def __init__(self, session: MetaScheduleSession, task: MetaScheduleTask, prior: float) -> None:
        """Open the task's spaces; raise `PrunerError` without programs or device."""
        self._task, self._prior, self._rng = task, prior, session.rng(task)
        self._space = session.open(task, task.designs(drawn_spaces(task.context)))
        self._traces = Traces(self._space)
        self._learner = session.learner(task, self._space)
        self._history = History(self._space)
        self._learned: ScoreFunction | None = None
        self._judge: ScoreFunction | None = None

    def learn(self, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        """Add measured programs; ignore annotations that our spaces lack."""
        rows, known = self._traces.rows([candidate.sch.trace for candidate in candidates])
        found = outcomes(results, self._task.log)
        # a builder that never started is no failure of the program
        known &= np.array([one.concerns_program for one in found], bool)
        latency_s = np.array([one.latency_s for one in found])
        self._history.add(rows[known], latency_s[known])
        if self._learner is not None:
            self._learned = self._learner(self._history)
        self._judge = None

    def scores(self, candidates: Sequence[Any]) -> NDArray[np.float64]:
        """Score N candidates in (0, 1), comparable until the next measurements."""
        traces = [candidate.sch.trace for candidate in candidates]
        # a parallel annotation of TVM's mutator is scored as the space's own: closest known program
        rows, known = self._traces.rows(traces, whatever_parallel=True)
        out = np.full(len(rows), 0.5)
        if known.any():
            if self._judge is None:
                self._judge = self._standardised(rows[known])
            # TVM's search draws parents with these scores as weights, so none may be negative
            out[known] = 0.5 + 0.5 * np.tanh(0.5 * self._judge(rows[known]))
            # programs outside our spaces get random scores of the other candidates
            out[~known] = self._rng.choice(out[known], int((~known).sum()))
        return out

    def _standardised(self, seen: NDArray[np.int64]) -> ScoreFunction:
        """Weigh drafted and learned score as the policy, in units of deviation."""
        learned, draft = self._learned, self._space.draft_score
        if learned is None:
            return standard(draft, seen)
        if not self._prior:
            return standard(guard(learned, draft), seen)
        return weighed(learned, draft, seen, prior=self._prior, latency_s=self._history.latency_s)


@_derived_object
class PrunerModel(_PyCostModel):
    """The cost model object for TVM; see :func:`cost_model`."""

    def __init__(self, session: MetaScheduleSession, prior: float) -> None:
        self._session, self._prior = session, prior
        self._tasks: dict[tuple[int, str], TaskScores | None] = {}

    def update(self, context: Any, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        """Learn from the measured candidates of a task (called by TVM)."""
        task = self._task(context)
        if task is not None and len(candidates):
            with cpu_threads(1):  # two slow down so small a network
                task.learn(candidates, results)

    def predict(self, context: Any, candidates: Sequence[Any]) -> NDArray[np.float64]:
        """Return scores float64 [N] in (0, 1), the best highest (for TVM)."""
        task = self._task(context)
        if task is None:
            return np.full(len(candidates), 0.5)
        with cpu_threads(1):
            return task.scores(candidates)

    def load(self, path: str) -> None:
        """Raise `PrunerError`: the model has no file."""
        raise PrunerError(f"{path}: this model is not kept in a file; give model= one of your own")

    def save(self, path: str) -> None:
        """Raise `PrunerError`: the model has no file."""
        raise PrunerError(f"{path}: this model is not kept in a file; the database has its records")

    def _task(self, context: Any) -> TaskScores | None:
        key = identity(context)
        if key not in self._tasks:
            task = MetaScheduleTask.of(context)
            self._session.analyzer(task.target, task.log)  # its errors end the tuning
            try:
                self._tasks[key] = TaskScores(self._session, task, self._prior)
            except (PrunerError, load_tvm().s_tir.ScheduleError) as error:
                task.log(f"{task.name}: all programs score alike: {refusal(error)}")
                self._tasks[key] = None
        return self._tasks[key]

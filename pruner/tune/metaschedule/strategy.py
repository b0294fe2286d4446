"""Draft-then-verify as a search strategy of MetaSchedule, for a task at a time."""

import time
from collections.abc import Sequence
from typing import Any

from pruner.errors import PrunerError
from pruner.models.analyzer.analyzer import Analyzer
from pruner.models.training.fit import cpu_threads
from pruner.search.decision_search import DecisionSearch, decision_search
from pruner.search.history import Candidate
from pruner.search.policy import PolicySettings
from pruner.tune.metaschedule.session import (
    MetaScheduleSession,
    MetaScheduleTask,
    know_earlier,
    outcomes,
)
from pruner.tune.run.learning import OnlineModel
from pruner.tune.run.tune_options import LIVE
from pruner.tune.spaces.union import Traces
from pruner.tune.tvm_import import load_tvm

_ms = load_tvm().meta_schedule
_derived_object = load_tvm().tvm.ir.utils.derived_object
_PySearchStrategy: Any = _ms.search_strategy.PySearchStrategy


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


class TaskSearch:
    """The search of a task, from ``pre_tuning`` to ``post_tuning``."""

    def __init__(
        self,
        session: MetaScheduleSession,
        policy: PolicySettings,
        task: MetaScheduleTask,
        *,
        schedules: Sequence[Any],
        database: Any,
        budget: tuple[int, int],
    ) -> None:
        """Prepare a search in TVM's `schedules`; `budget`: trials in all, and a round."""
        # before the first round: a missing platform ends the tuning instead of giving up its task
        session.analyzer(task.target, task.log)
        self._session, self._policy, self._task = session, policy, task
        self._schedules, self._database = schedules, database
        self._left, self._batch = budget
        self._search: DecisionSearch | None = None  # opened when the task has its first turn
        self._waiting: list[Candidate] = []
        self._rounds = 0

    def propose(self) -> list[Candidate] | None:
        """Propose the next round; None if the budget or the programs end."""
        num = min(self._batch, self._left)
        if num < 1:
            return None
        started = time.perf_counter()
        try:
            with cpu_threads(1):  # two slow down so small a network
                if self._search is None:
                    self._search = self._open()
                found = self._search.propose(num)
        except PrunerError as error:  # of this task; TVM continues with the others
            self._task.log(f"{self._task.name} is given up: {error}")
            return None
        seconds = time.perf_counter() - started
        self._rounds += 1
        self._left -= len(found)
        self._waiting = found
        self._task.log(
            f"{self._task.name}: round {self._rounds}, {len(found)} candidates in {seconds:.2f} s"
        )
        return found or None

    def observe(self, results: Sequence[Any]) -> None:
        """Add the results of the last round, in its order."""
        assert self._search is not None, self._task.name
        self._search.observe(self._waiting, outcomes(results, self._task.log))
        self._waiting = []

    def _open(self) -> DecisionSearch:
        session, task = self._session, self._task
        space = session.open(task, task.designs(self._schedules))
        learner = session.learner(task, space) if self._policy.takes_model else None
        search = decision_search(space, self._policy, space.draft_score, learner, session.rng(task))
        know_earlier(self._database, task, search, Traces(space))
        return search


@_derived_object
class PrunerStrategy(_PySearchStrategy):
    """The search strategy object for TVM; see :func:`search_strategy`."""

    def __init__(self, session: MetaScheduleSession, policy: PolicySettings) -> None:
        self._session, self._policy = session, policy
        self._task: MetaScheduleTask | None = None
        self._search: TaskSearch | None = None

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
        self._search = TaskSearch(
            self._session,
            self._policy,
            self._task,
            schedules=design_spaces,
            database=database,
            budget=(max_trials, num_trials_per_iter),
        )

    def post_tuning(self) -> None:
        """End a task (called by TVM)."""
        # the strategy may outlive the tuning: spaces and history of the task are large
        self._search = self._task = None

    def generate_measure_candidates(self) -> list[Any] | None:
        """Propose the next round; None ends the task (called by TVM)."""
        assert self._search is not None, "TVM calls pre_tuning first"
        found = self._search.propose()
        if found is None:
            return None
        info, made = _ms.arg_info.ArgInfo.from_entry_func, [one.schedule for one in found]
        # builders remove the block that rewrites weights, so arguments have their new layout
        return [_ms.MeasureCandidate(one, info(one.mod, remove_preproc=True)) for one in made]

    def notify_runner_results(
        self, measure_candidates: Sequence[Any], results: Sequence[Any]
    ) -> None:
        """Add the results of the last round (called by TVM)."""
        assert self._search is not None, "TVM calls pre_tuning first"
        self._search.observe(results)

    def clone(self) -> Any:
        """Return a strategy for another task and this session (for TVM)."""
        return PrunerStrategy(self._session, self._policy)

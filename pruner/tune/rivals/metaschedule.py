"""TVM's evolutionary search and XGBoost model with our warm builder and runner."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pruner.search.policy import State
from pruner.search.space import Candidate
from pruner.tune.measure.measurer import Outcome, Platform
from pruner.tune.phases import Phases
from pruner.tune.run.database import records_of
from pruner.tune.spaces.design import (
    default_rules,
    drawn_spaces,
    refusals_in_a_line,
    rules_of,
    vector_of,
)
from pruner.tune.tvm_import import load_tvm
from pruner.tune.workloads import Workload

_OTHERS = "; other policies, such as pruner_live, leave a rule out where that helps"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaSchedule:
    """TVM's own evolutionary search with XGBoost; the defaults are TVM's.

    As in TVM, all tasks of a run share one model, and the search has all cores. With fewer than
    ``num_warmup_samples`` measured programs the model scores at random.
    """

    takes_model: ClassVar[bool] = False
    trusts_draft: ClassVar[bool] = False

    num_warmup_samples: int = 100
    population_size: int = 512
    init_measured_ratio: float = 0.2
    init_min_unmeasured: int = 50
    genetic_num_iters: int = 4
    genetic_mutate_prob: float = 0.85
    eps_greedy: float = 0.05

    def shared(self, platform: Platform) -> Any:
        """Make the model of all tasks."""
        return load_tvm().meta_schedule.cost_model.XGBModel(
            num_warmup_samples=self.num_warmup_samples, num_tuning_cores=_cores(platform)
        )

    def make(
        self,
        workload: Workload,
        platform: Platform,
        database: Any,
        *,
        shared: Any,
        budget: tuple[int, int],
        seed: int,
        phases: Phases,
    ) -> MetaScheduleSearch:
        """Make the search of a task with the model `shared` by all tasks.

        `database` is TVM's; `budget`: trials in all and of a batch. Raises `PrunerError` where a
        rule of TVM refuses the function: unlike our spaces, this search has all rules.
        """
        options = asdict(self)
        options.pop("num_warmup_samples")  # the model's
        # programs on lanes get 48 KiB of static shared memory, as in our spaces
        rules, target = default_rules(workload.module, platform.target)
        ms = load_tvm().meta_schedule
        context = ms.TuneContext(
            mod=workload.module,
            target=target,
            space_generator=ms.space_generator.PostOrderApply(
                sch_rules=rules_of(rules, target), postprocs=rules, mutator_probs=rules
            ),
            search_strategy=ms.search_strategy.EvolutionarySearch(**options),
            num_threads=_cores(platform),
            # TVM's random engine multiplies its state: 0 would stay 0
            rand_state=seed + 1,
        )
        with phases.time("sample"), refusals_in_a_line(_OTHERS):
            designs = drawn_spaces(context)
        context.search_strategy.pre_tuning(*budget, designs, database, shared)
        # a resumed run: TVM's search reads the database for parents, its model does not
        records = records_of(database, workload.module, platform.target)
        if records:
            theirs = [record.as_measure_candidate() for record in records]
            results = [ms.runner.RunnerResult(list(one.run_secs), None) for one in records]
            shared.update(context, theirs, results)
        return MetaScheduleSearch(context, shared, phases)


class MetaScheduleSearch:
    """The search of a task; see :class:`pruner.search.decision_search.Search`.

    Predictions of its model count as sampling: both happen in one call of TVM. Its random state and
    model live in TVM and cannot be saved: a resumed run starts as TVM's own does, from the records
    of its database, with the model fitted to them.
    """

    def __init__(self, context: Any, model: Any, phases: Phases) -> None:
        """Propose by TVM's `context`, whose search has begun, and teach the `model`."""
        self.refused = 0
        self._context, self._model, self._phases = context, model, phases
        self._strategy = context.search_strategy
        self._candidates: dict[int, Any] = {}

    def propose(self, num: int) -> list[Candidate]:
        """Propose a batch; see :class:`pruner.search.decision_search.Search`.

        TVM makes a full batch, the best first and random ones last; of a smaller round, such as the
        first of several of every task, the search loses the rest.
        """
        with self._phases.time("sample"):
            proposed = self._strategy.generate_measure_candidates()
        out = []
        for candidate in list(proposed or [])[:num]:
            made = Candidate(
                space=-1,
                decisions=vector_of(candidate.sch.trace),
                schedule=candidate.sch,
            )
            self._candidates[id(made)] = candidate
            out.append(made)
        return out

    def observe(self, candidates: Sequence[Candidate], outcomes: Sequence[Outcome]) -> None:
        """Add results; see :class:`pruner.search.decision_search.Search`."""
        if not candidates:
            return
        theirs = [self._candidates.pop(id(candidate)) for candidate in candidates]
        results = [_result(outcome) for outcome in outcomes]
        self._strategy.notify_runner_results(theirs, results)
        # a program that was never tried is no failure for TVM's model
        tried = [n for n, outcome in enumerate(outcomes) if outcome.concerns_program]
        if tried:
            with self._phases.time("train"):
                self._model.update(
                    self._context, [theirs[n] for n in tried], [results[n] for n in tried]
                )

    def restore(self, space: int, decisions: NDArray[np.int64]) -> Candidate:
        """Raise `NotImplementedError`: TVM keeps the state of the search."""
        raise NotImplementedError("MetaSchedule's search keeps its state inside TVM")

    def state(self) -> State:
        """Return the count of refusals; the records restore the rest."""
        return {"refused": self.refused}

    def load_state(self, state: State) -> None:
        """Restore the count of refusals."""
        self.refused = state["refused"]


def _cores(platform: Platform) -> int:
    """Count the cores for the search: the target's where programs run here."""
    runs_here = platform.device == "cpu" and platform.address is None
    return platform.cores if runs_here else len(os.sched_getaffinity(0))


def _result(outcome: Outcome) -> Any:
    result = load_tvm().meta_schedule.runner.RunnerResult
    if outcome.error is None:
        return result(list(outcome.costs_s), None)
    return result(None, f"{outcome.error}: {outcome.message}")

"""Tasks in turn: who measures when, and what the curve says."""

import numpy as np
import pytest

from pruner.errors import PrunerError
from pruner.search.offline.recorded_run import Clock, run_tasks
from pruner.search.space import Candidate


class Listed:
    """Proposes given numbers, so many at a time as are asked for, and measures them as seconds."""

    def __init__(self, latencies_s, clock):
        self.left, self.clock, self.asked, self.seen = list(latencies_s), clock, [], []

    def propose(self, num):
        self.asked.append(num)
        found, self.left = self.left[:num], self.left[num:]
        return [Candidate(space=n, decisions=np.zeros(0, int), schedule=None) for n in found]

    def measure(self, decisions):
        self.clock.measuring_s += 10.0 * len(decisions)
        return decisions[:, 0].astype(float)

    def observe(self, candidates, outcomes):
        self.seen.extend(outcome.latency_s for outcome in outcomes)


def test_tasks_take_turns_until_the_budget_is_spent_or_nothing_is_new():
    clock = Clock()
    first, second = Listed([9, 7, 8, 3], clock), Listed([5, 6], clock)
    curve = run_tasks([(first, first), (second, second)], trials=10, batch=2)
    inf = np.inf
    assert curve.best_s.tolist() == [[9, inf], [7, inf], [7, 5], [7, 5], [7, 5], [3, 5]]
    assert (first.seen, second.seen) == ([9, 7, 8, 3], [5, 6])
    assert curve.elapsed_s == pytest.approx([20, 20, 40, 40, 60, 60], abs=1)  # and some thinking
    assert len(second.asked) == 2  # asked once more, then it is left out


def test_the_last_batch_is_what_the_budget_leaves():
    task = Listed(range(1, 9), Clock())
    assert len(run_tasks([(task, task)], trials=7, batch=3).best_s) == 7
    assert task.asked == [3, 3, 1]


def test_a_session_that_measures_nothing_is_an_error():
    empty = Listed([], Clock())
    with pytest.raises(PrunerError, match="no task has a program"):
        run_tasks([(empty, empty)], trials=5)

"""The search of one task: which failures teach, and what is proposed first."""

from types import SimpleNamespace

import numpy as np
import pytest

from pruner.search.decision_search import DecisionSearch, decision_search
from pruner.search.explorer import NoneFound
from pruner.search.failures import FailureModel
from pruner.search.policy import RandomDraws
from pruner.search.space import Candidate, History
from pruner.tune.measure.measurer import Outcome
from pruner.tune.phases import Phases
from pruner.tune.spaces.batched.space import BatchedSpace
from pruner.tune.spaces.design import design_spaces
from pruner.tune.spaces.union import UnionSpace
from pruner.tune.workloads import from_operator
from tests.tune.run.test_loop import SIZES

pytestmark = pytest.mark.tvm


def outcome(candidate):
    """Programs with the two largest unroll depths run out of memory, all others work."""
    if candidate.decisions[-1] >= 2:
        return Outcome(error="run_out_of_memory")
    return Outcome(costs_s=(1e-3 / int(candidate.decisions[7]),))


def test_failing_programs_of_a_union_are_proposed_less_and_less(platform):
    found = design_spaces(from_operator(SIZES).module, platform.target)
    space = UnionSpace([BatchedSpace(design) for design in found], Phases())
    rng = np.random.default_rng(0)
    search = decision_search(space, RandomDraws(draws=128), space.draft_score, None, rng)
    shares = []
    for _ in range(8):
        chosen = search.propose(16)
        outcomes = [outcome(candidate) for candidate in chosen]
        search.observe(chosen, outcomes)
        shares.append(np.mean([o.error is not None for o in outcomes]))
    assert shares[0] > 0.3
    assert np.mean(shares[4:]) < 0.1
    assert {candidate.space for candidate in chosen} == set(range(len(found)))


class Space:
    """As much of a union as a search needs: one design space of two decisions."""

    num_slots = 3
    widths = (2,)

    def keys(self, decisions):
        return decisions @ np.array([1, 10, 100])

    def clear_cache(self):
        self.forgotten = True


def search_of(space, policy=None, learner=None):
    return DecisionSearch(space, policy, History(space), learner)


TEACH = [
    "build_error", "build_timeout", "build_crash", "build_out_of_memory", "run_error",
    "run_timeout", "run_crash", "run_illegal_access", "run_out_of_memory", "check_crash",
    "wrong_result",
]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "teaches"),
    [(e, True) for e in TEACH]
    + [(f"{stage}_no_{what}", False) for stage in ("build", "run") for what in ("worker", "device")]
    + [(None, False)],
)
def test_kinds_that_teach(error, teaches):
    search = search_of(Space())
    failure_model = FailureModel(search.history, len)
    candidate = Candidate(space=0, decisions=np.array([4, 2]), schedule=None)
    search.observe([candidate], [Outcome(error=error, costs_s=() if error else (1.0,))])
    assert failure_model.failures == int(teaches)
    assert (failure_model.probability(np.array([[0, 4, 2]])) > 0.3) == [teaches]


def test_a_program_without_a_turn_teaches_the_learned_model_nothing():
    """It is not the worst of its task because a device was lost."""
    noted = []
    learner = SimpleNamespace(note=lambda history: noted.append(history.tried.tolist()))
    search = search_of(Space(), learner=learner)
    candidates = [Candidate(space=0, decisions=np.array([4, n]), schedule=None) for n in range(4)]
    errors = (None, "run_no_device", "run_crash", "build_no_worker")
    search.observe(candidates, [Outcome(error=e, costs_s=() if e else (1.0,)) for e in errors])
    assert noted == [[True, False, True, False]]
    np.testing.assert_array_equal(search.history.latency_s, [1.0, np.inf, np.inf, np.inf])


def test_what_tvm_refuses_teaches_too():
    class Refusing(Space):
        def instantiate(self, decisions):
            return [None] * len(decisions)

    class Proposing:
        def propose(self, num, history, pending):
            return np.array([[0, 4, 2]])

    space = Refusing()
    search = search_of(space, Proposing())
    assert search.propose(1) == []
    assert space.forgotten  # nothing of a proposal is kept for the next
    assert search.refused == FailureModel(search.history, len).failures > 0


class Willing(Space):
    """Makes a schedule of everything."""

    def instantiate(self, decisions):
        return ["schedule"] * len(decisions)


class Slow(Willing):
    """Affords eight programs at once."""

    affordable, can_draft = 8, False

    def sample(self, num, rng):
        assert num <= self.affordable
        return np.column_stack([np.zeros(num, int), rng.integers(0, 9, (num, 2))])


def test_nothing_draws_more_than_a_slow_space_affords():
    space, rng = Slow(), np.random.default_rng(0)
    search = decision_search(space, RandomDraws(), lambda rows: np.zeros(len(rows)), None, rng)
    search.know(np.array([[0, 4, 2]]), np.array([np.inf]))  # a failure, whose neighbours it avoids
    assert search.propose(4)


class Counting:
    """Proposes programs [0, 4, n] that do not wait and are not known, the least n first."""

    def __init__(self, space):
        self.space, self.asked = space, []

    def propose(self, num, history, pending):
        self.asked.append(num)
        rows = np.array([[0, 4, n] for n in range(5)])
        free = rows[~np.isin(self.space.keys(rows), [*pending, *history.keys])][:num]
        if not len(free):
            raise NoneFound("all of them")
        return free


def counting(space=None):
    space = space or Willing()
    policy = Counting(space)
    return search_of(space, policy), policy


def seconds(chosen):
    """Their second decisions."""
    return [int(one.decisions[1]) for one in chosen]


def test_a_drafted_program_comes_first_and_once():
    search, policy = counting()
    search.begin_with(np.array([[0, 4, 1]]))
    assert seconds(search.propose(3)) == [1, 0, 2]  # the policy's own behind it
    assert seconds(search.propose(3)) == [3, 4]
    assert search.propose(3) == []
    assert policy.asked == [2, 3, 3]
    # it is all of a batch of one
    search, policy = counting()
    search.begin_with(np.array([[0, 4, 1]]))
    assert seconds(search.propose(1)) == [1]
    assert policy.asked == []
    assert seconds(search.propose(1)) == [0]
    # it does not come before what is known
    search, _ = counting()
    search.begin_with(np.array([[0, 4, 1]]))
    search.know(np.array([[0, 4, 7]]), np.array([1.0]))
    assert seconds(search.propose(2)) == [0, 1]


def test_a_drafted_program_that_tvm_refuses_is_not_asked_for_again():
    class Picky(Willing):
        def instantiate(self, decisions):
            return [None if row[2] == 1 else "schedule" for row in decisions]

    search, _ = counting(Picky())
    search.begin_with(np.array([[0, 4, 1]]))
    assert seconds(search.propose(1)) == [0]
    assert (search.refused, seconds(search.propose(9))) == (1, [2, 3, 4])


def test_a_drafted_program_is_enough_where_the_policy_finds_none():
    class Lost:
        def propose(self, num, history, pending):
            raise NoneFound("no legal program was drawn")

    search = search_of(Willing(), Lost())
    with pytest.raises(NoneFound):
        search.propose(3)
    search.begin_with(np.array([[0, 4, 1]]))
    assert seconds(search.propose(3)) == [1]
    assert search.propose(3) == []

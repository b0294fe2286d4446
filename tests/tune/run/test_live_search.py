"""Failures in the tuning loop: which kinds teach, and that what was learned survives a kill."""

from types import SimpleNamespace

import numpy as np
import pytest

from pruner.search.explorer import NoneFound
from pruner.search.failures import FailureModel
from pruner.tune.measure.measurer import Candidate, Outcome
from pruner.tune.run.live_search import DecisionSearch
from tests.tune.run.test_loop import SIZES, FakeMeasurer, Killed, measured, run

pytestmark = pytest.mark.tvm


@pytest.fixture(scope="module")
def platform():
    from pruner.tune.measure.measurer import Platform
    from pruner.tune.tvm_import import load_tvm

    target = load_tvm().tvm.target.Target({"kind": "llvm", "num-cores": 2})
    return Platform(target=target, device="cpu", cores=2)


class Fragile(FakeMeasurer):
    """Programs with the two largest unroll depths run out of memory, all others work."""

    def results(self, batch, accept, check, stopped):
        for position, _ in super().results(batch, accept, check, stopped):
            yield position, outcome(batch[position])


def outcome(candidate):
    if candidate.decisions[-1] >= 2:
        return Outcome(error="run_out_of_memory")
    return Outcome(costs_s=(1e-3 / int(candidate.decisions[7]),))


def test_failing_programs_of_a_union_are_proposed_less_and_less(platform):
    from pruner.search.failures import AvoidFailures
    from pruner.search.policy import RandomPolicy
    from pruner.tune.phases import Phases
    from pruner.tune.spaces.batched.space import BatchedSpace
    from pruner.tune.spaces.design import design_spaces
    from pruner.tune.spaces.union import UnionSpace
    from pruner.tune.workloads import from_operator

    found = design_spaces(from_operator(SIZES).module, platform.target)
    space = UnionSpace([BatchedSpace(design) for design in found], Phases())
    failure_model = FailureModel(space)
    score = AvoidFailures(space.draft_score, failure_model)
    policy = RandomPolicy(space, np.random.default_rng(0), accept=score, draws=128)
    search = DecisionSearch(space, policy, failure_model)
    shares = []
    for _ in range(8):
        chosen = search.propose(16)
        outcomes = [outcome(candidate) for candidate in chosen]
        search.observe(chosen, outcomes)
        shares.append(np.mean([o.error is not None for o in outcomes]))
    assert shares[0] > 0.3
    assert np.mean(shares[4:]) < 0.1
    assert {candidate.space for candidate in chosen} == set(range(len(found)))


@pytest.mark.parametrize(("model", "lag"), [("trees", 0), ("pacm", 1)])
def test_what_failures_taught_survives_a_kill(tmp_path, platform, model, lag):
    options = {"trials": 36, "model": model, "specs": (SIZES,)}
    run(tmp_path / "whole", platform, Fragile(lag), **options)
    for dies_at in (10, 13):
        with pytest.raises(Killed):
            run(tmp_path / "killed", platform, Fragile(lag, dies_at), **options)
    run(tmp_path / "killed", platform, Fragile(lag), **options)
    assert measured(tmp_path / "killed") == measured(tmp_path / "whole")


class Space:
    """As much of a union as a search needs: one design space of two decisions."""

    num_slots = 3
    spaces = (SimpleNamespace(num_slots=2),)

    def keys(self, decisions):
        return decisions @ np.array([1, 10, 100])

    def forget(self):
        self.forgotten = True


class Silent:
    """A policy that only listens."""

    def observe(self, measured):
        self.measured = measured


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
    failure_model = FailureModel(Space())
    search = DecisionSearch(Space(), Silent(), failure_model)
    candidate = Candidate(space=0, decisions=np.array([4, 2]), schedule=None)
    search.observe([candidate], [Outcome(error=error, costs_s=() if error else (1.0,))])
    assert failure_model.failures == int(teaches)
    assert (failure_model.probability(np.array([[0, 4, 2]])) > 0.3) == [teaches]


def test_a_program_without_a_turn_teaches_the_learned_model_nothing():
    """It is not the worst of its task because a device was lost."""
    taught = []
    learner = SimpleNamespace(observe=lambda _, latency_s: taught.append(latency_s))
    policy = Silent()
    search = DecisionSearch(Space(), policy, FailureModel(Space()), learner)
    candidates = [Candidate(space=0, decisions=np.array([4, n]), schedule=None) for n in range(4)]
    errors = (None, "run_no_device", "run_crash", "build_no_worker")
    search.observe(candidates, [Outcome(error=e, costs_s=() if e else (1.0,)) for e in errors])
    np.testing.assert_array_equal(taught[-1], [1.0, np.nan, np.inf, np.nan])
    np.testing.assert_array_equal(policy.measured.latency_s, [1.0, np.inf, np.inf, np.inf])


def test_what_tvm_refuses_teaches_too():
    class Refusing(Space):
        def instantiate(self, decisions):
            return [None] * len(decisions)

    class Proposing(Silent):
        def propose(self, num, pending):
            return np.array([[0, 4, 2]])

    failure_model = FailureModel(Refusing())
    space = Refusing()
    search = DecisionSearch(space, Proposing(), failure_model)
    assert search.propose(1) == []
    assert space.forgotten  # nothing of a proposal is kept for the next
    assert search.refused == failure_model.failures > 0


class Willing(Space):
    """Makes a schedule of everything."""

    spaces = (SimpleNamespace(num_slots=2),)

    def instantiate(self, decisions):
        return ["schedule"] * len(decisions)


class Counting(Silent):
    """Proposes programs [0, 4, n] that do not wait and are not known, the least n first."""

    def __init__(self, space):
        self.space, self.asked, self.known = space, [], []

    def observe(self, measured):
        self.known += self.space.keys(measured.decisions).tolist()

    def propose(self, num, pending):
        self.asked.append(num)
        rows = np.array([[0, 4, n] for n in range(5)])
        free = rows[~np.isin(self.space.keys(rows), [*pending, *self.known])][:num]
        if not len(free):
            raise NoneFound("all of them")
        return free


def counting(space=None):
    space = space or Willing()
    policy = Counting(space)
    return DecisionSearch(space, policy, FailureModel(space)), policy


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


def test_a_drafted_program_is_all_of_a_batch_of_one():
    search, policy = counting()
    search.begin_with(np.array([[0, 4, 1]]))
    assert seconds(search.propose(1)) == [1]
    assert policy.asked == []
    assert seconds(search.propose(1)) == [0]


def test_a_drafted_program_does_not_come_before_what_is_known():
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
    class Lost(Silent):
        def propose(self, num, pending):
            raise NoneFound("no legal program was drawn")

    search = DecisionSearch(Willing(), Lost(), FailureModel(Willing()))
    with pytest.raises(NoneFound):
        search.propose(3)
    search.begin_with(np.array([[0, 4, 1]]))
    assert seconds(search.propose(3)) == [1]
    assert search.propose(3) == []

"""AdaTune: what a random forest expects, and that it finds what it should."""

import math
from dataclasses import replace

import numpy as np
import pytest

from pruner.models.trees.forest import Forest, ForestSettings
from pruner.search.adatune import AdaTuneSettings, decision_columns, expected_improvement
from pruner.search.explorer import ExplorerSettings
from pruner.search.offline.recorded_run import Clock, RecordedMeasurer, RecordedSpace, run_session
from pruner.search.policy import RandomDraws
from pruner.search.space import History


def test_expected_improvement_by_hand():
    found = expected_improvement(np.array([1.0, 1.2, 0.5, 0.9]), np.array([0.1, 0, 0, 0.2]), 1.0)
    assert found[0] == pytest.approx(0.1 / math.sqrt(2 * math.pi))  # z = 0
    assert found[1] == pytest.approx(0.2)  # sure of a gain
    assert found[2] == 0.0  # sure of none
    z = -0.5
    normal = (1 + math.erf(z / math.sqrt(2))) / 2
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    assert found[3] == pytest.approx(-0.1 * normal + 0.2 * density)


def test_a_forest_is_the_mean_of_its_trees_and_less_sure_far_from_data():
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, (60, 4))
    y = x[:, 0] + x[:, 1] ** 2
    forest = Forest(x, y, settings=ForestSettings(trees=20), seed=1)
    trees = forest.trees(x)
    assert trees.shape == (20, 60)
    assert len(np.unique(trees[:, 0])) > 1
    assert np.corrcoef(trees.mean(axis=0), y)[0, 1] > 0.95
    again = Forest(x, y, settings=ForestSettings(trees=20), seed=1)
    assert np.array_equal(trees, again.trees(x))


def pool(seed):
    """600 programs whose latency depends on two of five decisions."""
    rng = np.random.default_rng(seed)
    decisions = np.unique(2 ** rng.integers(0, 6, (600, 5)), axis=0)
    bits = np.log2(decisions)
    latency_s = 1e-3 * (1 + (bits[:, 0] - 3) ** 2 + (bits[:, 2] - 4) ** 2 + rng.random(len(bits)))
    return RecordedSpace(decisions), latency_s


SMALL = AdaTuneSettings(explorer=ExplorerSettings(population=128, generations=2, keep=32))


def test_it_never_measures_twice_and_stops_at_the_end_of_the_pool():
    space = RecordedSpace(np.array([[i, j] for i in range(4) for j in range(5)]))
    latency_s = np.linspace(1, 2, 20)
    policy = SMALL.make(space, None, None, np.random.default_rng(0))
    curve = run_session(
        policy, RecordedMeasurer(space, latency_s, np.ones(20), Clock()), trials=50, batch=4
    )
    assert len(curve.best_s) == 20
    assert curve.best_s[-1] == 1.0


def test_a_batch_that_is_larger_than_the_shortlist_is_still_chosen():
    """Of 40 programs as many are chosen as with a shortlist of 600."""
    space, latency_s = pool(0)
    history = History(space)
    history.add(space.decisions[:30], latency_s[:30])
    found = []
    for keep in (8, 600):
        settings = replace(SMALL, explorer=replace(SMALL.explorer, keep=keep))
        policy = settings.make(space, None, None, np.random.default_rng(0))
        policy.load_state({**policy.state(), "epsilon": 0.05})  # as earlier versions wrote it
        found.append(policy.propose(40, history))
    np.testing.assert_array_equal(*found)


def test_programs_without_a_turn_teach_the_forest_nothing():
    space, latency_s = pool(0)
    known, more = History(space), History(space)
    for history in (known, more):
        history.add(space.decisions[:30], latency_s[:30])
    more.add(space.decisions[30:60], np.full(30, np.inf), np.zeros(30, bool))
    columns, trees = decision_columns(space.decisions), []
    for history in (known, more):
        policy = SMALL.make(space, None, None, np.random.default_rng(0))
        trees.append(policy._forest(history).trees(columns))
    np.testing.assert_array_equal(*trees)


def test_what_is_not_legal_is_never_proposed():
    space, latency_s = pool(0)

    def legal(decisions):
        return np.where(decisions[:, 1] > 4, -np.inf, 0.0)

    policy = SMALL.make(space, legal, None, np.random.default_rng(0))
    measurer = RecordedMeasurer(space, latency_s, np.ones(len(latency_s)), Clock())
    history = History(space)
    for _ in range(4):
        proposed = policy.propose(10, history)
        assert len(proposed) == 10
        assert (proposed[:, 1] <= 4).all()
        history.add(proposed, measurer.measure(proposed))


def test_it_beats_random_on_average():
    found = {"adatune": [], "random": []}
    for seed in range(6):
        space, latency_s = pool(seed)
        rng = np.random.default_rng(seed)
        policies = {
            "adatune": SMALL.make(space, None, None, rng),
            "random": RandomDraws(draws=512).make(space, None, None, np.random.default_rng(seed)),
        }
        for name, policy in policies.items():
            measurer = RecordedMeasurer(space, latency_s, np.ones(len(latency_s)), Clock())
            curve = run_session(policy, measurer, trials=40)
            found[name].append(latency_s.min() / curve.best_s[-1])
    assert np.mean(found["adatune"]) > np.mean(found["random"]) + 0.02

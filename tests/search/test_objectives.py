"""Two objectives: fronts and volumes by hand, the blended score, and a search beside chance."""

from dataclasses import replace

import numpy as np
import pytest

from experiments.pareto.volume import hypervolume
from pruner.errors import PrunerError
from pruner.search.explorer import ExplorerSettings
from pruner.search.objectives import (
    KNOWN,
    BlendedScore,
    Objective,
    ParetoSettings,
    dominated,
    non_dominated,
)
from pruner.search.policy import DraftThenVerify, RandomDraws, RoundSettings
from pruner.search.space import History
from tests.search.tile_space import TileScore, TileSpace

ROUNDS = RoundSettings(
    draft=ExplorerSettings(population=128, generations=2, keep=64),
    verify=ExplorerSettings(population=64, generations=1, keep=32),
    random_sample=32,
    draft_leads=True,
)


def test_a_front_and_its_volume_by_hand():
    pytest.importorskip("pymoo")
    points = np.array([[1.0, 4], [2, 2], [4, 1], [3, 3], [2, 5]])
    assert non_dominated(points).tolist() == [True, True, True, False, False]
    assert [dominated(p, np.delete(points, i, axis=0)) for i, p in enumerate(points)] == (
        (~non_dominated(points)).tolist()
    )
    # below (5, 5): columns of height 1, 3 and 4 over [1, 2], [2, 4] and [4, 5]
    assert hypervolume(points, [5, 5]) == pytest.approx(1 * 1 + 2 * 3 + 1 * 4)
    assert hypervolume(np.array([[6.0, 1]]), [5, 5]) == 0
    assert hypervolume(points[:0], [5, 5]) == 0
    assert non_dominated(points[:0]).tolist() == []


def test_names_of_objectives():
    assert Objective().is_latency
    assert str(Objective.of(["latency", "size"])) == "[latency,size]"
    fronts = [names for names in KNOWN if Objective(names=names).has_front]
    assert fronts == [("latency", "size"), ("latency", "energy")]
    with pytest.raises(
        PrunerError, match=r"objective=\[size,latency\]: it must be one of latency,"
    ):
        Objective.of(["size", "latency"])


def blended(score, log_size, weight):
    both = BlendedScore(lambda rows: score[rows[:, 0]], lambda rows: log_size[rows[:, 0]], weight)
    return both(np.arange(len(score))[:, None])


def test_the_blended_score_by_hand():
    """Best and median are 0 and -1 of both: the spreads are 1."""
    score, log_size = np.array([0.0, -1, -2]), np.array([2.0, 1, 0])
    # .75 x (0, 1, 2) and .25 x (2, 1, 0): maximum (.5, .75, 1.5), sum (.5, 1, 1.5)
    wanted = [-0.5 - 0.05 * 0.5, -0.75 - 0.05 * 1.0, -1.5 - 0.05 * 1.5]
    np.testing.assert_allclose(blended(score, log_size, 0.25), wanted)


def test_the_weights_at_the_ends_are_the_objectives_alone():
    rng = np.random.default_rng(0)
    score, log_size = rng.normal(size=40), rng.normal(size=40)
    score[3], log_size[7] = -np.inf, np.nan
    fast, small = (blended(score, log_size, weight) for weight in (0.0, 1.0))
    assert np.isneginf(fast).nonzero()[0].tolist() == [3]
    assert np.argsort(-fast, kind="stable").tolist() == np.argsort(-score, kind="stable").tolist()
    known = np.delete(np.arange(40), [3, 7])
    assert known[np.argsort(-small[known])].tolist() == known[np.argsort(log_size[known])].tolist()


class SizedTiles(TileSpace):
    """Larger inner tiles are faster on this device, and larger."""

    def size_bytes(self, decisions):
        return 100.0 * decisions[:, 1:3].prod(axis=1) * decisions[:, 5:7].prod(axis=1)


def measured(settings, seed, num=32, batch=8):
    """Programs of rounds whose measured seconds are the analyzer's; the points of all."""
    space, score = SizedTiles(), TileScore()
    policy = settings.make(space, score, None, np.random.default_rng(seed))
    history = History(space)
    for _ in range(num // batch):
        rows = policy.propose(batch, history)
        assert len(np.unique(space.keys(rows))) == batch
        assert not np.isin(space.keys(rows), history.keys).any()
        history.add(rows, np.exp(-score(rows)))
    return np.log(np.stack([history.latency_s, space.size_bytes(history.decisions)], axis=1))


def test_fronts_beat_those_of_chance_and_of_small_latency_alone():
    pytest.importorskip("pymoo")
    for seed in range(2):
        found = {
            name: measured(settings, seed)
            for name, settings in {
                "both": ParetoSettings(settings=ROUNDS),
                "latency": ROUNDS,
                "random": RandomDraws(draws=64),
            }.items()
        }
        reference = np.concatenate(list(found.values())).max(axis=0)
        volume = {name: hypervolume(points, reference) for name, points in found.items()}
        assert volume["both"] > max(volume["latency"], volume["random"])


@pytest.mark.parametrize(("epsilon", "guided"), [(0.1, [4, 4, 4, 3]), (0.0, [4, 4, 4, 4])])
def test_a_share_of_a_batch_is_random(epsilon, guided, monkeypatch):
    """Of 16 programs a share of .1 is one; the draws of weights have the others."""
    space, score, sizes = SizedTiles(), TileScore(), []
    settings = ParetoSettings(settings=replace(ROUNDS, epsilon=epsilon))
    unset = ParetoSettings(settings=replace(ROUNDS, first_apart=None))
    assert unset.for_device(gpu=True).settings.first_apart == 0.2
    propose = DraftThenVerify.propose

    def noted(policy, num, *rest):
        sizes.append(num)
        rows = propose(policy, num, *rest)
        assert len(rows) == num
        return rows

    monkeypatch.setattr(DraftThenVerify, "propose", noted)
    rows = settings.make(space, score, None, np.random.default_rng(0)).propose(16, History(space))
    assert sizes == guided
    assert len(np.unique(space.keys(rows))) == 16
    assert np.isfinite(score(rows)).all()


def test_the_least_populations_have_parts():
    one = ExplorerSettings(population=1, generations=0, keep=1)
    settings = ParetoSettings(settings=replace(ROUNDS, draft=one, verify=one))
    policy = settings.make(SizedTiles(), TileScore(), None, np.random.default_rng(0))
    assert policy._policy._settings.draft.population == 1


def test_a_resumed_search_continues_exactly():
    space, score = SizedTiles(), TileScore()

    def policy():
        rng = np.random.default_rng(5)
        return ParetoSettings(settings=ROUNDS).make(space, score, None, rng)

    whole, history = policy(), History(space)
    first = whole.propose(8, history)
    state = whole.state()
    history.add(first, np.exp(-score(first)))
    second = whole.propose(8, history)
    resumed = policy()
    resumed.load_state(state)
    np.testing.assert_array_equal(resumed.propose(8, history), second)

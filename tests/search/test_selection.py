"""What is kept of scored programs: by hand, and no worse than chance where the score is noise."""

import numpy as np
import pytest

from pruner.search.explorer import ExplorerSettings, explore, flat_share, kept
from pruner.search.policy import weighed
from tests.search.tile_space import TileScore, TileSpace


def rng(seed=0):
    return np.random.default_rng(seed)


def test_by_score_alone_are_the_best_in_order_with_ties_as_they_come():
    score = np.array([0.0, 3.0, -np.inf, 3.0, 1.0])
    asked = rng()
    before = asked.bit_generator.state
    assert kept(score, 3, rng=asked).tolist() == [1, 3, 4]
    assert kept(score, 9, rng=asked, noise=1.0).tolist() == [1, 3, 4, 0]  # all that are legal
    assert asked.bit_generator.state == before


def test_a_copy_of_what_is_kept_waits_behind_something_else():
    # Four of four decisions in common with the best cost 0.4, one of four 0.1.
    decisions = np.array([[1, 1, 1, 1], [1, 1, 1, 1], [1, 2, 2, 2], [3, 3, 3, 3]])
    score = np.array([1.0, 0.95, 0.7, 0.5])
    near = [0.95 - 0.4, 0.7 - 0.1, 0.5]  # so the third comes before the second
    assert sorted(range(3), key=lambda n: -near[n])[0] == 1
    assert kept(score, 3, rng=rng(), decisions=decisions, apart=0.4).tolist() == [0, 2, 1]
    assert kept(score, 3, rng=rng(), decisions=decisions, apart=1.0).tolist() == [0, 3, 2]
    assert kept(score, 3, rng=rng(), decisions=decisions, apart=0.01).tolist() == [0, 1, 2]


def test_chance_has_as_large_a_share_as_the_score_cannot_tell():
    # Of ten left out, five are within 0.3 of the last of the ten kept.
    score = np.concatenate([np.linspace(2.0, 1.0, 10), np.full(5, 0.8), np.full(5, 0.0)])
    assert flat_share(score, 10, 0.3) == 0.5
    found = kept(score, 10, rng=rng(), noise=0.3)
    assert found[:5].tolist() == [0, 1, 2, 3, 4]
    assert len(set(found.tolist())) == 10
    assert np.isin(found[5:], np.arange(5, 20)).all()
    drawn = {n for seed in range(200) for n in kept(score, 10, rng=rng(seed), noise=0.3)[5:]}
    assert drawn == set(range(5, 20))  # any of those that are not kept by score
    assert kept(score, 10, rng=rng(), noise=0.1).tolist() == list(range(10))


def test_where_everything_is_flat_chance_decides_alone():
    latency_s = np.linspace(1.0, 2.0, 40)
    mistaken = 0.01 * latency_s  # the slower, the higher: but less than the noise
    best = [latency_s[kept(mistaken, 4, rng=rng(seed), noise=0.05)].min() for seed in range(4000)]
    # the least of 4 of 40 evenly spaced: rank 41 / 5 = 8.2 on average, steps of 1 / 39
    assert np.mean(best) == pytest.approx(1.0 + 7.2 / 39, abs=0.01)
    assert latency_s[kept(mistaken, 4, rng=rng())].min() > 1.9  # by score alone far worse


def test_explorers_keep_as_they_always_did_unless_asked():
    space, draft = TileSpace(), TileScore()
    plain = ExplorerSettings(population=128, generations=2, keep=32)
    first = explore(space, draft, plain, rng(3))
    again = explore(space, draft, ExplorerSettings(
        population=128, generations=2, keep=32, apart=0.0, noise=0.0
    ), rng(3))  # fmt: skip
    assert np.array_equal(first.decisions, again.decisions)
    apart = ExplorerSettings(population=128, generations=2, keep=32, apart=5.0)
    spread = explore(space, draft, apart, rng(3))

    def alike(found):
        rows = found.decisions
        same = (rows[:, None, :] == rows[None, :, :]).mean(axis=2)
        return same[np.triu_indices(len(rows), 1)].mean()

    assert len(np.unique(space.keys(spread.decisions))) == 32
    assert np.isfinite(spread.score).all()
    assert alike(spread) < alike(first)


def test_the_draft_counts_as_the_prior_beside_the_programs_that_ran():
    """Both scores in standard deviations, by hand: 5 of prior and 3 that ran."""
    rows = np.arange(4)[:, None]
    model, draft = (
        lambda wanted, values=values: np.array(values)[wanted[:, 0]]
        for values in ([0.0, 4.0, 0.0, 4.0], [1.0, 1.0, 5.0, 5.0])
    )
    ran = np.array([1e-3, np.inf, 2e-3, 3e-3])
    found = weighed(model, draft, rows, prior=5.0, latency_s=ran)(rows)
    np.testing.assert_allclose(found, [-1.0, (3 - 5) / 8, (5 - 3) / 8, 1.0])
    alone = weighed(model, draft, rows, prior=5.0, latency_s=ran[1:2])(rows)
    np.testing.assert_allclose(alone, [-1.0, -1.0, 1.0, 1.0])

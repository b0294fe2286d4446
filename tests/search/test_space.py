"""Spaces against exhaustive enumeration; chi-square tests with fixed seeds."""

import itertools

import numpy as np
import pytest

from pruner.errors import PrunerError
from pruner.program.te.skeleton import group_programs
from pruner.search.space import DecisionSpace, divisors, factorisations, unique_rows
from tests.features.matmul_skeleton import matmul_dag, matmul_steps


def every_tuple(extent: int, parts: int, limit: int) -> list[tuple[int, ...]]:
    """By brute force over all tuples."""
    return [
        lengths
        for lengths in itertools.product(range(1, extent + 1), repeat=parts)
        if extent % int(np.prod(lengths)) == 0 and lengths[-1] <= limit
    ]


def small_space(m: int = 4, n: int = 6, k: int = 2) -> DecisionSpace:
    steps = matmul_steps(m, k, n, (1, 1, 1, 1), (1, 1, 1, 1), (1, 1))
    return DecisionSpace(matmul_dag(m, k, n), group_programs([steps])[0][0].skeleton)


def chi_square(counts: np.ndarray) -> tuple[float, float]:
    """The statistic against equal shares and its 99.9 % limit (Wilson and Hilferty)."""
    expected = counts.sum() / len(counts)
    freedom = len(counts) - 1
    z = 3.09
    limit = freedom * (1 - 2 / (9 * freedom) + z * np.sqrt(2 / (9 * freedom))) ** 3
    return float(((counts - expected) ** 2 / expected).sum()), limit


TILINGS = [(12, 3, 64), (16, 2, 4), (7, 4, 64), (1, 2, 64)]


@pytest.mark.parametrize(("extent", "parts", "limit"), TILINGS)
def test_factorisations_are_all_and_only_the_legal_tuples(extent, parts, limit):
    found = [tuple(row) for row in factorisations(extent, parts, limit).tolist()]
    assert found == sorted(every_tuple(extent, parts, limit))


def test_divisors_by_brute_force():
    assert divisors(360).tolist() == [d for d in range(1, 361) if 360 % d == 0]


def test_size_is_the_product_of_the_parts():
    space = small_space()
    tuples = [len(every_tuple(e, p, 64)) for e, p in ((4, 4), (6, 4), (2, 2))]
    assert space.size == np.prod(tuples) * 3 * 3 * 5  # two vector lengths, one unroll depth


def test_samples_are_uniform_over_factorisations():
    space = small_space()
    drawn = space.sample(60_000, np.random.default_rng(1))
    assert space.contains(drawn).all()
    for tiling in space.tilings:
        rows = drawn[:, tiling.slots]
        seen, counts = np.unique(rows, axis=0, return_counts=True)
        assert len(seen) == len(tiling.table)
        statistic, limit = chi_square(counts)
        assert statistic < limit


def test_a_biased_sampler_fails_the_test():
    rng = np.random.default_rng(1)
    counts = np.bincount(rng.integers(0, 20, 60_000) * rng.integers(0, 2, 60_000), minlength=20)
    statistic, limit = chi_square(counts)
    assert statistic > limit


def test_mutations_stay_inside_and_follow_the_rule():
    space = small_space(64, 48, 32)
    rng = np.random.default_rng(2)
    parents = space.sample(40_000, rng)
    children = space.mutate(parents, rng)
    assert space.contains(children).all()
    unroll = next(c.slot for c in space.choices if c.rule == "unroll")
    changed = parents != children
    # 10 % of the mutations redraw the unroll depth, 4 of 5 draws change it.
    assert changed[:, unroll].mean() == pytest.approx(0.10 * 0.8, abs=0.01)
    assert not changed[changed[:, unroll]][:, :unroll].any()
    moved = [changed[:, t.slots].any(axis=1) for t in space.tilings]
    assert np.sum(moved, axis=0).max() == 1  # one split at a time


def test_mutation_reaches_every_tuple():
    space = small_space()
    rng = np.random.default_rng(3)
    rows = space.sample(1, rng).repeat(4000, axis=0)
    for _ in range(40):
        rows = space.mutate(rows, rng)
    for tiling in space.tilings:
        assert len(np.unique(rows[:, tiling.slots], axis=0)) == len(tiling.table)


def test_same_seed_same_draws():
    space = small_space()
    first, second = (space.sample(50, np.random.default_rng(7)) for _ in range(2))
    assert np.array_equal(first, second)


def test_unique_rows_keep_the_first_of_each():
    space = small_space()
    rows = space.sample(500, np.random.default_rng(4))
    kept = rows[unique_rows(space.keys(rows))]
    assert {tuple(r) for r in kept.tolist()} == {tuple(r) for r in rows.tolist()}
    assert len(kept) == len({tuple(r) for r in rows.tolist()})


def test_an_impossible_extent_is_refused():
    with pytest.raises(PrunerError, match="at least 1"):
        factorisations(0, 2, 64)

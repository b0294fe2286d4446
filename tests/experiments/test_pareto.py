"""Fronts of networks against every choice of programs, and volumes by hand."""

from itertools import product

import numpy as np
import pytest

from experiments.pareto.run import network_points, points_of, result_rows


def test_a_networks_front_is_that_of_all_choices_of_programs():
    pytest.importorskip("pymoo")
    rng, calls = np.random.default_rng(0), [1.0, 3.0, 2.0]
    tasks = [
        np.stack([rng.random(6), rng.integers(1, 9, 6), rng.integers(0, 4, 6)], axis=1)
        for _ in calls
    ]
    every = []
    for chosen in product(*tasks):
        latency_s, code, scratch = np.array(chosen).T
        every.append((float(latency_s @ calls), float(code.sum() + scratch.max())))
    best = {
        one
        for one in every
        if not any(o[0] <= one[0] and o[1] <= one[1] and o != one for o in every)
    }
    found = network_points(tasks, calls)
    np.testing.assert_allclose(sorted(map(tuple, found)), sorted(best))
    assert len(network_points([tasks[0], tasks[1][:0]], calls[:2])) == 0


def cell(*programs):
    trials = [program and ["t", *program] for program in programs]
    return {"calls": {"t": 1.0}, "trials": trials}


def test_a_cell_that_has_everything_has_the_whole_volume():
    """Points (e, 1), (1, e): the reference is at 1.1 e, the volume in logarithms by hand."""
    pytest.importorskip("pymoo")
    e, edge = np.e, np.log(1.1)
    cells = {
        ("pareto", 0): cell((e, 0.25, 0.75), None, (1.0, e, 0.0)),
        ("random", 0): cell((e, 0.5, 0.5), (e, 2.0, 1.0), (e, 1.0, 2.0)),
    }
    assert len(points_of(cells["pareto", 0], 2)) == 1
    rows = {(row["method"], row["trials"]): row for row in result_rows("conv2d", cells)}
    whole = 2 * edge * (1 + edge) - edge**2
    one = edge * (1 + edge)
    assert rows["pareto", 3]["hypervolume_share"] == pytest.approx(1.0)
    assert rows["random", 3]["hypervolume_share"] == pytest.approx(one / whole)
    assert rows["pareto", 3]["over_random"] == pytest.approx(whole / one)
    assert rows["pareto", 2]["hypervolume_share"] == pytest.approx(one / whole)
    assert rows["random", 3]["front_programs"] == 1
    assert rows["random", 1]["over_random"] == 1.0
    assert rows["pareto", 1]["hypervolume_share"] == pytest.approx(one / whole)

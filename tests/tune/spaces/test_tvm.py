"""Design spaces replayed by TVM, and the union of a task's spaces."""

import numpy as np
import pytest

from pruner.tune.phases import Phases
from pruner.tune.spaces.tvm import ReplaySpace
from pruner.tune.spaces.union import UnionSpace
from tests.tune.designs import designs_of

pytestmark = pytest.mark.tvm


@pytest.fixture(scope="module")
def designs():
    sizes = {"operator": "matmul", "m": 32, "n": 64, "k": 16}
    return designs_of(sizes, {"kind": "llvm", "num-cores": 4})


@pytest.fixture(scope="module")
def replayed(designs):
    return ReplaySpace(designs[0])


def test_a_vector_is_what_tvm_decided(designs, replayed):
    """Tiles of m, n (4 factors each) and k (2), then the index of the unroll depth."""
    drawn = replayed.sample(6, np.random.default_rng(0))
    assert drawn.shape == (6, 11)
    assert (drawn[:, :4].prod(axis=1) == 32).all()
    assert (drawn[:, 4:8].prod(axis=1) == 64).all()
    assert (drawn[:, 8:10].prod(axis=1) == 16).all()
    assert set(drawn[:, 10]) <= {0, 1, 2, 3}
    for row in drawn:
        (schedule,) = replayed.instantiate(row[None])
        np.testing.assert_array_equal(designs[0].vector(schedule.trace), row)


def test_mutations_stay_in_the_space(replayed):
    parents = replayed.sample(20, np.random.default_rng(1))
    children = replayed.mutate(parents, np.random.default_rng(2))
    assert (children != parents).any()
    assert (children[:, :4].prod(axis=1) == 32).all()
    assert replayed.legal(children).all()
    again = replayed.mutate(parents, np.random.default_rng(2))
    np.testing.assert_array_equal(children, again)  # TVM draws from the generator passed in
    assert (replayed.mutate(parents, np.random.default_rng(3)) != children).any()


def test_what_tvm_refuses_is_not_legal_without_a_word(replayed, caplog):
    row = replayed.sample(1, np.random.default_rng(3))[0]
    broken = row.copy()
    broken[10] = 9  # there are four unroll depths
    assert replayed.legal(np.stack([row, broken])).tolist() == [True, False]
    features = replayed.features(np.stack([broken, row]))
    assert features.failures == {0: "refused-by-tvm"}
    assert features.valid.tolist() == [False, True]
    assert caplog.text == ""


def test_a_union_draws_from_all_spaces_and_keeps_each_row_in_its_own(designs):
    phases = Phases()
    union = UnionSpace([ReplaySpace(design) for design in designs], phases)
    rng = np.random.default_rng(0)
    rows = union.sample(12, rng)
    assert set(rows[:, 0]) == set(range(len(designs)))
    assert (union.mutate(rows, rng)[:, 0] == rows[:, 0]).all()
    same = rows.copy()
    same[:, 0] = (rows[:, 0] + 1) % len(designs)
    assert not np.isin(union.keys(same), union.keys(rows)).any()  # the space is part of the key
    assert union.ranked(rows).all()
    assert np.isfinite(union.draft_score(rows)).all()
    assert None not in union.instantiate(rows[:1])
    assert phases.seconds()["sample"] > 0 < phases.seconds()["instantiate"]

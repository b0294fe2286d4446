"""Proposals of the gradient search: legal, better than random ones, and the same after a resume."""

import numpy as np
import pytest

from pruner.search.explorer import ExplorerSettings
from pruner.search.gradient import DescentSettings
from tests.tune.spaces.test_construct import resumed, search, union

pytestmark = pytest.mark.tvm

MATMUL = {"operator": "matmul", "m": 64, "n": 128, "k": 64}
POOL = {"operator": "pool", "n": 1, "c": 8, "h": 12, "w": 12, "kh": 2, "kw": 2}
POOL |= {"stride": 2, "padding": 0, "kind": "max"}
SMALL = DescentSettings(
    draft=ExplorerSettings(population=64, generations=0, keep=64), starts=32, anchors=2
)


def vectors(space, candidates):
    out = np.zeros((len(candidates), space.num_slots), np.int64)
    for row, one in zip(out, candidates, strict=True):
        row[0], row[1 : 1 + len(one.decisions)] = one.space, one.decisions
    return out


@pytest.mark.parametrize("platform", ["cpu-avx2", "a100"])
def test_a_batch_is_legal_better_than_chance_and_repeats_after_a_resume(platform):
    space = union(MATMUL, platform)
    first = search(space, SMALL)
    candidates = first.propose(8)
    found = vectors(space, candidates)
    assert len(np.unique(found, axis=0)) == 8
    assert all(one.schedule is not None for one in candidates)  # TVM accepts them
    # as many random programs as the search scored at most
    drawn = space.sample(64 + 2 * 32 * 8, np.random.default_rng(1))
    assert space.draft_score(found)[0] > space.draft_score(drawn).max()
    resumed(first, search(space, SMALL, seed=5), candidates)


def test_a_task_without_tiles_is_searched_by_mutations_and_a_line_says_so(caplog):
    space = union(POOL, "a100")
    candidates = search(space, SMALL).propose(4)
    assert len(candidates) == 4
    assert "no design space of this task has tiles" in caplog.text

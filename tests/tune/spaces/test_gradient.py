"""Proposals of the gradient search: legal, better than random ones, and the same after a resume."""

import numpy as np
import pytest

from pruner.errors import PrunerError
from pruner.models.analyzer.analyzer import load_analyzer
from pruner.search.decision_search import decision_search
from pruner.search.explorer import ExplorerSettings
from pruner.search.gradient import DescentSettings
from pruner.tune.measure.measurer import Outcome
from pruner.tune.phases import Phases
from pruner.tune.spaces.opening import open_spaces
from pruner.tune.spaces.union import UnionSpace
from tests.paths import CONF
from tests.tune.designs import designs_of

pytestmark = pytest.mark.tvm
tvm_missing = pytest.importorskip("tvm", reason="TVM 0.27 is not installed")

TARGETS = {
    "cpu-avx2": {"kind": "llvm", "mcpu": "haswell", "num-cores": 2},
    "a100": "nvidia/nvidia-a100",
}
MATMUL = {"operator": "matmul", "m": 64, "n": 128, "k": 64}
POOL = {"operator": "pool", "n": 1, "c": 8, "h": 12, "w": 12, "kh": 2, "kw": 2}
POOL |= {"stride": 2, "padding": 0, "kind": "max"}
SMALL = DescentSettings(
    draft=ExplorerSettings(population=64, generations=0, keep=64), starts=32, anchors=2
)


def union(sizes, platform, **options):
    return open_spaces(
        designs_of(sizes, TARGETS[platform]), name="x", analyzer=load_analyzer(CONF, platform),
        learns=False, phases=Phases(), log=lambda _: None, **options,
    )  # fmt: skip


def search(space, seed=0):
    rng = np.random.default_rng(seed)
    return decision_search(space, SMALL, space.draft_score, None, rng)


def vectors(space, candidates):
    out = np.zeros((len(candidates), space.num_slots), np.int64)
    for row, one in zip(out, candidates, strict=True):
        row[0], row[1 : 1 + len(one.decisions)] = one.space, one.decisions
    return out


@pytest.mark.parametrize("platform", TARGETS)
def test_a_batch_is_legal_better_than_chance_and_repeats_after_a_resume(platform):
    space = union(MATMUL, platform)
    first = search(space)
    candidates = first.propose(8)
    found = vectors(space, candidates)
    assert len(np.unique(found, axis=0)) == 8
    assert all(one.schedule is not None for one in candidates)  # TVM accepts them
    # as many random programs as the search scored at most
    drawn = space.sample(64 + 2 * 32 * 8, np.random.default_rng(1))
    assert space.draft_score(found)[0] > space.draft_score(drawn).max()

    first.observe(candidates, [Outcome(costs_s=(1e-3,))] * 8)
    resumed = search(space, seed=5)
    resumed.load_state(first.state())
    rest = vectors(space, first.propose(8))
    np.testing.assert_array_equal(vectors(space, resumed.propose(8)), rest)
    assert not {*map(tuple, rest)} & {*map(tuple, found)}


def test_a_task_without_tiles_is_searched_by_mutations_and_a_line_says_so(caplog):
    space = union(POOL, "a100")
    candidates = search(space).propose(4)
    assert len(candidates) == 4
    assert "no design space of this task has tiles" in caplog.text


def test_a_line_names_what_a_task_lacks():
    with pytest.raises(PrunerError, match=r"TVM replays all design spaces .*policy=pruner_live"):
        search(union(MATMUL, "cpu-avx2", replay_only=True))
    batched = union(MATMUL, "a100").spaces
    official = UnionSpace(batched, Phases(), load_analyzer(CONF, "a100", form="official"))
    with pytest.raises(PrunerError, match=r"draft\.form=hardware"):
        search(official)

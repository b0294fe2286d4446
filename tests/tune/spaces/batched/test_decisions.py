"""Draws and mutations of decisions against enumeration; ranges of threads of a trace."""

from collections import Counter
from itertools import product

import numpy as np
import pytest

from pruner.program.tir.apply_trace import apply_groups
from pruner.program.tir.trace import Instruction, Ref, TraceProgram
from pruner.program.tir.verify import THREADS_HIGH, THREADS_LOW
from pruner.tune.spaces.batched import decisions
from pruner.tune.spaces.batched.decisions import ChoiceDecision, TileDecision
from pruner.tune.spaces.batched.tiling import thread_ranges
from tests.program.tir_trees import blurred


def factorisations(extent, parts, limit):
    """All of them, by trying every tuple of divisors."""
    divisors = [d for d in range(1, extent + 1) if extent % d == 0]
    return {t for t in product(divisors, repeat=parts) if np.prod(t) == extent and t[-1] <= limit}


@pytest.mark.parametrize(
    ("extent", "parts", "limit"), [(12, 2, 12), (24, 3, 4), (7, 2, 1), (1, 3, 4)]
)
def test_tiles_are_drawn_uniformly_from_all_that_fit(extent, parts, limit):
    decision = TileDecision(slice(1, 1 + parts), extent, limit)
    out = np.full((20000, parts + 2), -5)
    decision.sample(out, np.random.default_rng(0))
    assert (out[:, [0, -1]] == -5).all()  # other decisions are not touched
    counts = Counter(map(tuple, out[:, 1:-1].tolist()))
    expected = factorisations(extent, parts, limit)
    assert counts.keys() == expected
    mean = len(out) / len(expected)
    assert max(abs(count - mean) for count in counts.values()) < 5 * np.sqrt(mean)


@pytest.mark.parametrize(("extent", "parts", "limit"), [(12, 2, 12), (24, 3, 4), (36, 4, 2)])
def test_a_mutation_moves_one_divisor_between_two_factors(extent, parts, limit):
    rng = np.random.default_rng(1)
    decision = TileDecision(slice(0, parts), extent, limit)
    parents = np.ones((4000, parts), np.int64)
    decision.sample(parents, rng)
    children = parents.copy()
    rows = np.arange(0, len(parents), 2)
    decision.mutate(children, rows, rng)
    assert (children[1::2] == parents[1::2]).all()  # the other rows stay
    assert set(map(tuple, children.tolist())) <= factorisations(extent, parts, limit)
    changed = (children != parents).sum(axis=1)[rows]
    assert set(changed.tolist()) <= {0, 2}
    assert (changed == 2).mean() > 0.4  # two parts: half of the draws point the wrong way


def test_what_cannot_change_says_so():
    assert not TileDecision(slice(0, 3), 1, 8).can_change()
    assert not TileDecision(slice(0, 1), 16, 16).can_change()
    assert TileDecision(slice(0, 2), 2, 2).can_change()
    assert not ChoiceDecision(0, np.ones(1)).can_change()


def test_choices_follow_their_weights_and_mutations_those_of_the_others():
    decision = ChoiceDecision(1, np.array([1.0, 2.0, 5.0]))
    rng = np.random.default_rng(2)
    out = np.zeros((16000, 2), np.int64)
    decision.sample(out, rng)
    assert np.bincount(out[:, 1]) / len(out) == pytest.approx([1 / 8, 2 / 8, 5 / 8], abs=0.02)
    out[:, 1] = 2
    decision.mutate(out, np.arange(8000), rng)
    assert np.bincount(out[:8000, 1]) / 8000 == pytest.approx([1 / 3, 2 / 3], abs=0.03)
    assert (out[8000:, 1] == 2).all()
    assert (out[:, 0] == 0).all()
    # a choice without weight is never taken
    decision = ChoiceDecision(0, np.array([1.0, 0.0, 1.0, 0.0]))
    out = np.full((500, 1), 2)
    decision.mutate(out, np.arange(500), np.random.default_rng(0))
    assert (out == 0).all()


def test_prime_powers_multiply_to_the_number():
    for number in range(1, 400):
        found = decisions.prime_powers(number)
        assert np.prod([p**e for p, e in found], initial=1) == number
        assert all(p > 1 and all(p % d for d in range(2, p)) for p, _ in found)


@pytest.mark.parametrize("num", [0, 3])
def test_programs_that_cannot_be_replayed_keep_their_location(num):
    """The replay refuses them with its reason; here there is nothing to choose from."""
    tree, _, _ = blurred(64)
    locate = Instruction("SampleComputeLocation", (Ref(0),), (), (1,), slot=0)
    program = TraceProgram(tree, (Instruction("Tensorize", (), (), ()), locate), 1, is_gpu=False)
    out = np.full((num, 1), -1)
    decision = decisions.LocationDecision(0, program)
    decision.sample(out, np.random.default_rng(0))
    decision.mutate(out, np.arange(num), np.random.default_rng(0))
    assert (out == -1).all()
    assert set(apply_groups(program, out)[1].values()) <= {"trace-instruction"}


# Two loops, tiled in three: outputs 2 to 4 and 5 to 7 are factors, 8 to 13 the loops they make.
# The middle ones are fused and bound. Decisions: three factors each, from slot 1 on.
TILED = (
    Instruction("SampleCategorical", (), (), (1,), slot=0),
    Instruction("SamplePerfectTile", (Ref(100),), (3, 64), (2, 3, 4), slot=1),
    Instruction("SamplePerfectTile", (Ref(101),), (3, 64), (5, 6, 7), slot=4),
    Instruction("Split", (Ref(100), Ref(2), Ref(3), Ref(4)), (), (8, 9, 10)),
    Instruction("Split", (Ref(101), Ref(5), Ref(6), Ref(7)), (), (11, 12, 13)),
)
BOUND = (
    Instruction("Fuse", (Ref(9), Ref(12)), (), (14,)),
    Instruction("Bind", (Ref(14),), ("threadIdx.x",), ()),
)
LIMITS = (
    Instruction("Annotate", (Ref(0), 32), (THREADS_LOW,), ()),
    Instruction("Annotate", (Ref(0), 1024), (THREADS_HIGH,), ()),
)


def test_the_threads_of_a_block_are_the_product_of_the_fused_factors_where_decisions_give_them():
    (found,) = thread_ranges([*TILED, *BOUND, *LIMITS])
    assert (found.slots, found.low, found.high) == ((2, 5), 32, 1024)
    middle = np.array([[4, 8], [4, 7], [32, 32], [32, 33]])  # 32, 28, 1024, 1056 threads
    rows = np.full((4, 7), 999)
    rows[:, [2, 5]] = middle
    assert found.holds(rows).tolist() == [True, False, True, False]
    unknown = Instruction("Fuse", (Ref(9), Ref(55)), (), (14,))
    assert thread_ranges([*TILED, unknown, BOUND[1], *LIMITS]) == []
    assert thread_ranges([*TILED, *BOUND]) == []  # and none without limits

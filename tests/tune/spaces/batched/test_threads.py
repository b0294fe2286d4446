"""Ranges of threads, read from the instructions of a trace."""

import numpy as np

from pruner.program.tir.trace import Instruction, Ref
from pruner.program.tir.verify import THREADS_HIGH, THREADS_LOW
from pruner.tune.spaces.batched.tiling import thread_ranges

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


def test_the_threads_of_a_block_are_the_product_of_the_fused_factors():
    (found,) = thread_ranges([*TILED, *BOUND, *LIMITS])
    assert (found.slots, found.low, found.high) == ((2, 5), 32, 1024)
    middle = np.array([[4, 8], [4, 7], [32, 32], [32, 33]])  # 32, 28, 1024, 1056 threads
    decisions = np.full((4, 7), 999)
    decisions[:, [2, 5]] = middle
    assert found.holds(decisions).tolist() == [True, False, True, False]


def test_a_block_whose_threads_no_decision_gives_has_no_range():
    unknown = Instruction("Fuse", (Ref(9), Ref(55)), (), (14,))
    assert thread_ranges([*TILED, unknown, BOUND[1], *LIMITS]) == []
    assert thread_ranges([*TILED, *BOUND]) == []  # and none without limits

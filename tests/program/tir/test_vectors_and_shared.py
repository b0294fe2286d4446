"""Vectors that are narrow enough and plans of shared memory, by hand."""

import numpy as np
import pytest

from pruner.program.dag.expr import Axis, Binary, Call, Const, Load
from pruner.program.index import affine as af
from pruner.program.index.affine import LoopVar
from pruner.program.nests import Buffer, Mark, Scope
from pruner.program.tir.shared import _merged, _Staged
from pruner.program.tir.tree import Binding, Block, BlockIter, LoopNode, Tree
from pruner.program.tir.verify import vectors_fit

LANES = 8
ROW, COLUMN = Axis(0), Axis(1)
STRAIGHT, TURNED = (ROW, COLUMN), (COLUMN, ROW)


def fetch(*, indices, bound=None, compared="lt", of=COLUMN, dtype="float16", step=LANES):
    """``b[i, j] = a[indices]`` of 64 x 64, where j is ``step x + lane`` with eight lanes."""
    i, x, lane = LoopVar("i", 64), LoopVar("x", 64 // step), LoopVar("lane", LANES)
    column = af.add(af.variable(lane), af.variable(x), step)
    value = Load(0, indices, dtype)
    if bound is not None:
        inside = Binary(compared, of, Const(bound), "bool")
        value = Call("if_then_else", (inside, value, Const(0.0, dtype)), dtype)
    block = Block(
        name="b",
        iters=(BlockIter("spatial", 64), BlockIter("spatial", 64)),
        bindings=[Binding(af.variable(i), {i: 1}), Binding(column, {x: step, lane: 1})],
        buffer=1,
        indices=STRAIGHT,
        value=value,
    )
    node = block
    for var in (lane, x, i):
        outer = LoopNode(var, [node], mark=Mark.VECTORIZE if var is lane else None)
        node.parent = outer
        node = outer
    root = LoopNode(LoopVar("root"), [node])
    node.parent = root
    return Tree([Buffer(k, name, dtype, (64, 64)) for k, name in enumerate("ab")], root), block


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        ({"indices": STRAIGHT}, True),  # 8 x 2 bytes, neighbours
        ({"indices": TURNED}, False),  # a vector of 8 indices that step by 64: 32 bytes
        ({"indices": STRAIGHT, "dtype": "float32"}, False),  # 8 x 4 bytes
        ({"indices": TURNED, "bound": 60}, True),  # lanes 56 to 63 part at 60: a loop
        ({"indices": TURNED, "bound": 56}, False),  # all lanes of a vector alike
        ({"indices": TURNED, "bound": 60, "compared": "eq"}, True),  # one lane of a vector
        ({"indices": TURNED, "bound": 60, "compared": "ne"}, True),
        ({"indices": TURNED, "bound": 5, "compared": "eq", "of": ROW}, False),  # no lane in it
    ],
)
def test_vectors_are_narrow_enough(given, fits):
    assert np.all(vectors_fit(*fetch(**given)) == fits)


def staged(size, first, last, dtype="float16"):
    buffer = Buffer(0, "b", dtype, (1,), Scope.SHARED, is_dynamic=True)
    return _Staged(buffer, np.array([size]), first, last)


@pytest.mark.parametrize(
    ("results", "dtype", "total"),
    [
        (1024, "float16", 8192),  # over one operand
        (8192, "float16", 4096 + 8192),  # one operand's memory grows: the other stays beside it
        (8192, "float32", 8192),  # over both
        (10000, "float32", 10000),
        (100, "float16", 8192 + 100),  # a sixteenth is still too small for what is free
    ],
)
def test_results_lie_where_operands_were(results, dtype, total):
    operands = [staged(4096, 0, 3), staged(4096, 1, 3)]
    assert _merged([*operands, staged(results, 4, 5, dtype)], 1).tolist() == [total]

"""Small block trees written by hand."""

import numpy as np

from pruner.program.dag.expr import Axis, Binary, Const, Load
from pruner.program.index import affine as af
from pruner.program.index.affine import LoopVar
from pruner.program.nests import Buffer
from pruner.program.tir import primitives
from pruner.program.tir.regions import buffer_scopes
from pruner.program.tir.tree import Binding, Block, BlockIter, LoopNode, Tree


def nested(tree, block, extents):
    """Put ``block`` under fresh loops, one for each iterator."""
    loops = [LoopVar(f"l{i}", extent) for i, extent in enumerate(extents)]
    block.bindings = [Binding(af.variable(var), {var: 1}) for var in loops]
    parent = tree.root
    for var in loops:
        node = LoopNode(var, parent=parent)
        parent.body.append(node)
        parent = node
    parent.body.append(block)
    block.parent = parent
    return block


def matmul(m, n, k):
    """C[m, n] = A[m, k] B[k, n] as one reduction block."""
    buffers = [
        Buffer(0, "A", "float32", (m, k), is_param=True),
        Buffer(1, "B", "float32", (k, n), is_param=True),
        Buffer(2, "C", "float32", (m, n), is_param=True),
    ]
    tree = Tree(buffers, LoopNode(LoopVar("root")))
    row, column, depth = Axis(0), Axis(1), Axis(2)
    own = Load(2, (row, column), "float32")
    product = Binary(
        "mul",
        Load(0, (row, depth), "float32"),
        Load(1, (depth, column), "float32"),
        "float32",
    )
    block = Block(
        name="C",
        iters=(BlockIter("spatial", m), BlockIter("spatial", n), BlockIter("reduce", k)),
        bindings=[],
        buffer=2,
        indices=(row, column),
        value=Binary("add", own, product, "float32"),
        init=Const(0.0, "float32"),
        reads=[0, 1],
    )
    return tree, nested(tree, block, (m, n, k))


def blurred(size):
    """out[i] = mid[i] + mid[i + 1], mid[i] = data[i] * 2."""
    buffers = [
        Buffer(0, "data", "float32", (size + 1,), is_param=True),
        Buffer(1, "mid", "float32", (size + 1,)),
        Buffer(2, "out", "float32", (size,), is_param=True),
    ]
    tree = Tree(buffers, LoopNode(LoopVar("root")))
    i = Axis(0)
    double = Binary("mul", Load(0, (i,), "float32"), Const(2.0, "float32"), "float32")
    mid = Block(
        name="mid",
        iters=(BlockIter("spatial", size + 1),),
        bindings=[],
        buffer=1,
        indices=(i,),
        value=double,
        reads=[0],
    )
    after = Binary("add", i, Const(1), "int32")
    both = Binary("add", Load(1, (i,), "float32"), Load(1, (after,), "float32"), "float32")
    out = Block(
        name="out",
        iters=(BlockIter("spatial", size),),
        bindings=[],
        buffer=2,
        indices=(i,),
        value=both,
        reads=[1],
    )
    nested(tree, mid, (size + 1,))
    nested(tree, out, (size,))
    return tree, mid, out


def extents(tree, block):
    """Loops around a block as (extent, mark)."""
    return [(loop.extent, loop.mark) for loop in tree.path(block)]


def tile(tree, block, factors):
    """Split the block's loops; returns the new loops of each."""
    return [
        primitives.split(tree, loop, list(f))
        for loop, f in zip(tree.path(block), factors, strict=True)
    ]


def box(tree, key):
    return [np.asarray(r.hi - r.lo + 1).tolist() for r in buffer_scopes(tree)[key].box]


def values_at(tree, block, point):
    """The iterators of a block where its loops stand at ``point``, by hand."""
    at = {loop.var: value for loop, value in zip(tree.path(block), point, strict=True)}

    def evaluate(a):
        total = a.base
        for t in a.terms:
            inner = at[t.index] if t.index in at else evaluate(t.index)
            total += t.coef * ((inner % t.upper) // t.lower)
        return int(np.asarray(total).reshape(-1)[0])

    return [evaluate(value) for value in tree.values(block)]

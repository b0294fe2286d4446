"""New layouts of buffers and their strides, by hand."""

import numpy as np
import pytest

from pruner.errors import UnsupportedProgram
from pruner.program.dag.expr import Axis, Load
from pruner.program.index import affine as af
from pruner.program.index.affine import LoopVar
from pruner.program.index.regions import evaluate_index
from pruner.program.nests import Buffer
from pruner.program.tir.layouts import (
    aligned_elements,
    old_indices,
    storage_align,
    transform_layout,
)
from pruner.program.tir.tree import Binding, Block, BlockIter, LoopNode, Tree

PARTS = np.array([2, 3])  # of 12 rows of 4: another number in each of two programs
PIECES = ((0, 4 * PARTS, 0), (1, 1, 0), (0, 4, PARTS), (0, 1, 4))


def copies():
    """``b = a`` and ``c = b`` over 48 x 5 elements."""
    tree = Tree([Buffer(key, name, "float16", (48, 5)) for key, name in enumerate("abc")], root())
    blocks = []
    for key in (1, 2):
        loops = [LoopVar("i", 48), LoopVar("j", 5)]
        axes = (Axis(0), Axis(1))
        block = Block(
            name="abc"[key],
            iters=(BlockIter("spatial", 48), BlockIter("spatial", 5)),
            bindings=[Binding(af.variable(var), {var: 1}) for var in loops],
            buffer=key,
            indices=axes,
            value=Load(key - 1, axes, "float16"),
        )
        node = block
        for var in reversed(loops):
            outer = LoopNode(var, [node])
            node.parent = outer
            node = outer
        node.parent = tree.root
        tree.root.body.append(node)
        blocks.append(block)
    return tree, blocks


def root():
    return LoopNode(LoopVar("root"))


def test_rows_become_tiles_whose_size_differs_between_programs():
    tree, (writer, reader) = copies()
    transform_layout(tree, writer, PIECES)
    outer, columns, parts, inner = tree.buffers[1].shape
    assert outer.tolist() == [6, 4]  # 48 rows in parts of 8 and of 12
    assert parts.tolist() == [2, 3]
    assert (columns, inner) == (5, 4)
    (load,) = reader.loads_of(1)
    point = {0: af.const(29), 1: af.const(3)}  # 29 = 3 * 8 + 1 * 4 + 1 = 2 * 12 + 1 * 4 + 1
    for indices in (writer.indices, load.indices):
        found = [np.broadcast_to(evaluate_index(i, point).base, 2).tolist() for i in indices]
        assert found == [[3, 2], [3, 3], [1, 1], [1, 1]]


def test_old_indices_are_what_new_ones_came_from():
    tree, (writer, _) = copies()
    transform_layout(tree, writer, PIECES)
    back = old_indices(tree.layouts[1], writer.indices)
    for row in (0, 7, 8, 29, 47):
        point = {0: af.const(row), 1: af.const(4)}
        found = [np.broadcast_to(evaluate_index(i, point).base, 2).tolist() for i in back]
        assert found == [[row, row], [4, 4]]


def test_parts_that_do_not_divide_a_buffer_are_refused():
    tree, (writer, _) = copies()
    with pytest.raises(UnsupportedProgram, match="index-map"):
        transform_layout(tree, writer, ((0, np.array([8, 10]), 0), (1, 1, 0)))


def test_rows_are_as_far_apart_as_their_writer_asks_for():
    _, (writer, _) = copies()
    assert aligned_elements(writer, (16, 64)) == 16 * 64
    storage_align(writer, 0, 32, 8)
    widths = np.array([16, 32, 40, 41, 64])
    # the next number that is 8 modulo 32
    assert aligned_elements(writer, (16, widths)).tolist() == [16 * s for s in (40, 40, 40, 72, 72)]

"""Copies of trees, whole and of some programs."""

import numpy as np

from pruner.program.tir import primitives
from pruner.program.tir.copies import Copy
from pruner.program.tir.layouts import transform_layout
from tests.program.tir_trees import blurred, extents, tile


def test_a_copy_has_loops_and_blocks_of_its_own():
    tree, _, out = blurred(64)
    copied = Copy().tree(tree, 3)
    (loop,) = copied.path(copied.find("out"))
    primitives.split(copied, loop, [None, np.array([2, 4, 8])])
    primitives.compute_inline(copied, copied.find("mid"))
    assert copied.num_programs == 3
    assert [len(extents(copied, b)) for b in copied.blocks()] == [2]
    assert [b.name for b in tree.blocks()] == ["mid", "out"]
    assert extents(tree, out) == [(64, None)]


def test_a_part_has_the_numbers_of_its_programs():
    tree, mid, out = blurred(64)
    tree.num_programs = 3
    tile(tree, out, [(None, np.array([2, 4, 4]))])
    tree.path(out)[1].absent = np.array([True, False, True])
    out.annotations["depth"] = np.array([7, 8, 9])
    copy = Copy(np.array([1, 2]))
    part = copy.tree(tree, 2)
    found = copy.nodes[out]
    assert extents(part, found) == [(16, None), (4, None)]  # the same in both: plain numbers
    assert part.path(found)[1].absent.tolist() == [False, True]
    assert found.annotations["depth"].tolist() == [8, 9]
    ((value,), (whole,)) = part.values(found), tree.values(out)
    assert [t.coef for t in value.terms] == [1, 4]
    assert [np.broadcast_to(t.coef, 3).tolist() for t in whole.terms] == [[1, 1, 1], [2, 4, 4]]
    assert copy.nodes[mid] is not mid


def test_a_part_leaves_out_loops_that_none_of_its_programs_has():
    tree, mid, out = blurred(64)
    tree.num_programs = 3
    outside = np.array([True, False, False])
    half = primitives.cut(tree, tree.path(out), [outside])
    primitives.compute_at(tree, mid, half)
    assert len(tree.path(mid)) == 3  # the half, the loop that it has where it stays, a new one
    copy = Copy(np.array([1, 2]))
    part = copy.tree(tree, 2)
    assert extents(part, copy.nodes[mid]) == [(65, None)]
    assert extents(part, copy.nodes[out]) == [(64, None)]
    assert [part.root.body[n] for n in (0, 1)] == [
        part.path(copy.nodes[block])[0] for block in (mid, out)
    ]
    (value,) = part.values(copy.nodes[out])
    assert [(t.index, t.coef) for t in value.terms] == [(part.path(copy.nodes[out])[0].var, 1)]
    assert set(part.uses(copy.nodes[mid], 0)) == {part.path(copy.nodes[mid])[0].var}


def test_numbers_of_programs_in_expressions_are_cut_too():
    tree, mid, out = blurred(63)  # mid has 64 elements
    tree.num_programs = 2
    pieces = [(0, np.array([8, 16]), 0), (0, 1, np.array([8, 16]))]
    data = tree.buffers[mid.buffer]
    out.value = out.value.a  # transform_layout wants one load
    transform_layout(tree, mid, pieces)
    part = Copy(np.array([1])).tree(tree, 1)
    assert part.buffers[data.key].shape == (4, 16)
    high, low = part.find("mid").indices
    assert high.b.value.values.tolist() == low.b.value.values.tolist() == [16]
    assert part.layouts[data.key].pieces == ((0, 16), (0, 1))
    assert [b.name for b in part.layouts[data.key].reads] == ["out"]

"""The iterators of a block from its indices, tried at every point."""

from itertools import product

import numpy as np
import pytest

from pruner.errors import UnsupportedProgram
from pruner.program.dag.expr import Axis, Binary, Const
from pruner.program.tir.layouts import iterators_of
from pruner.program.tir.tree import Block, BlockIter

OPS = {
    "add": lambda a, b: a + b, "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b, "floormod": lambda a, b: a % b,
}  # fmt: skip


def block_of(extents):
    iters = tuple(BlockIter("spatial", extent) for extent in extents)
    return Block("b", iters, [], 0, (), Const(0.0, "float32"))


def value(expr, at):
    match expr:
        case Axis(slot=slot):
            return at[slot]
        case Const(value=number):
            return number
        case Binary(op=op, a=a, b=b):
            return OPS[op](value(a, at), value(b, at))


def merged(*parts):
    """``(slot, div, mod, weight)`` summed up."""
    out = None
    for slot, div, mod, weight in parts:
        part = Axis(slot)
        if div > 1:
            part = Binary("floordiv", part, Const(div), "int64")
        if mod:
            part = Binary("floormod", part, Const(mod), "int64")
        if weight > 1:
            part = Binary("mul", part, Const(weight), "int64")
        out = part if out is None else Binary("add", out, part, "int64")
    return out


MAPS = {
    "order": ((3, 5), [Axis(1), Axis(0)]),
    "merge": ((3, 5, 4), [merged((0, 1, 0, 20), (1, 1, 0, 4), (2, 1, 0, 1))]),
    "split": ((60,), [merged((0, 20, 0, 1)), merged((0, 4, 5, 1)), merged((0, 1, 4, 1))]),
    "both": ((6, 4), [merged((0, 2, 0, 1)), merged((1, 1, 0, 2), (0, 1, 2, 1))]),
    "split and swap": ((12, 2), [merged((0, 1, 4, 1)), merged((1, 1, 0, 3), (0, 4, 0, 1))]),
    "units": ((1, 7, 1), [Const(0), Axis(1)]),
}


@pytest.mark.parametrize("name", MAPS)
def test_iterators_are_found_at_every_point(name):
    extents, indices = MAPS[name]
    found = iterators_of(block_of(extents), indices)
    seen = set()
    for at in product(*map(range, extents)):
        there = tuple(value(index, at) for index in indices)
        seen.add(there)
        assert tuple(value(iterator, there) for iterator in found) == at
    assert len(seen) == np.prod(extents)


@pytest.mark.parametrize(
    ("extents", "indices"),
    [
        ((4, 4), [merged((0, 1, 0, 2), (1, 1, 0, 1))]),  # overlapping digits
        ((4, 4), [Axis(0)]),  # one iterator is free
        ((8,), [merged((0, 2, 0, 1))]),  # the last digit is lost
        ((10,), [merged((0, 4, 0, 1)), merged((0, 1, 4, 1))]),  # the last row is not whole
        ((4,), [Axis(0), Axis(0)]),  # a diagonal
    ],
)
def test_maps_that_cannot_be_inverted_are_refused(extents, indices):
    with pytest.raises(UnsupportedProgram, match="inline-index"):
        iterators_of(block_of(extents), indices)

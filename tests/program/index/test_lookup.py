"""Indices that are no sums: what they move like, tried value by value."""

import math

import pytest

from pruner.program.dag.expr import Axis, Binary, Call, Cast, Const, Load, Not, Select
from pruner.program.index import affine as af
from pruner.program.index.affine import LoopVar
from pruner.program.index.regions import (
    UNKNOWN_WIDTH,
    Region,
    as_sum,
    evaluate_index,
    evaluate_region,
    is_sum,
)
from tests.program.nest_values import index_value

ROW, COLUMN = LoopVar("i", 224), LoopVar("j", 7)
ROOTS = {0: af.variable(ROW), 1: af.variable(COLUMN)}


def values(expr):
    found = evaluate_index(expr, ROOTS)
    return [index_value(found, {ROW: i, COLUMN: 3}) for i in range(224)]


def resized(scale, name="floor"):
    """``name((i + 0.5) * scale - 0.5)`` as an integer, clamped to the image."""
    place = Binary("add", Cast(Axis(0), "float32"), Const(0.5, "float32"), "float32")
    place = Binary("mul", place, Const(scale, "float32"), "float32")
    place = Binary("sub", place, Const(0.5, "float32"), "float32")
    index = Cast(Call(name, (place,), "float32"), "int64")
    low = Binary("min", index, Const(10_000), "int64")
    return Binary("max", low, Const(0), "int64")


@pytest.mark.parametrize("scale", [0.125, 0.25, 2.0, 1 / 3, 28 / 224])
def test_a_resized_image_is_read_where_rounding_says(scale):
    assert values(resized(scale)) == [math.floor((i + 0.5) * scale - 0.5) for i in range(224)]


@pytest.mark.parametrize(("name", "rounded"), [("ceil", math.ceil), ("trunc", math.floor)])
def test_other_roundings(name, rounded):
    """Truncation is taken for rounding down, which it is from 0 on."""
    assert values(resized(0.25, name)) == [rounded((i + 0.5) * 0.25 - 0.5) for i in range(224)]


def test_rounding_to_the_nearest():
    found = values(resized(0.3, "round"))
    assert found == [math.floor((i + 0.5) * 0.3 - 0.5 + 0.5) for i in range(224)]


def test_a_table_moves_its_access_as_the_place_it_is_read_at():
    table = Load(5, (Axis(0),), "int64")
    assert values(table) == list(range(224))
    assert values(Load(5, (), "int64")) == [0] * 224
    shifted = Binary("add", table, Axis(1), "int64")
    assert values(shifted) == [i + 3 for i in range(224)]


def test_negative_indices_and_flags():
    from_end = Binary("add", Axis(0), Const(224), "int64")
    below = Binary("lt", Axis(0), Const(0), "bool")
    assert values(Select(below, from_end, Axis(0), "int64")) == list(range(224))
    assert values(Call("if_then_else", (below, from_end, Axis(0)), "int64")) == list(range(224))
    assert values(Cast(Not(Load(1, (Axis(0),), "bool")), "int64")) == [0] * 224
    assert as_sum(Axis(0)) == Axis(0)


def test_what_is_looked_up_may_be_anything():
    region = evaluate_region(Load(5, (Axis(0),), "int64"), [Region(ROOTS[0], 0, 0)])
    assert (region.lo, region.hi) == (-UNKNOWN_WIDTH, UNKNOWN_WIDTH)
    assert is_sum(Binary("mul", Axis(0), Const(2), "int64"))
    assert not is_sum(Binary("add", Axis(0), Load(5, (), "int64"), "int64"))

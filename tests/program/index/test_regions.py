"""Regions of index expressions against every value that they take."""

from functools import reduce
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pruner.errors import UnsupportedProgram
from pruner.program.dag.expr import Axis, Binary, Const, Expr
from pruner.program.index import affine as af
from pruner.program.index.affine import LoopVar
from pruner.program.index.divide import floordiv
from pruner.program.index.regions import (
    UNKNOWN_WIDTH,
    Region,
    clip_to_shape,
    evaluate_index,
    evaluate_region,
    relax,
    union,
)
from tests.program.nest_values import OPS, index_value, of_program


@st.composite
def expressions(draw, depth=3) -> Expr:
    """Sums, products and divisions by literals of two axes."""
    if not depth or draw(st.integers(0, 3)) == 0:
        return Axis(draw(st.integers(0, 1)))
    a = draw(expressions(depth - 1))
    if draw(st.booleans()):
        op = draw(st.sampled_from(["add", "sub"]))
        return Binary(op, a, draw(expressions(depth - 1)), "int32")
    op = draw(st.sampled_from(["add", "sub", "mul", "floordiv", "floormod"]))
    return Binary(op, a, Const(draw(st.integers(1, 7))), "int32")


def value(expr: Expr, slots) -> int:
    match expr:
        case Axis(slot=slot):
            return slots[slot]
        case Const(value=number):
            return number
        case Binary(op=op, a=a, b=b):
            return OPS[op](value(a, slots), value(b, slots))
    raise NotImplementedError(expr)


def ends(region: Region, at) -> tuple[int, int]:
    start = index_value(region.start, at)
    return start + of_program(region.lo, 0), start + of_program(region.hi, 0)


@given(expressions(), st.lists(st.integers(1, 4), min_size=4, max_size=4))
def test_a_region_holds_every_value(expr, sizes):
    """Axis s is a tile of ``sizes[2 s + 1]`` elements that an outer loop moves by its length."""
    outer = [LoopVar("x", sizes[0]), LoopVar("y", sizes[2])]
    tiles = [sizes[1], sizes[3]]
    domains = [
        Region(af.mul(af.variable(var), tile), 0, tile - 1)
        for var, tile in zip(outer, tiles, strict=True)
    ]
    region = evaluate_region(expr, domains)
    for point in product(*(range(var.extent) for var in outer)):
        low, high = ends(region, dict(zip(outer, point, strict=True)))
        for inner in product(*map(range, tiles)):
            slots = [p * t + i for p, t, i in zip(point, tiles, inner, strict=True)]
            assert low <= value(expr, slots) <= high


@given(expressions(), st.integers(1, 5), st.integers(1, 5))
def test_an_index_is_the_value_of_its_expression(expr, ex, ey):
    x, y = LoopVar("x", ex), LoopVar("y", ey)
    index = evaluate_index(expr, {0: af.variable(x), 1: af.add(af.variable(y), af.const(2))})
    for i, j in product(range(ex), range(ey)):
        assert index_value(index, {x: i, y: j}) == value(expr, [i, j + 2])


def test_a_window_of_a_convolution_is_exact():
    """``2 y + r`` with y in a tile of 4 and r in 0..2: 2 * 3 + 2 + 1 = 9 rows from 8 y.outer on."""
    y, tiles = LoopVar("y", 5), Region(af.const(0), 0, 2)
    row = Binary("add", Binary("mul", Axis(0), Const(2), "int32"), Axis(1), "int32")
    region = evaluate_region(row, [Region(af.mul(af.variable(y), 4), 0, 3), tiles])
    assert [ends(region, {y: i}) for i in range(5)] == [(8 * i, 8 * i + 8) for i in range(5)]


@pytest.mark.parametrize(("start", "expected"), [(8, (0, 3)), (6, (0, 3))])
def test_a_modulo_of_numbers_is_exact_inside_one_period(start, expected):
    """8..11 mod 4 is 0..3; 6..9 crosses a multiple of 4, and any rest is possible."""
    region = Region(af.const(start), 0, 3)
    found = evaluate_region(Binary("floormod", Axis(0), Const(4), "int32"), [region])
    assert ends(found, {}) == expected
    short = evaluate_region(
        Binary("floormod", Axis(0), Const(8), "int32"), [Region(af.const(10), 0, 2)]
    )
    assert ends(short, {}) == (2, 4)


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 4)), min_size=1, max_size=4))
def test_a_union_is_the_smallest_interval_around_all(parts):
    x = LoopVar("x", 7)
    start = af.mul(af.variable(x), 3)
    regions = [Region(af.add(start, af.const(s)), 0, w) for s, w in parts]
    low, high = ends(union(regions), {x: 2})
    assert (low, high) == (6 + min(s for s, _ in parts), 6 + max(s + w for s, w in parts))


def test_a_union_of_regions_that_move_apart_has_no_known_width():
    x, y = (af.variable(LoopVar(name, 4)) for name in "xy")
    assert of_program(union([Region(x, 0, 1), Region(y, 0, 1)]).hi, 0) >= UNKNOWN_WIDTH


def test_relaxed_loops_run_over_their_range():
    """``8 o - 2 i + [0, 1]`` with i in 0..3 is ``8 o + [-6, 1]``."""
    o, i = LoopVar("o", 5), LoopVar("i", 4)
    region = Region(af.add(af.mul(af.variable(o), 8), af.variable(i), -2), 0, 1)
    assert ends(relax(region, {i}), {o: 3}) == (24 - 6, 24 + 1)
    assert ends(relax(region, {i, o}), {}) == (-6, 32 + 1)
    fused = af.add(af.variable(o), af.variable(i))
    index = af.Affine([af.Term(fused, 2, af.INF, 1)])
    with pytest.raises(UnsupportedProgram, match="mixed-relax"):
        relax(Region(index, 0, 0), {i})


def test_a_quotient_that_moves_in_part_has_no_known_width():
    """``(o + p + i + j) div 2`` where i and j run: of programs that lack some of the loops only the
    first moves in part.
    """
    sizes = np.array([[5, 2, 4, 3], [5, 2, 1, 1], [1, 1, 4, 3]])
    o, p, i, j = (LoopVar(name, size) for name, size in zip("opij", sizes.T, strict=True))
    total = reduce(af.add, map(af.variable, (o, p, i, j)))
    region = relax(Region(floordiv(total, 2), 0, 0), {i, j}, partly=True)
    assert (region.hi - region.lo >= UNKNOWN_WIDTH).tolist() == [True, False, False]
    start = [index_value(region.start, {o: 4, p: 1}, program) for program in range(3)]
    assert (start + region.lo)[1:].tolist() == [2, 0]
    assert (start + region.hi)[1:].tolist() == [2, 2]


def test_what_covers_an_axis_is_the_axis():
    assert ends(clip_to_shape(Region(af.const(-1), 0, 11), 10), {}) == (0, 9)
    assert ends(clip_to_shape(Region(af.const(1), 0, 11), 10), {}) == (1, 12)  # not the first


def test_what_is_no_index_is_refused():
    both = [Region(af.variable(LoopVar(n, 4)), 0, 0) for n in "xy"]
    for op in ("mul", "floordiv"):
        with pytest.raises(UnsupportedProgram, match="index-expression"):
            evaluate_region(Binary(op, Axis(0), Axis(1), "int32"), both)

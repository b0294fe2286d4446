"""Sums, products, choices and bounds of index expressions: two programs, all iterations."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pruner.program.index import affine as af
from pruner.program.index.affine import INF, Affine, LoopVar, Term
from tests.program.nest_values import index_value

small = st.integers(-6, 6)
pairs = st.tuples(small, small).map(np.array)
positive = st.tuples(st.integers(1, 6), st.integers(1, 6)).map(np.array)


@st.composite
def sums(draw, loops):
    """``base + sum of coef * ((loop mod upper) div lower)``, other numbers in each program."""
    total = af.const(draw(pairs))
    for _ in range(draw(st.integers(0, 3))):
        upper = draw(st.one_of(st.just(INF), positive.map(lambda x: x + 1)))
        term = Term(draw(st.sampled_from(loops)), draw(positive), upper, draw(pairs))
        total = af.add(total, Affine([term]))
    return total


@st.composite
def cases(draw):
    """Two sums over two loops, whose lengths differ between the programs."""
    loops = [LoopVar("x", draw(positive)), LoopVar("y", draw(positive))]
    return loops, draw(sums(loops)), draw(sums(loops))


def everywhere(loops):
    """Every iteration of both programs."""
    for program in range(2):
        for point in product(*(range(loop.extent[program]) for loop in loops)):
            yield program, dict(zip(loops, point, strict=True))


@given(cases(), pairs, st.tuples(st.booleans(), st.booleans()).map(np.array))
def test_arithmetic_is_that_of_the_values(case, scale, chosen):
    loops, a, b = case
    total, scaled, picked = af.add(a, b, scale), af.mul(a, scale), af.select(chosen, a, b)
    for program, at in everywhere(loops):
        x, y, k = index_value(a, at, program), index_value(b, at, program), int(scale[program])
        assert index_value(total, at, program) == x + k * y
        assert index_value(scaled, at, program) == k * x
        assert index_value(picked, at, program) == (x if chosen[program] else y)


@given(cases())
def test_no_value_is_outside_the_bounds(case):
    loops, a, _ = case
    low, high = (np.broadcast_to(x, 2) for x in af.bounds(a))
    for program, at in everywhere(loops):
        assert low[program] <= index_value(a, at, program) <= high[program]


@given(cases())
def test_a_constant_has_one_value_and_zero_is_zero(case):
    loops, a, _ = case
    constant, zero = (np.broadcast_to(m, 2) for m in (af.is_constant(a), af.is_zero(a)))
    for program in range(2):
        values = {index_value(a, at, p) for p, at in everywhere(loops) if p == program}
        assert not constant[program] or len(values) == 1
        assert not zero[program] or values == {0}


def test_what_is_taken_from_itself_is_zero():
    x, y = (LoopVar(name, np.array([4, 1])) for name in "xy")
    a = af.add(af.add(af.variable(x), af.variable(y), 3), af.const(np.array([2, 5])))
    assert np.all(af.is_zero(af.add(a, a, -1)))
    assert not np.any(af.is_zero(af.add(a, a, np.array([-2, -3]))))


@pytest.mark.parametrize("inner", [1, 2, 3])
def test_the_parts_of_a_divided_loop_join_where_they_fit(inner):
    """``(f div 6) * 6 / c + (f mod 6) div c`` is ``f div c`` for every c that divides 6."""
    f = LoopVar("f", 24)
    high, low = Term(f, 6, INF, 6 // inner), Term(f, inner, 6, 1)
    (term,) = af.add(Affine([high]), Affine([low])).terms
    assert (int(term.lower), int(term.upper), int(term.coef)) == (inner, INF, 1)
    apart = af.add(Affine([Term(f, 6, INF, 5)]), Affine([low]))
    assert len(apart.terms) == 2  # 5 (f div 6) + ...: no such rule


def test_terms_of_different_programs_share_a_place():
    """The first program has ``2 x div 3``, the second ``5 x``: one term for both."""
    x = LoopVar("x", np.array([9, 9]))
    first = Affine([Term(x, 3, INF, np.array([2, 0]))])
    second = Affine([Term(x, 1, INF, np.array([0, 5]))])
    both = af.add(first, second)
    assert len(both.terms) == 1
    for value in range(9):
        assert index_value(both, {x: value}, 0) == 2 * (value // 3)
        assert index_value(both, {x: value}, 1) == 5 * value


def test_a_limit_tightens_the_upper_bound_and_is_lost_in_arithmetic():
    x = LoopVar("x", 32)
    guarded = af.with_limit(af.variable(x), 24)
    assert tuple(map(int, af.bounds(guarded))) == (0, 23)
    two = af.add(af.variable(x), af.variable(LoopVar("y", 4)))
    assert int(af.bounds(af.with_limit(two, 10))[1]) == 9
    assert int(af.bounds(af.add(af.with_limit(two, 10), af.const(1)))[1]) == 31 + 3 + 1


def test_a_loop_of_one_iteration_is_absent():
    assert af.variable(LoopVar("x", 1)).terms == []
    (term,) = af.variable(LoopVar("x", np.array([1, 4]))).terms
    assert term.coef.tolist() == [0, 1]

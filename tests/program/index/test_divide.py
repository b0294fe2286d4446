"""Simplified index arithmetic means what it says: compared with plain integer arithmetic."""

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pruner.program.index import affine as af
from pruner.program.index.affine import INF, Affine, LoopVar
from pruner.program.index.divide import floordiv, floormod, opened


def value_of(a: Affine, at: dict[LoopVar, int], program: int = 0) -> int:
    """Value of an index in one iteration of one program."""

    def pick(x):
        return int(np.broadcast_to(x, (2,))[program])

    total = pick(a.base)
    for t in a.terms:
        index = at[t.index] if isinstance(t.index, LoopVar) else value_of(t.index, at, program)
        if not pick(t.coef):
            continue
        inner = index if pick(t.upper) >= INF else index % pick(t.upper)
        total += pick(t.coef) * (inner // pick(t.lower))
    return total


def divisions_left(a: Affine) -> int:
    """Divisions that are left."""
    count = 0
    for t in a.terms:
        count += int(np.any(t.lower != 1)) + int(np.any(t.upper < INF))
        count += divisions_left(t.index) if isinstance(t.index, Affine) else 0
    return count


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["add", "mul", "div", "mod", "x", "y"]), st.integers(1, 12)),
    min_size=1,
    max_size=6,
)


@given(st.integers(1, 9), st.integers(1, 9), OPERATIONS, st.integers(0, 5))
def test_simplified_arithmetic_has_the_same_value_everywhere(ex, ey, operations, shift):
    x, y = LoopVar("x", ex), LoopVar("y", ey)
    index = af.add(af.add(af.variable(x), af.const(shift)), af.variable(y), 7)
    expected = {(i, j): i + shift + 7 * j for i, j in product(range(ex), range(ey))}
    for name, k in operations:
        if name == "add":
            index, step = af.add(index, af.const(k)), lambda v, i, j, k=k: v + k
        elif name == "mul":
            index, step = af.mul(index, k), lambda v, i, j, k=k: v * k
        elif name == "div":
            index, step = floordiv(index, k), lambda v, i, j, k=k: v // k
        elif name == "mod":
            index, step = floormod(index, k), lambda v, i, j, k=k: v % k
        elif name == "x":
            index, step = af.add(index, af.variable(x), k), lambda v, i, j, k=k: v + k * i
        else:
            index, step = af.add(index, af.variable(y), -k), lambda v, i, j, k=k: v - k * j
        expected = {(i, j): step(v, i, j) for (i, j), v in expected.items()}
    low, high = af.bounds(index)
    for (i, j), wanted in expected.items():
        assert value_of(index, {x: i, y: j}) == wanted
        assert value_of(opened(index), {x: i, y: j}) == wanted
        assert low <= wanted <= high


@given(st.lists(st.integers(1, 6), min_size=2, max_size=2), st.integers(2, 12), st.integers(2, 12))
def test_two_programs_at_once_are_each_right(extents, first, second):
    x, y = LoopVar("x", np.array(extents)), LoopVar("y", np.array(extents[::-1]))
    stride = np.array([first, second])
    index = af.add(af.variable(x), af.variable(y), stride)
    quotient, rest = floordiv(index, first), floormod(index, second)
    for program in range(2):
        for i, j in product(range(extents[program]), range(extents[1 - program])):
            at = {x: i, y: j}
            whole = i + int(stride[program]) * j
            assert value_of(quotient, at, program) == whole // first
            assert value_of(rest, at, program) == whole % second


def test_a_fused_index_put_together_again_has_no_division():
    f = LoopVar("f", 24)
    index = af.variable(f)
    again = af.add(floormod(index, 6), floordiv(index, 6), 6)
    assert divisions_left(again) == 0
    assert value_of(again, {f: 17}) == 17


def test_a_guard_drops_a_modulo():
    f = LoopVar("f", 32)
    assert divisions_left(floormod(af.variable(f), 24)) == 1
    assert divisions_left(floormod(af.with_limit(af.variable(f), 24), 24)) == 0


def test_quotients_below_the_modulus_need_none():
    f = LoopVar("f", 24)
    assert divisions_left(floormod(floordiv(af.variable(f), 6), 4)) == 1


def test_a_tile_that_the_divisor_divides_leaves_the_sum():
    outer, inner = LoopVar("outer", 5), LoopVar("inner", 8)
    index = af.add(af.variable(inner), af.variable(outer), 8)
    assert divisions_left(floordiv(index, 8)) == 0
    assert divisions_left(floormod(index, 8)) == 0
    assert divisions_left(floordiv(index, 3)) == 1
